"""Java's ranges and words: no setting takes what Java refuses, but for the values that say so."""

from __future__ import annotations

import pytest

from rocketcrew.conf.java_words import JAVA_RANGES, JAVA_WORDS
from rocketcrew.conf.rules import Whole
from rocketcrew.conf.schema import SCHEMA
from rocketcrew.conf.settings import load
from rocketcrew.remoting.errors import UsageError


@pytest.mark.parametrize(
    "setting", [name for name in JAVA_RANGES if name.partition(".")[2] in SCHEMA[name.partition(".")[0]]]
)
def test_no_range_is_wider_than_javas(setting: str) -> None:
    section, _, key = setting.partition(".")
    rule = SCHEMA[section][key]
    assert isinstance(rule, Whole)
    for java in JAVA_RANGES[setting]:
        assert rule.high <= java.high
        assert rule.low >= java.low or setting == "workers.count"  # 0: one per core
        with pytest.raises(UsageError) as caught:
            load({setting: java.high + 1}, {}, None)
        assert java.words in str(caught.value)


def test_only_settings_of_pop_are_still_to_come() -> None:
    missing = {name for name in JAVA_WORDS if name.partition(".")[2] not in SCHEMA[name.partition(".")[0]]}
    assert all("pop_" in name for name in missing)
