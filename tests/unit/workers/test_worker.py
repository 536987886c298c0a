from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rocketcrew.remoting.errors import ProtocolError
from rocketcrew.workers import packets
from rocketcrew.workers.api import BatchResult, BodyError, Retry, SoftTimeLimitExceeded, handler
from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.failures import Cause, Failure, asked
from rocketcrew.workers.link import LinkClosedError, Transport
from rocketcrew.workers.message import Message
from rocketcrew.workers.packets import QueueInfo, Report, Sealed
from rocketcrew.workers.run import FAILURES_PER_RUN_MAX

Make = Callable[..., Any]
ReadReady = Callable[[Path], pa.Table]


def entry(outcome: Report) -> tuple[int, int, int, int, int, int]:
    """chunk id, start, records, segment, filtered, failed: all but the times."""
    return (
        outcome.chunk_id,
        outcome.start,
        outcome.records,
        outcome.segment_seq,
        outcome.filtered,
        outcome.failed,
    )


# --- one message per call ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", list(Transport))
def test_a_chunk_is_one_outcome(bench: Make, make_record: Make, transport: Transport) -> None:
    seen: list[tuple[bytes, int]] = []
    b = bench(lambda m: seen.append((m.body, m.queue_offset)), transport=transport)
    b.chunk([make_record(b"%d" % n, offset=n) for n in range(32)])
    b.chunk([make_record(b"%d" % n, offset=n) for n in range(32, 40)], 2)
    b.steps(4)
    entries, failures = b.outcomes()
    assert [entry(e) for e in entries] == [(1, 0, 32, 0, 0, 0), (2, 0, 8, 0, 0, 0)]
    assert failures == []
    assert seen == [(b"%d" % n, n) for n in range(40)]


def test_outcomes_wait_while_packets_wait(bench: Make, make_record: Make) -> None:
    b = bench(lambda m: None)
    b.chunk([make_record()], 1)
    b.chunk([make_record()], 2)
    b.steps(3)  # the queue and both chunks
    assert b.packets() == []
    b.steps(1)
    assert [entry(e)[0] for e in b.outcomes()[0]] == [1, 2]


def test_outcomes_are_reported_while_a_chunk_goes_on(bench: Make, make_record: Make) -> None:
    reported: list[list[Report]] = []

    def handle(message: Message) -> None:
        reported.append(b.outcomes()[0])
        b.clock.advance_ms(2)

    b = bench(handle)
    b.chunk([make_record(offset=n) for n in range(5)])
    b.steps(2)
    # Three calls of 2 ms pass the flush interval of 5 ms.
    assert [[entry(e)[1:3] for e in entries] for entries in reported] == [[], [], [], [(0, 3)], []]
    b.steps(1)
    (last,) = b.outcomes()[0]
    assert entry(last)[1:3] == (3, 2)
    assert last.busy_us == 4_000
    assert last.slowest_us == 2_000


def test_a_handler_that_raises_fails_its_message_only(bench: Make, make_record: Make) -> None:
    def handle(message: Message) -> None:
        if message.queue_offset == 1:
            raise ValueError("no good")
        if message.queue_offset == 3:
            raise SystemExit(7)

    b = bench(handle)
    b.chunk([make_record(offset=n, properties={"KEYS": "k"}) for n in range(5)])
    b.steps(3)
    entries, failures = b.outcomes()
    assert [entry(e) for e in entries] == [(1, 0, 5, 0, 0, 2)]
    line = handle.__code__.co_firstlineno + 2
    assert failures == [
        (1, Failure(Cause.FAILED, f"ValueError: no good (test_worker.py:{line})")),
        (3, Failure(Cause.FAILED, f"SystemExit: 7 (test_worker.py:{line + 2})")),
    ]
    (first, _) = b.log.events
    assert first["event"] == "message_failed"
    assert (first["topic"], first["queue_id"], first["offset"], first["keys"]) == ("TopicTest", 3, 1, "k")
    assert first["msg_id"]
    assert "raise ValueError" in first["exception"]
    assert "runner.py" not in first["exception"]


