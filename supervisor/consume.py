"""The supervisor from Python: for scripts, where the handler is an object and not an import path.

The settings are those of `rocketcrew run`: the arguments stand for its flags, and come before the environment, the
configuration file and the defaults. `Crew` (room crew) takes the same arguments and does not block.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Final

from ..conf.current_folder import current_folder_named
from ..conf.logging import log_stream, logging_given_back, set_up
from ..conf.settings import Settings, load, require
from ..conf.sources import find_file
from ..remoting.arguments import FILLED, NONE, PATH, TABLE, TEXT, TEXTS, WHOLE, Filename, check
from ..remoting.errors import UsageError
from ..workers.api import Handlers
from ..workers.loading import HandlerSpec, describe
from ..workers.trial_import import examine_as_set
from .notify import Notify
from .service import Summary, Supervisor
from .wiring import with_topics

ARGUMENTS: Final[Mapping[str, str]] = {
    "topics": "consumer.topics",
    "group": "consumer.group",
    "name_servers": "cluster.name_servers",
    "workers": "workers.count",
    "schema": "results.schema",
    "target": "spark.target",
}
"""Arguments and the settings that they are; None means that the argument is not given."""
_RULES: Final = {
    "topics": FILLED | TEXTS | NONE,
    "group": FILLED | NONE,
    "name_servers": TEXT | TEXTS | NONE,
    "workers": WHOLE | NONE,
    "schema": TEXT | NONE,
    "target": TEXT | PATH | NONE,
    "settings": TABLE | NONE,
    "config": PATH | NONE,
}
NO_NAME_SERVER: Final = "no name server is configured: give name_servers='host:port', or set NAMESRV_ADDR"


def settings_from(
    call: str, arguments: Mapping[str, object], settings: Mapping[str, object] | None, config: Filename | None
) -> Settings:
    """Settings of `arguments` (by the names of ARGUMENTS), `settings` ("section.key"), environment and file. `call` is the
    function that has the arguments, for messages.

    Raises UsageError for a setting that is given twice, ConfigError for what is wrong in any of them.
    """
    arguments = check(call, {**arguments, "settings": settings, "config": config}, _RULES)
    settings, config = arguments.pop("settings"), arguments.pop("config")
    given = {name for name, value in arguments.items() if value is not None}
    if not arguments["name_servers"]:
        given.discard("name_servers")  # "" comes from a variable of the environment that is not set
    named = {ARGUMENTS[name]: name for name in ARGUMENTS if name in given}
    flags: dict[str, object] = {setting: arguments[name] for setting, name in named.items()}
    topics = flags.get("consumer.topics")
    if isinstance(topics, str):
        flags["consumer.topics"] = (topics,)
    for setting in flags.keys() & (settings or {}).keys():
        raise UsageError(f"the argument {named[setting]}= and settings[{setting!r}] say the same thing twice")
    names = {**dict.fromkeys(settings or {}, "settings="), **{setting: f"{name}=" for setting, name in named.items()}}
    file = find_file(None if config is None else Path(config), os.environ, Path())
    return load({**(settings or {}), **flags}, os.environ, file, flag_names=names)


def check_named(settings: Settings) -> None:
    """Raise UsageError where nobody has said what is consumed, or for which group."""
    arguments = {"consumer.topics": "topics=", "consumer.group": "group="}
    require(settings, arguments, flag_names=arguments)


def spec_of(handler: Handlers, settings: Settings) -> HandlerSpec:
    """The handler, which is looked at; one that is named, with the columns of the settings: raises UsageError,
    HandlerLoadError."""
    return examine_as_set(handler, settings) if isinstance(handler, str) else describe(handler)


@contextlib.contextmanager
def signals_given_back() -> Generator[None]:
    """What each signal does, and which descriptor hears of them, is as before in the end. A loop gives nothing back:
    asyncio's leaves what Python does by default, uvloop's its own handlers (0.23)."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    woken = signal.set_wakeup_fd(-1)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is not handler:  # None: it is not one of Python's
                signal.signal(number, handler)
        signal.set_wakeup_fd(woken)


@current_folder_named()
def consume(
    handler: Handlers,
    *,
    topics: str | Iterable[str] | None = None,
    group: str | None = None,
    name_servers: str | Iterable[str] | None = None,
    workers: int | None = None,
    schema: str | None = None,
    target: Filename | None = None,
    settings: Mapping[str, object] | None = None,
    config: Filename | None = None,
) -> Summary:
    """Consume with `handler` until TERM or INT; how it ended.

    Meanwhile all signals that `rocketcrew run` obeys are its own, and logging is set up as there. When it ends, also by an
    error, both are as before: signals' handlers, structlog's configuration, the root logger.

    `handler` may be any callable, also a lambda, "package.module:function", a module ("shop") with one handler or with
    several that name their topics, or a list of such handlers. `topics` are written as "topic" or "topic:tagA || tagB";
    handlers that name theirs need none. `workers` is the number of processes, 0 for one a core; `schema` has the rows'
    columns where the handler declares none; `target` is the table's folder. `settings` are those of defaults.toml by
    "section.key". What is not given comes from the environment, from the file `config` (otherwise ROCKETCREW_CONFIG, else
    ./rocketcrew.toml) or the defaults, as for `rocketcrew run`. Call it from the main thread, before other threads are
    started: workers are forked by a server that is started here. Raises UsageError for what the caller can mend.
    """
    if threading.current_thread() is not threading.main_thread():
        raise UsageError(
            "consume() is stopped by signals, which Python gives to the main thread only: in a thread use rocketcrew.Crew"
        )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise UsageError(
            "consume() runs an event loop of its own: in a notebook use rocketcrew.Crew, which does not block"
        )
    found = settings_from(
        "consume",
        {
            "topics": topics, "group": group, "name_servers": name_servers, "workers": workers, "schema": schema,
            "target": target,
        },
        settings, config,
    )  # fmt: skip
    if not (found.cluster.name_servers or found.cluster.namesrv_domain):
        raise UsageError(NO_NAME_SERVER)
    with contextlib.ExitStack() as ends:
        stream = log_stream(found.log.file, sys.stderr)
        if stream is not sys.stderr:
            ends.callback(stream.close)
        ends.enter_context(logging_given_back())
        ends.enter_context(signals_given_back())
        set_up(found.log.format, found.log.level, stream, "consume", group=found.consumer.group)
        spec = spec_of(handler, found)
        check_named(with_topics(found, spec))
        return asyncio.run(Supervisor(found, spec, notify=Notify(os.environ, os.getpid())).run())
