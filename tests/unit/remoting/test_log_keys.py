"""Every call of a logger, read from the source: its keys are those of the convention."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import rocketcrew
from rocketcrew.remoting.log_keys import SYNONYMS, PlaceKeys, place_keys, queue_keys
from rocketcrew.remoting.queues import MessageQueue

METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log", "bind"}
LOGGERS = {"log", "_log", "logger", "s", "state"}
"""How a logger is called here, or what has a method `log` in the core."""


def log_calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS):
            continue
        of = node.func.value
        name = of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""
        if name in LOGGERS or (isinstance(of, ast.Call) and "get_logger" in ast.unparse(of)):
            yield node


def wrong_keys(call: ast.Call) -> Iterator[str]:
    keys = {word.arg for word in call.keywords if word.arg is not None}
    yield from (f"{key}: say {SYNONYMS[key]}" for key in sorted(keys & SYNONYMS.keys()))
    if "queue_id" in keys and not keys >= {"topic", "broker"}:
        yield "queue_id: say **queue_keys(mq), which has topic and broker too"


def calls_of_all_rooms() -> dict[str, ast.Call]:
    found: dict[str, ast.Call] = {}
    for folder, _, names in os.walk(rocketcrew.__path__[0], followlinks=True):
        for file in [Path(folder, name) for name in names if name.endswith(".py")]:
            for call in log_calls(ast.parse(file.read_text(encoding="utf-8"))):
                found[f"{file}:{call.lineno}"] = call
    return found


def test_no_line_of_the_log_has_another_word_for_a_key_of_the_convention() -> None:
    calls = calls_of_all_rooms()
    assert len(calls) > 150, "the calls of loggers are not found any more"
    assert [f"{place} {wrong}" for place, call in calls.items() for wrong in wrong_keys(call)] == []


def test_the_walk_finds_what_it_is_for() -> None:
    lines = [
        "log.info('a', queue=mq)",
        "self.s.log('info', 'b', message_id=1)",
        "self._log.warning('c', topic=t, queue_id=0)",
        "structlog.get_logger().error('d', offset=1)",
    ]
    found = [list(wrong_keys(call)) for call in log_calls(ast.parse("\n".join(lines)))]
    assert [len(each) for each in found] == [1, 1, 1, 0]


def test_a_queue_and_a_place_have_all_their_keys() -> None:
    mq = MessageQueue("orders", "broker-a", 3)
    assert queue_keys(mq) == {"topic": "orders", "broker": "broker-a", "queue_id": 3}
    assert place_keys(mq, 7) == PlaceKeys(topic="orders", broker="broker-a", queue_id=3, offset=7)
    assert not SYNONYMS.keys() & PlaceKeys.__annotations__.keys()
