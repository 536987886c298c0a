"""`Crew`: consuming beside the caller, in a script or a notebook. See the room's text for how it works."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, Self, TypeVar, cast

from ..cli.stagings import group_in_keys, topics_in_keys
from ..cli.watch import QueueLag, Watch
from ..cli.wording import in_words
from ..client.loop_thread import LoopThread
from ..client.own_process import OwnProcess
from ..conf.current_folder import current_folder_named
from ..conf.formats import on_s3
from ..conf.own_command import own_command
from ..conf.printed import command_line, counted, same_settings
from ..conf.segment_format import REASON_SUFFIX
from ..conf.settings import Settings, is_broadcasting
from ..durable.room import unusable
from ..remoting.arguments import FLAG, NONE, SECONDS, Filename, check, whole
from ..remoting.errors import RocketcrewError, UnreachableError, UsageError
from ..remoting.names import DLQ_PREFIX, RETRY_PREFIX
from ..remoting.queues import MessageQueue
from ..supervisor.consume import NO_NAME_SERVER, check_named, settings_from, spec_of
from ..supervisor.control import ask
from ..supervisor.member.access import access_of
from ..supervisor.service import Summary
from ..supervisor.wiring import with_topics
from ..workers.api import Handlers
from ..workers.ddl import INFER, as_schema
from ..workers.loading import search_path
from .living import end_with, has_ended, place_of, warn_of_others
from .process import GO, Failed, Order, Reached, Ready, last_failure
from .results import loader_trouble, rows_of, set_aside_of, table_of, waiting_for_table

LOG_FILE: Final = "crew.log"
LOOK_S: Final = 0.1
"""Between two looks of `wait`."""
COMMIT_EVERY_MS: Final = 1000
"""How often offsets are committed, where the configuration says nothing: `wait` looks at committed offsets."""
STOP_SLACK_S: Final = 75.0
"""Beyond the deadline of the drain: workers seal and leave, and the loader finishes its batch."""
ENDS_WITHIN_S: Final = 5.0
"""After its control socket answers no more."""
BY_ARGUMENT: Final = "by name_servers='host:port', or start a broker with the crew: embedded=True"
_WAIT_RULES: Final = {
    "max_messages": whole(1) | NONE, "until_empty": FLAG, "timeout_s": SECONDS | NONE, "progress": FLAG,
}  # fmt: skip


class CrewError(RocketcrewError):
    """The crew's process could not start, or has ended. The text says why."""


_CUT_OFF: Final = (CancelledError, UnreachableError, UsageError)
"""What a question fails with when the crew is closed under it."""


Next = TypeVar("Next", Reached, Ready)


class CrewTimeoutError(CrewError, TimeoutError):
    """What `Crew.wait` waited for has not come in time."""