@pytest.mark.parametrize(
    ("error", "event", "outcome"),
    [
        (ValueError("no good"), "message_failed", "failed"),
        (SoftTimeLimitExceeded(1.0), "message_failed", "time_limit"),
        (BodyError("no Order", -1), "message_failed", "given_up"),
        (Retry(3, "later"), "message_retry", "retry"),
        (Retry(-1, "never"), "message_retry", "given_up"),
    ],
)
@pytest.mark.parametrize("batch", [False, True])
def test_the_line_of_a_failed_message_has_its_outcome_and_how_long_its_call_took(
    bench: Make, make_record: Make, error: BaseException, event: str, outcome: str, batch: bool
) -> None:
    def handle(_: object) -> None:
        b.clock.advance_ms(250)
        raise error

    b = bench(handler(batch=batch)(handle), bounds=WorkerBounds(batch_messages_max=2))
    b.chunk([make_record(offset=n) for n in range(2)])
    b.steps(3)
    lines = [(line["event"], line["offset"], line["outcome"], line["duration_ms"]) for line in b.log.events]
    assert lines == [(event, 0, outcome, 250), (event, 1, outcome, 250)]


@pytest.mark.parametrize("returned", [False, True])
def test_retry_raised_or_returned(bench: Make, make_record: Make, returned: bool) -> None:
    def handle(message: Message) -> object:
        retry = Retry([0, 4, -1][message.queue_offset], "later")
        if returned:
            return retry
        raise retry

    b = bench(handle)
    b.chunk([make_record(offset=n) for n in range(3)])
    b.steps(3)
    assert b.outcomes()[1] == [(at, asked(level, "later")) for at, level in enumerate((0, 4, -1))]


def test_exceptions_that_are_returned_are_failures(bench: Make, make_record: Make) -> None:
    b = bench(lambda m: ValueError("as a value"))
    b.chunk([make_record()])
    b.steps(3)
    assert b.outcomes()[1] == [(0, Failure(Cause.FAILED, "ValueError: as a value"))]


def test_without_results_whatever_is_returned_is_dropped(bench: Make, make_record: Make) -> None:
    b = bench(lambda m: {"a": 1})
    b.chunk([make_record()])
    b.steps(3)
    entries, failures = b.outcomes()
    assert entry(entries[0]) == (1, 0, 1, 0, 0, 0)
    assert failures == []


def test_tags_that_are_not_subscribed_never_reach_the_handler(bench: Make, make_record: Make, queue: QueueInfo) -> None:
    seen: list[str | None] = []
    b = bench(lambda m: seen.append(m.tags))
    b.queue(queue._replace(tags=("A", "B")), 2)
    tags = ["A", "C", None, "B", "AA"]
    b.chunk([make_record(properties={"TAGS": tag} if tag else {}) for tag in tags], handle=2)
    b.steps(4)
    (outcome,) = b.outcomes()[0]
    assert entry(outcome) == (1, 0, 5, 0, 3, 0)
    assert seen == ["A", "B"]


def test_a_damaged_body_fails_its_message_only(bench: Make, make_record: Make, spoil: Make) -> None:
    b = bench(lambda m: len(m.body) and None)
    b.chunk([make_record(offset=0), spoil(make_record(offset=1)), make_record(offset=2)])
    b.steps(3)
    ((at, failure),) = b.outcomes()[1]
    assert at == 1
    assert "checksum" in failure.error


def test_a_chunk_that_is_none_fails_all_its_messages(bench: Make, make_record: Make) -> None:
    b = bench(lambda m: None)
    records = [make_record(offset=n) for n in range(100)]
    data = b"".join(records)
    b.link.send(packets.encode_chunk(1, 1, 0, len(data) - 1, 100), data[:-1])
    b.link.send(packets.encode_chunk(2, 1, 0, len(data), 99), data)
    b.steps(4)
    entries, failures = b.outcomes()
    assert sum(e.records for e in entries if e.chunk_id == 1) == 100
    assert sum(e.failed for e in entries) == len(failures) == 199
    assert "100 records where 99 were announced" in failures[-1][1].error
    assert b.log.events[0]["event"] == "chunk_undecodable"


