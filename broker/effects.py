"""What the pure core asks its edge to do.

The core never touches a socket. `BrokerCore.handle`, `tick` and `channel_closed` return a list of these, in the order
in which they must be written; two effects for one channel must not be swapped, because a client may act on a notice
before it reads the reply behind it. A channel is a small integer that the edge gives to a connection and never reuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..remoting.command import Command


@dataclass(slots=True)
class Reply:
    """Send `command`, an answer to a request of the peer, on `channel`."""

    channel: int
    command: Command


@dataclass(slots=True)
class Push:
    """Send `command`, a request of the broker's own, on `channel`."""

    channel: int
    command: Command


@dataclass(slots=True)
class CloseChannel:
    """Close `channel`; the edge calls `channel_closed` for it afterwards, as for any other close."""

    channel: int


Effect = Reply | Push | CloseChannel


@dataclass(frozen=True, slots=True)
class Later:
    """A test's wish: the request arrives so much later."""

    delay_ms: int


Intercept = Callable[[Command], Command | Later | None]
"""A test's own answer to a request (`command.response(...)`), `SILENCE` for none, `Later` to have it wait (a broker's, not a
name server's), or None to let the core answer."""

SILENCE = Command(code=0, remark="no answer at all")


def intercepted(intercepts: Iterable[Intercept], command: Command) -> Command | Later | None:
    """What the first intercept that wants the request answers; None when none wants it."""
    for intercept in intercepts:
        response = intercept(command)
        if response is not None:
            return response
    return None
