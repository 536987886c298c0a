"""Which name server is asked.

As in Java (remoting/netty/NettyRemotingClient.java getAndCreateNameserverChannel): the list is shuffled once, so that the
clients of a cluster spread; a client stays with the one that answered last, and goes on in a circle when it fails. Each
is tried at most once per request. One that answers that it is not ready, or cannot say (codes 1, 2, 14), counts as failed as
long as another one may know more; "no such topic" is an answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import structlog

from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import Command
from ..remoting.errors import BrokerError, UnreachableError, UsageError
from .address import split_name_servers
from .asking import refusal
from .connection import name_of_request
from .remoting_client import Remoting

_NOT_READY = frozenset(
    {int(ResponseCode.SYSTEM_ERROR), int(ResponseCode.SYSTEM_BUSY), int(ResponseCode.SERVICE_NOT_AVAILABLE)}
)

_log = structlog.get_logger("rocketcrew.client")


class NameServers:
    """The static list and the one in use."""

    def __init__(self, addresses: str | Iterable[str], *, remoting: Remoting, random: Random, timeout_ms: int) -> None:
        self._remoting = remoting
        self._random = random
        self._timeout_ms = timeout_ms
        self._addresses: list[str] = []
        self._at = 0
        self.update(addresses)
        if not self._addresses:
            raise UsageError(
                "no name server is configured: give its address (host:9876; several separated by ';'),"
                " set NAMESRV_ADDR, or name it in the configuration file under [cluster] name_servers"
            )

    @property
    def addresses(self) -> list[str]:
        """All of them, the one in use first."""
        return self._addresses[self._at :] + self._addresses[: self._at]

    def update(self, addresses: str | Iterable[str]) -> None:
        """Replace the list; an empty one, or the same in another order, changes nothing. UsageError on a bad address."""
        new = split_name_servers(addresses)
        if new and set(new) != set(self._addresses):
            self._random.shuffle(new)
            self._addresses, self._at = new, 0

    async def request(self, code: RequestCode, fields: dict[str, str]) -> Command:
        """The answer of the first name server that has one; its code is the caller's to judge.

        Raises UnreachableError naming every address and what happened there, or BrokerError when all that could be reached
        were not ready.
        """
        failures: list[str] = []
        refused: BrokerError | None = None
        for address in self.addresses:
            try:
                answer = await self._remoting.request(address, Command(int(code), fields), timeout_ms=self._timeout_ms)
            except UnreachableError as error:
                failures.append(str(error))
                _log.warning("name_server_failed", address=address, error=error.reason)
            else:
                if answer.code not in _NOT_READY:
                    if address in self._addresses:
                        self._at = self._addresses.index(address)
                    return answer
                refused = refusal(answer, code, address)
                failures.append(str(refused))
        if refused is not None:
            raise refused
        listed = ";".join(self._addresses)
        raise UnreachableError(listed, f"no name server answered {name_of_request(code)}: {'; '.join(failures)}")