def test_many_failures_are_reported_in_parts(bench: Make, make_record: Make) -> None:
    def handle(message: Message) -> None:
        raise ValueError("x" * 1_000)

    b = bench(handle)
    b.chunk([make_record(offset=n) for n in range(300)])
    b.steps(3)
    entries, failures = b.outcomes()
    assert sum(e.records for e in entries) == 300
    assert max(e.failed for e in entries) <= FAILURES_PER_RUN_MAX
    assert [at for at, _ in failures] == list(range(300))
    assert all(len(f.error.encode()) <= packets.ERROR_MAX_BYTES for _, f in failures)


def test_a_chunk_of_an_unknown_queue_is_our_bug(bench: Make, make_record: Make) -> None:
    b = bench(lambda m: None)
    b.chunk([make_record()], handle=9)
    b.steps(1)
    with pytest.raises(ProtocolError, match="handle 9"):
        b.steps(1)


def test_a_queue_that_is_forgotten_is_known_until_then(bench: Make, make_record: Make) -> None:
    b = bench(lambda m: None)
    b.chunk([make_record()])
    for packet in packets.encode_forget([1, 7]):
        b.link.send(packet)
    b.steps(4)
    assert [entry(e)[0] for e in b.outcomes()[0]] == [1]
    b.chunk([make_record()], 2)
    with pytest.raises(ProtocolError, match="handle 1"):
        b.steps(1)


def test_a_packet_of_an_unknown_kind_is_our_bug(bench: Make) -> None:
    b = bench(lambda m: None)
    b.link.send(b"\xee")
    b.steps(1)
    with pytest.raises(ProtocolError, match="kind 238"):
        b.steps(1)


# --- inner batches ----------------------------------------------------------------------------------------------------


def test_an_inner_batch_is_one_record_and_several_calls(
    bench: Make, make_record: Make, make_inner_batch: Make, tmp_path: Path, read_ready: ReadReady
) -> None:
    b = bench(lambda m: {"a": m.body.decode()}, schema="a string", folder=tmp_path)
    b.chunk(
        [make_record(b"x", offset=9), make_inner_batch([b"a", b"b", b"c"], offset=10), make_record(b"y", offset=13)]
    )
    b.steps(3)
    b.link.send(packets.encode_seal())
    b.steps(1)
    (outcome,) = b.outcomes()[0]
    assert entry(outcome) == (1, 0, 3, 1, 0, 0)
    table = read_ready(tmp_path)
    assert table.column("_offset").to_pylist() == [9, 10, 11, 12, 13]
    assert table.column("a").to_pylist() == ["x", "a", "b", "c", "y"]
    stream = pa.ipc.open_stream(next((tmp_path / "ready").iterdir()).read_bytes())
    _, metadata = stream.read_next_batch_with_custom_metadata()
    assert metadata[b"rocketcrew.outcomes"] == b'[["TopicTest","broker-a",3,[[9,14]]]]'


@pytest.mark.parametrize("what", ["raise", "row"])
def test_an_inner_batch_fails_as_a_whole(
    bench: Make, make_record: Make, make_inner_batch: Make, tmp_path: Path, read_ready: ReadReady, what: str
) -> None:
    def handle(message: Message) -> object:
        if message.body == b"b" and what == "raise":
            raise ValueError("b")
        return {"a": 1 if message.body == b"b" else message.body.decode()}

    b = bench(handle, schema="a string", folder=tmp_path)
    told: list[Message | int] = []
    b.worker.report_failures(lambda _queue, message, _error: told.append(message))
    b.chunk([make_inner_batch([b"a", b"b", b"c"], offset=10), make_record(b"y", offset=13)])
    b.link.send(packets.encode_seal())
    b.steps(4)
    entries, failures = b.outcomes()
    assert [at for at, _ in failures] == [0]
    assert sum(e.failed for e in entries) == 1
    assert read_ready(tmp_path).column("a").to_pylist() == ["y"]
    if what == "raise":  # else it is found when rows are converted: then only the record is known
        [failed] = told
        assert isinstance(failed, Message)
        assert (failed.queue_offset, failed.body) == (11, b"b")


