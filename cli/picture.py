"""A running supervisor's picture of itself (supervisor/status.py) as lines for people: what `status` and `top` show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..conf.printed import command_line, counted
from ..remoting.names import RETRY_PREFIX
from ..remoting.subscription import EXPRESSION_TAG
from ..spark.status import LOADING, WAITING
from .tables import in_one_line


def head_of(found: dict[str, Any], known: Sequence[str] = ()) -> list[str]:
    """What holds for the whole member; `known` are the options that it was found by."""
    counters, staff = found["counters"], found["staff"]
    state = (
        found["service"]
        + (", stopping" if found["stopping"] else "")
        + (f", paused by {' and '.join(found['paused'])}" if found["paused"] else "")
    )
    reload = f", reload {staff['reload']}" if staff["reload"] != "idle" else ""
    done = (
        f"done {counters['done_messages']}  failed {counters['failed_messages']}  sent back"
        f" {counters['sent_back_messages']}  waiting {found['waiting_messages']}  worker deaths"
        f" {counters['worker_deaths']}"
    )
    head = [
        f"group {found['group']}  {state}  pid {found['pid']}  client {found['client_id']}",
        done,
        f"workers {found['ready_workers']} of {staff['workers']}  code generation {staff['generation']}{reload}",
    ]
    head.append(_lag(found, known))
    head.extend(_last_failure(found))
    subscribed = [
        topic if wish["filter"] == "*" else f"{topic}:{_kind(wish['type'])}{wish['filter']}"
        for topic, wish in sorted(found["subscriptions"].items())
        if not topic.startswith(RETRY_PREFIX)
    ]
    memory, backlog = found["memory"], found["backlog"]
    head.append(
        f"bodies {_mib(memory['slab_used_bytes'])} of {_mib(memory['slab_bytes'])} MiB  staged {backlog['segments']}"
        f" segments, {_mib(backlog['bytes'])} MiB"
    )
    head.append(f"subscribed {', '.join(subscribed)}")
    if found.get("rate_limits"):
        head.append(f"rate limits {', '.join(map(_rate, found['rate_limits']))}")
    head.extend(f"MISMATCH {text}" for text in found["subscription_mismatch"])
    if staff["last_reload"].startswith(("rolled back", "refused")):
        head.append(f"last reload {staff['last_reload']}")
    return head + _troubles(found, known) + _loader(found.get("loader", {}))


def _asking(command: str, found: dict[str, Any], known: Sequence[str], *more: str) -> str:
    """The command line that asks the brokers about this group."""
    servers = ",".join(found.get("name_servers", ()))
    return f"`{command_line(command, '-g', found['group'], *(('-n', servers) if servers else ()), *known, *more)}`"


def _lag(found: dict[str, Any], known: Sequence[str]) -> str:
    """Of what is popped only the brokers know it."""
    lag = f"lag {sum(queue['lag'] for queue in found['queues'])}"
    if not found.get("popped_topics"):
        return lag
    ask = _asking("lag", found, known)
    return f"{lag}, without what is popped: {ask}" if found["queues"] else f"lag of what is popped: {ask}"


def _last_failure(found: dict[str, Any]) -> list[str]:
    """Why messages fail: while all of them go back for a retry there is no lag, and no dead letter for hours."""
    if not found.get("recent_failures"):
        return []
    newest = found["recent_failures"][0]
    became = newest["outcome"].replace("_", " ") + (f", {newest['times']} times" if newest["times"] > 1 else "")
    place = f"{newest['topic']}/{newest['broker']}/{newest['queue_id']}@{newest['offset']}"
    # Whole: the place of the error is its end, and what is wrong with a body often stands in the lines below the first.
    return [f"last failure {newest['age_s']:.0f} s ago ({became}): {place} {in_one_line(newest['error'])}"]


def _troubles(found: dict[str, Any], known: Sequence[str]) -> list[str]:
    """What somebody has to look at, though the member goes on."""
    counters, loader = found["counters"], found.get("loader", {})
    set_aside, table = loader.get("quarantined", 0), ["--target", loader["target"]] if loader.get("target") else []
    names = f"{_asking('reconcile', found, known, *table)} names them"
    said: list[str] = []
    if undelivered := counters.get("undelivered_messages", 0):
        said.append(f"UNDELIVERED {counted(undelivered, 'message')} that a broker passed over: {names}")
    if set_aside:
        said.append(f"QUARANTINED {counted(set_aside, 'segment')} set aside as not fit for the table: {names}")
    if faults := counters.get("unexpected_errors", 0) + counters.get("invariant_violations", 0):
        said.append(f"FAULTS {faults} of rocketcrew itself: its log has them")
    if doubts := [queue["doubt"]["seconds"] for queue in found["queues"] if queue["doubt"]]:
        said.append(
            f"IN DOUBT {counted(len(doubts), 'queue')}, for {max(doubts):.0f} s: another member may have had them,"
            f" `{command_line('why-lag', '-g', found['group'], *known)}` says what is waited for"
        )
    return said + _refusals(found)


def _refusals(found: dict[str, Any]) -> list[str]:
    """A line for each broker that refuses pulls again and again, with what it said last."""
    refused: dict[str, list[dict[str, Any]]] = {}
    for queue in found["queues"]:
        if (one := queue.get("refused")) and one["times"] > 1:
            refused.setdefault(queue["broker"], []).append(one)
    said: list[str] = []
    for broker, each in sorted(refused.items()):
        longest = max(each, key=lambda one: one["seconds"])
        remark = f" ({longest['remark']})" if longest["remark"] else ""
        code, seconds = f"{longest['code']}{remark}", longest["seconds"]
        said.append(
            f"REFUSED {broker} refuses the pulls of {counted(len(each), 'queue')} with code {code}, for {seconds:.0f} s"
        )
    return said


def _loader(loader: dict[str, Any]) -> list[str]:
    """One that fails, and has not come to work since."""
    failures = loader.get("failures_in_a_row", 0)
    if not failures or loader.get("state") in (WAITING, LOADING):
        return []
    often = "once" if failures == 1 else f"{failures} times in a row"
    why = loader.get("error", "").partition("\n")[0]
    return [f"LOADER failed {often}" + (f": {why}" if why else "")]


def cannot_write(blocked: Mapping[str, Any]) -> str:
    """Of a worker that tries to write its segment."""
    return f"cannot write its segment: {blocked['error']}, for {blocked['seconds']:.0f} s"


def _rate(limit: dict[str, Any]) -> str:
    held = " (holds messages back now)" if limit["limited"] else ""
    return f"{limit['topic'] or 'all topics'} {limit['written']}{held}"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f}"


def _kind(expression_type: str) -> str:
    return "" if expression_type == EXPRESSION_TAG else f"{expression_type}:"


def workers_of(found: dict[str, Any]) -> list[dict[str, object]]:
    """A row a worker."""
    return [
        {
            "WORKER": worker["worker_id"],
            "INDEX": worker.get("index", ""),
            "PID": worker["pid"],
            "STATE": worker["state"],
            "GEN": worker.get("generation", ""),
            "DONE": worker.get("done", 0),
            "FAILED": worker.get("failed", 0),
            "IN HAND": worker["messages"],
            "RSS MIB": worker.get("rss_bytes", 0) >> 20,
            "RUNNING": running_of(worker),
        }
        for worker in found["workers"]
    ]


def running_of(worker: Mapping[str, Any]) -> str:
    """What the worker does, in words."""
    running = " ".join(filter(None, (worker.get("running"), worker.get("progress"))))
    if not worker.get("blocked"):
        return running
    blocked = cannot_write(worker["blocked"])
    return f"{running}; {blocked}" if running else blocked  # it goes on while the disk refuses to seal what is written


def queues_of(found: dict[str, Any]) -> list[dict[str, object]]:
    """A row a queue; of what is popped the broker has the offsets."""
    return [
        {
            "TOPIC": queue["topic"],
            "BROKER": queue["broker"],
            "QUEUE": queue["queue_id"],
            "STATE": queue.get("state", "popped"),
            "NEXT": queue.get("next_offset", "-"),
            "COMMITTED": queue.get("committed", "-"),
            "UNFINISHED": queue["unfinished"],
            "LAG": queue.get("lag", "-"),
        }
        for queue in (*found["queues"], *found["popped"])
    ]
