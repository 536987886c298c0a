"""Every name of docs/reference/api.md with arguments that cannot be meant: one sentence that names the argument, no bare
TypeError, and nothing taken in silence. A new argument without a line here fails the first test."""

from __future__ import annotations

import contextlib
import enum
import importlib
import inspect
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import rocketcrew
from rocketcrew import (
    Access,
    BatchResult,
    Credentials,
    Crew,
    Handler,
    OutgoingMessage,
    Producer,
    Retry,
    Rollback,
    Send,
    SendRules,
    Suspend,
    SyncProducer,
    TlsOptions,
    by_key,
    by_machine_room,
    by_random,
    consume,
    handler,
    load,
    logger,
    progress,
    read,
    to_queue,
)
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.errors import RocketcrewError, UsageError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.testing import Fault, Faults, LocalBroker, Rehearsal, message, run

API = Path(__file__).parents[3] / "docs/reference/api.md"
NOWHERE = "127.0.0.1:1"
SENT = OutgoingMessage("orders", b"x")
FLAG = re.compile(r"(?<!\S)\(?(-[a-z]|--[a-z][a-z-]+)\b(?!.*`)")
"""Of a command line, and none of a command that is named in backticks."""
SELDOM = object()
"""Fits nothing."""

NOT_TEXT = (None, 5, True, b"x", ["a"], SELDOM)
NOT_FILLED = (*NOT_TEXT, "", "  ")
NOT_TEXT_OR_NONE = (5, True, b"x", ["a"], SELDOM)
NOT_WHOLE = (None, "5", 1.5, True, [], SELDOM)
NOT_NATURAL = (*NOT_WHOLE, -1)
NOT_NUMBER_OR_NONE = ("5", True, [], -1, float("nan"), float("inf"), 10**30, 10**400)
NOT_NUMBER = (None, *NOT_NUMBER_OR_NONE)
NOT_FLAG = (None, 0, 1, "yes", [])
NOT_FUNCTION = (5, "f", [], SELDOM)
NOT_TABLE = (5, "a=1", ["a"], {5: "a"})
NOT_TOPICS = (5, True, b"x", ["a", 5], {"a": "b"}, "", SELDOM)
NOT_PATH = (5, True, b"x", [], SELDOM, "a\0b")


def done(_: object) -> None:
    """A handler."""


def crew(**given: Any) -> Crew:
    return Crew(given.pop("handler", done), **{"topics": "orders", "group": "g", "name_servers": NOWHERE, **given})


def consumed(**given: Any) -> object:
    return consume(
        given.pop("handler", "no_module:f"), **{"topics": "orders", "group": "g", "name_servers": NOWHERE, **given}
    )


def rehearsal(**given: Any) -> Rehearsal:
    return Rehearsal(given.pop("handler", done), **given)


def sync_producer(**given: Any) -> None:
    SyncProducer(given.pop("target", NOWHERE), **given).close()


def sending(method: str, **first: Any) -> Callable[..., object]:
    def send(**given: Any) -> object:
        with SyncProducer(NOWHERE) as producer:
            return getattr(producer, method)(**{**first, **given})

    return send


def faults(method: str) -> Callable[..., object]:
    return lambda **given: getattr(Faults([], []), method)(**{"code": "PULL_MESSAGE", **given})


def wound(**given: Any) -> None:
    with Rehearsal(done) as one:
        one.send(b"x")
        one.wind(**given)


ONE = {"message": "orders", "body": b"x"}
SEND = {
    "message": (None, 5, b"x", [SENT], SELDOM),
    "body": (None, 5, ["x"], {"a": 1}, SELDOM),
    "timeout_ms": NOT_NUMBER_OR_NONE,
    "selector": NOT_FUNCTION,
    "fields": (),
}
FIELDS = {
    "tags": NOT_TEXT_OR_NONE,
    "keys": (5, True, b"x", ["a", 5], {"a": "b"}, SELDOM),
    "properties": (5, "a=1", ["a"], {"a": 1}, {5: "a"}, SELDOM),
    "wait_stored": NOT_FLAG,
    **dict.fromkeys(("delay_level", "flag", "delay_sec", "delay_ms", "deliver_at_ms"), NOT_WHOLE),
}
DECORATED: dict[str, tuple[object, ...]] = {
    "function": (5, "f", SELDOM),
    "schema": (5, True, b"x", [], {"a": "int"}),
    "filter": NOT_FUNCTION,
    "setup": NOT_FUNCTION,
    "teardown": NOT_FUNCTION,
    "hooks": (None, 5, "f", SELDOM),
    "order": (5, "", "keys", True),
    "key": (5, True, b"x"),
    "topic": (5, True, b"x", "", "a:b"),
    "tags": (5, True, b"x"),
    "body_errors": (None, 5, "", "drop"),
    **dict.fromkeys(("batch", "auto_commit", "sends"), NOT_FLAG),
    **dict.fromkeys(("soft_time_limit_s", "hard_time_limit_s"), NOT_NUMBER_OR_NONE),
}


