from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentry_sdk.utils import Dsn

from rocketcrew.conf import formats
from rocketcrew.conf.rules import Choice, Pairs, Switch, Text, Texts, Whole
from rocketcrew.conf.schema import SCHEMA


def test_whole_numbers_have_inclusive_ends_and_extra_values() -> None:
    rule = Whole(1, 10, "ms", also=(-1,), also_means="off")
    assert [rule.check(value) for value in (1, 10, -1)] == [1, 10, -1]
    assert rule.parse(" 1_0 ") == 10
    assert rule.legal == "1 to 10 ms, or -1 (off)"
    for wrong in (0, 11, -2, True, 1.0, "1", None):
        with pytest.raises(ValueError, match="is "):
            rule.check(wrong)
    for text in ("", "1.0", "0x1", "one", "9" * 30, "١"):  # the last is Arabic-Indic
        with pytest.raises(ValueError, match="is "):
            rule.parse(text)


def test_switches_take_the_usual_words() -> None:
    rule = Switch()
    assert [rule.parse(word) for word in ("true", "Yes", "1", "ON")] == [True] * 4
    assert [rule.parse(word) for word in ("false", "no", "0", "off")] == [False] * 4
    assert rule.check(True) is True
    for wrong in (1, "true", None):
        with pytest.raises(ValueError, match="true or false"):
            rule.check(wrong)
    with pytest.raises(ValueError, match="true or false"):
        rule.parse("")


def test_choices_ignore_case_and_give_the_tables_spelling() -> None:
    rule = Choice(("CLUSTERING", "BROADCASTING"))
    assert rule.parse("clustering ") == "CLUSTERING"
    assert [Choice(words).legal for words in (("a",), ("a", "b"), ("a", "b", "c"))] == ["a", "a or b", "a, b or c"]
    with pytest.raises(ValueError, match="not known"):
        rule.check(3)


def test_texts_are_bounded_and_hold_no_nul() -> None:
    rule = Text("anything", length_max=3, empty_ok=False)
    assert rule.parse("abc") == "abc"
    for wrong in ("abcd", "a\0", "  ", 3):
        with pytest.raises(ValueError, match=r"holds|is"):
            rule.check(wrong)


def test_lists_say_what_stands_in_them_twice() -> None:
    rule = Texts("topics", formats.subscription, key=formats.topic_of)
    assert rule.parse("a: x || y ,b,,") == ("a:x || y", "b")
    assert rule.check([]) == ()
    for wrong, says in ((["a", "a:x"], "twice"), ("a", "not a list"), ([1], "not a text"), (["a b"], "character")):
        with pytest.raises(ValueError, match=says):
            rule.check(wrong)
    with pytest.raises(ValueError, match="more than 1024"):
        rule.check([f"t{i}" for i in range(1025)])


@pytest.mark.parametrize("text", ['["orders=5/s"]', '[ "a=5/s", "b=3/s" ]', "['a=5/s']", "[]"])
def test_a_list_as_in_a_file_is_answered_with_how_to_write_several(text: str) -> None:
    with pytest.raises(ValueError, match=r"several are separated by a comma"):
        Texts("rates", formats.topic_rate_limit).parse(text)
    with pytest.raises(ValueError, match=r"by a semicolon or a comma"):
        Texts("servers", formats.address, separators=";,").parse(text)
    assert Texts("servers", formats.address, separators=";,").parse("[::1]:9876;a:1") == ("[::1]:9876", "a:1")


def test_pairs_come_as_table_nested_table_text_or_json() -> None:
    rule = Pairs()
    wanted = {"spark.sql.x": "1", "spark.ui": "false"}
    assert rule.check({"spark": {"sql": {"x": 1}, "ui": False}}) == wanted
    assert rule.parse("spark.sql.x=1, spark.ui=false") == wanted
    assert rule.parse('{"spark.sql.x": 1, "spark.ui": false}') == wanted
    for wrong in ("spark.sql.x", "{", "[1]", '{"a": [1]}', '{"a":' * 100_000):
        with pytest.raises(ValueError, match=r"holds|is not"):
            rule.parse(wrong)
    with pytest.raises(ValueError, match="holds part 3 without an equals sign"):
        rule.parse("a=1,,b")
    with pytest.raises(ValueError, match="more than 256"):
        rule.check({f"k{i}": 1 for i in range(300)})


