"""`rocketcrew why-lag`: what holds each queue's offset in a running supervisor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from ...conf.printed import counted
from ..controlling import Target, to_supervisor
from ..picture import cannot_write

FRAME: Final = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)')
WORKER_FRAME: Final = "in worker_main"
HOLDS: Final[Mapping[str, str]] = {
    "send_back": "failed, and its send-back is not accepted yet",
    "again": "is to run again: its worker died",
    "alone": "may have crashed a worker, and waits to be run with nothing else in hand",
    "order": "waits for one before it, of its queue or key",
    "rate": "waits for the rate limit of its topic or of the member",
    "room": "waits until the loader has loaded more, or the disk has room (`pulling_paused`)",
    "waiting": "waits for a worker that has room",
    "rows": "is finished, and its rows are in a segment that is not sealed yet",
    "table": "is finished, and its rows are not in the table yet (results.commit_after = loaded)",
    "commit": "is the next one: all before it are finished, and the offset is committed at the next persist",
    "pull": "is the next one to be pulled: nothing is in hand here",
    "opening": "is not known yet: the queue is being opened",
    "nothing": "is the next one to come: nothing holds the queue",
}
"""What the supervisor says (supervisor/core/holding.py), for people."""
DOUBTS: Final[Mapping[str, str]] = {
    "members": "who the group's members are",
    "lock": "that its lock is ours",
    "offset": "where the group is with it",
}


@click.command("why-lag")
@to_supervisor
def why_lag(target: Target) -> None:
    """Show what holds each queue's offset in a running supervisor: which message, in which worker, for how long and where in
    the code; and which rule of flow control holds back its pulls.

    Queues with nothing to say are left out; --json has all of them, and whole stacks.

    \b
    Examples:
      rocketcrew why-lag
      rocketcrew why-lag -g billing --json
    """
    answer = target.ask("holding")
    answer["queues"] = [explained(queue, answer["processes"], answer["blocked"]) for queue in answer["queues"]]
    target.tell(answer, text_of(answer))


def explained(
    queue: Mapping[str, Any], workers: list[dict[str, Any]], blocked: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The queue with the process that has the message in hand: its pid, what it runs, the top of its stack, and since when it
    cannot write its segment."""
    process = next((one for one in workers if one["name"] == queue["worker"]), None)
    if process is None:
        return {**queue, "pid": None, "running": None, "top": "", "blocked": None}
    return {**queue, "pid": process["pid"], "running": process["running"], "top": top_of(process["stack"]),
            "blocked": blocked.get(process["name"])}  # fmt: skip


def top_of(stack: str) -> str:
    """Where a worker's main thread is: `function at file.py:line`; "" where the stack does not say."""
    for thread in stack.split("\n\n"):
        if WORKER_FRAME in thread:
            found = FRAME.search(thread)
            return f"{found['function']} at {Path(found['file']).name}:{found['line']}" if found else ""
    return ""


def text_of(answer: Mapping[str, Any]) -> str:
    """For people."""
    told = [_lines(queue) for queue in answer["queues"] if _has_to_say(queue)]
    lines = [line for queue in told for line in queue]
    for queue in answer["popped"]:
        place = f"{queue['topic']} {queue['broker']} {queue['queue_id']}"
        lines.append(f"{place}: {queue['unfinished']} popped messages are not finished; the broker has their offsets")
    lines += [f"topic {topic} does not exist: it is consumed as soon as it does" for topic in answer["missing_topics"]]
    lines += [
        f"topic {topic}: a broker answers our heartbeats and does not list us as a member of the group, so none of its queues"
        f" is ours: it has no group {answer['group']}, and may not make it;"
        f" `mqadmin updateSubGroup -g {answer['group']} -c CLUSTER`"
        for topic in answer["unlisted_topics"]
    ]
    if not lines and not answer["queues"] and not answer["popped"]:
        lines.append(f"group {answer['group']}: this member has no queues")
    elif not lines:
        lines.append(f"group {answer['group']}: no lag in {counted(len(answer['queues']), 'queue')}")
    return "\n".join(lines)


def _has_to_say(queue: Mapping[str, Any]) -> bool:
    return bool(queue["lag"] or queue["unfinished"] or queue["rules"] or queue["doubt"])


def _lines(queue: Mapping[str, Any]) -> list[str]:
    place = f"{queue['topic']} {queue['broker']} {queue['queue_id']}"
    lines = [f"{place}: lag {queue['lag']}, committed {queue['committed']}, {queue['unfinished']} unfinished here"]
    lines.append("  " + _holder(queue))
    lines += [f"  not pulled: {rule}" for rule in queue["rules"]]
    if doubt := queue["doubt"]:
        lines.append("  " + _doubt(doubt))
    return lines


def _doubt(doubt: Mapping[str, Any]) -> str:
    waits_for = DOUBTS[doubt["waits_for"]]
    commits = "it is not committed before" if doubt["withheld"] else "commits look at the group's offset first"
    since = f"in doubt for {doubt['seconds']:.0f} s, as another member may have had it"
    return f"{since}: waits to hear {waits_for}; {commits}"


def _holder(queue: Mapping[str, Any]) -> str:
    offset, running = queue["offset"], queue["running"]
    who = f"worker {queue['worker']}" + (f" (pid {queue['pid']})" if queue["pid"] else "")
    if queue["blocked"] and (queue["holds"] == "rows" or (queue["holds"] == "worker" and running is None)):
        done = "is finished, and its rows are" if queue["holds"] == "rows" else "is"
        return f"offset {offset} {done} with {who}, which {cannot_write(queue['blocked'])}"
    if queue["holds"] != "worker":
        error = f" ({queue['error']})" if queue["error"] else ""
        subject = "its offset" if queue["holds"] == "opening" else f"offset {offset}"
        return f"{subject} {HOLDS[queue['holds']]}{error}"
    at = f", in {queue['top']}" if queue["top"] else ""
    if running is None:
        return f"offset {offset} is with {who}, which is between two messages"
    if running["topic"] is None:
        several = f"{running['calls']} calls at once, the oldest for {running['seconds']:.1f} s"
        return f"offset {offset} is with {who}, which runs {several}"
    same = (running["topic"], running["broker"], running["queue_id"]) == (
        queue["topic"], queue["broker"], queue["queue_id"],
    )  # fmt: skip
    if same and running["offset"] == offset:
        return f"offset {offset} runs in {who} for {running['seconds']:.1f} s{at}"
    other = f"{running['topic']} {running['broker']} {running['queue_id']} offset {running['offset']}"
    return f"offset {offset} is with {who}, which runs {other} for {running['seconds']:.1f} s{at}"