def decorated(**given: Any) -> object:
    beside = {"key": {"order": "key"}, "tags": {"topic": "orders"}, "auto_commit": {"order": "queue"}}
    if "function" in given:
        return handler(given["function"])
    return handler(**given, **beside.get(next(iter(given)), {}))(done)  # type: ignore[call-overload]


def a_handler(**given: Any) -> object:
    return Handler(given.pop("function")) if "function" in given else decorated(**given)


RUN = {
    "topics": NOT_TOPICS,
    "group": NOT_FILLED,
    "delay_levels": (5, "", b"x", ["1s"], "1x"),
    "settings": (*NOT_TABLE, {"workers.cuont": 3}, {"workers.count": "x"}),
}
CREW = {
    "handler": (None, 5, "", [], "no_module", SELDOM),
    "topics": NOT_TOPICS,
    "group": (5, True, b"x", "", ["a"], "a b"),
    "name_servers": (5, True, b"x", ["a"], SELDOM),
    "workers": ("5", 1.5, True, -1, 10_000, []),
    "schema": (5, True, b"x", [], SELDOM),
    "target": NOT_PATH,
    "settings": (*NOT_TABLE, {"workers.cuont": 3}, {"workers.count": "x"}),
    "config": (*NOT_PATH, "", "no_such.toml"),
}
PRODUCER = {
    "target": (None, 5, True, b"x", ["a", 5], {"a": 1}, SELDOM, "nohost", "host:99999"),
    "group": NOT_FILLED,
    "send_timeout_ms": NOT_NUMBER,
    "retries": NOT_NATURAL,
    "rules": (5, True, "fast", {"retries": 1}),
    "check": NOT_FUNCTION,
    "hooks": (None, 5, "f", [5], SELDOM),
    "trace": (None, 5, [], SELDOM),
    "spans": NOT_FLAG,
    "compression": (None, 5, "zstd", True),
    "compress_from_bytes": NOT_NATURAL,
}
ACCESS = {
    "name_servers": (None, 5, b"x", ["a", 5], {"a": 1}),
    "credentials": (5, "key", ("a", "b"), {"access_key": "a"}),
    "tls": (5, True, "cert.pem", {}),
    **dict.fromkeys(
        (
            "namesrv_domain", "namesrv_domain_subgroup", "client_ip", "instance_name", "unit_name", "namespace",
            "namespace_v2",
        ),
        NOT_TEXT,
    ),
    **dict.fromkeys(("unit_mode", "vip_channel_enabled"), NOT_FLAG),
    **dict.fromkeys(("request_timeout_ms", "connect_timeout_ms", "poll_interval_ms"), NOT_NUMBER),
}  # fmt: skip
PAUSE = {"suspend_ms": NOT_WHOLE, "reason": NOT_TEXT}

