"""What rows cost, counted in calls of functions: what is done for a block, for a batch, and for each row."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from rocketcrew.conf.segment_format import CHECK_BLANK, META_BATCH_CHECK, META_BATCH_OUTCOMES, OPEN_DIR, with_check
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.workers.api import BatchResult
from rocketcrew.workers.calls import batch_results
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.fitting import Columns, RowError
from rocketcrew.workers.message import Message
from rocketcrew.workers.packets import QueueInfo
from rocketcrew.workers.row_keys import key_columns, key_of
from rocketcrew.workers.rows import RowBuffer
from rocketcrew.workers.segment import ENCODED_MAX_BYTES, ENCODED_MIN_BYTES, SegmentWriter

pytestmark = pytest.mark.usefixtures("no_collection")

pa: Any = pyarrow

QUEUE = QueueInfo("group", "TopicTest", "broker-a", 3)


def calls_in(action: Callable[[], object]) -> list[str]:
    """Names of the functions that were called, Python's own and built-in ones."""
    found: list[str] = []

    def seen(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            found.append(frame.f_code.co_qualname)
        elif event == "c_call":
            found.append(argument.__qualname__)

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        action()
    finally:
        sys.setprofile(before)
    return found


def collections_in(action: Callable[[], object]) -> list[str]:
    """What the collector did meanwhile: it looks at all young objects each time that 700 were made."""
    found: list[str] = []

    def seen(phase: str, _info: dict[str, int]) -> None:
        found.append(phase)

    gc.collect()
    gc.callbacks.append(seen)
    gc.enable()
    try:
        action()
    finally:
        gc.disable()  # as the fixture has it
        gc.callbacks.remove(seen)
    return found


def messages(count: int) -> list[Message]:
    found: list[Message] = []
    for number in range(count):
        stored = StoredMessage("TopicTest", b"body", f"UNIQ_KEY\x01id{number}\x02".encode(), queue_offset=number)
        found.append(Message(encode_message(stored), 0, QUEUE))
    return found


def refuse(what: str, error: OSError) -> None:
    raise AssertionError(what) from error


def segments(folder: Path, schema: pyarrow.Schema) -> SegmentWriter:
    return SegmentWriter(
        folder, "w", schema, seal_rows=10**9, seal_bytes=10**12, seal_idle_ms=10**6, pause=refuse
    )  # fmt: skip


# --- the bytes of a block -------------------------------------------------------------------------------------------------


def test_many_blocks_are_encoded_by_one_stream_writer(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"n": list(range(32))})
    writer = segments(tmp_path, batch.schema)
    calls = calls_in(lambda: [writer.append(batch, b"[]", 0) for _ in range(100)])
    assert calls.count("RecordBatchStreamWriter.__init__") == 1
    assert "_Environ.get" not in calls  # Arrow looks there for options when it is given none


