from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.remoting.errors import ProtocolError
from rocketcrew.workers import packets
from rocketcrew.workers.failures import Cause, Failure
from rocketcrew.workers.packets import BootFailed, QueueInfo, QueueRanges, Ready, Report, Salvaged, Sealed

u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, 0xFFFFFFFF)
u64 = st.integers(0, 2**64 - 1)


@given(u32, st.text(max_size=50), st.lists(st.text(max_size=20), max_size=5) | st.none(), st.booleans())
def test_queue_comes_back(handle: int, name: str, tags: list[str] | None, popped: bool) -> None:
    queue = QueueInfo(name, "%RETRY%" + name, "broker-a", 7, None if tags is None else tuple(tags), "", popped)
    assert packets.decode_queue(packets.encode_queue(handle, queue)) == (handle, queue)


def test_a_queue_too_long_for_a_packet_is_refused() -> None:
    with pytest.raises(ProtocolError, match="QUEUE packet"):
        packets.encode_queue(1, QueueInfo("g", "t", "b", 0, tuple(str(n) for n in range(20_000))))


@given(u64, u32, u64, u32, u16, st.booleans(), st.booleans())
def test_chunk_comes_back(
    chunk_id: int, handle: int, offset: int, length: int, records: int, window_open: bool, journalled: bool
) -> None:  # fmt: skip
    packet = packets.encode_chunk(
        chunk_id, handle, offset, length, records, window_open=window_open, journalled=journalled
    )
    assert packet[0] == packets.CHUNK
    assert len(packet) == packets.CHUNK_HEAD_BYTES
    assert packets.decode_chunk(packet) == (chunk_id, handle, offset, length, records, window_open, journalled)


def test_an_inline_payload_begins_behind_the_descriptor() -> None:
    packet = packets.encode_chunk(5, 1, 0, 3, 1) + b"abc"
    assert packets.decode_chunk(packet).length == 3
    assert packet[packets.CHUNK_HEAD_BYTES :] == b"abc"


def test_seal_is_one_byte_and_stop_says_until_when() -> None:
    assert packets.encode_seal() == bytes([packets.SEAL])
    assert packets.encode_stop(1 << 62)[0] == packets.STOP
    assert packets.decode_stop(packets.encode_stop(1 << 62)) == 1 << 62
    assert packets.decode_stop(packets.encode_stop()) == 0


def test_ready_and_boot_failed_come_back() -> None:
    ready = Ready(4711, "my.module:handle", "a string", True)
    assert packets.decode_ready(packets.encode_ready(ready)) == ready
    failed = BootFailed("cannot import", "Traceback …")
    assert packets.decode_boot_failed(packets.encode_boot_failed(failed)) == failed


def test_a_boot_failure_of_any_length_fits_one_packet_and_keeps_the_traceback_s_end() -> None:
    packet = packets.encode_boot_failed(BootFailed("é" * 100_000, "x" * 100_000 + "the end"))
    assert len(packet) <= packets.PACKET_MAX_BYTES
    assert packets.decode_boot_failed(packet).traceback.endswith("the end")


a_failure = st.builds(Failure, st.sampled_from(Cause), st.text(max_size=40), st.integers(0, 127))
entries = st.lists(
    st.tuples(
        st.builds(Report, u64, u16, u16, u32, u32, u32, u16, st.just(0)),
        st.lists(st.tuples(u16, a_failure), max_size=5),
    ),
    max_size=20,
)


def joined(many: list[bytes]) -> tuple[list[Report], list[tuple[int, Failure]]]:
    decoded = [packets.decode_reports(packet) for packet in many]
    return [e for found, _ in decoded for e in found], [f for _, found in decoded for f in found]


@given(entries)
def test_outcomes_come_back(drawn: list[tuple[Report, list[tuple[int, Failure]]]]) -> None:
    outcomes = [entry._replace(failed=len(failures)) for entry, failures in drawn]
    failed = [failure for _, failures in drawn for failure in failures]
    assert joined(packets.encode_reports(outcomes, failed)) == (outcomes, failed)


def test_many_failures_are_spread_over_packets_that_fit() -> None:
    outcomes = [Report(n, 0, 64, 0, 1, 1, 0, 64) for n in range(10)]
    failed = [(index, Failure(Cause.FAILED, "x" * 500)) for n in range(10) for index in range(64)]
    many = packets.encode_reports(outcomes, failed)
    assert len(many) > 1
    assert max(map(len, many)) <= packets.PACKET_MAX_BYTES
    assert joined(many) == (outcomes, failed)


def test_many_entries_without_failures_are_spread_too() -> None:
    outcomes = [Report(n, 0, 1, 0, 1, 1, 0, 0) for n in range(5_000)]
    many = packets.encode_reports(outcomes, [])
    assert max(map(len, many)) <= packets.PACKET_MAX_BYTES
    assert joined(many) == (outcomes, [])