USES: dict[str, tuple[Callable[..., object], dict[str, tuple[object, ...]]]] = {
    "handler": (decorated, DECORATED),
    "Handler": (a_handler, DECORATED),
    "Retry": (Retry, {"delay_level": (*NOT_WHOLE, -2, 128), "reason": NOT_TEXT}),
    "BatchResult": (BatchResult, {"rows": (), "ack_index": ("5", 1.5, True, []), "delay_level": (*NOT_WHOLE, -2, 128)}),
    "Suspend": (Suspend, PAUSE),
    "Rollback": (Rollback, PAUSE),
    "Send": (
        lambda **given: Send(given.pop("topic", "orders"), given.pop("body", b"x"), **given),
        {"topic": NOT_FILLED, "body": SEND["body"], "fields": (), "order_key": ("", " ", 7, b"o-1"), **FIELDS},
    ),
    "progress": (
        lambda **given: progress(**{"done": 1, **given}),
        {"done": NOT_NUMBER[:-2], "total": NOT_NUMBER_OR_NONE[:-2], "text": NOT_TEXT},
    ),
    "logger": (logger, {"message": (5, "m", b"x", [], SELDOM)}),
    "consume": (consumed, CREW),
    "Crew": (crew, {**CREW, "schema": (*CREW["schema"], "a strnig"), "embedded": NOT_FLAG}),
    "Crew.wait": (
        lambda **given: crew().wait(**given),
        {
            "max_messages": ("5", 0, -1, 1.5, True), "until_empty": NOT_FLAG, "timeout_s": NOT_NUMBER_OR_NONE,
            "progress": NOT_FLAG,
        },
    ),
    "read": (
        lambda **given: read(**{"target": "no_such_table", **given}),
        {
            "target": (None, *NOT_PATH, "", "no_such_table"), "latest": NOT_FLAG, "form": NOT_FILLED,
            "spark": (5, True, "local[2]", SELDOM), "options": NOT_TABLE,
        },
    ),
    "load": (
        lambda **given: load(**{"staging": "no_such_folder", "target": "t", "format": "pyarrow", **given}),
        {
            "staging": (None, *NOT_PATH, "", [5], [""], "no_such_folder"), "target": (None, *NOT_PATH, ""),
            "spark": (5, True, "local[2]", SELDOM), "format": NOT_FILLED, "partition_by": (5, True, "day", [5]),
            "options": NOT_TABLE, "function": (None, 5, True, b"x"), "table": (None, 5, True, b"x"),
        },
    ),
    "SyncProducer": (sync_producer, {**PRODUCER, "idle_ms": NOT_NUMBER, "background": NOT_FLAG}),
    "SyncProducer.send": (sending("send", **ONE), SEND),
    "SyncProducer.send_oneway": (sending("send_oneway", **ONE), SEND),
    "SyncProducer.send_async": (sending("send_async", **ONE), dict.fromkeys(SEND, ())),  # as `send`, in the future
    "SyncProducer.send_batch": (
        sending("send_batch", messages=[SENT]),
        {
            "messages": (None, 5, "abc", b"abc", SENT, [5], [], SELDOM), "timeout_ms": SEND["timeout_ms"],
            "selector": NOT_FUNCTION,
        },
    ),
    "SyncProducer.send_many": (
        sending("send_many", messages=[SENT]),
        {
            "messages": (None, 5, "abc", b"abc", SENT, [5], SELDOM), "in_flight_max": (*NOT_NATURAL, 0),
            "timeout_ms": SEND["timeout_ms"],
        },
    ),
    "SyncProducer.send_in_transaction": (
        sending("send_in_transaction", message=SENT, execute=done),
        {"message": (None, 5, "orders", b"x"), "execute": (None, *NOT_FUNCTION), "timeout_ms": ()},
    ),
    "SyncProducer.recall": (
        sending("recall", topic="orders", recall_handle="x"), {"topic": NOT_FILLED, "recall_handle": NOT_FILLED}
    ),
    "Producer": (
        lambda **given: Producer(**{"target": NOWHERE, **given}),
        {
            **PRODUCER,
            **dict.fromkeys(
                (
                    "body_max_bytes", "compress_level", "default_topic", "default_topic_queue_nums",
                    "heartbeat_interval_ms", "now_ms",
                ),
                (),
            ),  # for this project's own processes
        },
    ),
    "OutgoingMessage": (
        lambda **given: OutgoingMessage(**{"topic": "orders", "body": b"x", **given}),
        {"topic": NOT_TEXT, "body": SEND["body"], "system_properties": (5, True, "a=1", ["a"]), **FIELDS},
    ),
    "SendRules": (
        SendRules,
        {
            "retries": NOT_NATURAL, "retry_codes": (None, 5, "2", [2], {"2"}), "retry_unless_ok": NOT_FLAG,
            "attempt_timeout_ms": NOT_NUMBER, "latency_faults": NOT_FLAG, "probe_unreachable": NOT_FLAG,
        },
    ),
    "Access": (Access, ACCESS),
    "Credentials": (
        lambda **given: Credentials(**{"access_key": "a", "secret_key": "b", **given}),
        {"access_key": NOT_TEXT, "secret_key": NOT_TEXT, "security_token": NOT_TEXT},
    ),
    "TlsOptions": (
        TlsOptions,
        {
            **dict.fromkeys(("trust_cert_path", "cert_path", "key_path", "server_name", "key_password"), NOT_TEXT),
            "auth_server": NOT_FLAG, "check_hostname": NOT_FLAG,
        },
    ),
    "by_key": (by_key, {"key": (None, 5, True, b"x", [])}),
    "by_random": (by_random, {"below": (None, *NOT_FUNCTION)}),
    "by_machine_room": (
        lambda **given: by_machine_room(**{"rooms": ["a"], "then": by_key("k"), **given}),
        {"rooms": (None, 5, "abc", [5]), "then": (None, *NOT_FUNCTION)},
    ),
    "to_queue": (to_queue, {"mq": (None, 5, "queue", ("orders", "broker-a", 0))}),
    "testing.message": (
        message,
        {
            "body": SEND["body"], "topic": NOT_FILLED, "tags": FIELDS["tags"], "keys": FIELDS["keys"],
            "properties": (*FIELDS["properties"], {"KEYS": "o-1"}, {"TAGS": "paid"}, {"": "x"}, {"a": ""}),
            "broker_name": NOT_TEXT, "group": NOT_TEXT,
            **dict.fromkeys(("queue_id", "reconsume_times"), (*NOT_NATURAL, 1 << 40)),
            **dict.fromkeys(("queue_offset", "store_timestamp_ms"), (*NOT_NATURAL, 1 << 70)),
        },
    ),
    "testing.run": (
        lambda **given: run(**{"handler": done, "messages": [b"x"], **given}),
        {
            **RUN, "handler": CREW["handler"], "seconds": NOT_NUMBER_OR_NONE,
            "messages": (None, 5, "abc", b"abc", {"a": 1}, message(b"x"), [None], [5], []),
        },
    ),
    "testing.Rehearsal": (
        rehearsal,
        {**RUN, "handler": (), "settings": NOT_TABLE, "topics": NOT_TOPICS[:5], "delay_levels": (5, "", b"x")},
    ),
    "testing.Rehearsal.send": (lambda **given: rehearsal().send(*given["messages"]), {"messages": ([None], [5], [["a"]])}),
    "testing.Rehearsal.wind": (wound, {"seconds": NOT_NUMBER}),
    "testing.LocalBroker": (LocalBroker, {"delay_levels": (5, b"x", ["1s"], "1x"), "config": (5, "broker.conf", {})}),
    "testing.Faults": (Faults, {"broker": (), "name_server": ()}),  # made by LocalBroker
    "testing.Faults.refuse": (
        faults("refuse"),
        {
            "code": (None, "", 5, True, "PULL", []), "times": ("2", 0, -1, 1.5, True, []),
            "response": (None, "", 5555, True, "BUSY"), "remark": NOT_TEXT,
        },
    ),
    "testing.Faults.drop": (faults("drop"), {"code": (None, "", 5, True), "times": ("2", 0, -1, 1.5, True)}),
    "testing.Faults.delay": (
        lambda **given: faults("delay")(**{"delay_ms": 5, **given}),
        {"code": (None, "", 5, True, "GET_ROUTEINFO_BY_TOPIC"), "times": ("2", 0, -1), "delay_ms": NOT_NATURAL},
    ),
    "testing.Fault": (Fault, dict.fromkeys(("code", "times", "answer", "removed"), ())),  # made by Faults
    "testing.Fault.wait": (
        lambda **given: Fault(RequestCode.PULL_MESSAGE, 1, lambda command: command, done).wait(**given),
        {"hits": NOT_NATURAL, "timeout_s": NOT_NUMBER},
    ),
}  # fmt: skip
GIVEN_BY_OTHERS = {
    "BodyError", "BrokerError", "CheckedMessage", "Commit", "CrewError", "CrewTimeoutError", "HandlerLoadError",
    "LocalTransactionState", "Message", "RocketcrewError", "SendError", "SendResult", "SendStatus", "SoftTimeLimitExceeded",
    "TimedOutError", "TransactionSendResult", "UnreachableError", "UsageError", "testing.Call", "testing.DeadLetter",
    "testing.Result", "testing.Retried",
}  # fmt: skip
"""Which users get and do not make; a Commit takes anything that a handler returns."""
WITHOUT_ARGUMENTS = {"cancelled", "worker_index"}
BROKER_METHODS = {
    "topic": {"name": NOT_FILLED, "queues": (*NOT_NATURAL, 0, 10**9)},
    "group": {"name": NOT_FILLED},
    "messages": {"topic": NOT_FILLED},
    "dead_letters": {"group": NOT_FILLED},
}


