"""Which name server is asked.

As in Java (remoting/netty/NettyRemotingClient.java getAndCreateNameserverChannel): the list is shuffled once, so that the
clients of a cluster spread; a client stays with the one that answered last, and goes on in a circle when it fails. Each
is tried at most once per request. One that answers that it is not ready, or cannot say (codes 1, 2, 14), counts as failed as
long as another one may know more; "no such topic" is an answer.

The list is given, or told by an address server (address_server.py): then it is asked before the first request, every two
minutes from `refresh`, and, which Java does not do, once more when none of the list answers. A failure to renew keeps the
list there is, which may come from the last run (`offer`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from random import Random

from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import Command
from ..remoting.errors import BrokerError, UnreachableError, UsageError
from .access import Access
from .address import split_name_servers
from .address_server import REFRESH_INTERVAL_MS, fetch, url_of
from .asking import refusal
from .connection import name_of_request
from .logs import get_logger
from .remoting_client import Remoting

NOT_READY = frozenset(
    {int(ResponseCode.SYSTEM_ERROR), int(ResponseCode.SYSTEM_BUSY), int(ResponseCode.SERVICE_NOT_AVAILABLE)}
)
ASK_AGAIN_MS = 10_000
"""While no name server answers, the address server is asked at most this often."""

LOG_AGAIN_S = 10.0
"""Each topic has questions of its own, and each may find the same name server away."""

_log = get_logger("rocketcrew.client")


class NameServers:
    """The list and the one in use. `clock` gives monotonic seconds."""

    def __init__(
        self, access: Access, *, remoting: Remoting, random: Random, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._remoting = remoting
        self._random = random
        self._clock = clock
        self._timeout_ms = access.request_timeout_ms
        self._addresses: list[str] = []
        self._at = 0
        self._url = ""
        self._asked_s = float("-inf")
        self._failure_logged_s: dict[str, float] = {}
        """By address."""
        self.update(access.name_servers)
        if self._addresses:
            return
        if not access.namesrv_domain:
            raise UsageError(
                "no name server is configured: give its address (host:9876; several separated by ';'),"
                " set NAMESRV_ADDR, or name it in the configuration file under [cluster] name_servers"
                " (or an address server: cluster.namesrv_domain)"
            )
        self._url = url_of(access.namesrv_domain, access.namesrv_domain_subgroup, access.unit_name)

    @property
    def addresses(self) -> list[str]:
        """All of them, the one in use first; empty while an address server has named none."""
        return self._addresses[self._at :] + self._addresses[: self._at]

    @property
    def where(self) -> str:
        """The one in use, for messages."""
        return self._addresses[self._at] if self._addresses else self._url

    @property
    def url(self) -> str:
        """Of the address server that the list comes from; empty where it is given."""
        return self._url

    def update(self, addresses: str | Iterable[str]) -> None:
        """Replace the list; an empty one, or the same in another order, changes nothing. UsageError on a bad address."""
        new = split_name_servers(addresses)
        if new and set(new) != set(self._addresses):
            self._random.shuffle(new)
            self._addresses, self._at = new, 0
            self._failure_logged_s.clear()

    def offer(self, addresses: Iterable[str]) -> None:
        """Addresses that an address server gave an earlier run: used until it names others."""
        if self._url and not self._addresses:
            self.update(addresses)

    async def refresh(self) -> None:
        """Ask the address server again when two minutes are over. A failure is logged: the list stays."""
        await self._ask_again(REFRESH_INTERVAL_MS)

    async def request(self, code: RequestCode, fields: dict[str, str]) -> Command:
        """The answer of the first name server that has one; its code is the caller's to judge.

        Raises UnreachableError naming every address and what happened there, or BrokerError when all that could be reached
        were not ready.
        """
        if self._url and self._asked_s == float("-inf"):
            await self._ask_first()
        before = set(self._addresses)
        try:
            return await self._request(code, fields)
        except UnreachableError:
            await self._ask_again(ASK_AGAIN_MS)
            if set(self._addresses) == before:
                raise
        return await self._request(code, fields)

    async def _request(self, code: RequestCode, fields: dict[str, str]) -> Command:
        failures: list[str] = []
        refused: BrokerError | None = None
        for address in self.addresses:
            command = Command(int(code), dict(fields))
            try:
                answer = await self._remoting.request(address, command, timeout_ms=self._timeout_ms)
            except UnreachableError as error:
                failures.append(str(error))
                self._log_failure(address, error)
            else:
                if answer.code not in NOT_READY:
                    if address in self._addresses:
                        self._at = self._addresses.index(address)
                    return answer
                refused = refusal(answer, code, address)
                failures.append(str(refused))
        if refused is not None:
            raise refused
        listed = ";".join(self._addresses)
        raise UnreachableError(listed, f"no name server answered {name_of_request(code)}: {'; '.join(failures)}")

    def _log_failure(self, address: str, error: UnreachableError) -> None:
        now_s = self._clock()
        if now_s - self._failure_logged_s.get(address, float("-inf")) >= LOG_AGAIN_S:
            self._failure_logged_s[address] = now_s
            _log.warning("name_server_failed", address=address, error=error.reason)

    async def _ask_first(self) -> None:
        """The first time: without a list there is nothing to go on with."""
        try:
            await self._fetch()
        except UnreachableError as error:
            if not self._addresses:
                self._asked_s = float("-inf")
                raise
            _log.warning("address_server_failed", url=self._url, error=error.reason)

    async def _ask_again(self, interval_ms: int) -> None:
        if not self._url or (self._clock() - self._asked_s) * 1000 < interval_ms:
            return
        try:
            await self._fetch()
        except UnreachableError as error:
            _log.warning("address_server_failed", url=self._url, error=error.reason)

    async def _fetch(self) -> None:
        self._asked_s = self._clock()
        before = set(self._addresses)
        self.update(await fetch(self._url))
        if before and set(self._addresses) != before:
            _log.info("name_servers_changed", addresses=self._addresses)