def test_tags_are_looked_at_inside_an_inner_batch(bench: Make, make_inner_batch: Make, queue: QueueInfo) -> None:
    seen: list[bytes] = []
    b = bench(lambda m: seen.append(m.body))
    b.queue(queue._replace(tags=("A",)), 2)
    b.chunk([make_inner_batch([b"1", b"2"], tags=["A", "B"]), make_inner_batch([b"3"], offset=2, tags=["B"])], handle=2)
    b.steps(4)
    (outcome,) = b.outcomes()[0]
    assert entry(outcome) == (1, 0, 2, 0, 1, 0)
    assert seen == [b"1"]


# --- rows and segments ------------------------------------------------------------------------------------------------


def test_rows_are_written_before_their_outcome_is_reported(bench: Make, make_record: Make, tmp_path: Path) -> None:
    b = bench(lambda m: {"a": m.queue_offset}, schema="a int", folder=tmp_path)
    b.chunk([make_record(offset=n) for n in range(3)])
    b.steps(2)
    assert not list(tmp_path.glob("open/*"))
    b.steps(1)
    (outcome,) = b.outcomes()[0]
    assert outcome.segment_seq == 1
    (path,) = tmp_path.glob("open/*")
    assert pa.ipc.open_stream(path.read_bytes()).read_all().column("a").to_pylist() == [0, 1, 2]


def test_a_run_without_rows_waits_for_no_segment(bench: Make, make_record: Make, tmp_path: Path) -> None:
    b = bench(lambda m: {"a": 1} if m.body == b"row" else None, schema="a int", folder=tmp_path)
    b.chunk([make_record(b"row")], 1)
    b.chunk([make_record(b"none")], 2)
    b.steps(4)
    assert [entry(e)[:4] for e in b.outcomes()[0]] == [(1, 0, 1, 1), (2, 0, 1, 0)]


def test_rows_of_failed_messages_are_not_written(
    bench: Make, make_record: Make, tmp_path: Path, read_ready: ReadReady
) -> None:
    def handle(message: Message) -> Iterator[dict[str, object]]:
        yield {"a": message.queue_offset}
        if message.queue_offset == 1:
            raise ValueError("after a row")
        yield {"a": "not an int"} if message.queue_offset == 2 else {"a": -1}

    b = bench(handle, schema="a int", folder=tmp_path)
    b.chunk([make_record(offset=n) for n in range(4)])
    b.link.send(packets.encode_seal())
    b.steps(3)
    entries, failures = b.outcomes()
    assert [entry(e) for e in entries] == [(1, 0, 4, 1, 0, 2)]
    assert sorted(at for at, _ in failures) == [1, 2]
    misfit = next(f for at, f in failures if at == 2)
    assert (
        misfit.error
        == "column a int: expected an integer, got str: return int(value), or declare the column as what it is"
    )
    table = read_ready(tmp_path)
    assert list(zip(table.column("_offset").to_pylist(), table.column("a").to_pylist(), strict=True)) == [
        (0, 0), (0, -1), (3, 3), (3, -1),
    ]  # fmt: skip


def test_an_unusable_result_fails_its_message(bench: Make, make_record: Make, tmp_path: Path) -> None:
    b = bench(lambda m: True, schema="a int", folder=tmp_path)
    b.chunk([make_record()])
    b.steps(3)
    ((_, failure),) = b.outcomes()[1]
    assert "returned bool" in failure.error
    assert b.log.events[0]["event"] == "message_failed"


