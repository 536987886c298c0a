"""Which supervisor is meant, and how its status looks to people."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest

from rocketcrew.cli.commands.lag import lag
from rocketcrew.cli.commands.pause import pause
from rocketcrew.cli.commands.reconcile import reconcile
from rocketcrew.cli.commands.reload import reload
from rocketcrew.cli.commands.resume import resume
from rocketcrew.cli.commands.scale import scale
from rocketcrew.cli.commands.stacks import text_of as stack_text
from rocketcrew.cli.commands.status import text_of
from rocketcrew.cli.commands.stop import stop
from rocketcrew.cli.commands.subscribe import subscribe
from rocketcrew.cli.commands.top import rates_of, worker_rates
from rocketcrew.cli.commands.top import text_of as top_text
from rocketcrew.cli.commands.unsubscribe import unsubscribe
from rocketcrew.cli.commands.why_lag import why_lag
from rocketcrew.cli.controlling import Target, closed_folders, find, meant
from rocketcrew.cli.surroundings import Surroundings
from rocketcrew.cli.wording import UnknownNameError
from rocketcrew.conf.printed import same_settings
from rocketcrew.conf.settings import load
from rocketcrew.remoting.errors import RocketcrewError, UsageError
from rocketcrew.supervisor.pool.stacks import ProcessStack, Running


def status(**more: Any) -> dict[str, Any]:
    counters = dict.fromkeys(
        ("pulled_messages", "done_messages", "failed_messages", "sent_back_messages", "worker_deaths"), 5
    )
    staff = {"workers": 2, "generation": 1, "reload": "idle", "last_reload": "rolled back: SyntaxError"}
    worker = {"worker_id": "w.1", "pid": 7, "state": "ready", "messages": 3, "index": 0, "generation": 1, "done": 9,
              "failed": 0, "rss_bytes": 1 << 28, "running": "t/b/0@1 for 2.000 s", "progress": "1/2 pages"}  # fmt: skip
    queue = {"topic": "t", "broker": "b", "queue_id": 0, "state": "assigned", "next_offset": 4, "committed": 2,
             "unfinished": 2, "lag": 7, "doubt": None}  # fmt: skip
    return {
        "group": "g", "service": "RUNNING", "stopping": False, "paused": ["backlog", "operator"], "pid": 1, "client_id": "c",
        "counters": counters,
        "subscriptions": {
            "%RETRY%g": {"filter": "*", "type": "TAG"}, "t": {"filter": "*", "type": "TAG"},
            "u": {"filter": "a || b", "type": "TAG"}, "v": {"filter": "price > 3", "type": "SQL92"},
        },
        "subscription_mismatch": ["member c2: topic t is subscribed by us, and not there"],
        "memory": {"slab_used_bytes": 3 << 19, "slab_bytes": 64 << 20}, "backlog": {"segments": 4, "bytes": 1 << 20},
        "waiting_messages": 0, "ready_workers": 1, "staff": staff, "workers": [worker], "queues": [queue], "popped": [],
    } | more  # fmt: skip


def test_the_status_for_people() -> None:
    text = text_of(status())
    for words in ("group g  RUNNING, paused by backlog and operator", "workers 1 of 2",
                  "last reload rolled back: SyntaxError", "subscribed t, u:a || b, v:SQL92:price > 3",
                  "bodies 1.5 of 64.0 MiB  staged 4 segments, 1.0 MiB",
                  "MISMATCH member c2", "lag 7", "256", "t/b/0@1 for 2.000 s 1/2 pages"):  # fmt: skip
        assert words in text


def test_the_status_says_where_the_lag_of_what_is_popped_is_to_be_had() -> None:
    """It said 0, whatever waited."""
    assert "\nlag of what is popped: `rocketcrew lag -g g`\n" in text_of(status(queues=[], popped_topics=["t"]))
    assert "\nlag 7, without what is popped: `rocketcrew lag -g g`\n" in text_of(status(popped_topics=["u"]))


def test_the_status_says_that_a_worker_cannot_write_its_segment() -> None:
    worker = status()["workers"][0] | {"blocked": {"error": "No space left on device", "seconds": 39.6}}
    text = text_of(status(workers=[worker]))
    assert "1/2 pages; cannot write its segment: No space left on device, for 40 s" in text, "its call goes on beside"
    text = text_of(status(workers=[worker | {"running": None, "progress": ""}]))
    assert "256  cannot write its segment: No space left on device, for 40 s" in text


@pytest.mark.parametrize(
    ("loader", "line"),
    [
        ({"state": "failed", "failures_in_a_row": 3, "error": "is full\non s3"}, "LOADER failed 3 times in a row: is full"),
        ({"state": "starting", "failures_in_a_row": 1, "error": ""}, "LOADER failed once"),
        ({"state": "loading", "failures_in_a_row": 3, "error": ""}, None),
        ({"state": "failed", "failures_in_a_row": 0, "error": "of a run before"}, None),
    ],
)  # fmt: skip
def test_the_status_says_that_the_loader_fails(loader: dict[str, Any], line: str | None) -> None:
    said = [one for one in text_of(status(loader=loader)).splitlines() if one.startswith("LOADER")]
    assert said == ([] if line is None else [line])


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"counters": {"undelivered_messages": 12}}, "UNDELIVERED 12 messages"),
        ({"loader": {"quarantined": 3}}, "QUARANTINED 3 segments"),
        ({"counters": {"unexpected_errors": 1, "invariant_violations": 1}}, "FAULTS 2 of rocketcrew itself"),
    ],
)
def test_the_status_says_what_somebody_has_to_look_at(more: dict[str, dict[str, int]], line: str) -> None:
    before = status()
    now = before | {name: before.get(name, {}) | values for name, values in more.items()}
    assert [one for one in text_of(now).splitlines() if one not in text_of(before).splitlines()] == [
        one for one in text_of(now).splitlines() if one.startswith(line)
    ]
    assert line in text_of(now)


def test_the_status_says_why_the_newest_message_failed() -> None:
    failure = {"topic": "t", "broker": "b", "queue_id": 0, "offset": 17, "outcome": "dead_letter", "times": 1,
               "error": "OSError: no route\nto the database (shop.py:8)", "age_s": 3.2}  # fmt: skip
    assert "last failure" not in text_of(status())
    older = failure | {"error": "KeyError: 1"}
    said = text_of(status(recent_failures=[failure, older])).splitlines()
    assert "last failure 3 s ago (dead letter): t/b/0@17 OSError: no route\\nto the database (shop.py:8)" in said
    said = text_of(status(recent_failures=[failure | {"outcome": "held", "times": 4}])).splitlines()
    assert "last failure 3 s ago (held, 4 times): t/b/0@17 OSError: no route\\nto the database (shop.py:8)" in said


def test_command_lines_of_the_status_find_the_brokers_and_the_folder_that_it_was_found_in(tmp_path: Path) -> None:
    """They named the group alone: no name server, and another supervisor.data_dir, where nothing was set aside."""
    settings = load({"supervisor.data_dir": str(tmp_path / "my data"), "consumer.group": "g"}, {}, None)
    known = Target(tmp_path, as_json=False, known=same_settings(settings)).known
    doubtful = status()["queues"][0] | {"doubt": {"seconds": 3.2, "waits_for": "members"}}
    found = status(
        name_servers=["a:1", "b:2"],
        loader={"quarantined": 3, "target": "/data/t"},
        queues=[doubtful],
        popped_topics=["t"],
    )
    printed = re.findall(r"`rocketcrew (\S+) ([^`]*)`", text_of(found, known))
    there = ["--set", f"supervisor.data_dir={tmp_path / 'my data'}"]
    assert {name: shlex.split(line) for name, line in printed} == {
        "lag": ["-g", "g", "-n", "a:1,b:2", *there],
        "reconcile": ["-g", "g", "-n", "a:1,b:2", *there, "--target", "/data/t"],
        "why-lag": ["-g", "g", *there],
    }
    for command in (lag, reconcile, why_lag):
        (line,) = [line for name, line in printed if name == command.name]
        command.make_context(command.name, shlex.split(line), obj=Surroundings({}, tmp_path))


def test_the_status_says_that_queues_are_in_doubt() -> None:
    queue = status()["queues"][0]
    doubts = [None, {"seconds": 3.2, "waits_for": "members"}, {"seconds": 12.3, "waits_for": "offset"}]
    (said,) = [
        line
        for line in text_of(status(queues=[queue | {"doubt": doubt} for doubt in doubts])).splitlines()
        if line.startswith("IN DOUBT")
    ]
    assert said.startswith("IN DOUBT 2 queues, for 12 s: another member may have had them")
    assert "IN DOUBT" not in text_of(status())


def test_a_broker_that_refuses_all_pulls_is_in_the_status() -> None:
    queue = status()["queues"][0]
    refused = {"code": 16, "remark": "check signature failed", "times": 9, "seconds": 8.2}
    queues = [queue | {"refused": one} for one in (refused, refused | {"seconds": 7.9}, refused | {"times": 1}, None)]
    said = [line for line in text_of(status(queues=queues)).splitlines() if "REFUSED" in line]
    assert said == [
        f"REFUSED {queue['broker']} refuses the pulls of 2 queues with code 16 (check signature failed), for 8 s"
    ]
    assert "REFUSED" not in text_of(status())


def test_rates_are_differences() -> None:
    later = status(counters={**status()["counters"], "done_messages": 25})
    assert rates_of(status(), later, 2.0)["done_messages"] == 10.0
    worker = {**later["workers"][0], "done": 15, "failed": 4}
    grown = {**later, "workers": [worker, {**worker, "worker_id": "w.2"}]}
    assert worker_rates(status(), grown, 2.0) == {"w.1": 5.0, "w.2": 9.5}
    text = "\n".join(top_text(grown, rates_of(status(), grown, 2.0), worker_rates(status(), grown, 2.0)))
    assert "done 10.0/s" in text
    assert "PER S" in text


def test_a_stack_for_people() -> None:
    process = {"process": "worker", "name": "w.1", "pid": 7, "stack": "", "note": "did not answer",
               "running": {"topic": "t", "broker": "b", "queue_id": 0, "offset": 3, "seconds": 1.5}}  # fmt: skip
    assert stack_text(process).startswith("=== worker w.1 pid 7, running t/b/0@3 for 1.5 s (did not answer)")
    several = Running(None, None, None, None, 1.5, calls=16)
    coroutines = ProcessStack("worker", "w.1", 7, several, "").as_dict()
    assert stack_text(coroutines).startswith("=== worker w.1 pid 7, running 16 calls at once, the oldest for 1.5 s\n")
    assert str(several) == "16 calls at once, the oldest for 1.500 s"
    stack = "Thread 1:\n  File x, line 1 in wait\n  File y, line 2 in worker_main\n  File z, line 3 in main\n"
    idle = {**process, "note": "", "running": None, "stack": f"{stack}\nThread 2:\n  File q, line 4 in write\n"}
    assert stack_text(idle) == (
        "=== worker w.1 pid 7, has no message in hand\nThread 1:\n  File x, line 1 in wait\n  File y, line 2 in worker_main"
        "\n\nThread 2:\n  File q, line 4 in write\n"
    )


class Supervisor(Target):
    """Keeps what it is asked; `changed` is its answer, `more` is in its status."""

    def __init__(self, changed: bool, as_json: bool, *, dry_run: bool = False, **more: Any) -> None:
        super().__init__(Path("billing/0"), as_json=as_json, dry_run=dry_run)
        self.changed = changed
        self.more = more
        self.asked: list[tuple[str, dict[str, object]]] = []

    def ask(self, command: str, **arguments: object) -> dict[str, Any]:
        self.asked.append((command, arguments))
        return status(**self.more) if command == "status" else {"changed": self.changed, **self.more}


def called(command: click.Command, supervisor: Supervisor, **arguments: object) -> str:
    """What the command prints, without the look for a running supervisor."""
    function = inspect.unwrap(command.callback)  # type: ignore[arg-type]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        function(supervisor, **arguments)
    return printed.getvalue()


@pytest.mark.parametrize(
    ("text", "topic", "wish"),
    [("orders", "orders", "*"), ("orders:a || b", "orders", "a || b"), ("o:SQL92:a > 'x:y'", "o", "SQL92:a > 'x:y'")],
)
def test_subscriptions_are_written_as_for_run(text: str, topic: str, wish: str) -> None:
    supervisor = Supervisor(True, False)
    assert called(subscribe, supervisor, subscription=text) == f"subscribed {text}\n"
    assert supervisor.asked == [("subscribe", {"topic": topic, "filter": wish})]
    assert called(subscribe, Supervisor(False, False), subscription=text) == f"{text} is subscribed already\n"


def test_unsubscribe_for_people_and_programs() -> None:
    supervisor = Supervisor(True, False)
    assert called(unsubscribe, supervisor, topic="orders") == "unsubscribed orders\n"
    assert supervisor.asked == [("unsubscribe", {"topic": "orders"})]
    assert called(unsubscribe, Supervisor(True, True), topic="orders") == '{"changed": true}\n'


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("as_json", [True, False])
def test_a_mistyped_topic_is_not_unsubscribed_as_if_it_were_none(dry_run: bool, as_json: bool) -> None:
    subscriptions = {name: {"filter": "*"} for name in ("orders", "refunds", "%RETRY%g")}
    for topic, said in (
        ("ordres", "ordres is not subscribed: did you mean orders?"),
        ("x", "; there are orders, refunds"),
    ):
        supervisor = Supervisor(False, as_json, dry_run=dry_run, subscriptions=subscriptions)
        with pytest.raises(UnknownNameError, match=re.escape(said)):
            called(unsubscribe, supervisor, topic=topic)


@pytest.mark.parametrize(
    ("command", "arguments", "line"),
    [
        (pause, {}, "would pause pulling, which is paused by backlog and operator"),
        (resume, {}, "would resume pulling"),
        (scale, {"workers": 5}, "would have 5 workers, now 2"),
        (reload, {"wait": True}, "would reload the code and the settings in 2 workers"),
        (subscribe, {"subscription": "w:a"}, "would subscribe w:a"),
        (subscribe, {"subscription": "u:c"}, "would subscribe u:c, now with the filter 'a || b'"),
        (unsubscribe, {"topic": "t"}, "would unsubscribe t"),
        (stop, {"quick": False, "wait": True, "timeout_s": 1.0}, "would stop: 2 messages in hand would be finished first"),
        (stop, {"quick": True, "wait": False, "timeout_s": 1.0}, "would stop at once: 2 messages in hand would come again"),
    ],
)  # fmt: skip
def test_a_dry_run_asks_a_supervisor_for_its_status_only(
    command: click.Command, arguments: dict[str, object], line: str
) -> None:
    supervisor = Supervisor(True, False, dry_run=True)
    assert called(command, supervisor, **arguments) == f"{line} (group g, slot 0, pid 1); nothing was done\n"
    assert supervisor.asked == [("status", {})]
    told = json.loads(called(command, Supervisor(True, True, dry_run=True), **arguments))
    assert told == {
        "would": line.removeprefix("would "), "done": False, "group": "g", "slot": "billing/0", "pid": 1,
    }  # fmt: skip


def test_a_dry_run_refuses_what_would_be_refused() -> None:
    with pytest.raises(UsageError, match="has no expression"):
        called(subscribe, Supervisor(True, False, dry_run=True), subscription="w:SQL92:")
    for bad, said in (
        ("bad topic", "^topic 'bad topic' contains illegal"),
        (":a", "^the topic is blank"),
        ("t" * 128, "has 128 characters; at most 127"),
    ):
        for dry_run in (True, False):
            supervisor = Supervisor(True, False, dry_run=dry_run)
            with pytest.raises(UsageError, match=said):
                called(subscribe, supervisor, subscription=bad)
            assert not supervisor.asked
    supervisor = Supervisor(True, False, dry_run=True, subscriptions={"t": {}, "%RETRY%g": {}})
    with pytest.raises(RocketcrewError, match="the only topic"):
        called(unsubscribe, supervisor, topic="t")


def test_a_reload_that_waits_for_another_says_so() -> None:
    supervisor = Supervisor(True, False, reloading=True, after="the reload that is under way")
    assert called(reload, supervisor, wait=False) == "reloading, after the reload that is under way\n"
    assert called(reload, Supervisor(True, False, reloading=True), wait=False) == "reloading\n"


class Reloading(Supervisor):
    """Its status has one of these staffs after the other."""

    def __init__(self, ends: int, *staffs: dict[str, Any], pid: int = 1) -> None:
        super().__init__(True, False, reloading=True, ends=ends, pid=1)
        self.staffs = list(staffs)
        self.pid = pid

    def ask(self, command: str, **arguments: object) -> dict[str, Any]:
        if command == "status":
            return {"pid": self.pid, "staff": self.staffs.pop(0)}
        return super().ask(command, **arguments)


def test_a_reload_is_told_its_own_result_whatever_came_before_or_after() -> None:
    first = {"reload": "idle", "reloads_ended": 1, "reload_results": {"1": "generation 1 serves"}}
    why = "refused: spark.target has a mistake"
    then = {"reload": "probing", "reloads_ended": 2, "reload_results": {"1": "generation 1 serves", "2": why}}
    with pytest.raises(RocketcrewError, match=rf"the reload was {why}"):
        called(reload, Reloading(2, first, {**first, "reload": "probing"}, then), wait=True)
    assert called(reload, Reloading(1, first), wait=True) == "generation 1 serves\n"
    assert called(reload, Reloading(1, then), wait=True) == "generation 1 serves\n", (
        "one that follows is not waited for"
    )


def test_a_reload_whose_result_is_no_longer_told_is_no_success() -> None:
    with pytest.raises(RocketcrewError, match="its result is not known"):
        called(reload, Reloading(1, {"reloads_ended": 30, "reload_results": {"30": "generation 9 serves"}}), wait=True)


def test_a_reload_during_which_the_supervisor_was_restarted_is_not_waited_for() -> None:
    with pytest.raises(RocketcrewError, match="the supervisor was restarted meanwhile"):
        called(reload, Reloading(1, {"reloads_ended": 0, "reload_results": {}}, pid=2), wait=True)


def test_a_topic_that_is_named_as_the_group_is_not_its_retry_topic() -> None:
    said = called(subscribe, Supervisor(True, False, dry_run=True), subscription="g:a")
    assert said.startswith("would subscribe g:a (group g")


def test_a_stop_may_be_waited_for_longer_than_a_poll_can() -> None:
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # its id is kept until it is waited for
    supervisor = Supervisor(True, False, pid=ended.pid)
    assert called(stop, supervisor, quick=False, wait=True, timeout_s=99_999_999.0) == f"stopped (pid {ended.pid})\n"
    ended.wait()


def test_the_status_says_that_a_reload_was_refused() -> None:
    staff = status()["staff"] | {"last_reload": "refused: spark.target has a mistake"}
    assert "last reload refused: spark.target has a mistake" in text_of(status(staff=staff)).splitlines()


def test_nobody_runs_here(tmp_path: Path) -> None:
    settings = load({"supervisor.data_dir": str(tmp_path), "consumer.group": "g"}, {}, None)
    (tmp_path / "g" / "0").mkdir(parents=True)
    (tmp_path / "g" / "0" / "control.sock").touch()  # of a dead run
    with pytest.raises(UsageError, match=r"no supervisor runs under /.* for group g in slot 0"):
        find(settings, "0")
    assert reload.name == "reload"


def test_one_that_runs_and_does_not_answer_is_named(tmp_path: Path) -> None:
    held = {tmp_path / "g" / "0": 41, tmp_path / "h" / "0": 42, Path("/elsewhere/g/0"): 43}
    found = [tmp_path / "g" / "0", tmp_path / "h" / "0", tmp_path / "g" / "1"]
    with pytest.raises(
        RocketcrewError, match=r"^pid 41 runs and does not answer \(group g, slot 0\): .*kill -CONT 41`"
    ):
        meant(found[:1], [], held, "under x")
    assert meant(found[:1], found[:1], {}, "under x") == found[0]
    assert meant([found[0], found[2]], found[2:], {}, "under x") == found[2]
    with pytest.raises(
        UsageError, match=r"several supervisors run under x: g/0, h/0 \(pid 42, does not answer\)\. Say"
    ):
        meant(found, found[:1], held, "under x")
    with pytest.raises(
        UsageError, match=r"no supervisor runs under x\. Running on this machine:\n  group g, slot 0, pid 43"
    ):
        meant(found[2:], [], {Path("/elsewhere/g/0"): 43}, "under x")


def test_a_slot_that_we_may_not_list_is_named_with_its_user(tmp_path: Path) -> None:
    for name in ("0", "1", "table"):
        (tmp_path / "g" / name).mkdir(parents=True)
    (tmp_path / "g" / "2").touch()
    inside = sorted((tmp_path / "g").iterdir())
    closed = closed_folders(inside, lambda path: path.name == "1")
    assert closed == {tmp_path / "g" / name: tmp_path.owner() for name in ("0", "table")}
    assert closed_folders(inside) == {}
    with pytest.raises(
        UsageError, match=r"^cannot see whether .* under x: slot 0 of group g belongs to user root; slot 4 of group g "
    ):
        meant([], [], {}, "under x", {Path("/d/g/0"): "root", Path("/d/g/4"): "1001"})
    with pytest.raises(UsageError, match=r"^cannot see whether .* under x: /d/g belongs to user root"):
        meant([], [], {}, "under x", {Path("/d/g"): "root"})
    with pytest.raises(UsageError, match=r"^no supervisor runs under x"):
        meant([], [], {}, "under x", {})
    mine = Path("/d/g/1")
    assert meant([mine], [mine], {}, "under x", {Path("/d/g/0"): "root"}) == mine
