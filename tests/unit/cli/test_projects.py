"""init, dev and config check --handler, as far as nothing has to run for it."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from rocketcrew.cli.commands.dev import PAGE_PORT, TOPIC, for_trying_out
from rocketcrew.cli.commands.init import entering, files_of, group_of
from rocketcrew.cli.main import run
from rocketcrew.cli.options import DEV_GROUP
from rocketcrew.conf.settings import load


def test_what_init_writes_can_be_read(tmp_path: Path) -> None:
    files = files_of("shop", "orders")
    for name, text in files.items():
        assert "TOPIC" not in text.replace("RMQ_SYS_TRACE_TOPIC", "")
        if name.endswith(".py"):
            ast.parse(text)
    file = tmp_path / "rocketcrew.toml"
    file.write_text(files[file.name])
    settings = load({}, {}, file)
    assert (settings.consumer.group, settings.consumer.topics) == ("shop", ("orders",))
    assert "COPY app.py rocketcrew.toml" in files["Dockerfile"]


def test_names_may_be_those_of_the_places_in_the_files() -> None:
    settings = files_of("TOPIC", "GROUP")["rocketcrew.toml"]
    assert 'topics = ["GROUP"]' in settings
    assert 'group = "TOPIC"' in settings


def test_init_does_not_write_through_a_link_that_leads_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "app.py").symlink_to(tmp_path / "elsewhere.py")
    assert run(["init", "shop"], {}, tmp_path) == 2
    assert "has app.py already" in capsys.readouterr().err
    assert not (tmp_path / "elsewhere.py").exists()


@pytest.mark.parametrize(
    ("folder", "group"), [("shop", "shop"), ("my shop (2)", "my-shop-2"), ("läden", "l-den"), ("…", "app")]
)
def test_a_group_is_named_after_the_folder(folder: str, group: str) -> None:
    assert group_of(folder) == group


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("shop", "cd shop && "),
        ("my proj", "cd 'my proj' && "),
        ("-x", "cd -- -x && "),
        ("- x", "cd -- '- x' && "),
        (".", ""),
    ],
)
def test_the_way_into_the_folder_can_be_typed(folder: str, words: str) -> None:
    assert entering(Path(folder)) == words


def test_init_writes_all_or_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "shop", "--dry-run"], {}, tmp_path) == 0
    assert "would write shop/app.py" in capsys.readouterr().out
    assert not (tmp_path / "shop").exists()
    assert run(["init", "shop", "--json"], {}, tmp_path) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["written"] is True
    assert sorted(path.name for path in (tmp_path / "shop").iterdir()) == sorted(told["files"])
    (tmp_path / "shop/app.py").write_text("mine")
    (tmp_path / "shop/Dockerfile").unlink()
    assert run(["init", "shop"], {}, tmp_path) == 2
    assert "has app.py, test_app.py, rocketcrew.toml, .gitignore already" in capsys.readouterr().err
    assert (tmp_path / "shop/app.py").read_text() == "mine"
    assert not (tmp_path / "shop/Dockerfile").exists()


@pytest.mark.parametrize("words", [("-t", "a b"), ("-g", "a b"), ("-t", "TBW102")])
def test_init_refuses_names_that_brokers_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert run(["init", "shop", *words], {}, tmp_path) == 2
    assert words[1] in capsys.readouterr().err
    assert not (tmp_path / "shop").exists()


def test_dev_leaves_what_was_chosen_and_never_asks_a_cluster() -> None:
    bare = for_trying_out(load({}, {}, None))
    assert (bare.consumer.group, bare.consumer.topics) == (DEV_GROUP, (TOPIC,))
    assert bare.consumer.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert (bare.metrics.page, bare.metrics.port) == (True, PAGE_PORT)
    assert bare.metrics.port_count > 1
    assert (
        bare.cluster.poll_name_server_interval_ms == 1000
    )  # a topic that is missing is looked for each second, always
    slow = load({"cluster.poll_name_server_interval_ms": 5000}, {}, None)
    assert for_trying_out(slow).cluster.poll_name_server_interval_ms == 5000
    assert for_trying_out(load({}, {}, None), ("orders:paid",)).consumer.topics == ()  # the handler's are added
    chosen = {
        "cluster.name_servers": ["10.0.0.5:9876"], "consumer.group": "billing", "consumer.topics": ["orders:paid"],
        "consumer.consume_from_where": "CONSUME_FROM_LAST_OFFSET", "metrics.port": 9000,
    }  # fmt: skip
    made = for_trying_out(load(chosen, {}, None))
    assert (made.consumer.group, made.consumer.topics) == ("billing", ("orders:paid",))
    assert made.consumer.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    assert (made.metrics.port, made.metrics.port_count, made.metrics.page) == (9000, 1, True)
    assert made.cluster.name_servers == ()