def test_seal_on_request_names_the_segment(bench: Make, make_record: Make, tmp_path: Path) -> None:
    b = bench(lambda m: {"a": 1}, schema="a int", folder=tmp_path)
    b.link.send(packets.encode_seal())
    b.chunk([make_record()])
    b.link.send(packets.encode_seal())
    b.link.send(packets.encode_seal())
    b.steps(5)
    outcome, sealed = b.story()
    assert isinstance(outcome, Report)
    assert isinstance(sealed, Sealed)
    assert (sealed.seq, sealed.rows, sealed.name) == (1, 1, "w1-00000001.arrows")
    assert (tmp_path / "ready" / sealed.name).stat().st_size == sealed.bytes


def test_an_idle_segment_is_sealed(bench: Make, make_record: Make, tmp_path: Path) -> None:
    b = bench(lambda m: {"a": 1}, schema="a int", folder=tmp_path)
    b.chunk([make_record()])
    b.steps(3)
    b.clock.advance_ms(999)
    b.steps(1)
    assert [type(said) for said in b.story()] == [Report]
    b.clock.advance_ms(1)
    b.steps(1)
    assert [type(said) for said in b.story()] == [Sealed]


def test_rows_make_a_segment_full_between_two_messages(bench: Make, make_record: Make, tmp_path: Path) -> None:
    b = bench(lambda m: [{"a": 1}] * 20_000, schema="a int", folder=tmp_path, bounds=WorkerBounds(seal_rows=30_000))
    b.chunk([make_record(offset=n) for n in range(4)])
    b.steps(3)
    said = b.story()
    assert [type(each) for each in said] == [Report, Report, Sealed, Report, Report, Sealed]
    assert [each.segment_seq for each in said if isinstance(each, Report)] == [1, 1, 2, 2]
    assert [each.rows for each in said if isinstance(each, Sealed)] == [40_000, 40_000]


def test_after_a_long_call_what_is_written_is_sealed_at_once(bench: Make, make_record: Make, tmp_path: Path) -> None:
    def handle(message: Message) -> dict[str, int]:
        b.clock.advance_ms(5_000)
        return {"a": 1}

    b = bench(handle, schema="a int", folder=tmp_path)
    b.chunk([make_record()], 1)
    b.chunk([make_record()], 2)
    b.steps(2)
    assert [type(said) for said in b.story()] == [Report, Sealed]


def test_a_full_disk_holds_outcomes_back_until_there_is_room(bench: Make, make_record: Make, tmp_path: Path) -> None:
    said_while_full: list[Any] = []
    refusals = 3

    def write(fd: int, data: memoryview) -> int:
        nonlocal refusals
        if refusals:
            refusals -= 1
            said_while_full.extend(b.story())
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(fd, data)

    b = bench(lambda m: {"a": 1}, schema="a int", folder=tmp_path, write=write)
    b.chunk([make_record()])
    b.steps(3)
    assert said_while_full == []
    assert b.paused == ["writing a segment"] * 3
    (outcome,) = b.outcomes()[0]
    assert outcome.segment_seq == 1


# --- batches ----------------------------------------------------------------------------------------------------------


def batch_bench(bench: Make, function: Callable[[list[Message]], object], size: int = 3, **more: Any) -> Any:
    return bench(handler(batch=True)(function), bounds=WorkerBounds(batch_messages_max=size), **more)


def test_a_batch_handler_gets_lists(bench: Make, make_record: Make) -> None:
    sizes: list[int] = []
    b = batch_bench(bench, lambda messages: sizes.append(len(messages)))
    b.chunk([make_record(offset=n) for n in range(7)])
    b.steps(3)
    assert sizes == [3, 3, 1]
    assert [entry(e)[1:3] for e in b.outcomes()[0]] == [(0, 7)]  # calls of a chunk are one entry


