"""Requests that brokers send to us, and what we answer: a table of codes (PROTOCOL.md §2.5; ClientRemotingProcessor.java).

A code that is not in the table is answered with "not supported", as Java does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import structlog

from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import Command

Answer = Callable[[Command], Awaitable[Command | None]]
"""Serves one request; None = it was one-way."""

log = structlog.get_logger("rocketcrew.requests")


class Requests:
    """Serves what brokers ask of the member of `group`."""

    def __init__(self, group: str, rebalance: Callable[[], None]) -> None:
        self._group = group
        self._rebalance = rebalance
        self._table: Mapping[int, Answer] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._ids_changed,
        }

    async def serve(self, address: str, command: Command) -> Command | None:
        """The answer to a broker's request."""
        answer = self._table.get(command.code)
        if answer is not None:
            return await answer(command)
        log.debug("request_not_supported", address=address, code=command.code)
        return command.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f"code {command.code} is not supported")

    async def _ids_changed(self, command: Command) -> None:
        if command.fields.get("consumerGroup") == self._group:
            self._rebalance()
