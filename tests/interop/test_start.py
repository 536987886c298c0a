"""Before the first message: wrong settings are reported in the words of Java consumers, and so are doubled members."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from harness import HANDLERS, WAIT_S, Crew
from servers import CLIENT_OPTIONS, VERSIONS, Java, Servers

from rocketcrew.cli.children import Child, ChildError
from rocketcrew.conf.java_words import JAVA_RANGES
from rocketcrew.conf.settings import Settings, load
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.subscription import FilterExpression
from rocketcrew.supervisor.core.checks import DEPRECATED_WHERE, OURS_TOO, Subject, problems_of
from rocketcrew.workers.api import as_handler

ON_BOTH = pytest.mark.parametrize("servers", VERSIONS, ids=str, indirect=True, scope="session")
JavaClasses = Callable[[str], str]
Case = tuple[str, str, list[str]]
"""A property of Java's, its value, and what we say of it."""
EVERYTHING = FilterExpression()
GROUPS = ("DEFAULT_CONSUMER", " ", "a b", "good-1%x|y", "g" * 120)
TIMESTAMPS = ("20250101000000", "2025", "yesterday")


def ours(
    values: Mapping[str, object] = MappingProxyType({}), *, topics: bool = True, handler: str = "m:f"
) -> list[str]:
    found: Settings = load({"consumer.group": "group", "consumer.topics": ["topic"]}, {}, None)
    for name, value in values.items():
        section, _, key = name.partition(".")
        replaced = dataclasses.replace(getattr(found, section), **{key: value})
        found = dataclasses.replace(found, **{section: replaced})
    return problems_of(Subject(found, {"topic": EVERYTHING} if topics else {}, handler))


def no_listener() -> list[str]:
    with pytest.raises(UsageError) as caught:
        as_handler("no function")
    return [str(caught.value)]


def cases(version: str) -> Iterator[Case]:
    """Every check of checkConfig, and both ends of every range."""
    too_long = "g" * (256 if version.startswith("4.") else 121)
    for group in (*GROUPS, too_long):
        yield "consumerGroup", group, ours({"consumer.group": group})
    yield "messageModel", "null", ours({"consumer.message_model": ""})
    yield "messageModel", "BROADCASTING", ours({"consumer.message_model": "BROADCASTING"})
    yield "consumeFromWhere", "null", ours({"consumer.consume_from_where": ""})
    for where in DEPRECATED_WHERE:
        yield "consumeFromWhere", where, ours({"consumer.consume_from_where": where})
    for text in TIMESTAMPS:
        yield "consumeTimestamp", text, ours({"consumer.consume_timestamp": text})
    yield "allocateMessageQueueStrategy", "null", ours({"consumer.allocate_strategy": ""})
    yield "subscription", "null", ours(topics=False)
    yield "messageListener", "null", ours(handler="")
    yield "messageListener", "other", no_listener()
    for setting, ranges in JAVA_RANGES.items():
        for java in ranges:
            for value in (java.low - 1, java.low, java.high, java.high + 1):
                if value not in OURS_TOO.get(setting, ()):
                    yield java.name, str(value), ours({setting: value})


def line_of(name: str, value: str) -> str:
    """Java's two numbers of threads are one of workers here; each is looked at with the other out of its way."""
    other = {"consumeThreadMin": "\tconsumeThreadMax\t1000", "consumeThreadMax": "\tconsumeThreadMin\t1"}.get(name, "")
    return f"{name}\t{value}{other}\n"


@pytest.mark.parametrize("version", [kind.version for kind in VERSIONS])
def test_settings_are_judged_as_java_judges_them(version: str, tmp_path: Path, java_classes: JavaClasses) -> None:
    wanted = list(cases(version))
    file = tmp_path / "cases.tsv"
    file.write_text("".join(line_of(name, value) for name, value, _ in wanted))
    java = Java("checks", tmp_path, java_classes(version), ["Checks", str(file)], CLIENT_OPTIONS)
    try:
        said = [line for line in java.finish() if line.startswith(("FINE", "UNKNOWN", "WRONG "))]
    finally:
        java.stop()
    assert len(said) == len(wanted)
    for (name, value, problems), line in zip(wanted, said, strict=True):
        if line == "FINE":
            assert problems == [], (name, value)
        elif line == "UNKNOWN":
            assert version.startswith("4."), (name, line)
            assert name.startswith("pop"), (name, line)
        else:
            words = line.removeprefix("WRONG ")
            assert any(problem.startswith(words) for problem in problems), (name, value, line, problems)


@ON_BOTH
def test_one_client_is_in_a_group_once(servers: Servers, tmp_path: Path) -> None:
    """Java's words for the second consumer of a client; the first goes on, and afterwards the name is free again."""
    servers.create_topic("once", 1)
    crew = Crew(tmp_path, servers, "numbers_handler:number", "once", load=False, group="once-group",
                **{"cluster.instance_name": "the-one", "workers.count": 1})  # fmt: skip
    crew.start()
    words = ["run", "numbers_handler:number", "--topic", "once", "--group", "once-group", "-n", servers.name_server]
    for key, value in crew.settings.items():
        words += ["--set", f"{key}={value}"]
    second = Child("supervisor", words, log=tmp_path / "second.log", cwd=HANDLERS)
    with pytest.raises(ChildError, match=r"The consumer group\[once-group\] has been created before"):
        second.wait(WAIT_S)
    status = crew.status()
    assert status is not None
    assert status["client_id"].endswith("@the-one")
    assert crew.stop() == 0
    crew.start()
    assert crew.stop() == 0