CASES = [
    pytest.param(call, argument, values, id=f"{name}-{argument}")
    for name, (call, wrong) in USES.items()
    for argument, values in wrong.items()
    if values
]


def found(name: str) -> Any:
    room, _, rest = name.rpartition(".")
    return getattr(importlib.import_module("rocketcrew.testing") if room == "testing" else rocketcrew, rest)


def test_every_name_and_argument_of_the_page_is_in_the_table() -> None:
    named = set(re.findall(r"^::: rocketcrew\.(\S+)$", API.read_text(), re.MULTILINE))
    assert named == {
        *GIVEN_BY_OTHERS, *WITHOUT_ARGUMENTS, *(name for name in USES if not inspect.isfunction(_method(name))),
    }  # fmt: skip
    for name, (_, wrong) in USES.items():
        known = set(inspect.signature(_method(name) or found(name)).parameters) - {"self"}
        beside = set(FIELDS) if name == "Send" else set()
        assert known == set(wrong) - beside, name


def _method(name: str) -> Any:
    """The method of a class that "Class.method" names; None for a name of the page."""
    owner, _, method = name.rpartition(".")
    return getattr(found(owner), method) if owner not in {"", "testing"} else None


@pytest.mark.parametrize(("call", "argument", "values"), CASES)
def test_a_wrong_argument_is_one_sentence(
    call: Callable[..., object], argument: str, values: tuple[object, ...]
) -> None:
    for value in values:
        try:
            call(**{argument: value})
        except UsageError as error:
            text = str(error)
        else:
            pytest.fail(f"{argument}={value!r} is taken")
        assert not FLAG.search(text), "the user gave an argument, and typed no flag"
        assert 10 < len(text) < 600, text
        assert "object has no attribute" not in text
        assert "required argument is not" not in text