def test_an_error_text_is_cut_to_its_bound() -> None:
    (packet,) = packets.encode_reports([Report(1, 0, 1, 0, 0, 0, 0, 1)], [(0, Failure(Cause.FAILED, "ü" * 400))])
    ((_, failure),) = packets.decode_reports(packet)[1]
    assert len(failure.error.encode()) <= packets.ERROR_MAX_BYTES


@given(st.binary(max_size=80))
def test_garbage_is_a_protocol_error_or_decodes(data: bytes) -> None:
    for decode in (
        packets.decode_queue,
        packets.decode_chunk,
        packets.decode_ready,
        packets.decode_boot_failed,
        packets.decode_reports,
        packets.decode_sealed,
        packets.decode_salvaged,
    ):
        try:
            decode(bytes([1]) + data)
        except ProtocolError:
            continue


def test_a_failure_of_an_entry_that_is_not_there_is_refused() -> None:
    (packet,) = packets.encode_reports([Report(1, 0, 1, 0, 0, 0, 0, 1)], [(0, Failure(Cause.FAILED, "x"))])
    damaged = bytearray(packet)
    damaged[5 + 28] = 9  # the failure's entry number
    with pytest.raises(ProtocolError, match="REPORTS"):
        packets.decode_reports(damaged)


def test_sealed_comes_back() -> None:
    sealed = Sealed(3, 2**40, 2**41, "w1-00000003.arrows")
    assert packets.decode_sealed(packets.encode_sealed(sealed)) == sealed


def test_salvaged_comes_back() -> None:
    ranges = (QueueRanges("t", "b", 0, ((0, 5), (7, 9))), QueueRanges("u", "b", 1, ((3, 4),)))
    salvaged = Salvaged("w-1.arrows", "w", 1, "w-1.arrows", 10, 2_000, ranges)
    (packet,) = packets.encode_salvaged(salvaged)
    assert packets.decode_salvaged(packet) == salvaged


def test_an_empty_salvage_is_one_last_packet() -> None:
    (packet,) = packets.encode_salvaged(Salvaged("w-1.arrows", "w", 1, None, 0, 0, ()))
    assert packets.decode_salvaged(packet).last


@given(st.lists(st.tuples(st.text(min_size=1, max_size=255), st.integers(0, 40)), max_size=12), st.integers(0, 2**60))
def test_a_large_salvage_is_split_and_nothing_is_missing(queues: list[tuple[str, int]], base: int) -> None:
    ranges = [
        QueueRanges(topic, "b", number, tuple((base + 10 * k, base + 10 * k + 5) for k in range(count)))
        for number, (topic, count) in enumerate(queues)
    ]
    salvaged = Salvaged("w-1.arrows", "w", 1, "w-1.arrows", 1, 1, tuple(ranges))
    many = packets.encode_salvaged(salvaged, packet_max_bytes=4_000)
    parts = [packets.decode_salvaged(packet) for packet in many]
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    assert all(len(packet) <= 4_000 for packet in many)
    found = {(q.topic, q.queue_id, pair) for part in parts for q in part.messages for pair in q.ranges}
    assert found == {(q.topic, q.queue_id, pair) for q in ranges for pair in q.ranges}


def test_json_packets_are_objects() -> None:
    for text in ("[]", "1", '"x"', "{"):
        with pytest.raises(ProtocolError):
            packets.decode_boot_failed(bytes([packets.BOOT_FAILED]) + text.encode())
    assert packets.decode_boot_failed(bytes([packets.BOOT_FAILED]) + json.dumps({}).encode()) == ("", "")


@given(st.text(max_size=600), st.integers(10, 500))
def test_clip_keeps_the_bound_and_whole_characters(text: str, bound: int) -> None:
    assert len(packets.clip(text, bound).encode("utf-8", "replace")) <= bound


@given(st.lists(u32, max_size=50))
def test_handles_to_forget_come_back(handles: list[int]) -> None:
    sent = list(packets.encode_forget(handles))
    assert [handle for packet in sent for handle in packets.decode_forget(packet)] == handles


def test_many_handles_to_forget_take_several_packets() -> None:
    sent = list(packets.encode_forget(range(40_000)))
    assert max(map(len, sent)) <= packets.PACKET_MAX_BYTES
    assert [handle for packet in sent for handle in packets.decode_forget(packet)] == list(range(40_000))


def test_a_damaged_forget_is_refused() -> None:
    with pytest.raises(ProtocolError, match="FORGET packet"):
        packets.decode_forget(bytes([packets.FORGET, 1, 0]))
