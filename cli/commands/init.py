"""`rocketcrew init`: a small project that runs as it is."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from ...remoting.errors import UsageError
from ..changing import changes
from ..json_text import json_text
from ..surroundings import surroundings

APP: Final = '''"""The handler: one message in; one row out, several or none. A message that raises comes again later."""

import json

from rocketcrew import Message, handler


@handler(schema="order_id string, total double, items int")
def handle(message: Message):
    order = json.loads(message.body)
    prices = [item["price"] for item in order["items"]]
    return {"order_id": message.keys, "total": sum(prices), "items": len(prices)}
'''
TEST: Final = '''"""Run by pytest; no broker is needed. See docs/testing.md of rocketcrew."""

from app import handle

from rocketcrew.testing import message, run

ORDER = b'{"items": [{"price": 9.5}, {"price": 0.5}]}'


def test_an_order_becomes_a_row():
    result = run(handle, [message(topic="TOPIC", body=ORDER, keys="o-1")])
    assert result.rows == [{"order_id": "o-1", "total": 10.0, "items": 2}]


def test_a_body_that_is_no_order_is_tried_again_and_ends_as_a_dead_letter():
    result = run(handle, [message(topic="TOPIC", body=b"no JSON", keys="o-2")])
    assert result.rows == []
    assert len(result.dead_letters) == 1
'''
SETTINGS: Final = """# `rocketcrew config show --reference` prints every setting with its meaning.

[consumer]
topics = ["TOPIC"]
group = "GROUP"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"

[spark]
# Written without Spark and Java. "parquet" has Spark write the same table.
format = "pyarrow"

[cluster]
# name_servers = ["10.0.0.5:9876"]   # or NAMESRV_ADDR in the environment; `rocketcrew dev app` needs none
"""
DOCKERFILE: Final = """FROM python:3.12-slim
# rocketcrew is on no package index yet, where somebody else could take its name. So the image is built from its wheel, which
# `pip wheel --no-deps -w FOLDER .` makes in a checkout, with this folder as FOLDER.
COPY rocketcrew-*.whl /wheels/
RUN pip install --no-cache-dir /wheels/rocketcrew-*.whl && useradd --create-home crew
WORKDIR /app
COPY app.py rocketcrew.toml ./
RUN mkdir .rocketcrew && chown crew .rocketcrew
USER crew
# The member's state and sealed rows: keep them over restarts, on a local disk.
VOLUME /app/.rocketcrew
# TERM drains: give it supervisor.stop_deadline_ms, the workers' 5 s and the loader's 60 s (docker run --stop-timeout 120).
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=60s CMD ["rocketcrew", "status"]
CMD ["rocketcrew", "run", "app"]
"""
IGNORED: Final = ".rocketcrew/\n__pycache__/\n"
NAME_MAX: Final = 120


def files_of(group: str, topic: str) -> Mapping[str, str]:
    """Name and text of every file."""
    texts = {
        "app.py": APP, "test_app.py": TEST, "rocketcrew.toml": SETTINGS, "Dockerfile": DOCKERFILE, ".gitignore": IGNORED,
    }  # fmt: skip
    names = {"TOPIC": topic, '"GROUP"': f'"{group}"'}  # at once: a topic may be called GROUP
    return {name: re.sub('TOPIC|"GROUP"', lambda found: names[found[0]], text) for name, text in texts.items()}


def entering(folder: Path) -> str:
    """The shell's words for going into the folder, before another command; empty for the current one."""
    if folder == Path():
        return ""
    end_of_options = "-- " if str(folder).startswith("-") else ""
    return f"cd {end_of_options}{shlex.quote(str(folder))} && "


def group_of(folder: str) -> str:
    """A consumer group's name made of a folder's."""
    return re.sub(r"[^a-zA-Z0-9_-]+", "-", folder).strip("-")[:NAME_MAX] or "app"


@click.command()
@click.argument("folder", metavar="[FOLDER]", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("-t", "--topic", metavar="TOPIC", default="orders", show_default=True, help="The topic to consume.")
@click.option("-g", "--group", metavar="GROUP", help="The consumer group; otherwise the folder's name.")
@changes(asks=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: the folder and its files.")
@click.pass_context
def init(
    context: click.Context, folder: Path | None, topic: str, group: str | None, dry_run: bool, as_json: bool
) -> None:
    """Make a small project in FOLDER (the current one if not named): a handler, its configuration, a test, a Dockerfile.

    It runs as it is: `rocketcrew dev app`, `pytest`; `docker build .` as the Dockerfile says. Nothing that is there is
    overwritten: a file of one of the names is an error, and then nothing is written.

    \b
    Examples:
      rocketcrew init shop
      rocketcrew init shop -t payments -g billing --dry-run
    """
    from ...client.validation import check_group, check_topic_to_create

    place = surroundings(context).folder / (folder or Path())
    group = group or group_of(place.resolve().name)
    check_topic_to_create(topic)
    check_group(group)
    files = files_of(group, topic)
    there = [name for name in files if os.path.lexists(place / name)]  # a link may lead nowhere
    if there:
        raise UsageError(f"{place.resolve()} has {', '.join(there)} already: name another folder; nothing was written")
    if not dry_run:
        place.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (place / name).write_text(text, encoding="utf-8")
    if as_json:
        click.echo(json_text({"folder": str(place.resolve()), "files": list(files), "written": not dry_run}))
        return
    click.echo("\n".join(f"{'would write' if dry_run else 'wrote'} {(folder or Path()) / name}" for name in files))
    if not dry_run:
        click.echo(
            f"now: {entering(folder or Path())}rocketcrew dev app    and, to test the handler: pip install pytest && pytest"
        )
