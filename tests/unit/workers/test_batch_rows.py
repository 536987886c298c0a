"""Whose rows those of a BatchResult are: tagged, one result per message, or a table with a row for each; else nobody's."""

from __future__ import annotations

import ctypes
import threading
from collections import UserList, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pandas
import pyarrow
import pytest
import structlog

from rocketcrew import Send, handler
from rocketcrew.workers import packets
from rocketcrew.workers.api import BatchResult, Retry
from rocketcrew.workers.boot import COLUMNS_FILE, WorkerBounds
from rocketcrew.workers.calls import batch_results
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.fitting import RowError
from rocketcrew.workers.inferring import Inferring
from rocketcrew.workers.message import Message, make_message
from rocketcrew.workers.ordered_packets import RETURNED, OrderedDescriptor, decode_returned, encode_ordered
from rocketcrew.workers.rows import RowBuffer
from rocketcrew.workers.sends import sending

pa: Any = pyarrow
Make = Callable[..., Any]
ReadReady = Callable[[Path], pyarrow.Table]
Rows = Callable[[list[Message]], Any]

NOT_FITTING = 1 << 40


class Iterated:
    """An iterable of one's own."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


@dataclass
class Row:
    a: int


@dataclass(frozen=True)
class Hashable:
    a: int


def some(count: int) -> list[Message]:
    return [make_message(b"%d" % number, queue_offset=number) for number in range(count)]


def row(message: Message) -> dict[str, int]:
    return {"a": int(message.body)}


def of(count: int, rows: Rows, **more: Any) -> list[Any]:
    """One result per message, for a call with so many."""
    messages = some(count)
    return batch_results(messages, BatchResult(rows(messages), **more))


def stored(results: list[Any], ddl: str = "a int") -> list[tuple[int, int]]:
    """Offset and value of the rows in the block that is made of them."""
    return stored_in(RowBuffer[int](parse_ddl(ddl), "g"), results)


def stored_in(rows: RowBuffer[int], results: list[Any]) -> list[tuple[int, int]]:
    for number, (message, result) in enumerate(zip(some(len(results)), results, strict=True)):
        prepared = None if result is None else rows.prepare(message, result)
        if prepared is not None:
            rows.keep(number, prepared)
    count = rows.rows
    batch, bad = rows.take()
    assert not bad
    assert batch is None or batch.num_rows == count
    return [] if batch is None else [(each["_offset"], each["a"]) for each in batch.to_pylist()]


def reader(*batches: list[int], memory: Any = None) -> Any:
    """A reader of batches of so many numbers; all of them in the same `memory`, one after the other."""

    def read() -> Iterator[Any]:
        for numbers in batches:
            array = pa.array(numbers, pa.int32())
            if memory is not None:
                memory[: len(numbers)] = numbers
                array = pa.array(memory[: len(numbers)])
            yield pa.record_batch({"a": array})

    return pa.RecordBatchReader.from_batches(pa.schema({"a": pa.int32()}), read())


def table(messages: list[Message]) -> Any:
    return pa.table({"a": pa.array([int(each.body) for each in messages], pa.int32())})


# --- what is understood ---------------------------------------------------------------------------------------------------

ONE_EACH: dict[str, Rows] = {
    "list": lambda messages: [row(each) for each in messages],
    "tuple": lambda messages: tuple(row(each) for each in messages),
    "generator": lambda messages: (row(each) for each in messages),
    "deque": lambda messages: deque(row(each) for each in messages),
    "UserList": lambda messages: UserList([row(each) for each in messages]),
    "own": lambda messages: Iterated([row(each) for each in messages]),
    "values": lambda messages: {each.body: row(each) for each in messages}.values(),
    "dataclasses": lambda messages: [Row(int(each.body)) for each in messages],
    "lists": lambda messages: [[row(each)] for each in messages],
    "table": table,
    "batch": lambda messages: table(messages).to_batches()[0],
}
TAGGED: dict[str, Rows] = {
    f"tagged {name}": lambda messages, give=give: give([(each, row(each)) for each in messages])  # type: ignore[misc]
    for name, give in (("list", list), ("UserList", UserList), ("own", Iterated), ("iterator", iter), ("deque", deque))
} | {"items": lambda messages: dict(zip(messages, map(row, messages), strict=True)).items()}


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [*ONE_EACH.values(), *TAGGED.values()], ids=[*ONE_EACH, *TAGGED])
def test_each_row_is_its_own_message_s(rows: Rows, count: int) -> None:
    assert stored(of(count, rows)) == [(number, number) for number in range(count)]


@pytest.mark.parametrize("ack_index", [-1, 0, 1, 2, 9])
@pytest.mark.parametrize("rows", ONE_EACH.values(), ids=ONE_EACH)
def test_what_is_behind_the_ack_index_is_left_out(rows: Rows, ack_index: int) -> None:
    results = of(3, rows, ack_index=ack_index, delay_level=4)
    done = min(ack_index + 1, 3)
    assert [isinstance(each, Retry) and each.delay_level == 4 for each in results] == [False] * done + [True] * (
        3 - done
    )
    assert stored(results[:done]) == [(number, number) for number in range(done)]


def test_one_result_may_be_none_several_rows_or_a_failure() -> None:
    for count in (1, 3):
        (first, *rest) = of(count, lambda messages: [None, [{"a": 7}, {"a": 8}], Retry(2)][: len(messages)])
        assert first is None
        assert rest == [] or (stored([None, rest[0]]) == [(1, 7), (1, 8)] and isinstance(rest[1], Retry))
    assert stored(of(1, lambda _: [[{"a": 7}, {"a": 8}]])) == [(0, 7), (0, 8)]


@pytest.mark.parametrize(
    "rows",
    [
        [{"a": 1}, {"a": 2}],
        UserList([Row(1), Row(2)]),
        {Hashable(1): 0, Hashable(2): 0}.keys(),
        pa.table({"a": [1, 2]}),
    ],
)
def test_all_rows_are_the_only_message_s(rows: object) -> None:
    assert stored(of(1, lambda _: rows)) == [(0, 1), (0, 2)]


EMPTY = pa.table({"a": pa.array([], pa.int32())})


@pytest.mark.parametrize("rows", [None, [], (), iter(()), set(), deque(), UserList(), EMPTY])
def test_what_is_empty_is_nothing(rows: object) -> None:
    for count in (1, 3):
        assert of(count, lambda _: rows) == [None] * count


def test_what_is_to_be_sent_belongs_to_its_message_and_tables_go_beside_it() -> None:
    @handler(batch=True, sends=True)
    def sent(messages: list[Message]) -> BatchResult:
        return BatchResult([Send("other", each.body) for each in messages])

    @handler(batch=True, sends=True)
    def rows(messages: list[Message]) -> BatchResult:
        return BatchResult(table(messages))

    assert sending(sent, "g", None)(some(2)) == [None, None]
    assert stored(sending(rows, "g", None)(some(2))) == [(0, 0), (1, 1)]


# --- what is refused ------------------------------------------------------------------------------------------------------

NOBODY_S: dict[str, tuple[Rows, str]] = {
    "fewer": (lambda _: [{"a": 1}], "1 untagged row for 3 messages.*give .message, row. for each row, or one result"),
    "more": (lambda _: [{"a": 1}] * 4, "4 untagged rows for 3 messages"),
    "dict": (lambda _: {"a": 1}, "one dict for 3 messages"),
    "dataclass": (lambda _: Row(1), "one Row for 3 messages"),
    "text": (lambda _: "abc", "one str for 3 messages"),
    "table": (lambda _: pa.table({"a": [1, 2]}), "an Arrow Table of 2 rows for 3 messages"),
    "reader": (lambda _: reader([1, 2], [3], [4]), "an Arrow RecordBatchReader of 4 rows for 3 messages"),
    "set": (lambda messages: {Hashable(int(each.body)) for each in messages}, "a set, which has no order"),
    "frame": (lambda _: pandas.DataFrame({"a": [1], "b": [2], "c": [3]}), "return pa.Table.from_pandas"),
    "mixed": (lambda messages: [(messages[0], row(messages[0])), {"a": 2}, {"a": 3}], "and some are not"),
}
NAMED: dict[str, Rows] = {
    "mapping": lambda messages: dict(zip(messages, map(row, messages), strict=True)),
    "lists": lambda messages: [[each, row(each)] for each in messages],
    "dicts": lambda messages: [{each: row(each)} for each in messages],
    "triples": lambda messages: [(each, row(each), row(each)) for each in messages],
    "a pair alone": lambda messages: (messages[0], row(messages[0])),
    "a list alone": lambda messages: [messages[0], row(messages[0])],
    "messages": iter,
}


@pytest.mark.parametrize(("rows", "text"), NOBODY_S.values(), ids=NOBODY_S)
def test_rows_that_may_be_anybody_s_fail_the_call(rows: Rows, text: str) -> None:
    for more in ({}, {"ack_index": 0}):
        with pytest.raises(RowError, match=text):
            of(3, rows, **more)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("rows", NAMED.values(), ids=NAMED)
def test_a_message_is_named_in_a_tuple_alone(rows: Rows, count: int) -> None:
    with pytest.raises(RowError, match=r"names a message by a .*: give each row as a tuple \(message, row\)"):
        of(count, rows)


def test_a_coroutine_is_no_rows() -> None:
    async def rows() -> None:
        pass

    for count in (1, 3):
        with pytest.raises(RowError, match="which was not run"):
            of(count, lambda _: rows())


def test_a_reader_is_a_table_however_it_is_cut() -> None:
    for batches in ([[0, 1, 2]], [[0], [1], [2]], [[0, 1], [], [2]], [[], [0], [1, 2]]):
        for memory in (None, numpy.zeros(3, "i4")):
            results = of(3, lambda _, cut=batches, memory=memory: reader(*cut, memory=memory))
            assert stored(results) == [(0, 0), (1, 1), (2, 2)]
            (result,) = of(1, lambda _, cut=batches, memory=memory: reader(*cut, memory=memory))
            assert stored([result]) == [(0, 0), (0, 1), (0, 2)]
    assert of(2, lambda _: reader()) == [None, None]
    assert of(2, lambda _: reader([], [])) == [None, None]


class Later(Retry):
    """A failure with an `__init__` of its own."""

    def __init__(self, what: str, level: int) -> None:
        super().__init__(level, what)


@pytest.mark.parametrize("form", [list, iter, lambda rows: (each for each in rows), Iterated])
@pytest.mark.parametrize("tagged", [True, False])
def test_errors_among_the_rows_say_what_they_were_made_to_say(form: Callable[[Any], Any], tagged: bool) -> None:
    errors = [Later("not paid", 9), Later("never", -1), UnicodeDecodeError("utf-8", b"a", 0, 1, "no")]
    found = of(3, lambda messages: form([*zip(messages, errors, strict=True)] if tagged else errors))
    assert all(each is error for each, error in zip(found, errors, strict=True))


# --- a row that is at fault fails its own message alone -------------------------------------------------------------------


def batch_bench(bench: Make, rows: Rows, folder: Path, schema: str, size: int = 4) -> Any:
    function = handler(batch=True)(lambda messages: BatchResult(rows(messages)))
    return bench(function, bounds=WorkerBounds(batch_messages_max=size), schema=schema, folder=folder)


def bad(message: Message) -> Any:
    return {"a": "x" if message.queue_offset == 2 else int(message.body)}


def with_lock(messages: list[Message]) -> Iterator[Any]:
    for each in messages:
        yield each, {"a": threading.Lock() if each.queue_offset == 2 else int(each.body)}


def too_wide(messages: list[Message]) -> Any:
    return pa.table({"a": [NOT_FITTING if each.queue_offset == 2 else int(each.body) for each in messages]})


def with_null(messages: list[Message]) -> Any:
    return pa.table(
        {"a": pa.array([None if each.queue_offset == 2 else int(each.body) for each in messages], pa.int32())}
    )


AT_FAULT: dict[str, tuple[Rows, str]] = {
    "list": (lambda messages: list(map(bad, messages)), "a int"),
    "generator": (lambda messages: map(bad, messages), "a int"),
    "tagged": (lambda messages: [(each, bad(each)) for each in messages], "a int"),
    "not copied": (lambda messages: [given for _, given in with_lock(messages)], "a int"),
    "tagged, not copied": (with_lock, "a int"),
    "untagged, not copied": (lambda messages: (given for _, given in with_lock(messages)), "a int"),
    "table of other types": (too_wide, "a int"),
    "table at the flush": (with_null, "a int not null"),
    "batch at the flush": (lambda messages: with_null(messages).to_batches()[0], "a int not null"),
}


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("rows", "schema"), AT_FAULT.values(), ids=AT_FAULT)
def test_a_row_at_fault_fails_its_own_message(
    bench: Make, make_record: Make, tmp_path: Path, read_ready: ReadReady, rows: Rows, schema: str, ordered: bool
) -> None:
    b = batch_bench(bench, rows, tmp_path, schema)
    records = [make_record(b"%d" % n, offset=n) for n in range(8)]
    if ordered:
        data = b"".join(records)
        b.link.send(encode_ordered([OrderedDescriptor(1, 1, 0, len(data), 8, 0, (0,) * 8)], 0), data)
    else:
        b.chunk(records)
    b.link.send(packets.encode_stop())
    b.steps(3)
    if ordered:  # what follows it waits
        returned = [decode_returned(packet) for packet in b.packets() if packet[0] == RETURNED]
        assert [each.start for each in returned] == [2]
    else:
        assert [at for at, _ in b.outcomes()[1]] == [2]
    found = read_ready(tmp_path)
    wanted = [0, 1] if ordered else [0, 1, 3, 4, 5, 6, 7]
    assert found.column("_offset").to_pylist() == wanted
    assert found.column("a").to_pylist() == wanted
    assert set(found.column("_seq").to_pylist()) == {0}


def test_a_table_of_other_columns_fails_all_messages_of_its_call(
    bench: Make, make_record: Make, tmp_path: Path
) -> None:
    b = batch_bench(bench, lambda messages: pa.table({"b": [1] * len(messages)}), tmp_path, "a int", 3)
    b.chunk([make_record(b"1", offset=n) for n in range(4)])
    b.steps(3)
    assert [at for at, _ in b.outcomes()[1]] == [0, 1, 2, 3]


def fit_alone(table: Any, ddl: str) -> list[bool]:
    """Which rows of it go in, one a message."""
    rows, messages = RowBuffer[int](parse_ddl(ddl), "g"), some(table.num_rows)
    fits: list[bool] = []
    for message, each in zip(messages, batch_results(messages, BatchResult(table)), strict=True):
        try:
            rows.prepare(message, each)
        except RowError:
            fits.append(False)
        else:
            fits.append(True)
    return fits


def test_of_a_broken_table_what_is_sound_stands() -> None:
    ends = pa.array([0, 1 << 30, 2, 3], pa.int32()).buffers()[1]
    broken = pa.ListArray.from_buffers(
        pa.list_(pa.int32()), 3, [None, ends], children=[pa.array([1, 2, 3], pa.int32())]
    )
    fits = fit_alone(pa.record_batch({"v": broken}), "v array<int>")
    assert fits == [False, False, True]


def test_a_table_with_a_column_that_is_too_short_does_not_end_the_process() -> None:
    """As Arrow does where it cuts one."""
    array, schema = (ctypes.c_int64 * 10)(), (ctypes.c_int64 * 9)()
    pa.record_batch({"a": [1, 2, 3]})._export_to_c(ctypes.addressof(array), ctypes.addressof(schema))
    first_child = ctypes.c_int64.from_address(array[6]).value
    ctypes.c_int64.from_address(first_child).value = 1  # its length
    broken = pa.RecordBatch._import_from_c(ctypes.addressof(array), ctypes.addressof(schema))
    fits = fit_alone(broken, "a bigint")
    assert fits == [False] * 3


@pytest.mark.parametrize("wrong", ["deep", "in itself", "released"])
@pytest.mark.parametrize("form", [list, BatchResult, lambda rows: BatchResult(iter(rows))])
def test_values_that_cannot_be_copied_do_not_end_the_worker(
    bench: Make, make_record: Make, tmp_path: Path, read_ready: ReadReady, wrong: str, form: Callable[[Any], object]
) -> None:
    values: dict[str, Any] = {"deep": [], "in itself": [], "released": memoryview(b"abc")}
    for _ in range(2_000):
        values["deep"] = [values["deep"]]
    values["in itself"].append(values["in itself"])
    values["released"].release()
    kind, right = ("binary", b"1") if wrong == "released" else ("array<int>", [1])

    def rows(messages: list[Message]) -> Any:
        return [{"v": values[wrong] if each.queue_offset == 1 else right} for each in messages]

    function = handler(batch=True)(lambda messages: form(rows(messages)))
    b = bench(function, bounds=WorkerBounds(batch_messages_max=4), schema=f"v {kind}", folder=tmp_path)
    b.chunk([make_record(b"%d" % n, offset=n) for n in range(4)])
    b.link.send(packets.encode_stop())
    b.steps(3)
    assert [at for at, _ in b.outcomes()[1]] == [1]
    assert read_ready(tmp_path).column("_offset").to_pylist() == [0, 2, 3]


# --- rows of one table ----------------------------------------------------------------------------------------------------


def test_rows_of_a_table_stand_beside_others_in_their_order() -> None:
    shared = of(4, table)
    batch = pa.RecordBatch.from_pydict({"a": pa.array([7], pa.int32())})
    results = [shared[2], {"a": 5}, shared[0], shared[1], shared[3], batch, *of(2, table), None, shared[3]]
    wanted = [2, 5, 0, 1, 3, 7, 0, 1, None, 3]
    assert stored(results) == [(number, value) for number, value in enumerate(wanted) if value is not None]


def test_a_cut_of_nested_values_is_judged_without_its_neighbours() -> None:
    rows = RowBuffer[int](parse_ddl("a int, v array<struct<x: int not null>>"), "g")
    kind = parse_ddl("v array<struct<x: int not null>>").field("v").type
    values = pa.array([[{"x": 1}], [{"x": None}], [{"x": 3}]], kind)
    results = of(3, lambda _: pa.table({"a": pa.array([0, 1, 2], pa.int32()), "v": values}))
    for number, each in enumerate(results):
        prepared = rows.prepare(some(3)[number], each)
        assert prepared is not None
        rows.keep(number, prepared)
    batch, refused = rows.take()
    assert [owner for owner, _ in refused] == [1]
    assert batch is not None
    assert batch.column("v").to_pylist() == [[{"x": 1}], [{"x": 3}]]


def test_columns_are_inferred_by_a_table_s_row(tmp_path: Path) -> None:
    infer = Inferring(tmp_path / COLUMNS_FILE, structlog.get_logger())
    assert stored_in(RowBuffer[int](None, "g", infer), of(2, table)) == [(0, 0), (1, 1)]
    assert (tmp_path / COLUMNS_FILE).read_text().strip() == "a int"
    with pytest.raises(RowError, match="no columns are declared"):
        stored_in(RowBuffer[int](None, "g"), of(2, table))


def test_a_table_s_rows_are_looked_at_at_once_where_that_is_asked() -> None:
    rows = RowBuffer[int](parse_ddl("a int not null"), "g")
    messages = some(3)
    results = batch_results(messages, BatchResult(with_null(messages)))
    for message, each in zip(messages[:2], results, strict=False):
        prepared = rows.prepare(message, each, at_once=True)
        assert prepared is not None
        rows.check(prepared)
    with pytest.raises(RowError, match="is null"):
        rows.prepare(messages[2], results[2], at_once=True)