def test_a_result_per_message(bench: Make, make_record: Make, tmp_path: Path, read_ready: ReadReady) -> None:
    def handle(messages: list[Message]) -> list[object]:
        return [{"a": 0}, Retry(5, "later"), ValueError("bad"), [{"a": 3}, {"a": 33}], {"a": "x"}, None]

    b = batch_bench(bench, handle, 6, schema="a int", folder=tmp_path)
    b.chunk([make_record(offset=n) for n in range(6)])
    b.link.send(packets.encode_stop())
    b.steps(3)
    entries, failures = b.outcomes()
    assert [entry(e) for e in entries] == [(1, 0, 6, 1, 0, 3)]
    assert sorted((at, f.level) for at, f in failures) == [(1, 5), (2, 0), (4, 0)]
    table = read_ready(tmp_path)
    assert table.column("_offset").to_pylist() == [0, 3, 3]


@pytest.mark.parametrize(
    ("result", "failed", "rows"),
    [
        (BatchResult(), [], {}),
        (BatchResult(rows=[{"a": 7}, None, {"a": 8}]), [], {0: [7], 2: [8]}),
        (BatchResult(rows=pa.table({"a": [7, 8, 9]})), [], {0: [7], 1: [8], 2: [9]}),
        (BatchResult(rows=pa.table({"a": [7, 8, 9]}), ack_index=1), [2], {0: [7], 1: [8]}),
        (BatchResult(rows=pa.table({"a": [7, 8]})), [0, 1, 2], {}),
        (BatchResult(rows={"a": 7}, ack_index=2), [0, 1, 2], {}),
        (BatchResult(rows=[{"a": 7}], ack_index=99), [0, 1, 2], {}),
        (BatchResult(ack_index=0), [1, 2], {}),
        (BatchResult(ack_index=-1), [0, 1, 2], {}),
        (BatchResult(rows=[{"a": 7}], ack_index=1), [0, 1, 2], {}),
        (BatchResult(rows=[{"a": 7}, {"a": 8}, {"a": 9}], ack_index=0), [1, 2], {0: [7]}),
        (BatchResult(rows=None, ack_index=1), [2], {}),
        (BatchResult(rows=[{"a": "x"}, {"a": 8}, None]), [0], {1: [8]}),
        ([None, None], [0, 1, 2], {}),
        (True, [0, 1, 2], {}),
        ({"a": 1}, [0, 1, 2], {}),
        (Retry(), [0, 1, 2], {}),
        (None, [], {}),
    ],
)
def test_results_of_a_batch(
    bench: Make,
    make_record: Make,
    tmp_path: Path,
    read_ready: ReadReady,
    result: object,
    failed: list[int],
    rows: dict[int, list[int]],
) -> None:
    b = batch_bench(bench, lambda messages: result, schema="a int", folder=tmp_path)
    b.chunk([make_record(offset=n) for n in range(3)])
    b.link.send(packets.encode_stop())
    b.steps(3)
    assert sorted(at for at, _ in b.outcomes()[1]) == failed
    found: dict[int, list[int]] = {}
    if rows:
        table = read_ready(tmp_path)
        for offset, value in zip(table.column("_offset").to_pylist(), table.column("a").to_pylist(), strict=True):
            found.setdefault(offset, []).append(value)
    assert found == rows
    assert bool(list(tmp_path.glob("ready/*"))) == bool(rows)


@pytest.mark.parametrize("as_generator", [False, True])
def test_rows_tagged_with_their_message(
    bench: Make, make_record: Make, tmp_path: Path, read_ready: ReadReady, as_generator: bool
) -> None:
    def handle(messages: list[Message]) -> BatchResult:
        pairs = [(messages[number], {"a": number}) for number in (2, 0, 2, 1)]
        return BatchResult(rows=iter(pairs) if as_generator else pairs, ack_index=1)

    b = batch_bench(bench, handle, schema="a int", folder=tmp_path)
    b.chunk([make_record(offset=n) for n in range(3)])
    b.link.send(packets.encode_stop())
    b.steps(3)
    ((at, failure),) = b.outcomes()[1]
    assert at == 2
    assert "ack_index is 1" in failure.error
    assert read_ready(tmp_path).column("_offset").to_pylist() == [0, 1]