def test_blocks_of_any_size_are_the_bytes_that_a_stream_of_their_own_has(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
    writer = segments(tmp_path, schema)
    wanted = bytearray(schema.serialize().to_pybytes())
    large = ENCODED_MAX_BYTES // 8
    for rows in (1, 3, 2_000, 9_000, 1, 30_000, large, 2_000, large // 2, 5):
        batch = pa.RecordBatch.from_pydict({"n": list(range(rows)), "text": ["ab"] * rows}, schema=schema)
        outcomes = b"[%d]" % rows + b" " * (ENCODED_MIN_BYTES if rows == 3 else 0)
        writer.append(batch, outcomes, 0)
        sink: Any = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as stream:
            stream.write_batch(batch, custom_metadata={META_BATCH_OUTCOMES: outcomes, META_BATCH_CHECK: CHECK_BLANK})
            end = sink.tell()
        message = bytearray(memoryview(sink.getvalue())[:end])
        start = schema.serialize().size
        with_check(message, start, end)
        wanted += message[start:]
    assert next((tmp_path / OPEN_DIR).iterdir()).read_bytes() == wanted


def test_the_memory_of_a_huge_block_is_given_back(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"n": range(ENCODED_MAX_BYTES // 8)})
    writer = segments(tmp_path, batch.schema)
    writer.append(batch, b"[]", 0)
    assert sum(len(each) for each in vars(writer).values() if isinstance(each, bytearray)) <= ENCODED_MAX_BYTES


# --- key columns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [[1, 1_024, 1], [1_025, 1, 3], [1] * 1_030 + [2]])
def test_keys_of_many_rows_and_of_many_messages(counts: list[int]) -> None:
    several = messages(len(counts))
    columns = key_columns("group", several, counts)
    wanted = [("group", *key_of(message)[:4], seq, *key_of(message)[4:8])
              for message, count in zip(several, counts, strict=True) for seq in range(count)]  # fmt: skip
    assert list(zip(*[column.to_pylist() for column in columns[:-1]], strict=True)) == wanted


def test_records_that_are_alike_are_not_looked_at_one_by_one() -> None:
    found: list[list[str]] = []
    for count in (100, 500):
        several = [
            Message(
                encode_message(StoredMessage("TopicTest", bytes(number % 7), b"UNIQ_KEY\x01%032d\x02" % number)),
                0,
                QUEUE,
            )
            for number in range(count)
        ]
        key_columns("group", several, None)
        found.append(calls_in(lambda several=several: key_columns("group", several, None)))
    assert len(found[0]) == len(found[1])


def test_blocks_of_nearly_the_same_length_share_their_constant_columns() -> None:
    several = messages(400)
    key_columns("group", several, None)
    for length in (399, 310, 257):
        calls = calls_in(lambda length=length: key_columns("group", several[:length], None))
        assert not {"_new_constant", "_new_ends", "_columns_of_runs"}.intersection(calls)


def test_short_blocks_of_many_queues_in_turn_share_their_queues_columns() -> None:
    blocks = [
        [
            Message(
                encode_message(StoredMessage("TopicTest", b"", b"")), 0, QueueInfo("group", "TopicTest", "b", queue_id)
            )
            for _ in range(1 + queue_id % 16)
        ]
        for queue_id in range(300)
    ]

    def make() -> None:
        for block in blocks:
            key_columns("group", block, None)

    make()
    assert "_columns_of_runs" not in calls_in(make)


def test_numbers_of_all_records_are_turned_by_one_call() -> None:
    calls = calls_in(lambda: key_columns("group", messages(100), None))
    assert calls.count("array.byteswap") == (sys.byteorder == "little")
    assert "bytearray.split" not in calls  # into pieces of each record


@pytest.mark.parametrize("count", [8, 100])
def test_keys_of_rows_that_came_as_arrow_batches_are_not_taken_by_arrow(count: int) -> None:
    several, found = messages(count), list[list[str]]()
    for rows in (32, 64):
        key_columns("group", several, [rows] * count)  # what is made once for a length
        found.append(calls_in(lambda rows=rows: key_columns("group", several, [rows] * count)))
    assert "Array.take" not in found[0]
    assert len(found[0]) == len(found[1])


# --- values and Arrow batches ---------------------------------------------------------------------------------------------


def columns_of(width: int) -> Columns:
    return Columns(parse_ddl(", ".join(f"c{number} bigint" for number in range(width))))


def batch_of(width: int) -> Any:
    return pa.RecordBatch.from_pydict({f"c{number}": [1, 2] for number in range(width)})


def test_the_conversion_of_a_block_makes_no_object_for_each_row() -> None:
    columns, rows = columns_of(5), [(1, 2, 3, 4, 5)] * 20_000
    columns.arrays(rows)
    assert not collections_in(lambda: columns.arrays(rows))


def test_a_block_is_taken_without_an_object_for_each_message() -> None:
    rows, several = RowBuffer[Message](parse_ddl("n bigint"), "group"), messages(5_000)

    def keep() -> None:
        rows.keep_all([(message, message, (7,), None) for message in several])

    keep()
    rows.take()
    keep()
    assert not collections_in(rows.take)


def test_results_of_a_batch_that_are_of_several_kinds_are_only_looked_at_by_their_classes() -> None:
    columns, results = columns_of(1), [batch_of(1), *[None] * 31]
    assert columns.values_of_each_plain(results) is None
    assert "suppress.__enter__" not in calls_in(lambda: columns.values_of_each_plain(results))


def test_an_arrow_batch_like_the_one_before_is_taken_as_a_whole() -> None:
    counts: list[int] = []
    for width in (5, 30):
        columns, batch = columns_of(width), batch_of(width)
        assert columns.fit_arrow(batch) == batch
        counts.append(len(calls_in(lambda columns=columns, batch=batch: columns.fit_arrow(batch))))
    assert counts[0] == counts[1]


def test_arrow_batches_that_are_not_like_the_one_before_are_looked_at() -> None:
    columns = Columns(parse_ddl("a bigint not null, b string"))
    good = pa.RecordBatch.from_pydict({"a": pa.array([1], pa.int64()), "b": ["x"]})
    assert columns.fit_arrow(good).columns == columns.fit_arrow(good).columns == good.columns
    with pytest.raises(RowError, match="column a bigint not null: is null"):
        columns.checked(columns.fit_arrow(pa.RecordBatch.from_pydict({"a": pa.array([None], pa.int64()), "b": ["x"]})))
    with pytest.raises(RowError, match='column "c" is not declared'):
        columns.fit_arrow(pa.RecordBatch.from_pydict({"a": pa.array([1], pa.int64()), "c": ["x"]}))
    turned = columns.fit_arrow(pa.RecordBatch.from_pydict({"b": ["y"], "a": pa.array([2], pa.int32())}))
    assert [column.to_pylist() for column in turned.columns] == [[2], ["y"]]
    assert turned.column(0).type == pa.int64()
    table = columns.fit_arrow(pa.Table.from_batches([good, good]))
    assert [column.to_pylist() for column in table.columns] == [[1, 1], ["x", "x"]]
    assert columns.fit_arrow(good).columns == good.columns


def test_arrow_batches_of_a_block_are_joined_whatever_their_schemas_say_beside_the_types() -> None:
    columns = Columns(parse_ddl("a bigint, b string"))
    strict = pa.schema(
        [pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())], metadata={"by": "handler"}
    )
    plain = pa.RecordBatch.from_pydict({"a": [1], "b": ["x"]})
    noted = pa.RecordBatch.from_pydict({"a": [2], "b": ["y"]}, schema=strict)
    parts = [columns.fit_arrow(each) for each in (plain, plain, noted, noted, plain)] + [columns.batch([(3, "z")])]
    assert columns.joined(parts).to_pydict() == {"a": [1, 1, 2, 2, 1, 3], "b": ["x", "x", "y", "y", "x", "z"]}


def test_an_arrow_batch_is_copied_before_the_handler_goes_on() -> None:
    columns, memory = columns_of(1), bytearray(8)
    batch = pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(memory)])], ["c0"])
    taken = [columns.fit_arrow(batch), columns.fit_arrow(batch)]
    memory[0] = 1
    assert [each.column(0).to_pylist() for each in taken] == [[0], [0]]


