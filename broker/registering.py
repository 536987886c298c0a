"""Registering with name servers of others: the embedded broker as a member of a cluster of genuine ones.

Each of them is sent REGISTER_BROKER at the start, every `registration_interval_ms`, and within `CHANGES_MS` of a change of
the topics; UNREGISTER_BROKER at a stop (BR/out/BrokerOuterAPI.java). Both are signed, and sent by TLS, as the access to them
says. One that does not answer is tried again at the next round; a change of that is one line in the log. Clients take the
broker's address from there, so they must be able to reach it.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Iterable

from ..client.asking import ask
from ..client.logs import get_logger
from ..client.remoting_client import Remoting
from ..remoting.admin_bodies import RegisterBrokerBody
from ..remoting.admin_headers import RegisterBroker, UnregisterBroker
from ..remoting.codes import RequestCode
from ..remoting.errors import RocketcrewError
from ..remoting.names import MASTER_ID
from .state import BrokerState

CHANGES_MS = 1_000  # between two looks at the version of the topics
TIMEOUT_MS = 6_000  # genuine: registerBrokerTimeoutMills 24 s
STOP_MS = 2_000

_log = get_logger("rocketcrew.broker")


class Registering:
    """The task that registers one broker; `stop` takes it out again."""

    def __init__(self, state: BrokerState, addresses: Iterable[str], remoting: Remoting) -> None:
        """`remoting` connects to the name servers, and is closed by `stop`."""
        self._state = state
        self._trouble: dict[str, str | None] = dict.fromkeys(addresses)
        self._remoting = remoting
        self.rounds = 0
        """How often all of them have been asked."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        rounds_ms = self._state.config.registration_interval_ms
        waited_ms, known = rounds_ms, -1
        while True:
            changes = self._state.topics.changes
            if waited_ms >= rounds_ms or changes != known:
                waited_ms, known = 0, changes
                await asyncio.gather(*map(self._register, self._trouble))
                self.rounds += 1
            await asyncio.sleep(CHANGES_MS / 1_000)
            waited_ms += CHANGES_MS

    async def _register(self, address: str) -> None:
        config, body = self._state.config, RegisterBrokerBody(self._state.topics.table()).encode()
        header = RegisterBroker(
            config.name,
            config.address,
            config.cluster,
            "",
            MASTER_ID,
            body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
            compressed=False,
            heartbeat_timeout_millis=4 * config.registration_interval_ms,
        )
        trouble: str | None = None
        try:
            await ask(self._remoting, address, RequestCode.REGISTER_BROKER, header, body=body, timeout_ms=TIMEOUT_MS)
        except RocketcrewError as error:
            trouble = str(error)
        if trouble != self._trouble[address]:
            self._trouble[address] = trouble
            if trouble is None:
                _log.info("broker.registered", name_server=address)
            else:
                _log.warning("broker.not_registered", name_server=address, reason=trouble)

    async def stop(self, *, says_goodbye: bool = True) -> None:
        """Say goodbye to those that know the broker; waits at most STOP_MS for them."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        config = self._state.config
        header = UnregisterBroker(config.name, config.address, config.cluster, MASTER_ID)

        async def leave(address: str) -> None:
            with contextlib.suppress(RocketcrewError):
                await ask(self._remoting, address, RequestCode.UNREGISTER_BROKER, header, timeout_ms=STOP_MS)

        known = [address for address, trouble in self._trouble.items() if trouble is None and says_goodbye]
        await asyncio.gather(*map(leave, known))
        await self._remoting.close()
