"""Hand-overs of the ordered modes in a worker: what ends a lane, what is given back, what waits for a commit."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rocketcrew.remoting.errors import ProtocolError
from rocketcrew.workers.api import (
    BatchResult,
    Commit,
    Handler,
    Retry,
    Rollback,
    SoftTimeLimitExceeded,
    Suspend,
    handler,
)
from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.cells import CHUNK_ID, KEYS_OF, LAST, RECALLED, RECORDS, STATE
from rocketcrew.workers.failures import Cause, Failure
from rocketcrew.workers.memory_watch import LeavingError
from rocketcrew.workers.message import Message
from rocketcrew.workers.ordered_packets import (
    CONSUMED,
    KEYS,
    RETURNED,
    Classify,
    OrderedDescriptor,
    Returned,
    decode_consumed,
    decode_keys,
    decode_returned,
    encode_classify,
    encode_ordered,
)
from rocketcrew.workers.packets import REPORTS, QueueInfo, decode_reports, encode_forget, encode_queue, encode_seal

Make = Callable[..., Any]
ReadReady = Callable[[Path], pa.Table]
OTHER = QueueInfo("group", "TopicTest", "broker-a", 4)
MS = 1_000_000

Done = tuple[int, int, int]
"""Chunk, first record, records: a success."""
Said = Done | Returned | int
"""What a worker said: successes, what it gave back, chunks that wait for a commit."""


class Chunk:
    """One chunk of a dispatch: numbered records, from `first` on."""

    def __init__(
        self,
        records: Sequence[bytes],
        chunk_id: int = 1,
        *,
        lane: int = 0,
        handle: int = 1,
        tried: tuple[int, ...] = (),
    ) -> None:
        self.data, self.count = b"".join(records), len(records)
        self.chunk_id, self.lane, self.handle, self.tried = chunk_id, lane, handle, tried


def hand_over(b: Any, *chunks: Chunk, start_before_ns: int = 0) -> list[Said]:
    """Send the chunks as one dispatch, let the worker run them; its reports, in order."""
    described = [
        OrderedDescriptor(chunk.chunk_id, chunk.handle, 0, len(chunk.data), chunk.count, chunk.lane, chunk.tried)
        for chunk in chunks
    ]
    b.link.send(encode_ordered(described, start_before_ns), b"".join(chunk.data for chunk in chunks))
    b.steps(4)
    return said(b)


def said(b: Any) -> list[Said]:
    found: list[Said] = []
    for packet in b.packets():
        if packet[0] == REPORTS:
            entries, failures = decode_reports(packet)
            assert not failures, "outcomes tell of successes only"
            found += [(entry.chunk_id, entry.start, entry.records) for entry in entries]
        elif packet[0] == RETURNED:
            found.append(decode_returned(packet))
        elif packet[0] == CONSUMED:
            found.append(decode_consumed(packet))
    return found


@pytest.fixture
def numbered(make_record: Make) -> Callable[..., list[bytes]]:
    """Records whose bodies are their offsets."""

    def make(first: int, end: int, **more: Any) -> list[bytes]:
        return [make_record(b"%d" % n, offset=n, **more) for n in range(first, end)]

    return make


def number(message: Message) -> int:
    return int(message.body)


# --- what fails ends its lane -----------------------------------------------------------------------------------------


def test_chunks_run_in_order_and_are_reported_once(bench: Make, numbered: Make) -> None:
    seen: list[int] = []
    b = bench(lambda message: seen.append(number(message)))
    assert hand_over(b, Chunk(numbered(0, 3)), Chunk(numbered(3, 5), 2)) == [(1, 0, 3), (2, 0, 2)]
    assert seen == [0, 1, 2, 3, 4]
    assert b.cell[STATE] == 0


def test_what_fails_comes_back_with_all_behind_it_in_its_lane(bench: Make, numbered: Make) -> None:
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(number(message))
        if number(message) == 1:
            raise ValueError("no")

    b = bench(handle)
    found = hand_over(
        b, Chunk(numbered(0, 3)), Chunk(numbered(10, 12), 2, lane=1), Chunk(numbered(3, 5), 3),
        Chunk(numbered(12, 13), 4, lane=1),
    )  # fmt: skip
    assert seen == [0, 1, 10, 11, 12]
    # What was done is known before what is given back.
    assert found[:3] == [(1, 0, 1), (2, 0, 2), (4, 0, 1)]
    [failed, behind] = found[3:]
    line = handle.__code__.co_firstlineno + 3
    assert failed == Returned(1, 1, 1, Failure(Cause.FAILED, f"ValueError: no (test_ordered.py:{line})"), -1)
    assert behind == Returned(3, 0)
    [event] = b.log.events
    assert (event["event"], event["offset"], event["topic"]) == ("message_failed", 1, "TopicTest")
    assert "raise ValueError" in event["exception"]


def test_a_worker_that_lacks_descriptors_begins_nothing_more_and_leaves_after_the_failure_is_told(
    bench: Make, numbered: Make
) -> None:
    """Else its successors would fail by the same message without end."""
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(number(message))
        if number(message) == 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    b = bench(handle)
    b.worker._descriptors._free = lambda: 0
    with pytest.raises(LeavingError):
        hand_over(b, Chunk(numbered(0, 3)), Chunk(numbered(10, 12), 2, lane=1))
    assert seen == [0, 1]
    done, failed, behind = said(b)
    assert (done, behind) == ((1, 0, 1), Returned(2, 0))
    assert isinstance(failed, Returned)
    assert failed[:3] == (1, 1, 1)


@pytest.mark.parametrize(
    ("outcome", "cause", "level", "wait_ms"),
    [
        (Suspend(), Cause.FAILED, 0, -1),
        (Suspend(500), Cause.FAILED, 0, 500),
        (Suspend(1), Cause.FAILED, 0, 10),
        (Suspend(1_000_000), Cause.FAILED, 0, 30_000),
        (Retry(), Cause.FAILED, 0, -1),
        (Retry(5), Cause.FAILED, 5, -1),
        (Retry(-1), Cause.GIVEN_UP, 0, -1),
        (ValueError("no"), Cause.FAILED, 0, -1),
        (SystemExit(3), Cause.FAILED, 0, -1),
        (SoftTimeLimitExceeded(), Cause.TIME_LIMIT, 0, -1),
    ],
)
@pytest.mark.parametrize("returned", [False, True])
def test_how_long_is_waited_and_who_gives_up(
    bench: Make, numbered: Make, outcome: BaseException, cause: Cause, level: int, wait_ms: int, returned: bool
) -> None:
    def handle(_: Message) -> object:
        if returned:
            return outcome
        raise outcome

    [answer] = hand_over(bench(handle), Chunk(numbered(0, 2)))
    assert isinstance(answer, Returned)
    failure = answer.failure
    assert failure is not None
    assert (*answer[:3], failure.cause, failure.level, answer.suspend_ms) == (1, 0, 1, cause, level, wait_ms)


@pytest.mark.parametrize(
    ("error", "event", "outcome"),
    [
        (ValueError("no"), "message_failed", "failed"),
        (Retry(2, "later"), "message_held", "held"),
        (Retry(-1, "never"), "message_held", "given_up"),
        (Suspend(1_000, "not yet"), "message_held", "held"),
    ],
)
def test_the_line_of_a_failed_message_has_its_outcome_and_how_long_its_call_took(
    bench: Make, numbered: Make, error: BaseException, event: str, outcome: str
) -> None:
    def handle(_: Message) -> None:
        b.clock.advance_ms(75)
        raise error

    b = bench(handle)
    hand_over(b, Chunk(numbered(0, 2)))
    (line,) = b.log.events
    assert (line["event"], line["offset"], line["outcome"], line["duration_ms"]) == (event, 0, outcome, 75)


def test_attempts_that_were_made_here_are_counted(bench: Make, make_record: Make) -> None:
    seen: list[tuple[int, int]] = []
    b = bench(lambda message: seen.append((number(message), message.reconsume_times)))
    records = [
        make_record(b"0", offset=0),
        make_record(b"1", offset=1, reconsume_times=4, born_host="2001:db8::1"),
        make_record(b"2", offset=2, reconsume_times=1, born_host="2001:db8::1", store_host="2001:db8::2"),
    ]
    hand_over(b, Chunk(records, tried=(2, 1)))
    hand_over(b, Chunk(records[2:], 2, tried=(6,)))
    assert seen == [(0, 2), (1, 5), (2, 1), (2, 7)]


# --- time -----------------------------------------------------------------------------------------------------------------


def test_nothing_is_started_after_its_time(bench: Make, numbered: Make) -> None:
    """The lock of the queue may be another member's then."""
    b = bench(lambda _: b.clock.advance_ms(10))
    until = b.clock() + 25 * MS
    found = hand_over(b, Chunk(numbered(0, 5)), Chunk(numbered(10, 12), 2, lane=1), start_before_ns=until)
    assert found[-2:] == [Returned(1, 3), Returned(2, 0)]
    done = [each for each in found[:-2] if isinstance(each, tuple)]
    assert sum(records for _, _, records in done) == 3  # type: ignore[misc]
    assert hand_over(b, Chunk(numbered(3, 4), 3), start_before_ns=0) == [(3, 0, 1)], "0 = no limit"


