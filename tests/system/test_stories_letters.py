"""Somebody whose handler has failed: dead letters are found, sorted, given to the group again, and put aside."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet
from terminal import LIMIT_S, Terminal, asked, command, environment, run

pq: Any = pyarrow.parquet

SHOP = """
from pathlib import Path
from rocketcrew import Retry, handler

@handler(schema="key string")
def count(message):
    if not Path("mended").exists():
        raise KeyError("price")
    Path(f"done-{message.keys}").touch()
    print("took", message.keys, message.reconsume_times, message.topic, flush=True)
"""
LINE = "shop.py:8"
RUN = ("run", "shop", "--topic", "orders", "--group", "billing", "--no-load", "--log-format", "json",
       "--set", "workers.count=1", "--set", "consumer.delay_level_when_next_consume=-1")  # fmt: skip


def test_dead_letters_are_sorted_replayed_and_purged(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    with Terminal(tmp_path, "broker", "--name-server-port", "0", "--port", "0", "--json") as broker:
        where = ("-n", json.loads(broker.until("name_server"))["name_server"])
        ours = ("-g", "billing", *where)
        unknown = run(tmp_path, "dlq", "ls", "-g", "biling", *where)
        assert unknown.returncode == 1
        assert "does not know the group biling" in unknown.stderr
        for key in ("o-1", "o-2"):
            sent = run(tmp_path, "send", *where, "-t", "orders", "--key", key, '{"state": "paid"}')
            assert sent.returncode == 0, sent.stderr
        with Terminal(tmp_path, *RUN, *where) as supervisor:
            supervisor.until('"event": "running"')
            letters = asked(lambda: _letters(tmp_path, *ours), lambda found: len(found) == 2, "both dead letters")
            assert {(one["origin_topic"], one["line"]) for one in letters} == {("orders", LINE)}

            grouped = run(tmp_path, "dlq", "group", *ours, "--by", "error", "--json")
            assert [(row["count"], row["error"]) for row in json.loads(grouped.stdout)] == [(2, "KeyError: '…'")]
            place = str(next(one["place"] for one in letters if one["keys"] == "o-1"))
            shown = run(tmp_path, "dlq", "show", place, *ours)
            assert "KeyError: 'price' (shop.py:8)" in shown.stdout
            assert '"state": "paid"' in shown.stdout

            dry = run(tmp_path, "dlq", "replay", *ours, "--line", LINE, "--dry-run")
            assert "2 letters; nothing was done" in dry.stderr
            (tmp_path / "mended").touch()
            replayed = run(tmp_path, "dlq", "replay", place, *ours, "--json")
            assert json.loads(replayed.stdout) == {"group": "billing", "replayed": 1, "members": 1}
            assert supervisor.until("took o-1").split()[1:3] == ["o-1", "0"]
            rest = run(tmp_path, "dlq", "replay", *ours)
            assert rest.stdout == "1 letter replayed\n"  # not the first one again
            supervisor.until("took o-2")
            assert "0 letters replayed" in run(tmp_path, "dlq", "replay", *ours).stdout
            assert supervisor.stop() == 0

        out = run(tmp_path, "dlq", "export", *ours, "--all", "-o", "letters.jsonl", "--body", "text")
        assert out.stdout == "2 letters written to letters.jsonl\n", out.stderr
        lines = (tmp_path / "letters.jsonl").read_text().splitlines()
        assert [json.loads(line)["body"] for line in lines] == ['{"state": "paid"}'] * 2
        assert run(tmp_path, "dlq", "export", *ours, "-o", "letters.jsonl").returncode == 2
        for kind in ("parquet", "deltalake"):
            out = run(tmp_path, "dlq", "export", *ours, "--all", "-o", kind, "--format", kind)
            assert out.stdout == f"2 letters written to {kind}\n", out.stderr
        rows = pq.read_table(tmp_path / "parquet").to_pylist()
        assert [(row["body"], row["line"]) for row in rows] == [(b'{"state": "paid"}', LINE)] * 2
        assert run(tmp_path, "dlq", "purge", *ours, "--all", "--yes").stdout == "2 letters purged\n"
        listed = run(tmp_path, "dlq", "ls", *ours, "--all")
        assert re.findall("purged", listed.stdout) == ["purged"] * 2
        assert run(tmp_path, "dlq", "ls", *ours).stdout == "no dead letters\n"


PICKY = """
import time
from pathlib import Path
from rocketcrew import handler

