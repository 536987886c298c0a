"""Failed calls as events of Sentry: what is sent, what is not, and that nothing of it changes a call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from rocketcrew.conf.settings import SentrySettings
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.workers.api import BatchResult, BodyError, Commit, Handler, Retry, Suspend
from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.failures import Attempts
from rocketcrew.workers.message import Message
from rocketcrew.workers.ordered_packets import OrderedDescriptor, encode_ordered
from rocketcrew.workers.packets import QueueInfo
from rocketcrew.workers.sentry import (
    MESSAGES_MAX,
    SentryEvents,
    check_sentry,
    flush_sentry,
    sentry_place,
    set_up_sentry,
)
from rocketcrew.workers.user_errors import usable
from rocketcrew.workers.watching import watched, watched_async

QUEUE = QueueInfo("group", "TopicTest", "broker-a", 3)
DSN = "https://key@sentry.example/7"


class Memory(Transport):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []
        self.flushes: list[float] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        assert event is not None
        self.events.append(dict(event))

    def flush(self, timeout: float, callback: Any = None) -> None:
        self.flushes.append(timeout)


class Broken(Memory):
    def capture_envelope(self, envelope: Envelope) -> None:
        raise OSError("no")


def settings(**changed: Any) -> SentrySettings:
    given = {"dsn": DSN, "environment": "", "release": "", "sample_percent": 100, "include_bodies": False, **changed}
    return SentrySettings(**given)


@pytest.fixture
def memory() -> Iterator[Memory]:
    transport = Memory()
    set_up_sentry(settings(), {}, transport=transport)
    yield transport
    sentry_sdk.get_global_scope().set_client(None)


def message(body: bytes = b"body", times: int = 1, offset: int = 9, **properties: str) -> Message:
    stored = StoredMessage(
        "TopicTest", body, encode_properties(properties).encode(), queue_offset=offset, reconsume_times=times
    )
    return Message(encode_message(stored), 0, QUEUE)


def raising(error: BaseException) -> Any:
    def handle(given: object) -> object:
        local = given  # what must not be sent
        assert local is given
        raise error

    return handle


def call(function: Any, given: Any, *, batch: bool = False, attempts: Attempts | None = None, **more: Any) -> object:
    """What the watched handler returns or raises."""
    events = SentryEvents("w1", "shop:count", attempts, **more)
    handler = watched(Handler(function, batch=batch), "group", [events])
    try:
        return handler.function(given)
    except BaseException as error:  # noqa: BLE001
        return error


def test_a_failed_call_is_one_event_that_names_the_message(memory: Memory) -> None:
    error = ValueError("no such order")
    assert call(raising(error), message(UNIQ_KEY="U1", KEYS="k1"), attempts=Attempts()) is error
    (event,) = memory.events
    assert event["tags"] == {
        "worker": "w1", "handler": "shop:count", "group": "group", "topic": "TopicTest", "broker": "broker-a",
        "queue_id": "3", "offset": "9", "msg_id": "U1", "reconsume_times": "1", "last_attempt": "false",
    }  # fmt: skip
    (raised,) = event["exception"]["values"]
    assert (raised["type"], raised["value"]) == ("ValueError", "no such order")
    assert raised["mechanism"] == {"type": "rocketcrew", "handled": False}
    assert event["transaction"] == "shop:count"
    assert event["environment"] == "production"
    assert "release" not in event


def test_the_event_of_an_error_that_is_raised_again_has_the_last_raise_only(memory: Memory) -> None:
    error = ValueError("no")

    def first(_: object) -> None:
        raise error

    def second(_: object) -> None:
        raise error

    for function in (first, second):
        assert call(function, message()) is error
        usable(error)  # as the worker tells of it
    functions = [
        [frame["function"] for frame in event["exception"]["values"][0]["stacktrace"]["frames"]]
        for event in memory.events
    ]
    assert [frames[-1] for frames in functions] == ["first", "second"]
    assert "first" not in functions[1]


def test_keys_bodies_and_local_variables_are_not_sent_unless_asked(memory: Memory) -> None:
    call(raising(ValueError("no")), message(b"secret body", UNIQ_KEY="U1", KEYS="secret-key"))
    assert "secret" not in repr(memory.events)
    assert "'vars'" not in repr(memory.events)


def test_keys_bodies_and_local_variables_are_sent_where_asked() -> None:
    memory = Memory()
    set_up_sentry(settings(include_bodies=True, release="1.2", environment="test"), {}, transport=memory)
    call(raising(ValueError("no")), message(b"a body", UNIQ_KEY="U1", KEYS="k1"), include_bodies=True)
    sentry_sdk.get_global_scope().set_client(None)
    (event,) = memory.events
    (sent,) = event["contexts"]["rocketmq"]["messages"]
    assert (sent["keys"], sent["body"]) == ("k1", "a body")
    assert "local" in event["exception"]["values"][0]["stacktrace"]["frames"][-1]["vars"]
    assert (event["release"], event["environment"]) == ("1.2", "test")


@pytest.mark.parametrize(
    ("attempts", "error", "times", "last"),
    [
        (Attempts(3), ValueError("no"), 2, "false"),
        (Attempts(3), ValueError("no"), 3, "true"),
        (Attempts(), ValueError("no"), 15, "false"),
        (Attempts(), ValueError("no"), 16, "true"),
        (Attempts(3, -1), ValueError("no"), 0, "true"),
        (Attempts(3), BodyError("no", delay_level=-1), 0, "true"),
        (Attempts(3, 0, True), ValueError("no"), 0, "true"),
        (None, ValueError("no"), 99, None),
    ],
)
def test_the_last_attempt_is_named_where_it_is_known(
    memory: Memory, attempts: Attempts | None, error: BaseException, times: int, last: str | None
) -> None:
    call(raising(error), message(times=times), attempts=attempts)
    assert memory.events[0]["tags"].get("last_attempt") == last


@pytest.mark.parametrize("asked", [Retry(3), Suspend(10), GeneratorExit()])
def test_what_a_handler_asks_for_is_no_event(memory: Memory, asked: BaseException) -> None:
    assert call(raising(asked), message()) is asked
    assert memory.events == []


def test_a_success_is_no_event_and_its_result_is_the_handlers(memory: Memory) -> None:
    given = message()
    assert call(lambda m: m, given) is given
    assert call(lambda _: Retry(3), given) is not None
    assert memory.events == []


def test_a_returned_error_is_an_event(memory: Memory) -> None:
    error = ValueError("returned")
    assert call(lambda _: error, message()) is error
    assert [event["exception"]["values"][0]["value"] for event in memory.events] == ["returned"]


def test_a_batch_is_one_event_with_a_bounded_list(memory: Memory) -> None:
    given = [message(offset=n, UNIQ_KEY=f"U{n}") for n in range(MESSAGES_MAX + 5)]
    call(raising(ValueError("no")), given, batch=True)
    call(lambda batch: [None, ValueError("one"), ValueError("two"), *batch[3:]], given, batch=True)
    assert [event["exception"]["values"][0]["value"] for event in memory.events] == ["no", "one"]
    for event in memory.events:
        assert event["tags"]["messages"] == str(MESSAGES_MAX + 5)
        assert event["tags"]["offset"] == "0"
        assert [each["offset"] for each in event["contexts"]["rocketmq"]["messages"]] == list(range(MESSAGES_MAX))


def test_a_message_that_cannot_be_decoded_fails_by_its_own_error(memory: Memory) -> None:
    error = ValueError("no")
    assert call(raising(error), Message(b"\0" * 100, 0, QUEUE), attempts=Attempts()) is error
    assert memory.events[0]["tags"]["topic"] == "TopicTest"


Make = Any


def bench_of(bench: Make, function: Any, **more: Any) -> Any:
    """A worker whose handler and whose failures Sentry watches."""
    batch = more.pop("batch", False)
    events = SentryEvents("w1", "shop:count", Attempts())
    b = bench(watched(Handler(function, batch=batch), "group", [events]), **more)
    b.worker.report_failures(events.failed)
    return b


@pytest.mark.parametrize("batch", [False, True])
def test_rows_that_do_not_fit_are_events_that_name_the_record(
    bench: Make, make_record: Make, tmp_path: Path, memory: Memory, batch: bool
) -> None:
    rows = [{"a": 1}, {"a": "secret"}, {"a": 2}]
    function = (lambda _: rows) if batch else (lambda m: rows[m.queue_offset])
    b = bench_of(
        bench, function, batch=batch, schema="a int", folder=tmp_path, bounds=WorkerBounds(batch_messages_max=3)
    )
    b.chunk([make_record(offset=n) for n in range(3)])
    b.steps(3)
    (event,) = memory.events
    assert (
        event["exception"]["values"][-1]["value"]
        == "column a int: expected an integer, got str: return int(value), or declare the column as what it is"
    )
    names = {key: event["tags"][key] for key in ("topic", "broker", "queue_id", "offset", "handler")}
    assert names == {
        "topic": "TopicTest", "broker": "broker-a", "queue_id": "3", "offset": "1", "handler": "shop:count"
    }  # fmt: skip
    assert "secret" not in repr(memory.events)


class Rows:
    """An iterable object that is no iterator."""

    def __init__(self, rows: Iterator[object]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[object]:
        return self._rows


@pytest.mark.parametrize("schema", ["a int", None])
@pytest.mark.parametrize(
    ("ordered", "batch", "form"),
    [
        *(
            (ordered, *form)
            for form in [
                (False, lambda rows: rows),
                (False, Rows),
                (True, lambda rows: [None, rows]),
                (True, lambda rows: [None, Rows(rows)]),
                (True, BatchResult),
                (True, lambda rows: BatchResult(Rows(rows))),
            ]
            for ordered in (False, True)
        ),
        (True, False, Commit),
        (True, False, lambda rows: Commit(Rows(rows))),
    ],
)
def test_rows_that_fail_while_they_are_taken_are_one_event(
    bench: Make, make_record: Make, tmp_path: Path, memory: Memory, batch: bool, form: Any, ordered: bool,
    schema: str | None,
) -> None:  # fmt: skip
    """In whatever they are given, and where rows are not kept too."""

    def handle(given: Any) -> object:
        if not batch and given.queue_offset == 0:
            return None

        def rows() -> Iterator[object]:
            yield {"a": 1}
            raise KeyError("second row")

        return form(rows())

    results = {} if schema is None else {"schema": schema, "folder": tmp_path}
    b = bench_of(bench, handle, batch=batch, bounds=WorkerBounds(batch_messages_max=2), **results)
    records = [make_record(offset=n, properties={"UNIQ_KEY": f"U{n}"}) for n in range(2)]
    if ordered:
        data = b"".join(records)
        b.link.send(encode_ordered([OrderedDescriptor(1, 1, 0, len(data), 2, 0, (0, 0))], 0), data)
    else:
        b.chunk(records)
    b.steps(3)
    (event,) = memory.events
    assert event["exception"]["values"][-1]["value"] == "'second row'"
    assert event["tags"]["topic"] == "TopicTest"


def test_a_result_that_is_no_row_is_one_event_of_its_message(
    bench: Make, make_record: Make, tmp_path: Path, memory: Memory
) -> None:
    b = bench_of(bench, lambda _: True, schema="a int", folder=tmp_path)
    b.chunk([make_record(offset=4, properties={"UNIQ_KEY": "U4"})])
    b.steps(3)
    (event,) = memory.events
    assert (event["tags"]["msg_id"], event["tags"]["last_attempt"]) == ("U4", "false")


def test_a_damaged_body_that_no_call_has_seen_is_an_event(
    bench: Make, make_record: Make, spoil: Make, memory: Memory
) -> None:
    b = bench_of(bench, lambda _: None, batch=True, bounds=WorkerBounds(batch_messages_max=8))
    b.chunk([spoil(make_record(offset=0)), make_record(offset=1)])
    b.steps(3)
    assert [event["tags"]["offset"] for event in memory.events] == ["0"]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("returned", [False, True])
def test_a_failure_that_its_call_has_reported_is_not_reported_again(
    bench: Make, make_record: Make, memory: Memory, returned: bool, ordered: bool
) -> None:
    errors = [ValueError("one"), ValueError("two")]

    def handle(given: list[Message]) -> object:
        if returned:
            return errors
        raise errors[0]

    b = bench_of(bench, handle, batch=True, bounds=WorkerBounds(batch_messages_max=2))
    records = [make_record(offset=n) for n in range(2)]
    if ordered:
        data = b"".join(records)
        b.link.send(encode_ordered([OrderedDescriptor(1, 1, 0, len(data), 2, 0, (0, 0))], 0), data)
    else:
        b.chunk(records)
    b.steps(3)
    assert [event["exception"]["values"][0]["value"] for event in memory.events] == ["one"]


def test_tags_of_one_call_are_not_seen_with_the_next(memory: Memory) -> None:
    def handle(given: Message) -> None:
        if given.queue_offset == 1:
            sentry_sdk.set_tag("customer", "first")
        raise ValueError("no")

    for offset in (1, 2):
        call(handle, message(offset=offset))
    assert [event["tags"].get("customer") for event in memory.events] == ["first", None]


def test_what_the_handler_captures_itself_names_the_message_too(memory: Memory) -> None:
    call(lambda _: sentry_sdk.capture_message("look"), message(UNIQ_KEY="U1"), attempts=Attempts())
    (event,) = memory.events
    assert (event["message"], event["tags"]["msg_id"]) == ("look", "U1")
    assert "last_attempt" not in event["tags"]


def test_a_coroutine_is_watched_to_its_end_and_calls_do_not_mix(memory: Memory) -> None:
    async def work(given: Message) -> None:
        await asyncio.sleep(0)
        sentry_sdk.set_tag("own", given.message_id)
        await asyncio.sleep(0)
        if given.tags == "wait":
            await asyncio.Event().wait()
        raise ValueError(given.message_id)

    handler = watched_async(Handler(work), "group", [SentryEvents("w1", "shop:count", None)])

    async def all_of_them() -> None:
        function: Any = handler.function
        stopped = asyncio.ensure_future(function(message(UNIQ_KEY="U3", TAGS="wait")))
        await asyncio.gather(*(function(message(UNIQ_KEY=f"U{n}")) for n in (1, 2)), return_exceptions=True)
        stopped.cancel()
        await asyncio.gather(stopped, return_exceptions=True)

    asyncio.run(all_of_them())
    found = [(event["tags"]["msg_id"], event["tags"]["own"]) for event in memory.events]
    assert sorted(found) == [("U1", "U1"), ("U2", "U2")]


def test_trouble_of_sentrys_changes_no_call() -> None:
    set_up_sentry(settings(), {}, transport=Broken())
    error = ValueError("no")
    assert call(raising(error), message()) is error
    sentry_sdk.get_global_scope().set_client(None)
    assert call(raising(error), message()) is error, "without a client"


def test_nothing_of_the_process_is_replaced_and_the_wait_at_the_end_is_bounded(memory: Memory) -> None:
    client = sentry_sdk.get_client()
    assert client.integrations == {}
    assert client.monitor is None
    flush_sentry()
    assert memory.flushes == [1.0]


def test_sentry_without_its_extra_is_refused_with_the_command() -> None:
    with pytest.raises(UsageError, match=r"pip install 'rocketcrew\[sentry\]'"):
        check_sentry(settings(), lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'rocketcrew\[sentry\]'"):
        sentry_place(settings(), lambda _: None)
    check_sentry(settings(dsn=""), lambda _: None)
    check_sentry(settings())


def test_what_the_sdk_refuses_is_an_error_of_the_configuration() -> None:
    with pytest.raises(UsageError, match="Sentry cannot be set up"):
        set_up_sentry(settings(dsn="https://sentry.example/x"), {})


def test_one_error_object_is_an_event_for_each_message_that_fails_by_it(memory: Memory) -> None:
    events, error = SentryEvents("w1", "shop:handle", None), ValueError("made once")
    for each in (message(offset=5), message(offset=6)):
        with pytest.raises(ValueError, match="made once"), events.around("group", [each]):
            raise error
        events.failed(QUEUE, each, error)  # as the runner does after each failed call
    assert [event["tags"]["offset"] for event in memory.events] == ["5", "6"]
    with events.around("group", [message(offset=7)]):
        pass
    events.failed(QUEUE, message(offset=7), error)  # by the rows that the call gave
    assert [event["tags"]["offset"] for event in memory.events] == ["5", "6", "7"]
