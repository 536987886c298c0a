"""The reference that people read, the table that the machine reads and the dataclasses say the same."""

from __future__ import annotations

import dataclasses
import re
import tomllib

import pytest

from rocketcrew.conf.rules import Choice, Whole
from rocketcrew.conf.schema import ALIASES, RELATIONS, SCHEMA
from rocketcrew.conf.settings import Settings, load
from rocketcrew.conf.sources import KNOWN, defaults_text


def comment_above() -> dict[str, str]:
    """The comment lines that belong to each setting of defaults.toml: those above it, up to the blank line."""
    section, block, found = "", "", dict[str, str]()
    for line in defaults_text().splitlines():
        if header := re.match(r"\[([a-z.]+)\]", line):
            section = header[1]
            if "." in section:
                found[section] = block
            block = ""
        elif line.startswith("#"):
            block += " " + line.lstrip("# ")
        elif setting := re.match(r"([a-z0-9_]+) = ", line):
            found[f"{section}.{setting[1]}"] = block
        else:
            block = ""
    return found


def test_reference_schema_and_dataclasses_have_the_same_settings() -> None:
    reference = {f"{section}.{key}" for section, table in tomllib.loads(defaults_text()).items() for key in table}
    settings = load({}, {}, None)
    classes = {
        f"{section.name}.{field.name}"
        for section in dataclasses.fields(Settings)
        if section.name != "origin"
        for field in dataclasses.fields(getattr(settings, section.name))
    }
    assert reference == set(KNOWN) == classes


@pytest.mark.parametrize("name", KNOWN)
def test_every_setting_is_explained_and_tells_its_true_range(name: str) -> None:
    comments = comment_above()
    section, _, key = name.partition(".")
    if name == "broker.cluster":
        name = "broker.name"  # one comment for both
    comment = comments[name]
    rule = SCHEMA[section][key]
    assert len(comment) > 20
    if isinstance(rule, Whole) and not key.endswith("port"):
        assert f"{rule.low} to {rule.high}" in comment
        assert all(str(value) in comment for value in rule.also)
    if isinstance(rule, Choice):
        assert all(word in comment for word in rule.words)


def test_relations_and_aliases_name_settings_that_exist() -> None:
    for relation in RELATIONS:
        assert relation.first in KNOWN
        assert relation.second in KNOWN
    assert set(ALIASES.values()) <= set(KNOWN)


def test_integers_have_their_unit_in_the_name_or_are_counts() -> None:
    counts = {
        "messages",
        "offsets",
        "attempts",
        "processes",
        "chunks",
        "rows",
        "places",
        "records",
        "deaths",
        "per cent",
        "calls",
        "tasks",
        "",
    }
    for name in KNOWN:
        section, _, key = name.partition(".")
        rule = SCHEMA[section][key]
        if isinstance(rule, Whole):
            suffix = {"ms": "_ms", "us": "_us", "MiB": "_mib", "minutes": "_min", "s": "_s", "days": "_days"}.get(
                rule.unit
            )
            assert rule.unit in counts if suffix is None else key.endswith(suffix), name