@pytest.mark.parametrize("method", BROKER_METHODS)
def test_a_broker_of_a_test_is_asked_for_what_it_has(method: str) -> None:
    with LocalBroker() as broker:
        for argument, values in BROKER_METHODS[method].items():
            for value in values:
                with pytest.raises(UsageError, match=r"give|letters"):
                    getattr(broker, method)(**{argument: value})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: message(queue_id=-1), "message(queue_id=-1): give a whole number, 0 or more"),
        (lambda: message(tags=1), "message(tags=1): give a str, or None"),  # type: ignore[arg-type]
        (lambda: message(properties={"a": 1}), "message(properties=...): 'a' with 1: both must be str"),  # type: ignore[dict-item]
        (
            lambda: message(properties={"KEYS": "o-1"}),
            "message(properties=...): 'KEYS' has an argument of its own: give keys='o-1'",
        ),
        (lambda: run(done, [b"x"], seconds="5"), "run(seconds='5'): give a number of seconds from 0 to 86,400, or None"),  # type: ignore[arg-type]
        (lambda: read(5), "read(target=5): give a path (a str that is not blank, or a Path)"),  # type: ignore[arg-type]
        (lambda: crew(settings={"workers.count": "x"}), 'workers.count = "x" (from argument settings=) is not a whole'),
        (lambda: crew(group="a b"), 'consumer.group = "a b" (from argument group=) holds'),
        (lambda: Faults([], []).drop("pull_message"), "did you mean PULL_MESSAGE?"),
    ],
)  # fmt: skip
def test_the_sentence_says_what_was_given_and_what_to_give(call: Callable[[], object], said: str) -> None:
    with pytest.raises(UsageError) as error:
        call()
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: crew(group=None), "consumer.group: give group=, or ROCKETCREW_"),
        (lambda: consume(done, topics="orders", name_servers=NOWHERE), "consumer.group: give group=, or ROCKETCREW_"),
        (lambda: consume(done, group="g", name_servers=NOWHERE), "consumer.topics: give topics=, or ROCKETCREW_"),
        (lambda: crew(handler=handler(topic="paid")(done)), "but the topics given (consumer.topics) are"),
        (lambda: crew().start(), "Name another by name_servers='host:port', or start a broker with the crew: embedded=True"),
    ],
)  # fmt: skip
def test_what_is_missing_is_asked_for_by_the_names_of_arguments(
    call: Callable[[], object], said: str, tmp_path: Path
) -> None:
    with contextlib.chdir(tmp_path), pytest.raises(RocketcrewError) as error:
        call()
    text = str(error.value)
    assert said in text
    assert not FLAG.search(text)


def test_a_secret_of_a_wrong_type_is_not_shown() -> None:
    for made in (lambda: Credentials("a", b"s3cret"), lambda: TlsOptions(key_password=b"s3cret")):  # type: ignore[arg-type]
        with pytest.raises(UsageError) as said:
            made()
        assert "s3cret" not in str(said.value)


