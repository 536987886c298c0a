"""Command lines that messages print: each can be typed as it is."""

from __future__ import annotations

import shlex
from pathlib import Path

from rocketcrew.conf.printed import SHAPE, command_line, counted, same_settings, shape_of
from rocketcrew.conf.settings import load

COMMON = ("consumer.group", "cluster.name_servers", "spark.target")


def test_one_thing_and_several() -> None:
    assert [counted(number, "message") for number in (0, 1, 2)] == ["0 messages", "1 message", "2 messages"]


def test_words_are_as_a_shell_wants_them() -> None:
    words = ["load", "--staging", Path("my files/$0"), "-t", "%RETRY%billing", "--set", "spark.partition_by=a,b"]
    assert shlex.split(command_line(*words)) == ["rocketcrew", *map(str, words)]
    assert command_line("dlq", "ls", "-g", "billing") == "rocketcrew dlq ls -g billing"


def test_what_commands_have_an_option_for_is_there_wherever_it_came_from() -> None:
    env = {"NAMESRV_ADDR": "a:1;b:2", "ROCKETCREW_SPARK_TARGET": "t"}
    settings = load({"consumer.group": "billing"}, env, None, flag_names={"consumer.group": "-g"})
    assert same_settings(settings, *COMMON) == ["-g", "billing", "-n", "a:1,b:2", "--target", "t"]
    assert same_settings(settings, "consumer.group") == ["-g", "billing"], "not every command has each"
    assert same_settings(load({}, {}, None), *COMMON) == [], "what nobody has said"


def test_what_was_a_flag_is_one_again_as_far_as_it_says_where_something_is(tmp_path: Path) -> None:
    file = tmp_path / "billing.toml"
    file.write_text("[consumer]\ngroup = 'billing'\n[spark]\nformat = 'deltalake'\n")
    flags = {
        "supervisor.data_dir": "state", "spark.on_recreated": "epoch", "security.tls_enable": "true", "workers.count": 3,
        "spark.partition_by": "day,hour", "spark.options": "AWS_REGION=x,endpoint=http://s",
    }  # fmt: skip
    settings = load(flags, {}, file)
    words = same_settings(settings, "consumer.group")
    assert words[:4] == ["-g", "billing", "-c", str(file)]
    again = dict(text.split("=", 1) for text in words[5::2])
    assert set(words[4::2]) == {"--set"}
    assert again.keys() == flags.keys() - {"workers.count"}
    assert load(again, {}, file).spark == settings.spark
    assert load(again, {}, file).security == settings.security


def test_what_is_secret_is_not_printed() -> None:
    flags = {
        "security.access_key": "me", "security.secret_key": "hidden", "spark.options": "AWS_SECRET_ACCESS_KEY=hidden",
    }  # fmt: skip
    assert "hidden" not in " ".join(same_settings(load(flags, {}, None), *COMMON))


def test_what_a_table_has_from_its_first_batch_on_is_said_wherever_it_came_from() -> None:
    env = {"ROCKETCREW_SPARK_FORMAT": "pyarrow"}
    settings = load({"spark.partition_by": "a,b", "spark.load": False}, env, None)
    shape = ["--set", "spark.format=pyarrow", "--set", "spark.partition_by=a,b"]
    assert same_settings(settings, *SHAPE) == shape, "once each, and nothing of how a member works"
    assert shape_of("pyarrow", ("a", "b")) == shape
    assert shape_of("parquet", ()) == shape_of("", ()) == same_settings(load({}, {}, None), *SHAPE) == []