@handler(schema="key string")
def count(message):
    if message.body == b"bad" and Path("slow").exists():
        print("looking at", message.keys, flush=True)
        time.sleep(600)
    if message.body == b"bad" or not Path("mended").exists():
        raise KeyError("price")
    print("took", message.keys, message.reconsume_times, flush=True)
"""


def test_dead_letters_go_through_the_handler_here_before_the_group_gets_them(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PICKY)
    with Terminal(tmp_path, "broker", "--name-server-port", "0", "--port", "0", "--json") as broker:
        where = ("-n", json.loads(broker.until("name_server"))["name_server"])
        ours = ("-g", "billing", *where)
        here = ("dlq", "replay", *ours, "--handler", "shop:count")
        for key, body in (("o-1", "good"), ("o-2", "bad"), ("o-3", "good")):
            sent = run(tmp_path, "send", *where, "-t", "orders", "--key", key, body)
            assert sent.returncode == 0, sent.stderr
        with Terminal(tmp_path, *RUN, *where) as supervisor:
            supervisor.until('"event": "running"')
            asked(lambda: _keys(tmp_path, *ours), lambda keys: len(keys) == 3, "three dead letters")
            assert supervisor.stop() == 0

        dry = run(tmp_path, *here, "--dry-run")
        assert (dry.returncode, "KeyError: 'price'" in dry.stdout, "failed:" in dry.stdout) == (0, True, False)
        wrong = run(tmp_path, *here[:-1], "shop:cuont")
        assert wrong.returncode == 4
        assert 'did you mean "count"?' in wrong.stderr
        assert run(tmp_path, "dlq", "replay", *ours, "--pdb").returncode == 2

        failed = run(tmp_path, *here)
        assert failed.returncode == 1
        assert failed.stdout.count("failed: KeyError: 'price' (shop.py:12)") == 3
        assert failed.stdout.splitlines()[-1] == (
            "0 letters went through shop:count and were sent to group billing again; 3 failed and stay as before"
        )
        assert run(tmp_path, *here, "--all").returncode == 1  # it has ended, failed letters or not
        assert "goes on with" not in run(tmp_path, *here, "--all", "--dry-run").stderr
        (tmp_path / "mended").touch()
        some = run(tmp_path, *here, "--rate", "600/m", "--json")
        said = [json.loads(line) for line in some.stdout.splitlines()]  # what the handler prints is elsewhere
        assert [one["ok"] for one in said[:-1]].count(True) == 2
        assert (some.returncode, said[-1]) == (1, {"group": "billing", "replayed": 2, "failed": 1})
        assert _keys(tmp_path, *ours) == ["o-2"]

        seen = subprocess.run(
            command(*here, "--pdb", "--yes"), cwd=tmp_path, env=environment(), input="p 'key', message.keys\nq\n",
            capture_output=True, text=True, check=False, timeout=LIMIT_S,
        )  # fmt: skip
        assert "('key', 'o-2')" in seen.stdout
        assert (seen.returncode, "the same command goes on" in seen.stderr) == (130, True)

        with Terminal(tmp_path, *RUN, *where) as supervisor:  # the group gets what went through
            both = {supervisor.until("took o-").split()[1] for _ in range(2)}
            assert both == {"o-1", "o-3"}
            assert supervisor.stop() == 0

        (tmp_path / "slow").touch()
        with Terminal(tmp_path, *here, "--all", "--mark-handled") as again:
            again.until("looking at o-2")
            assert again.stop(signal.SIGINT) == 130
        assert "and was noted as handled; the same command goes on" in again.text.replace("were", "was")
        left = run(tmp_path, *here, "--all", "--mark-handled", "--dry-run", "--json")
        assert "goes on with the replay of " in left.stderr
        assert len(json.loads(left.stdout)["letters"]) == 3 - again.text.count("  fine")
        begun = run(tmp_path, *here, "--all", "--mark-handled", "--dry-run", "--json", "--anew")
        assert begun.returncode == 0, begun.stderr
        assert len(json.loads(begun.stdout)["letters"]) == 3
        assert _keys(tmp_path, *ours) == ["o-2"]


def _keys(folder: Path, *ours: str) -> list[str]:
    """Keys of the dead letters that nothing was done about."""
    return [str(letter["keys"]) for letter in _letters(folder, *ours)]


def _letters(folder: Path, *ours: str) -> list[dict[str, object]]:
    """The dead letters that nothing was done about; none while the group is unknown."""
    done = run(folder, "dlq", "ls", *ours, "--json")
    assert done.returncode == 0 or "does not know the group" in done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