def test_rows_tagged_wrongly_fail_the_batch(bench: Make, make_record: Make, tmp_path: Path) -> None:
    before: list[Message] = []

    def handle(messages: list[Message]) -> BatchResult:
        before.extend(messages)
        if len(before) <= 3:
            return BatchResult(rows=[(messages[0], {"a": 1}), {"a": 2}])
        return BatchResult(rows=[(before[0], {"a": 1})])

    b = batch_bench(bench, handle, schema="a int", folder=tmp_path)
    b.chunk([make_record(offset=n) for n in range(6)])
    b.steps(3)
    failures = b.outcomes()[1]
    assert [at for at, _ in failures] == list(range(6))
    assert "some are not" in failures[0][1].error
    assert "not in this batch" in failures[3][1].error
    assert not list(tmp_path.glob("open/*"))


def test_a_batch_handler_that_raises_fails_its_batch_only(bench: Make, make_record: Make) -> None:
    def handle(messages: list[Message]) -> None:
        if messages[0].queue_offset == 3:
            raise ValueError("this one")

    b = batch_bench(bench, handle)
    b.chunk([make_record(offset=n) for n in range(7)])
    b.steps(3)
    assert [at for at, _ in b.outcomes()[1]] == [3, 4, 5]


def test_damaged_and_filtered_records_are_taken_out_of_a_batch(
    bench: Make, make_record: Make, make_inner_batch: Make, spoil: Make, queue: QueueInfo
) -> None:
    seen: list[list[bytes]] = []
    b = batch_bench(bench, lambda messages: seen.append([m.body for m in messages]))
    b.queue(queue._replace(tags=("A",)), 2)
    a = {"properties": {"TAGS": "A"}}
    records = [
        make_record(b"0", offset=0, **a),
        spoil(make_record(b"1", offset=1, **a)),
        make_record(b"2", offset=2),
        make_inner_batch([b"3", b"4", b"5"], offset=3, tags=["A", "B", "A"]),
        make_record(b"6", offset=6, **a),
    ]
    b.chunk(records, handle=2)
    b.steps(4)
    entries, failures = b.outcomes()
    assert seen == [[b"0", b"3", b"5"], [b"6"]]
    assert [at for at, _ in failures] == [1]
    assert sum(e.filtered for e in entries) == 1
    assert [entry(e)[1:3] for e in entries] == [(0, 4), (4, 1)]


def test_an_inner_batch_in_a_batch_fails_as_a_whole(
    bench: Make, make_record: Make, make_inner_batch: Make, tmp_path: Path, read_ready: ReadReady
) -> None:
    def handle(messages: list[Message]) -> list[object]:
        return [Retry() if m.body == b"b" else {"a": m.body.decode()} for m in messages]

    b = batch_bench(bench, handle, 10, schema="a string", folder=tmp_path)
    b.chunk([make_inner_batch([b"a", b"b"], offset=0), make_record(b"c", offset=2)])
    b.link.send(packets.encode_stop())
    b.steps(3)
    assert [at for at, _ in b.outcomes()[1]] == [0]
    assert read_ready(tmp_path).column("a").to_pylist() == ["c"]


# --- stopping ---------------------------------------------------------------------------------------------------------


def test_stop_finishes_what_came_before_it(bench: Make, make_record: Make, tmp_path: Path) -> None:
    b = bench(lambda m: {"a": 1}, schema="a int", folder=tmp_path)
    b.chunk([make_record()], 1)
    b.link.send(packets.encode_stop())
    b.worker.run()
    assert [type(said) for said in b.story()] == [Report, Sealed]
    assert not list(tmp_path.glob("open/*"))


def test_the_end_of_the_link_ends_the_loop(bench: Make, make_record: Make, tmp_path: Path) -> None:
    b = bench(lambda m: {"a": 1}, schema="a int", folder=tmp_path)
    b.chunk([make_record()], 1)
    b.steps(3)
    b.link.close()
    with pytest.raises(LinkClosedError):
        b.worker.run()
    assert len(list(tmp_path.glob("open/*"))) == 1