def test_nothing_more_is_started_of_what_is_recalled(bench: Make, numbered: Make) -> None:
    """A queue leaves: its next owner runs what has not begun."""
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.queue_offset)
        if message.queue_offset == 1:
            b.cell[RECALLED] = 1  # dispatch

    b = bench(handle)
    found = hand_over(b, Chunk(numbered(0, 4)), Chunk(numbered(4, 5), 2, lane=1))
    assert [each for each in found if isinstance(each, Returned)] == [Returned(1, 2), Returned(2, 0)]
    hand_over(b, Chunk(numbered(7, 9), 3))
    assert seen == [0, 1, 7, 8], "what comes after it is run"


def test_successes_are_reported_while_a_chunk_goes_on(bench: Make, numbered: Make) -> None:
    reported: list[list[Said]] = []

    def handle(_: Message) -> None:
        reported.append(said(b))
        b.clock.advance_ms(3)

    b = bench(handle)
    rest = hand_over(b, Chunk(numbered(0, 4)))
    assert reported == [[], [], [(1, 0, 2)], []]
    assert rest == [(1, 2, 2)]


def test_the_cell_names_the_message_in_hand(bench: Make, numbered: Make) -> None:
    seen: list[tuple[int, int, int]] = []
    b = bench(lambda _: seen.append((b.cell[STATE] - 1, b.cell[RECORDS], b.cell[LAST])))
    hand_over(b, Chunk(numbered(7, 9)))
    assert seen == [(7, 1, 7), (8, 1, 8)]