def test_a_message_has_the_properties_that_brokers_set() -> None:
    assert message(properties={"DLQ_ORIGIN_TOPIC": "orders"}).properties["DLQ_ORIGIN_TOPIC"] == "orders"


def test_a_closed_rehearsal_says_so() -> None:
    with Rehearsal(done) as one:
        one.send(b"x")
    with pytest.raises(UsageError, match="closed"):
        one.result()


class Tag(str, enum.Enum):  # noqa: UP042  a StrEnum is written as its value
    PAID = "paid"


class Anywhere:
    """As pytest's `tmpdir`, and paths of file-system libraries."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return str(self._path)


def test_whole_numbers_of_other_libraries_are_taken() -> None:
    numpy = pytest.importorskip("numpy")
    one = message(queue_id=numpy.int64(3))
    assert (one.queue_id, type(one.queue_id)) == (3, int)
    sent = OutgoingMessage("orders", b"x", delay_level=numpy.int32(2))
    assert (sent.delay_level, type(sent.delay_level)) == (2, int)
    assert crew(workers=numpy.int64(2)).settings.workers.count == 2
    assert crew(settings={"consumer.max_reconsume_times": numpy.int64(3)}).settings.consumer.max_reconsume_times == 3
    assert run(done, [b"x"], seconds=numpy.int8(3)).elapsed_s == 3
    assert run(done, [b"x"], seconds=numpy.float32(1)).elapsed_s == 1
    assert run(done, [b"x"], seconds=Fraction(1, 2)).elapsed_s == 0.5  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="name servers are configured"):
        crew(embedded=numpy.True_)


def test_what_can_be_gone_through_only_once_is_not_emptied_by_its_check(tmp_path: Path) -> None:
    assert crew(topics=(topic for topic in ["a", "b"])).settings.consumer.topics == ("a", "b")
    sent = [message(b"1", topic="orders", tags="paid"), message(b"2", topic="orders", tags="open")]
    assert len(run(done, sent, topics=(topic for topic in ["orders:paid"])).calls) == 1
    assert Access(name_servers=iter([NOWHERE])).name_servers == (NOWHERE,)  # type: ignore[arg-type]
    SyncProducer(iter([NOWHERE])).close()
    queue = MessageQueue("orders", "a@one", 0)
    assert by_machine_room(iter(["a"]), by_key("k"))([queue]) == queue
    with pytest.raises(UsageError, match="_by is no column"):
        (tmp_path / "s/ready").mkdir(parents=True)
        load(iter([tmp_path / "s"]), tmp_path / "t", format="pyarrow", partition_by=(each for each in ["_by"]))


def test_several_name_servers_and_paths_of_any_kind_are_taken(tmp_path: Path) -> None:
    assert crew(name_servers=[NOWHERE]).settings.cluster.name_servers == (NOWHERE,)
    assert crew(target=Anywhere(tmp_path)).settings.spark.target == str(tmp_path)
    assert crew(settings={"supervisor.data_dir": tmp_path}).settings.supervisor.data_dir == str(tmp_path)
    with pytest.raises(UsageError, match=str(tmp_path)):
        read(Anywhere(tmp_path))


def test_members_of_an_enum_count_by_their_values() -> None:
    sent = OutgoingMessage(Tag.PAID, b"x", tags=Tag.PAID, keys=Tag.PAID, properties={Tag.PAID: Tag.PAID})
    assert [str(each) for each in (sent.topic, sent.tags, sent.keys, *sent.properties.popitem())] == ["paid"] * 5  # type: ignore[attr-defined]
    one = message(topic=Tag.PAID, tags=Tag.PAID, keys=Tag.PAID, properties={"state": Tag.PAID})
    assert (one.topic, one.tags, one.keys, one.properties["state"]) == ("paid",) * 4
    assert run(done, [message(topic="orders", tags=Tag.PAID)], topics="orders:paid").done == 1
    assert crew(group=Tag.PAID).settings.consumer.group == "paid"
    with LocalBroker() as broker:
        assert broker.topic(Tag.PAID).startswith("paid-")
        assert broker.group(Tag.PAID).startswith("paid-")


def test_a_broker_that_does_not_run_says_so() -> None:
    with LocalBroker() as broker:
        topic = broker.topic()
        broker.kill()
        with pytest.raises(UsageError, match="start"):
            broker.messages(topic)
        broker.start()
        assert broker.messages(topic) == []
    with pytest.raises(UsageError, match="make a new one"):
        broker.topic()