def _refused(rows: RowBuffer[Message], several: list[Message], results: list[object]) -> Iterator[int]:
    assert rows.together(results) is None
    for number, (message, result) in enumerate(zip(several, results, strict=True)):
        try:
            rows.prepare(message, result)
        except RowError:
            yield number


def test_a_table_in_which_one_row_does_not_fit_is_looked_at_as_a_whole_once() -> None:
    """Then each row is fitted alone: in all twice what it costs, and not the square of it."""
    counts: list[int] = []
    for size in (16, 64):
        rows, several = RowBuffer[Message](parse_ddl("n int"), "group"), messages(size)
        pieces = [pa.RecordBatch.from_pydict({"n": [2**40 if n == 3 else n]}) for n in range(size)]
        results = batch_results(several, BatchResult(pa.Table.from_batches(pieces)))
        refused: list[int] = []
        calls = calls_in(lambda at=rows, of=several, what=results, to=refused: to.extend(_refused(at, of, what)))
        assert refused == [3]
        assert calls.count("Columns.fit_arrow") == 1 + size
        counts.append(len(calls))
    assert counts[1] < 4.5 * counts[0]


def test_a_table_with_a_row_for_each_message_of_a_call_is_fitted_and_cut_as_one() -> None:
    rows, counts = RowBuffer[Message](parse_ddl("n bigint"), "group"), set[int]()
    for size in (32, 32, 64):
        several, table, found = messages(size), pa.RecordBatch.from_pydict({"n": range(size)}), list[Any]()

        def call(several: list[Message] = several, table: Any = table) -> None:
            kept = rows.together(batch_results(several, BatchResult(table)))
            assert kept is not None
            rows.keep_all(list(zip(several, several, *kept, strict=False)))

        call()  # the first is looked at more closely
        rows.take()
        calls = calls_in(lambda call=call: [call() for _ in range(10)])
        assert calls.count("Columns.fit_arrow") == 10
        assert calls.count("TableRow.__init__") == 10 * size
        counts.add(len(calls) - 10 * size)
        calls = calls_in(lambda found=found: found.append(rows.take()))
        assert calls.count("TableRow.cut") == 10
        assert found[0][0].column("n").to_pylist() == [*range(size)] * 10
    assert len(counts) == 1, "nothing else is done for each message"