# --- records that are none, filters, batches --------------------------------------------------------------------------


def test_a_damaged_body_fails_at_its_place(bench: Make, numbered: Make, spoil: Make) -> None:
    records = numbered(0, 3)
    b = bench(lambda message: message.body and None)
    done, failed = hand_over(b, Chunk([records[0], spoil(records[1]), records[2]]))
    assert done == (1, 0, 1)
    assert isinstance(failed, Returned)
    assert failed[:3] == (1, 1, 1)
    assert "checksum" in str(failed.failure)


def test_a_chunk_that_is_none_fails_at_its_first_record(bench: Make, numbered: Make) -> None:
    b = bench(lambda _: None)
    chunk = Chunk(numbered(0, 3))
    chunk.count = 2
    [failed] = hand_over(b, chunk)
    assert isinstance(failed, Returned)
    assert failed[:3] == (1, 0, 1)
    assert b.log.events[0]["event"] == "chunk_undecodable"


def test_what_is_not_wanted_is_done(bench: Make, make_record: Make, queue: QueueInfo) -> None:
    seen: list[int] = []
    b = bench(lambda message: seen.append(number(message)))
    b.queue(queue._replace(tags=("a",)), 2)
    records = [make_record(b"%d" % n, offset=n, properties={"TAGS": tag}) for n, tag in enumerate("aba")]
    assert hand_over(b, Chunk(records, handle=2)) == [(1, 0, 3)]
    assert seen == [0, 2]


def test_an_inner_batch_is_one_record(bench: Make, make_inner_batch: Make, numbered: Make) -> None:
    def handle(message: Message) -> None:
        if message.body == b"bad":
            raise ValueError("no")

    b = bench(handle)
    good, bad = make_inner_batch([b"1", b"2"], offset=0), make_inner_batch([b"3", b"bad"], offset=2)
    done, failed = hand_over(b, Chunk([good, bad, *numbered(4, 5)]))
    assert done == (1, 0, 1)
    assert isinstance(failed, Returned)
    assert failed[:3] == (1, 1, 1)


