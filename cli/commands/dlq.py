"""`rocketcrew dlq`: look at a group's dead letters, count them by error, give them to the group again, put them aside."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TextIO

import click

from ...client.access import Access
from ...client.admin import Admin
from ...client.clock import wall_ms
from ...client.cluster import Cluster
from ...client.operations import Operations
from ...conf.exit_codes import EXIT_FAILURE, EXIT_FINE
from ...conf.formats import not_a_folder
from ...conf.printed import counted
from ...conf.settings import Settings, require
from ...durable.files import try_lock
from ...durable.room import unusable
from ...remoting.errors import BrokerError, UsageError
from ...remoting.names import DLQ_PREFIX, RETRY_PREFIX
from ...supervisor.member.access import access_of
from ...supervisor.member.send_back import SendBacks
from ..asking import ask_cluster, known_topics
from ..changing import agrees, changes, so_far, would
from ..json_text import json_text
from ..letters import (
    DELTA,
    HANDLED,
    NOTES_FILE,
    PARQUET,
    PURGED,
    REPLAYED,
    Letter,
    Notes,
    Wanted,
    groups,
    per_second,
    whole,
)  # fmt: skip
from ..messages import BODY_FORMATS, messages, nothing_until, text_of, when
from ..options import Dependent, with_settings
from ..program_lines import own_stdout
from ..stagings import group_in_keys
from ..surroundings import import_from_here
from ..tables import lines, seen
from ..times import parse_time
from ..unfinished import UNFINISHED_FILE, Course, command_of
from ..wording import no_such_group, unknown_topic

JSONL: Final = "jsonl"
RATE: Final = "100/s"
"""Of a replay: a group that has just failed on them is not flooded."""
WIDEST: Final = 120
"""Characters of an error in a table; `dlq show` and JSON have it whole."""
GOES_ON: Final = "; the same command goes on"


@click.group()
def dlq() -> None:
    """Work with a group's dead letters, the messages that it gave up.

    What was replayed, handled here or purged is noted in supervisor.data_dir of this host; the other commands leave it out.

    \b
    Examples:
      rocketcrew dlq group -g billing
      rocketcrew dlq replay -g billing --error KeyError --dry-run
    """


class Desk:
    """The group's letters and what was done about them."""

    def __init__(self, settings: Settings) -> None:
        flags = {"cluster.name_servers": "-n HOST:PORT", "consumer.group": "-g GROUP"}
        require(settings, flags, flag_names=flags)
        self.settings = settings
        self.access: Access = access_of(settings)
        self.group = settings.consumer.group
        home = Path(settings.supervisor.data_dir) / group_in_keys(settings)
        self.notes = Notes.read(home / NOTES_FILE)
        self.replayed = 0
        """Letters that this command has sent."""
        self.read_to: dict[tuple[str, int], int] = {}
        """By broker and queue id, as of the last look: all letters below this offset that there are were read."""

    def letters(self, wanted: Wanted, limit: int = 0) -> list[Letter]:
        """Those that are meant, oldest first; at most `limit` (0 = all). Raises UsageError for a name that none has."""
        found = ask_cluster(self.access, self.read)
        missing = wanted.missing(found)
        if missing:
            raise UsageError(f"group {self.group} has no dead letter {', '.join(missing)}: see `rocketcrew dlq ls`")
        taken = sorted(filter(wanted.takes, found), key=lambda one: (one.message.store_timestamp_ms, one.place))
        return taken[:limit] if limit else taken

    def letters_left(self, course: Course, wanted: Wanted, limit: int) -> list[Letter]:
        """As `letters`; of a replay that this command has begun and not ended what is left of it."""
        if course.round is None:
            return self.letters(wanted, limit)
        left = course.left(self.letters(Wanted(done_too=True)), self.read_to)
        of = counted(len(course.round.letters), "letter")
        click.echo(
            f"goes on with the replay of {course.round.began} that did not end: {len(left)} of {of} are left"
            f" (--anew begins again{course.sends_again})",
            err=True,
        )
        return left

    def course(self, command: str, *, anew: bool) -> Course:
        """This run of a replay. Raises UsageError."""
        return Course(self.notes.path.with_name(UNFINISHED_FILE), command, self.notes, anew=anew)

    async def read(self, cluster: Cluster) -> list[Letter]:
        """All letters that brokers have. Raises RocketcrewError."""
        topic = DLQ_PREFIX + self.access.wrap(self.group)
        try:
            queues = await cluster.queues_to_read(topic, refresh=True)
        except BrokerError as error:
            if unknown_topic(error) is None:
                raise
            known = await known_topics(cluster, self.access)
            if RETRY_PREFIX + self.group not in known:
                raise no_such_group(self.group, known) from error
            return []
        if not queues:
            raise UsageError(
                f"{topic} may not be read: brokers of 4.9.0 and older make it so. Give it perm 6:"
                f" mqadmin updateTopicPerm -t {topic} -p 6"
            )
        # The group's name is for where a tool may not read. One that was deleted, or may not consume, has letters still.
        operations, group = Operations(cluster), self.access.wrap(self.group)
        found: list[Letter] = []
        for mq in queues:
            low, high = await operations.min_offset(mq), await operations.max_offset(mq)
            read = [one async for one in messages(cluster, mq, low, high, or_group=group)]
            found += [Letter(mq, one, self.notes.of(mq, one)) for one in read]
            end = read[-1].queue_offset + 1 if read else low
            if end < high:  # 4.9 goes on to name a first offset that it has deleted, where it has deleted all
                end = min(high, await nothing_until(cluster, mq, end, group))
            self.read_to[mq.broker_name, mq.queue_id] = end
        return found

    async def replay(self, cluster: Cluster, letters: Iterable[Letter], per_second: float) -> int:
        """Send each to the group's retry topic, and note it; how many. Raises RocketcrewError for the first that is refused,
        with what is done noted."""
        group = self.access.wrap(self.group)
        sends = SendBacks(cluster, Operations(cluster), group, self.settings.consumer.max_reconsume_times)
        loop, count = asyncio.get_running_loop(), 0
        began = loop.time()
        for letter in letters:
            await asyncio.sleep(max(0.0, began + count / per_second - loop.time()))
            await sends.replay(letter.message)
            count += 1
            self.replayed += 1
            self.notes.add(letter, REPLAYED)
        return count

    async def members(self, cluster: Cluster) -> int:
        """How many members the group has now."""
        online = await Admin(cluster).consumer_connections(self.access.wrap(self.group))
        return 0 if online is None else len(online.connection_set)

    def waits(self, members: int) -> str:
        """For the end of a line: that nobody is there to consume; empty where somebody is."""
        return "" if members else f"; group {self.group} has no member now, and consumes them when one starts"

    @contextlib.contextmanager
    def alone(self, *, dry_run: bool = False) -> Generator[None]:
        """Nobody else replays or purges letters of this group from this folder; for a `dry_run`, which makes no file, anybody
        may. Raises UsageError."""
        if dry_run:
            yield
            return
        try:
            self.notes.path.parent.mkdir(parents=True, exist_ok=True)
            lock = try_lock(self.notes.path.with_suffix(".lock"))
        except OSError as error:
            raise unusable(self.settings.supervisor.data_dir, error) from error
        if lock is None:
            raise UsageError(f"another `rocketcrew dlq` works on the dead letters of group {self.group} here")
        try:
            self.notes = Notes.read(self.notes.path)
            yield
        finally:
            os.close(lock)