class Crew:
    """Consume with `handler` in processes beside this one, from `with` (or `start`) to its end (or `close`).

        with Crew(lambda message: {"size": len(message.body)}, topics="orders", group="sizes") as crew:
            crew.wait(timeout_s=60)
            for row in crew.results():
                print(row)

    Nothing blocks but `start`, `wait` and `close`. It may be used in a notebook, whose event loop runs, and one process may
    have several. One thread at a time uses a crew, but `close` may come from any other and from a signal's handler: what
    waits meanwhile raises UsageError.
    """

    @current_folder_named()
    def __init__(
        self,
        handler: Handlers,
        *,
        topics: str | Iterable[str] | None = None,
        group: str | None = None,
        name_servers: str | Iterable[str] | None = None,
        embedded: bool = False,
        workers: int | None = None,
        schema: str | None = None,
        target: Filename | None = None,
        settings: Mapping[str, object] | None = None,
        config: Filename | None = None,
    ) -> None:
        """Check everything; nothing is started yet.

        The arguments are those of `consume`; the handler may also be a lambda or a function of a notebook's cell. `embedded`
        starts a broker with the crew, which ends with it (its address is `name_server`, its data stay). Where neither the
        handler nor the configuration has a schema, the first rows decide. Without a `target` (here or as `spark.target`) rows
        stay in `supervisor.data_dir`, where `results` finds them. Raises UsageError for what the caller can mend, and
        HandlerLoadError for a handler that cannot take a message.
        """
        embedded = check("Crew", {"embedded": embedded}, {"embedded": FLAG})["embedded"]
        found = settings_from(
            "Crew",
            {
                "topics": topics, "group": group, "name_servers": name_servers, "workers": workers,
                "schema": schema, "target": target,
            },
            settings, config,
        )  # fmt: skip
        if embedded and found.cluster.name_servers:
            raise UsageError(
                "embedded=True starts a broker of its own, but name servers are configured:"
                f" {';'.join(found.cluster.name_servers)}. Leave one of the two out"
            )
        if not (embedded or found.cluster.name_servers or found.cluster.namesrv_domain):
            raise UsageError(f"{NO_NAME_SERVER}, or embedded=True to start a broker of your own")
        if found.results.schema not in {"", INFER}:
            as_schema(found.results.schema)
        self._handler = spec_of(handler, found)
        self.settings: Final = _for_a_crew(with_topics(found, self._handler))
        check_named(self.settings)
        own = self.settings.log.file
        self.log: Final = (Path(own) if own else Path(self.settings.supervisor.data_dir) / LOG_FILE).absolute()
        """The file with the log of the supervisor and its workers, and with what handlers print. It is appended to."""
        self._embedded = embedded
        self._folder = Path.cwd()
        """Relative paths are below it, wherever it is started."""
        self._own = OwnProcess("crew")
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: Watch | None = None
        self._ready: Ready | None = None
        self._ended: Summary | None = None
        self._why: RocketcrewError | None = None
        self._closed = False
        """Or closing: nothing is asked of it any more."""
        self._closing = threading.RLock()
        self._status: dict[str, Any] = {}
        self._stored_before = 0
        self._queues: set[MessageQueue] = set()
        self._returning = Returning()
        self.name_server = ";".join(found.cluster.name_servers)

    # --- life ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except RocketcrewError:
            if error is None:  # else that is what the caller has to know
                raise

    @current_folder_named()
    def start(self) -> Self:
        """Start it; returns when workers are ready and the group is joined. Started once.

        Raises what keeps it from starting: UsageError, HandlerError for a handler that no worker can load, CrewError for
        servers that cannot be reached.
        """
        if self._process is not None:
            raise UsageError("this crew was started before: make a new one")
        self._own.enter()
        place = place_of(self.settings, embedded=self._embedded)
        warn_of_others(place, stacklevel=4)
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            log = self.log.open("ab")
        except OSError as error:
            raise unusable(self.settings.supervisor.data_dir, error) from error
        with log:
            self._process = subprocess.Popen(
                own_command("rocketcrew.crew.process", str(os.getpid())),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
                cwd=self._folder,
            )  # fmt: skip
        try:
            self._boot()
        except BaseException as error:
            closed = self._closed
            self._end_now()
            if closed and isinstance(error, (*_CUT_OFF, CrewError, ValueError)):  # its process or its pipes were gone
                self._check_open()
            raise
        ends = partial(_end_abandoned, self._process, self._watch, self._limit_s())
        end_with(self, place, self._handler.name, self._process, ends)
        return self

    def _boot(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended: what it says next is why
            self._introduce()
        self._ready = self._hear_next(Ready)

    def _introduce(self) -> None:
        give = self._child().stdin
        assert give is not None
        with give:
            pickle.dump(Order(self.settings, self._handler, self._embedded, search_path()), give)
            give.flush()
            reached = self._hear_next(Reached)
            self.name_server = ";".join(reached.settings.cluster.name_servers)
            self._loop = LoopThread("rocketcrew-crew")
            self._watch = Watch(access_of(reached.settings), self._loop)
            try:
                self._stored_before = self._stored()  # before anything is pulled: what came before is not ours
            except RocketcrewError as error:
                _raise_in_words(error)
            give.write(GO)

    def close(self) -> None:
        """Finish what was begun, seal, commit, leave the group, end. Idempotent.

        Raises CrewError when it was stopped by force, and the error that ended it when it had ended by itself; then messages
        come again, and nothing is lost. Ctrl-C while it waits ends it at once. In a fork of the process that started it,
        nothing.
        """
        process = self._process
        if process is None or self._own.is_elsewhere:
            return
        # Another thread that closes it is waited for; a handler that interrupts a close finds it closed.
        with self._closing:
            if not self._closed:
                self._close(process)

    def _close(self, process: subprocess.Popen[bytes]) -> None:
        try:
            self._closed = True  # first: what is cut off below is told why
            self._close_watch()  # it would report that an embedded broker ends
            if process.poll() is None:
                process.terminate()
            limit_s = self._limit_s()
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                raise CrewError(
                    f"the crew did not stop within {limit_s:.0f} s, and was killed; see {self.log}"
                ) from None
            ended = self._end_heard() if self._ready is not None else None  # `start` hears it that is cut off
            if ended is not None and ended.exit_code:
                again = counted(ended.unfinished + ended.unsealed, "message")
                raise CrewError(f"stopped by force: {again} will come again; see {self.log}")
        finally:
            self._end_now()

    def _limit_s(self) -> float:
        return self.settings.supervisor.stop_deadline_ms / 1000 + STOP_SLACK_S

    def _end_now(self) -> None:
        process, self._closed = self._process, True
        assert process is not None
        process.kill()
        process.wait()
        has_ended(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError, RuntimeError):  # a handler that interrupts who reads it
                    pipe.close()
        self._close_watch()

    def _close_watch(self) -> None:
        """And the thread of its loop. Idempotent."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    # --- what happens ---------------------------------------------------------------------------------------------

    @property
    def status(self) -> dict[str, Any]:
        """What `rocketcrew status --json` shows; after the end, the last that was seen, with the final `counters`."""
        if self._ended is not None:
            return {**self._status, "counters": self._ended.counters}
        return self._status_now()

    def _status_now(self) -> dict[str, Any]:
        """Raises why it runs no more."""
        ready = self._running()
        try:
            with self._while_open():
                self._status = self._loop.run(ask(ready.slot, "status"))
        except UsageError:
            self._running()
            with contextlib.suppress(subprocess.TimeoutExpired):  # its socket is gone a moment before it is
                self._child().wait(ENDS_WITHIN_S)
            self._running()  # raises why it ended
            raise
        return self._status

    def wait(
        self,
        *,
        max_messages: int | None = None,
        until_empty: bool = True,
        timeout_s: float | None = None,
        progress: bool = False,
    ) -> dict[str, int]:
        """Wait until so many messages are done or until nothing is left to consume, whichever comes first; the counters.

        `max_messages`: this crew has finished at least so many, dead letters among them, and their rows are in `results`;
        with a target they are sealed, and not all of them in the table yet.
        `until_empty`: the group's committed offsets have reached the newest of all queues of its topics and of its retry
        topic, and nothing that this crew has sent back waits for its delay; with a target, its rows are in the table.
        Retries that other members or earlier runs sent back do not end the wait early. Of the delay levels that this crew
        used, what others have put before its own is waited for, at most for the delay of that level. A broker that does not
        say how far its delay levels are (behind a proxy, or where access control denies it) is judged by a count alone: the
        retry and the dead-letter topic have got as many messages since the start as this crew has sent back. Retries of
        topics that brokers let POP are not seen.

        `progress` shows a bar (tqdm). Raises CrewTimeoutError after `timeout_s` seconds, what ended the crew if it ends, and
        UsageError when it is closed meanwhile.
        A broker that is away meanwhile is waited for. With a target it raises CrewError too when everything is consumed and
        the loader has failed three times in a row, or has set rows aside.
        """
        given = {
            "max_messages": max_messages, "until_empty": until_empty, "timeout_s": timeout_s, "progress": progress,
        }  # fmt: skip
        taken = check("wait", given, _WAIT_RULES)
        max_messages, until_empty, progress = taken["max_messages"], taken["until_empty"], taken["progress"]
        timeout_s = taken["timeout_s"]
        if max_messages is None and not until_empty:
            raise UsageError("wait for what? Give max_messages=N, or leave until_empty=True")
        if until_empty and is_broadcasting(self.settings):
            raise UsageError(
                "a broadcasting group has no offsets at the broker: wait(max_messages=N, until_empty=False) is possible"
            )
        self._running()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._while_open(), _Bar(progress, max_messages) as bar:
            while True:
                counters = self._status_now()["counters"]
                done, ahead = _finished(counters), _finished_ahead(self._status["queues"])
                if max_messages is not None and done - self._status["unsealed_messages"] >= max_messages:
                    break
                left, rest = self._looked() if until_empty else (None, "")
                bar.show(done, None if left is None else max(0, left - ahead))
                if left == 0:
                    break
                if deadline is not None and time.monotonic() > deadline:
                    raise CrewTimeoutError(self._late(cast("float", timeout_s), counters, rest))
                time.sleep(LOOK_S)
            counters = self._status_now()["counters"]
            bar.show(_finished(counters), 0)
        return dict(counters)

    def _late(self, timeout_s: float, counters: Mapping[str, int], rest: str) -> str:
        return (
            f"not done after {timeout_s:g} s: finished {counted(_finished(counters), 'message')}{rest};"
            f" failed attempts {counters['failed_messages']}, worker deaths {counters['worker_deaths']}."
            f" Errors are in {self.log}{last_failure(self.log) if counters['failed_messages'] else ''}"
        )

    def _looked(self) -> tuple[int | None, str]:
        """What is left, None where servers do not answer; and the same in words."""
        try:
            left = self._left()
        except UnreachableError as error:
            self._running()
            return None, f", how many are left is not known ({in_words(error, BY_ARGUMENT)})"
        if left:
            return left, f", {left} are left"
        files = self._not_loaded()
        return files, f", none is left, but the table waits for {counted(files, 'file')} of rows"

    def _left(self) -> int:
        """Messages that are not consumed, as far as is known; 0 only when it is certain."""
        left = self._lag()
        if left:
            return left
        sent_back, levels = self._sent_back()
        delayed = max(self._stored_before + sent_back - self._stored(), self._waiting(levels))
        if delayed > 0:
            return delayed
        # What came back in between is in the lag now, and a message that was sent back in between is counted now.
        return self._lag() + (self._sent_back()[0] - sent_back)

    def _waiting(self, sent_back: Mapping[int, int]) -> int:
        """How many of the messages that this crew has sent back, by their level, may wait for their delay."""
        watch = self._watching()
        brokers = sorted({queue.broker_name for queue in self._queues})
        return self._returning.left(sent_back, lambda: watch.delay_ends(brokers), watch.delays_reached)

    def _sent_back(self) -> tuple[int, dict[int, int]]:
        """How many messages, and those that are tried again by the level of their delay."""
        status = self._status_now()
        return status["counters"]["sent_back_messages"], {
            int(level): count for level, count in status["sent_back_levels"].items()
        }

    def _lag(self) -> int:
        """Raises UnreachableError for a topic that does not exist: a first message may make it, and nobody knows how many."""
        topics = topics_in_keys(self.settings)
        found = self._asked([*topics, RETRY_PREFIX + group_in_keys(self.settings)])
        for topic in sorted({*topics} - {queue.mq.topic for queue in found}):
            raise UnreachableError(self.name_server, f"the topic {topic} does not exist there")
        return sum(queue.lag for queue in found)

    def _stored(self) -> int:
        """How many messages the group's retry and dead-letter topics have ever got."""
        group = group_in_keys(self.settings)
        return sum(queue.end for queue in self._asked([RETRY_PREFIX + group, DLQ_PREFIX + group]))

    def _asked(self, topics: list[str]) -> list[QueueLag]:
        """Raises UnreachableError for queues that have vanished too: a name server that starts anew does not know all yet."""
        found = self._watching().lag(group_in_keys(self.settings), topics)
        queues = {queue.mq for queue in found}
        for gone in sorted(mq for mq in self._queues - queues if mq.topic in topics):
            raise UnreachableError(self.name_server, f"the queue {gone} is not known there any more")
        self._queues |= queues
        return found

    def _not_loaded(self) -> int:
        """How many files of rows wait for the table, 0 where there is none. Raises CrewError for those it will not get."""
        if not self.settings.spark.load:
            return 0
        ready = self._running()
        segments = ready.slot / "segments"
        waiting = waiting_for_table(segments)
        trouble = loader_trouble(self._status_now()["loader"]) if waiting else ""
        if trouble:
            raise CrewError(f"everything is consumed, but the loader fails again and again: {trouble}; see {self.log}")
        aside = [] if waiting else set_aside_of(segments, ready.run)
        if aside:
            known = same_settings(self.settings, "consumer.group", "cluster.name_servers", "spark.target")
            again = command_line("reconcile", *known, "--staging", segments, "--rerun", "HANDLER")
            raise CrewError(
                f"everything is consumed, but the loader could not load {counted(len(aside), 'file')} of rows, such as"
                f" {aside[0]}: {aside[0].name}{REASON_SUFFIX} beside it says why, and `{again}` brings rows back"
            )
        return waiting

    # --- rows -----------------------------------------------------------------------------------------------------

    def results(self) -> Iterator[Mapping[str, Any]]:
        """The rows that the handler has returned until now, as dicts of its columns; each call begins with the first.

        Rows become visible when they are sealed, `results.seal_idle_ms` (1 s) after the last one. Those of one message stand
        together; the order of messages is not theirs. They may be read after `close` too. Raises UsageError with a target.
        """
        return rows_of(self._segments(), self._known().run)

    def table(self) -> Any:
        """As `results`, as one `pyarrow.Table` that has the key columns too: `_topic`, `_offset`, `_origin_message_id`, …"""
        return table_of(self._segments(), self._known().run)

    def _segments(self) -> Path:
        if self.settings.spark.load:
            where = self.settings.spark.target or self._known().slot.parent / "table"
            given = dict(self.settings.spark.options) if on_s3(where) else {}
            words = f"{str(where)!r}, options={given!r}" if given else repr(str(where))
            raise UsageError(f"the rows of this crew go into a table: read them by rocketcrew.read({words})")
        return self._known().slot / "segments"

    # --- the process ----------------------------------------------------------------------------------------------

    def _known(self) -> Ready:
        if self._ready is None:
            raise UsageError("this crew was not started: use it with `with`, or call start()")
        return self._ready

    def _running(self) -> Ready:
        """Raises why it runs no more, and UsageError in a fork."""
        ready = self._known()
        self._own.enter()
        has_ended = self._child().poll() is not None  # before the look whether it was closed, which ends it
        self._check_open()
        if has_ended:
            self._end_heard()
            raise self._why or CrewError(f"the crew was stopped by somebody else; see {self.log}")
        return ready

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this crew is closed: make a new one")

    @contextlib.contextmanager
    def _while_open(self) -> Generator[None]:
        """A close cuts off what is under way: whatever that fails with becomes the error of a crew that is closed."""
        try:
            yield
        except _CUT_OFF:
            self._check_open()
            raise

    def _watching(self) -> Watch:
        watch = self._watch
        if watch is None:
            self._check_open()
        assert watch is not None
        return watch

    def _child(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def _end_heard(self) -> Summary | None:
        """How the process ended; None when that was heard before. Raises its error."""
        if self._ended is not None or self._why is not None:
            return self._ended
        said = self._hear()
        assert isinstance(said, Summary)
        self._ended = said
        return said

    def _hear_next(self, kind: type[Next]) -> Next:
        """The next thing that it says while it starts; how it ended, where it is stopped meanwhile."""
        said = self._hear()
        if isinstance(said, kind):
            return said
        assert isinstance(said, Summary)
        self._check_open()
        raise CrewError(f"the crew's process was stopped while it started; see {self.log}")

    def _hear(self) -> Reached | Ready | Summary:
        """What the process says next. Raises its error, or CrewError when it ended without a word, and keeps it."""
        try:
            return self._heard()
        except RocketcrewError as error:
            self._why = error
            raise

    def _heard(self) -> Reached | Ready | Summary:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        try:
            said: Reached | Ready | Summary | Failed = pickle.load(process.stdout)  # noqa: S301  it is ours
        except EOFError:
            code = process.wait()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise CrewError(f"the crew's process {how}; see {self.log}") from None
        except Exception as error:
            if process.stdout.closed:
                raise
            raise CrewError(
                f"the crew's process wrote something to its standard output that it did not say ({error}): a file that Python"
                f" runs at its start, such as sitecustomize.py, may print; see {self.log}"
            ) from None
        if isinstance(said, Failed):
            process.wait()
            if said.traceback:
                said.error.add_note(said.traceback)
            _raise_in_words(said.error)
        return said


def _end_abandoned(process: subprocess.Popen[bytes], watch: Watch | None, limit_s: float) -> None:
    """End what a crew has started that nobody has closed; it was told so."""
    if watch is not None:
        watch.close()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _for_a_crew(settings: Settings) -> Settings:
    """Where the configuration says nothing, what a script expects: columns by the first rows, quick commits, and no loader
    without a table. `log.file` becomes absolute."""
    origin = settings.origin
    if origin["results.schema"] == "default":
        settings = dataclasses.replace(settings, results=dataclasses.replace(settings.results, schema=INFER))
    if origin["consumer.persist_consumer_offset_interval_ms"] == "default":
        consumer = dataclasses.replace(settings.consumer, persist_consumer_offset_interval_ms=COMMIT_EVERY_MS)
        settings = dataclasses.replace(settings, consumer=consumer)
    if not settings.spark.target and settings.results.commit_after != "loaded":
        settings = dataclasses.replace(settings, spark=dataclasses.replace(settings.spark, load=False))
    if settings.log.file:  # the process is started later, perhaps from another current folder
        file = str(Path(settings.log.file).absolute())
        settings = dataclasses.replace(settings, log=dataclasses.replace(settings.log, file=file))
    return settings


Levels = Mapping[tuple[str, int], int]
"""(broker name, delay level) -> a queue offset. A level that is not there is at 0."""

ENDS_LOOKS: Final = 2


class Returning:
    """Whether messages that a crew has sent back still wait for their delay. Pure: what it needs its arguments ask for.

    A broker keeps what is sent back in a queue of each delay level, and puts it into the retry topic when it is due, first in
    first out. Whose messages these are, nobody is told. So the ends of the levels that the crew has used are noted once it
    has sent back: when the broker has come to these ends, everything that was sent back is in its topic. What others add to
    the queues afterwards is after these ends, and other levels are not looked at: no wait is longer than the crew's own.

    A broker with fewer levels puts a message into its last one. So of each level the highest one up to it counts that has
    ever got a message. Which broker has a message is not known, as a refused send-back goes to another one: all are asked.

    A broker shows a message as part of its queue some milliseconds after it has stored it. So the ends are noted by two
    looks, of which the second counts, and one more look passes between the last delivery and the answer that nothing waits.
    """

    def __init__(self) -> None:
        self._sent_back: dict[int, int] = {}
        self._looks = 0
        self._ends: dict[int, Levels] = {}
        self._new: set[int] = set()

    def left(
        self, sent_back: Mapping[int, int], ends: Callable[[], Levels], reached: Callable[[list[str]], Levels]
    ) -> int:
        """How many messages may still wait for their delay; 0 when none of this crew does.

        `sent_back`: delay level -> how many messages this crew has sent back there in all. `ends`: asks for the ends of the
        levels now, and gives none of a broker that does not say; `reached` asks the named brokers for the offsets up to which
        they have delivered. What they raise is raised, and the look is not counted.
        """
        if not sent_back:
            return 0
        if sent_back != self._sent_back:
            self._new |= {level for level, count in sent_back.items() if count != self._sent_back.get(level)}
            self._sent_back, self._looks = dict(sent_back), 0
        if self._looks < ENDS_LOOKS:
            found = ends()
            self._ends |= {level: _ends_up_to(level, found) for level in self._new}
            self._looks += 1
            if self._looks < ENDS_LOOKS:
                return 1
            self._new = set()
        places: dict[tuple[str, int], int] = {}
        for levels in self._ends.values():
            for place, end in levels.items():
                places[place] = max(end, places.get(place, 0))
        at = reached(sorted({broker for broker, _ in places}))
        waiting = sum(max(0, end - at.get(place, 0)) for place, end in places.items())
        if waiting:
            self._looks = ENDS_LOOKS
            return min(waiting, sum(sent_back.values()))
        self._looks += 1
        return int(self._looks == ENDS_LOOKS + 1)


def _ends_up_to(level: int, ends: Levels) -> Levels:
    """Of each broker the highest level up to this one that has ever got a message."""
    used: dict[str, int] = {}
    for broker, one in (place for place, end in ends.items() if end):
        if one <= level:
            used[broker] = max(one, used.get(broker, 0))
    return {place: ends[place] for place in used.items()}


def _finished(counters: Mapping[str, int]) -> int:
    return counters["done_messages"] + counters["dead_letter_messages"]


def _finished_ahead(queues: Iterable[Mapping[str, int]]) -> int:
    """How many messages of these queues (as the status has them) are finished and not committed: they count as left, too."""
    return sum(max(0, q["next_offset"] - max(0, q["committed"]) - q["unfinished"]) for q in queues)


def _raise_in_words(error: RocketcrewError) -> NoReturn:
    """Raise it with the sentence that the commands print."""
    text = in_words(error, BY_ARGUMENT)
    if text == str(error):
        raise error
    raise CrewError(text) from error


class _Bar:
    """A progress bar of finished messages, or nothing."""

    def __init__(self, wanted: bool, total: int | None) -> None:
        self._total = total
        self._bar: Any = None
        if wanted:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total, unit=" messages")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, done: int, left: int | None) -> None:
        if self._bar is not None:
            self._bar.total = self._total or (None if left is None else done + left)
            self._bar.n = done
            self._bar.refresh()
