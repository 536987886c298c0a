"""The supervisor from Python: for scripts and notebooks, where the handler is an object and not an import path."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..conf.logging import set_up
from ..conf.settings import load
from ..remoting.errors import UsageError
from ..workers.loading import describe
from ..workers.trial_import import examine
from .service import Summary, Supervisor


def consume(
    handler: str | Callable[..., Any] | Sequence[Callable[..., Any]],
    *,
    topics: str | Sequence[str] = (),
    group: str,
    name_servers: str = "",
    settings: Mapping[str, object] | None = None,
) -> Summary:
    """Consume with `handler` until TERM or INT; how it ended.

    `handler` may be any callable, also a lambda or a function of a notebook, "package.module:function", a module ("shop")
    with one handler or with several that name their topics, or a list of such handlers. `topics` are written as "topic" or
    "topic:tagA || tagB"; handlers that name theirs need none. `name_servers` ("host:port;...") otherwise come from
    NAMESRV_ADDR.
    `settings` are those of defaults.toml by "section.key". Call it from the main thread, before other threads are started:
    workers are forked by a server that is started here. Raises UsageError for what the caller can mend.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise UsageError("consume() runs an event loop of its own: in a notebook, call it in a script or a subprocess")
    flags: dict[str, object] = {
        "consumer.topics": [topics] if isinstance(topics, str) else list(topics),
        "consumer.group": group,
        **(settings or {}),
    }
    if name_servers:
        flags["cluster.name_servers"] = name_servers
    found = load(flags, os.environ, None)
    if not (found.cluster.name_servers or found.cluster.namesrv_domain):
        raise UsageError("no name server is configured: give name_servers='host:port', or set NAMESRV_ADDR")
    set_up(found.log.format, found.log.level, sys.stderr, "consume")
    spec = examine(handler, found.workers.boot_timeout_ms) if isinstance(handler, str) else describe(handler)
    return asyncio.run(Supervisor(found, spec).run())