def picks(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function that gets the settings and what letters are meant."""

    @functools.wraps(function)
    def command(settings: Settings, /, **arguments: Any) -> None:
        now_ms = wall_ms()
        since, until = arguments.pop("since"), arguments.pop("until")
        wanted = Wanted(
            names=arguments.pop("names", ()), error=arguments.pop("error"), line=arguments.pop("line"),
            topic=arguments.pop("topic"), key=arguments.pop("key"), done_too=arguments.pop("done_too"),
            from_ms=parse_time("--since", since, now_ms) if since else 0,
            to_ms=parse_time("--until", until, now_ms) if until else 1 << 62,
        )  # fmt: skip
        function(Desk(settings), wanted, **arguments)

    made: Callable[..., None] = with_settings(group="consumer.group")(command)
    for option in reversed((
        click.option("-g", "--group", metavar="GROUP", help="The consumer group."),
        click.option("--error", default="", metavar="TEXT", help="Only letters whose error has this text."),
        click.option("--line", default="", metavar="FILE:LINE", help="Only letters that failed at this handler line."),
        click.option("-t", "--topic", default="", metavar="TOPIC", help="Only letters first sent to this topic."),
        click.option("--key", default="", metavar="KEY", help="Only letters with this key."),
        click.option("--since", default="", metavar="TIME",
                     help="Only letters of this time and later: 2h, ISO 8601 or 20260131080000."),
        click.option("--until", default="", metavar="TIME", help="Only letters from before this time."),
        click.option("--all", "done_too", is_flag=True, help="Replayed and purged ones too."),
    )):  # fmt: skip
        made = option(made)
    return made


AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
BODY = click.option("--body", "how", type=click.Choice(BODY_FORMATS), default="auto", show_default=True,
                    help="How bodies are shown.")  # fmt: skip
NAMES = click.argument("names", nargs=-1, metavar="[LETTER]...")
LIMIT = click.option("--limit", type=click.IntRange(0), default=0, metavar="N", help="At most N letters; 0: all.")


@dlq.command()
@LIMIT
@AS_JSON
@picks
def ls(desk: Desk, wanted: Wanted, limit: int, as_json: bool) -> None:
    """List a group's dead letters, oldest first.

    LETTER is broker/queue/offset in the topic %DLQ%<group>; the other commands take it as a name, and message ids too.

    \b
    Examples:
      rocketcrew dlq ls -g billing --since 2h
      rocketcrew dlq ls -g billing --error KeyError --json
    """
    found = desk.letters(wanted, limit)
    if as_json:
        for letter in found:
            click.echo(json_text(letter.facts("none")))
        return
    rows = [letter.row() | {"DONE": letter.done} for letter in found]
    click.echo("\n".join(lines(rows, WIDEST)) or "no dead letters")


@dlq.command()
@NAMES
@BODY
@AS_JSON
@picks
def show(desk: Desk, wanted: Wanted, how: str, as_json: bool) -> None:
    """Show dead letters whole: ids, times, error, properties and body.

    \b
    Examples:
      rocketcrew dlq show broker-a/0/17 -g billing
      rocketcrew dlq show -g billing --key order-17 --body hex
    """
    if not wanted.names and wanted == Wanted(done_too=wanted.done_too):
        raise UsageError("say which letters: by name, or by --error, --line, --topic, --key or --since")
    for number, letter in enumerate(desk.letters(wanted)):
        facts = letter.facts(how)
        text = json_text(facts) if as_json else seen(text_of(facts))
        click.echo(("\n" if number and not as_json else "") + text)


@dlq.command()
@click.option("--by", type=click.Choice(["error", "line", "topic"]), default="error", show_default=True,
              help="What letters of one group have in common; numbers and quoted values of errors do not count.")  # fmt: skip
@AS_JSON
@picks
def group(desk: Desk, wanted: Wanted, by: str, as_json: bool) -> None:
    """Count a group's dead letters by error, by handler line or by topic, the most frequent first.

    Errors are recorded by rocketcrew's members, with the line of the handler that raised; a dead letter that another client
    or the broker made says nothing of its end.

    \b
    Examples:
      rocketcrew dlq group -g billing
      rocketcrew dlq group -g billing --by line --since 1d
    """
    found = groups(desk.letters(wanted), by)
    click.echo(
        json_text([{name.lower(): value for name, value in row.items()} for row in found])
        if as_json
        else "\n".join(lines(found, WIDEST)) or "no dead letters"
    )


def _rate(_context: click.Context, _parameter: click.Parameter, text: str) -> float:
    return per_second(text)


@dlq.command()
@NAMES
@LIMIT
@click.option("--rate", default=RATE, show_default=True, metavar="RATE", callback=_rate,
              help="Letters that are sent at most, as 50 or 50/s, 30/m, 100/h.")  # fmt: skip
@click.option("--handler", metavar="HANDLER", default="",
              help="First run this handler on each letter, here; only letters that it can take go to the group.")  # fmt: skip
@click.option(
    "--pdb",
    "debug",
    is_flag=True,
    cls=Dependent,
    needs="--handler",
    help="With --handler: open Python's debugger where a letter fails.",
)
@click.option("--mark-handled", "handled", is_flag=True, cls=Dependent, needs="--handler",
              help="With --handler: what it has done here is enough; send nothing to the group.")  # fmt: skip
@click.option(
    "--anew",
    is_flag=True,
    cls=Dependent,
    needs="--all",
    help="With --all: begin again, also after a replay that did not end.",
)
@changes(asks=True)
@AS_JSON
@picks
def replay(
    desk: Desk, wanted: Wanted, limit: int, rate: float, handler: str, debug: bool, handled: bool, anew: bool,
    dry_run: bool, yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Give dead letters to the group again, with their attempts counted anew.

    They go to the group's retry topic, so no other group of the topic gets them. Each is noted once its broker has
    acknowledged it: a replay that was interrupted goes on where it ended when the same command is called again, also with
    --all. After a kill or Ctrl-C the one letter in between may be sent twice. A replay with --all that has ended begins
    anew when it is called again; --anew does so with one that was interrupted. With --all and a time such as --since 2h each
    call is another replay: one that is interrupted names the time that it goes on with. Letters that were deleted meanwhile
    are counted, and left out. Where others are not found, as their broker is away, it does not end, and exits with 1. The
    letters stay in %DLQ%<group> until their broker's retention deletes them.

    With --handler a letter runs through that handler in this process first, and goes to the group only when the handler
    succeeds. What fails is shown and stays a dead letter; the same command tries it again, with --all after its end together
    with all the others. Rows and messages of a run here
    are shown and dropped: the group's run writes them. --mark-handled is for handlers whose effect is elsewhere: a letter
    that succeeded is noted as handled and not sent, unless it made rows or messages. In the debugger `c` goes on with the
    next letter, `q` stops. Exits with 1 when a letter failed.

    Stop the members of a group that consumes in order first: brokers from 5.1 on put what comes to the retry topic of a group
    that holds queue locks into the dead letters again.

    \b
    Examples:
      rocketcrew dlq replay -g billing --error KeyError --dry-run
      rocketcrew dlq replay -g billing --since 2h --rate 20/s --yes
      rocketcrew dlq replay broker-a/0/17 -g billing
      rocketcrew dlq replay -g billing --handler shop:count --pdb
    """
    with desk.alone(dry_run=dry_run):
        course = desk.course(_command(desk.settings, wanted) if wanted.done_too else "", anew=anew)
        found = desk.letters_left(course, wanted, limit)
        repeats = course.repeats(found)
        for line in repeats:
            click.echo(line, err=True)
        what = f"run {handler} here on" if handler else "replay"
        again = ", some of them once more" if repeats else ""
        if not _goes_on(found, what, desk.group, again=again, dry_run=dry_run, yes=yes, as_json=as_json):
            return
        rest = goes_on_with(wanted) if wanted.done_too else GOES_ON
        local = Local(desk, handler, rate, rest, debug=debug, handled=handled, as_json=as_json) if handler else None
        course.begin(found, when(wall_ms()))
        if local is not None:
            code = local.through(found)
            course.end()
            click.get_current_context().exit(_all_found(course) or code)
        with so_far(lambda: f"{desk.replayed} of {counted(len(found), 'letter')} were replayed{rest}"):
            count = ask_cluster(desk.access, lambda cluster: desk.replay(cluster, found, rate))
            course.end()
            members = ask_cluster(desk.access, desk.members)
    if as_json:
        click.echo(json_text({"group": desk.group, "replayed": count, "members": members}))
    else:
        click.echo(f"{counted(count, 'letter')} replayed{desk.waits(members)}")
    click.get_current_context().exit(_all_found(course))


def _command(settings: Settings, wanted: Wanted) -> str:
    given = click.get_current_context().params
    cluster = settings.cluster.name_servers or (settings.cluster.namesrv_domain,)
    return command_of(given, cluster, wanted.from_ms, wanted.to_ms)


def _all_found(course: Course) -> int:
    """The exit code, 1 when letters of the replay are not found, which is reported. What is deleted is reported too."""
    if course.deleted:
        were = "letter of this replay was" if course.deleted == 1 else "letters of this replay were"
        click.echo(f"{course.deleted} {were} not sent: deleted by the broker's retention", err=True)
    if not course.not_found:
        return EXIT_FINE
    click.echo(
        f"{counted(course.not_found, 'letter')} of this replay are not found (is their broker away?): the same command"
        f" looks for them again, --anew begins again without them{course.sends_again}",
        err=True,
    )
    return EXIT_FAILURE


def goes_on_with(wanted: Wanted) -> str:
    """How a replay with --all goes on that was interrupted: its times are fixed, and 2h would be another one."""
    times = [
        f"{option} {at_ms}"  # as `when` writes it, it may be read as a millisecond less
        for option, at_ms, nothing in (("--since", wanted.from_ms, 0), ("--until", wanted.to_ms, Wanted().to_ms))
        if at_ms != nothing
    ]
    return f"; the same command with {' '.join(times)} goes on" if times else GOES_ON


class Local:
    """Letters through a handler in this process, and from there to the group."""

    def __init__(
        self, desk: Desk, handler: str, rate: float, rest: str, *, debug: bool, handled: bool, as_json: bool
    ) -> None:  # fmt: skip
        """`rate`: letters a second to the group at most; `rest`: how it goes on. Raises UsageError and HandlerLoadError
        for the handler."""
        from ...supervisor.wiring import with_topics
        from ...workers.trial_import import examine

        import_from_here()
        self._desk = desk
        self._spec = examine(handler, desk.settings.workers.boot_timeout_ms)
        self._topics = with_topics(desk.settings, self._spec).consumer.topics
        self._rate = rate
        self._rest = rest
        self._debug = debug
        self._done = HANDLED if handled else REPLAYED
        self._as_json = as_json
        self._of = 0
        self._counts = Counter[str]()

    def through(self, letters: list[Letter]) -> int:
        """All of them, each with a line; the exit code, 1 when one failed. Raises RocketcrewError for one that the group's
        broker refuses, and Abort for Ctrl-C: what was done until then is noted and reported."""
        self._of = len(letters)
        with so_far(lambda: self._summary() + self._rest), own_stdout(as_json=self._as_json) as answers:
            self._each(letters, answers)
            members = ask_cluster(self._desk.access, self._desk.members) if self._counts[REPLAYED] else 1
        if self._as_json:
            counts = {name: self._counts[name] for name in (self._done, "failed")}
            click.echo(json_text({"group": self._desk.group, **counts}))
        else:
            click.echo(f"{self._summary()}{self._desk.waits(members)}")
        return EXIT_FAILURE if self._counts["failed"] else EXIT_FINE

    def _each(self, letters: list[Letter], answers: TextIO | None) -> None:
        from ..trying import tried

        name = self._spec.import_path
        assert name is not None, "a handler of the command line is found by its name"
        began = time.monotonic()
        for one in tried(
            name, letters, self._desk.settings, self._topics, unwrap=self._desk.access.unwrap, debug=self._debug
        ):
            result = one
            if not one.error and self._done == HANDLED and one.results:
                result = replace(
                    one, error=f"made {one.results}, which come of a run in the group only: leave out --mark-handled"
                )
            if not result.error:
                time.sleep(max(0.0, began + self._counts[REPLAYED] / self._rate - time.monotonic()))
                self._finish(one.letter)
            self._counts["failed" if result.error else self._done] += 1
            line = json_text(result.facts()) if self._as_json else seen(result.text())
            click.echo(line, file=answers)

    def _finish(self, letter: Letter) -> None:
        if self._done == HANDLED:
            self._desk.notes.add(letter, HANDLED)
        else:
            ask_cluster(self._desk.access, lambda cluster: self._desk.replay(cluster, [letter], self._rate))

    def _summary(self) -> str:
        # `replayed` has also one that could not be noted
        done = self._counts[HANDLED] if self._done == HANDLED else self._desk.replayed
        what = "noted as handled" if self._done == HANDLED else f"sent to group {self._desk.group} again"
        return in_summary(self._of, done, self._counts["failed"], self._spec.name, what)


def in_summary(of: int, done: int, failed: int, handler: str, what: str) -> str:
    """Of a run here: what became of `of` letters; `what` was done with those that succeeded."""
    if not of:
        return "no dead letters"
    stays = f"; {failed} failed and {'stays' if failed == 1 else 'stay'} as before" if failed else ""
    return f"{counted(done, 'letter')} went through {handler} and {'was' if done == 1 else 'were'} {what}{stays}"


@dlq.command()
@click.option("-o", "--output", type=click.Path(path_type=Path, allow_dash=True), default=Path("-"), metavar="PATH",
              help="The file or the table's folder, which must not exist; - is stdout (default).")  # fmt: skip
@click.option("--format", "kind", type=click.Choice([JSONL, PARQUET, DELTA]), default=JSONL, show_default=True,
              help="A file with a JSON object a line, a folder of Parquet, or a Delta table.")  # fmt: skip
@BODY
@changes(asks=False)
@AS_JSON
@picks
def export(
    desk: Desk, wanted: Wanted, output: Path, kind: str, how: str, dry_run: bool, as_json: bool
) -> None:  # fmt: skip
    """Write dead letters to a file or a table, with error, properties and body.

    A table has a row for each letter, under the same names; `body` is binary, as it was sent, and `properties` is a map.
    Spark reads it as any other: spark.read.parquet(PATH), or format("delta"). Nothing is noted: letters stay as they are.

    \b
    Examples:
      rocketcrew dlq export -g billing -o letters.jsonl
      rocketcrew dlq export -g billing --since 1d --format parquet -o letters
      rocketcrew dlq export -g billing --body base64 | gzip > letters.gz
    """
    out = str(output)
    if kind != JSONL:
        wrong = "is stdout, and a table is a folder: name it by -o PATH" if out == "-" else not_a_folder(out)
        if wrong:
            raise UsageError(f"{out} {wrong}")
        if how not in ("auto", "none"):
            raise UsageError(f"--body {how}: a table has bodies as they were sent; --body none leaves them out")
    if out != "-" and output.exists():  # before the brokers are asked for all letters
        raise UsageError(f"{output} exists already: nothing was written")
    found = desk.letters(wanted)
    if dry_run:
        where = "stdout" if out == "-" else out
        would(f"write {counted(len(found), 'letter')} to {where}", as_json=as_json, group=desk.group, file=out)
        return
    if kind != JSONL:
        from ..letter_tables import table_of, write  # pyarrow takes its time to import

        write(table_of(found, with_body=how != "none"), output, kind)
    else:
        text = "".join(json_text(letter.facts(how)) + "\n" for letter in found)
        if out == "-":
            click.echo(text, nl=False)
            return
        with whole(output) as half:
            half.write_text(text, encoding="utf-8")
    answer = {"group": desk.group, "exported": len(found), "file": out}
    click.echo(json_text(answer) if as_json else f"{counted(len(found), 'letter')} written to {output}")


@dlq.command()
@NAMES
@changes(asks=True)
@AS_JSON
@picks
def purge(desk: Desk, wanted: Wanted, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Put dead letters aside: the other commands leave them out.

    Brokers delete no single message. The letters stay readable (--all) until the broker's retention deletes them, so a purge
    by mistake loses nothing: `dlq ls --all` lists them, and `dlq replay LETTER --all` sends them still. Without names --all
    sends letters again that were replayed before.

    \b
    Examples:
      rocketcrew dlq purge -g billing --error 'unknown currency' --dry-run
      rocketcrew dlq purge -g billing --until 2026-01-31 --yes
    """
    with desk.alone(dry_run=dry_run):
        found = desk.letters(wanted)
        if not _goes_on(found, "purge", desk.group, dry_run=dry_run, yes=yes, as_json=as_json):
            return
        purged = 0
        with so_far(lambda: f"{purged} of {counted(len(found), 'letter')} were purged{GOES_ON}"):
            for letter in found:
                desk.notes.add(letter, PURGED)
                purged += 1
    click.echo(
        json_text({"group": desk.group, "purged": len(found)}) if as_json else f"{counted(len(found), 'letter')} purged"
    )


def _goes_on(
    found: list[Letter], what: str, name: str, *, dry_run: bool, yes: bool, as_json: bool, again: str = ""
) -> bool:
    """Show what is meant, and ask; only somebody at a terminal is asked, and not about nothing. With `dry_run` False
    always."""
    if dry_run:
        answer = {"group": name, "would": what, "letters": [letter.place for letter in found]}
        text = "\n".join(lines([letter.row() for letter in found], WIDEST))
        click.echo(json_text(answer) if as_json else text)
        click.echo(f"{counted(len(found), 'letter')}; nothing was done", err=True)
        return False
    return agrees(f"{what} {counted(len(found), 'dead letter')} of group {name}{again}?", yes=yes or not found)
