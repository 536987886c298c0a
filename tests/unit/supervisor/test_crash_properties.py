"""The facts of a crash as properties of a dead letter: within what brokers take, and without what they cut at."""

from __future__ import annotations

import signal

import pytest

from rocketcrew.remoting.properties import decode_properties, encode_properties
from rocketcrew.supervisor.member.send_back import PROPERTIES_BYTES_MAX, crash_properties
from rocketcrew.supervisor.pool.post_mortem import by_itself, cause_of


def test_facts_become_properties_that_a_reader_gets_whole() -> None:
    facts = {"deaths": "3", "cause": "SIGSEGV", "stack": 'File "a.py"\n\tline 3\x01\x02\x00'}
    found = crash_properties(facts, 100)
    assert found["ROCKETCREW_DEATHS"] == "3"
    assert decode_properties(encode_properties(found)) == found
    assert found["ROCKETCREW_STACK"].startswith('File "a.py"\n\tline 3')


def test_the_long_ones_are_cut_and_the_short_ones_kept() -> None:
    facts = {"stack": "ü" * PROPERTIES_BYTES_MAX, "cause": "SIGKILL"}
    found = crash_properties(facts, PROPERTIES_BYTES_MAX - 200)
    assert found["ROCKETCREW_CAUSE"] == "SIGKILL"
    assert 0 < len(found["ROCKETCREW_STACK"].encode()) < 200
    assert crash_properties(facts, PROPERTIES_BYTES_MAX) == {}


@pytest.mark.parametrize(
    ("code", "cause", "itself"),
    [(None, "unknown", False), (0, "exit code 0", False), (7, "exit code 7", True), (-signal.SIGSEGV, "SIGSEGV", True),
     (-signal.SIGKILL, "SIGKILL", False), (-signal.SIGTERM, "SIGTERM", False), (-200, "signal 200", False)],
)  # fmt: skip
def test_how_an_exit_code_reads(code: int | None, cause: str, itself: bool) -> None:
    assert (cause_of(code), by_itself(code)) == (cause, itself)