@pytest.mark.parametrize(
    "failing", [lambda: ValueError("no"), lambda: "no row", lambda: iter([{"n": 1}, "no row"]), lambda: 1 // 0]
)
def test_behind_what_an_inner_batch_returned_as_a_failure_nothing_begins(
    bench: Make, tmp_path: Path, make_inner_batch: Make, numbered: Make, failing: Callable[[], object]
) -> None:
    seen: list[bytes] = []

    def handle(message: Message) -> object:
        seen.append(message.body)
        return failing() if message.body == b"bad" else None

    b = bench(handle, schema="n BIGINT", folder=tmp_path)
    told: list[tuple[int, bytes]] = []
    b.worker.report_failures(lambda _queue, message, _error: told.append((message.queue_offset, message.body)))
    [failed] = hand_over(b, Chunk([make_inner_batch([b"1", b"bad", b"2"], offset=0), *numbered(3, 5)]))
    assert isinstance(failed, Returned)
    assert failed[:3] == (1, 0, 1)
    assert seen == [b"1", b"bad"]
    assert told == [(1, b"bad")], "the message that failed, not the first of its record"
    assert [event["offset"] for event in b.log.events if event["event"] == "message_failed"] == [1]


def test_a_rollback_that_counts_as_a_success_skips_nothing_of_an_inner_batch(
    bench: Make, make_inner_batch: Make
) -> None:
    seen: list[bytes] = []

    def handle(message: Message) -> None:
        seen.append(message.body)
        if message.body == b"1":
            raise Rollback

    assert hand_over(bench(handle), Chunk([make_inner_batch([b"1", b"2", b"3"], offset=0)])) == [(1, 0, 1)]
    assert seen == [b"1", b"2", b"3"]


def test_of_a_batch_what_stands_before_the_failure_is_done(bench: Make, numbered: Make) -> None:
    sizes: list[int] = []

    @handler(batch=True, order="queue")
    def handle(messages: list[Message]) -> BatchResult | None:
        sizes.append(len(messages))
        return BatchResult(ack_index=1) if number(messages[0]) == 3 else None

    b = bench(handle, bounds=WorkerBounds(batch_messages_max=3))
    done, failed = hand_over(b, Chunk(numbered(0, 8)))
    assert sizes == [3, 3]
    assert done == (1, 0, 5)
    assert isinstance(failed, Returned)
    assert failed[:3] == (1, 5, 1)
    assert "ack_index is 1" in str(failed.failure)


def test_a_batch_that_raises_fails_as_a_whole(bench: Make, numbered: Make) -> None:
    @handler(batch=True)
    def handle(messages: list[Message]) -> None:
        raise Suspend(200)

    [failed] = hand_over(bench(handle, bounds=WorkerBounds(batch_messages_max=3)), Chunk(numbered(0, 5)))
    assert isinstance(failed, Returned)
    assert (*failed[:3], failed.suspend_ms) == (1, 0, 3, 200)


# --- rows -----------------------------------------------------------------------------------------------------------------


def test_plain_rows_are_converted_with_their_block(
    bench: Make, numbered: Make, tmp_path: Path, read_ready: ReadReady
) -> None:
    """One by one they took 70 us each. They wait for one another while the supervisor can ask for them."""

    def handle(message: Message) -> object:
        b.clock.advance_ms(4)
        return {"a": number(message)}

    b = bench(handle, schema="a int", folder=tmp_path, bounds=WorkerBounds(flush_interval_us=5_000))
    b.worker.offer_reports()
    assert hand_over(b, Chunk(numbered(0, 25))) == [(1, 0, 10), (1, 10, 10), (1, 20, 5)]
    b.link.send(encode_seal())
    b.steps(1)
    assert read_ready(tmp_path)["a"].to_pylist() == list(range(25))


def test_rows_of_what_is_done_are_kept_and_of_what_fails_are_not(
    bench: Make, numbered: Make, tmp_path: Path, read_ready: ReadReady
) -> None:
    seen: list[int] = []

    def handle(message: Message) -> object:
        seen.append(number(message))
        return {"a": "no number"} if number(message) == 2 else {"a": number(message)}

    b = bench(handle, schema="a int", folder=tmp_path)
    done, failed = hand_over(b, Chunk(numbered(0, 4)))
    assert done == (1, 0, 2)
    assert isinstance(failed, Returned)
    assert failed[:3] == (1, 2, 1)
    assert seen == [0, 1, 2], "a row that does not fit is known before the next message begins"
    b.link.send(encode_seal())
    b.steps(1)
    assert read_ready(tmp_path).column("a").to_pylist() == [0, 1]


# --- commits by the handler -------------------------------------------------------------------------------------------


def committing(function: Callable[[Message], object]) -> Handler:
    return handler(order="queue", auto_commit=False)(function)


def test_what_is_not_committed_waits(bench: Make, numbered: Make, tmp_path: Path, read_ready: ReadReady) -> None:
    """A commit counts for all chunks of its queue since the last one, and for no other queue."""

    def handle(message: Message) -> object:
        row = {"a": number(message)}
        return Commit(row) if number(message) == 4 else row

    b = bench(committing(handle), schema="a int", folder=tmp_path)
    b.queue(OTHER, 2)
    assert hand_over(b, Chunk(numbered(0, 2))) == [1]
    assert hand_over(b, Chunk(numbered(10, 12), 2, handle=2, lane=1)) == [2]
    assert hand_over(b, Chunk(numbered(2, 7), 3)) == [(1, 0, 2), (3, 0, 3), 3]
    b.link.send(encode_seal())
    b.steps(1)
    assert read_ready(tmp_path).column("a").to_pylist() == [0, 1, 2, 3, 4]


def test_a_rollback_gives_back_all_since_the_last_commit(
    bench: Make, numbered: Make, tmp_path: Path, read_ready: ReadReady
) -> None:
    rolled: list[int] = []

    def handle(message: Message) -> object:
        if number(message) == 5 and not rolled:
            rolled.append(5)
            raise Rollback(70, "again")
        row = {"a": number(message)}
        return Commit(row) if number(message) in (1, 6) else row

    b = bench(committing(handle), schema="a int", folder=tmp_path)
    assert hand_over(b, Chunk(numbered(0, 4))) == [(1, 0, 2), 1]
    found = hand_over(b, Chunk(numbered(4, 8), 2))
    # Nobody is charged with an attempt; only the queue waits.
    assert found == [Returned(1, 2), Returned(2, 0, suspend_ms=70)]
    assert [event["event"] for event in b.log.events] == ["rolled_back"]
    assert hand_over(b, Chunk(numbered(2, 4), 3)) == [3]
    assert hand_over(b, Chunk(numbered(4, 7), 4)) == [(3, 0, 2), (4, 0, 3)]
    b.link.send(encode_seal())
    b.steps(1)
    assert read_ready(tmp_path).column("a").to_pylist() == list(range(7)), "rows of what was rolled back are gone"


def test_what_is_suspended_leaves_the_staged_alone(bench: Make, numbered: Make) -> None:
    """As Java: the message goes back into the queue, and those before it wait for their commit as they did."""
    tries: list[int] = []

    def handle(message: Message) -> object:
        tries.append(number(message))
        if tries.count(2) == 1 and number(message) == 2:
            raise Suspend(30)
        return Commit() if number(message) == 3 else None

    b = bench(committing(handle))
    [held] = hand_over(b, Chunk(numbered(0, 4)))
    assert isinstance(held, Returned)
    assert (*held[:3], held.suspend_ms) == (1, 2, 1, 30)
    assert hand_over(b, Chunk(numbered(2, 4), 2)) == [(1, 0, 2), (2, 0, 2)]
    assert tries == [0, 1, 2, 2, 3]


def test_a_queue_that_is_assigned_anew_has_nothing_staged(bench: Make, numbered: Make, queue: QueueInfo) -> None:
    b = bench(committing(lambda message: Commit() if number(message) == 9 else None))
    assert hand_over(b, Chunk(numbered(0, 2))) == [1]
    b.link.send(encode_queue(3, queue))
    assert hand_over(b, Chunk(numbered(0, 1), 2, handle=3)) == [2]
    assert hand_over(b, Chunk(numbered(9, 10), 3, handle=3)) == [(2, 0, 1), (3, 0, 1)]


def test_of_a_queue_that_is_forgotten_nothing_is_staged_unless_it_came_back(
    bench: Make, numbered: Make, queue: QueueInfo
) -> None:
    b = bench(committing(lambda message: Commit() if number(message) == 9 else None))
    b.link.send(encode_queue(3, queue))
    assert hand_over(b, Chunk(numbered(0, 2), 1, handle=3)) == [1]
    for packet in encode_forget([1]):  # an earlier assignment of the same queue
        b.link.send(packet)
    assert hand_over(b, Chunk(numbered(9, 10), 2, handle=3)) == [(1, 0, 2), (2, 0, 1)]
    assert hand_over(b, Chunk(numbered(0, 2), 3, handle=3)) == [3]
    for packet in encode_forget([3]):
        b.link.send(packet)
    b.link.send(encode_queue(4, queue))
    assert hand_over(b, Chunk(numbered(9, 10), 4, handle=4)) == [(4, 0, 1)]


@pytest.mark.parametrize("result", [Commit(), Rollback()])
@pytest.mark.parametrize("raised", [False, True])
def test_with_auto_commit_commits_and_rollbacks_are_successes(
    bench: Make, numbered: Make, result: object, raised: bool
) -> None:
    def handle(_: Message) -> object:
        if raised and isinstance(result, Rollback):
            raise result
        return result

    b = bench(handle)
    assert hand_over(b, Chunk(numbered(0, 2))) == [(1, 0, 2)]
    assert [(event["event"], event["said"]) for event in b.log.events] == [
        ("taken_as_success", type(result).__name__)
    ] * 2


@pytest.mark.parametrize("raised", [False, True])
@pytest.mark.parametrize("wrap", [iter, Commit])
def test_with_auto_commit_a_rollback_of_a_generator_is_a_success_without_rows(
    bench: Make, numbered: Make, tmp_path: Path, read_ready: ReadReady, raised: bool, wrap: Callable[[object], object]
) -> None:
    def rows(message: Message) -> Iterator[dict[str, int]]:
        yield {"a": number(message)}
        if number(message) == 1:
            return None
        if raised:
            raise Rollback
        return Rollback()

    b = bench(lambda message: wrap(rows(message)), schema="a int", folder=tmp_path)
    assert hand_over(b, Chunk(numbered(0, 3))) == [(1, 0, 3)]
    assert [event["said"] for event in b.log.events if event["said"] != "Commit"] == ["Rollback"] * 2
    b.link.send(encode_seal())
    b.steps(1)
    assert read_ready(tmp_path).column("a").to_pylist() == [1]


# --- packets that cannot be -------------------------------------------------------------------------------------------


def test_a_hand_over_of_an_unknown_queue_is_our_bug(bench: Make, numbered: Make) -> None:
    with pytest.raises(ProtocolError, match="handle 9"):
        hand_over(bench(lambda _: None), Chunk(numbered(0, 1), handle=9))


def test_a_question_for_keys_needs_a_function(bench: Make, numbered: Make) -> None:
    records = b"".join(numbered(0, 3))
    question = encode_classify(Classify(1, 0, len(records), 3))
    b = bench(handler(order="key", key=lambda message: None if number(message) == 1 else "same")(lambda _: None))
    b.link.send(question, records)
    b.steps(2)
    [packet] = [packet for packet in b.packets() if packet[0] == KEYS]
    handle, (first, none, last) = decode_keys(packet)
    assert (handle, none, first == last) == (1, None, True)
    assert first is not None
    assert b.cell[STATE] == 0
    without = bench(lambda _: None)
    without.link.send(question, records)
    with pytest.raises(ProtocolError, match="no key function"):
        without.steps(2)


def test_a_record_is_in_hand_while_its_key_is_asked_for(bench: Make, numbered: Make) -> None:
    """A key function that never ends is over the time limit, as a handler is; what was done before is reported first."""
    seen: list[tuple[int, int, int]] = []
    told: list[Said] = []

    def key(message: Message) -> str:
        told.extend(said(b))
        assert b.cell[CHUNK_ID] == KEYS_OF + 1, "and of which queue"
        seen.append((message.queue_offset, b.cell[STATE] - 1, b.cell[RECORDS]))
        return "k"

    b = bench(handler(order="key", key=key)(lambda _: None))
    first, records = numbered(0, 2), b"".join(numbered(5, 8))
    b.link.send(encode_ordered([OrderedDescriptor(1, 1, 0, sum(map(len, first)), 2, 0, ())], 0), b"".join(first))
    b.link.send(encode_classify(Classify(1, 0, len(records), 3)), records)
    b.steps(3)
    assert told == [(1, 0, 2)]
    assert seen == [(5, 5, 1), (6, 6, 1), (7, 7, 1)]
    assert b.cell[STATE] == 0