@pytest.mark.parametrize("good", ["localhost:9876", "10.0.0.1:1", "[::1]:65535", "rocketmq-namesrv.ns.svc:9876"])
def test_addresses(good: str) -> None:
    assert formats.address(f" {good} ") == good


@pytest.mark.parametrize(
    "bad", ["", "localhost", ":1", "a:0", "a:65536", "a:-1", "a b:1", "[::g]:1", "http://a", "https://a:1", "::1:x"]
)
def test_not_addresses(bad: str) -> None:
    with pytest.raises(ValueError, match="holds"):
        formats.address(bad)


@pytest.mark.parametrize(
    "good", ["https://key@o1.ingest.sentry.io/42", "http://k:s@127.0.0.1:9000/path/1", "https://k@[::1]:9000/1"]
)
def test_dsns_of_sentry(good: str) -> None:
    assert formats.sentry_dsn(f" {good} ") == good
    assert Dsn(good).project_id, "the SDK reads it too"


@pytest.mark.parametrize(
    "bad",
    ["key@host/1", "ftp://k@host/1", "https://host/1", "https://k@/1", "https://k@host/", "https://k@host/shop",
     "https://k@host:x/1", "https://k@[::1/1"],
)  # fmt: skip
def test_not_dsns_and_their_key_is_not_shown(bad: str) -> None:
    with pytest.raises(ValueError, match=r"^(holds no URL|does not|has no)"):
        formats.sentry_dsn(bad)
    with pytest.raises(ValueError):  # noqa: PT011  whatever its words are
        Dsn(bad)


def test_environments_of_sentry() -> None:
    assert formats.sentry_environment(" staging-2 ") == "staging-2"
    for bad in ("a b", "a/b", "None", "x" * 65):
        with pytest.raises(ValueError, match="Sentry does not take"):
            formats.sentry_environment(bad)


def test_groups_follow_rocketmq() -> None:
    assert formats.group("my-group_1%|") == "my-group_1%|"
    assert formats.group("g" * 120)
    for bad in ("g" * 121, "a b", "größe", "DEFAULT_CONSUMER"):
        with pytest.raises(ValueError, match=r"has|holds|is"):
            formats.group(bad)


def test_times_levels_memory_and_hosts() -> None:
    assert formats.consume_timestamp("20240229120000")
    assert formats.consume_timestamp_ms("20240229120001") - formats.consume_timestamp_ms("20240229120000") == 1000
    assert formats.delay_levels(" 200ms  5m 3d") == "200ms 5m 3d"
    assert formats.delay_levels_ms("200ms 2s 3m 1h 4d") == (200, 2_000, 180_000, 3_600_000, 345_600_000)
    assert formats.java_memory("2G") == "2g"
    assert formats.ip_address("[::1]") == "::1"
    assert formats.announced_address("[::1]") == "::1"
    assert formats.host("0.0.0.0") == "0.0.0.0"
    assert formats.broker_name("broker-a") == "broker-a"
    assert formats.plain_name("broker-a") == "broker-a"
    bad = (
        (formats.consume_timestamp, ("2024022912", "20230229120000", "2023022912000x", "٢٠٢٥٠١٠١٠٠٠٠٠٠")),
        (formats.delay_levels, ("", "1", "1x", "4d", "s", "0s", "-1s", "1.5s", "1s,2s", "1s " * 101)),
        (formats.java_memory, ("1", "0g", "1t", "g")),
        (formats.ip_address, ("localhost", "1.2.3")),
        (formats.announced_address, ("localhost", "0.0.0.0", "::", "[::]")),
        (formats.host, ("a b", "a/b")),
        (formats.broker_name, ("a.b", "x" * 128)),
        (formats.plain_name, ("a b", "a/b", "x" * 256)),
    )
    for test, texts in bad:
        for text in texts:
            with pytest.raises(ValueError, match=r"has|holds|is"):
                test(text)


@given(st.sampled_from([(section, key) for section, keys in SCHEMA.items() for key in keys]), st.text())
def test_no_text_at_all_makes_a_rule_fail_otherwise(setting: tuple[str, str], text: str) -> None:
    """Whatever is in the environment is taken or refused; and what is taken is legal as a typed value too."""
    rule = SCHEMA[setting[0]][setting[1]]
    try:
        value = rule.parse(text)
    except ValueError:
        return
    assert rule.check(value) == value
