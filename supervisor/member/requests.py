"""Requests that brokers send to us, and what we answer: a table of codes (docs/protocol.md; ClientRemotingProcessor.java).

Ids changed and offset resets are one-way; the others are questions of an administrator that a broker passes on and waits
for: 5 s for offsets, 10 s for running info and for a message that is consumed directly. A question about another group than
ours is answered with SYSTEM_ERROR, a code that is not in the table with "not supported", both as Java does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog

from ...remoting.bodies import ConsumeDirectlyResult, ConsumerRunningInfo, ConsumerStatus, ResetOffsetBody
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.errors import RocketcrewError
from ...remoting.headers import (
    ConsumeDirectly,
    ConsumerIdsChanged,
    ConsumerStatusRequest,
    ResetOffset,
    RunningInfoRequest,
)
from ...remoting.queues import MessageQueue
from ...remoting.stored import decode_message
from ...workers.packets import QueueInfo, Refused

Answer = Callable[[Command], Awaitable[Command | None]]
"""Serves one request; None = it was one-way."""

log = structlog.get_logger("rocketcrew.requests")


@dataclass(frozen=True, slots=True)
class Asked:
    """What is done about requests; the functions belong to the member."""

    rebalance: Callable[[], None]
    reset_offsets: Callable[[Mapping[MessageQueue, int]], None]
    offsets: Callable[[str], dict[MessageQueue, int]]
    """Of a topic's queues."""
    info: Callable[[str | None], ConsumerRunningInfo]
    """With that text as the stacks."""
    stacks: Callable[[], Awaitable[str]]
    consume: Callable[[QueueInfo, bytes], Awaitable[ConsumeDirectlyResult]]
    """By a worker; raises Refused."""


class Requests:
    """Serves what brokers ask of the member of `group`."""

    def __init__(self, group: str, asked: Asked, namespace: str = "") -> None:
        self._namespace = namespace
        self._group = group
        self._do = asked
        self._table: Mapping[int, Answer] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._ids_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume,
        }

    async def serve(self, address: str, command: Command) -> Command | None:
        """The answer to a broker's request. One that cannot be read is answered with SYSTEM_ERROR and why."""
        answer = self._table.get(command.code)
        if answer is None:
            log.debug("request_not_supported", address=address, code=command.code)
            remark = f"code {command.code} is not supported"
            return command.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        try:
            return await answer(command)
        except RocketcrewError as error:
            log.warning("request_failed", address=address, code=command.code, error=str(error))
            return None if command.is_oneway else command.response(ResponseCode.SYSTEM_ERROR, remark=str(error))

    async def _ids_changed(self, command: Command) -> None:
        if ConsumerIdsChanged.from_fields(command.fields).consumer_group == self._group:
            self._do.rebalance()

    async def _reset_offset(self, command: Command) -> None:
        """Only queues of the topic that the header names, as in Java."""
        header = ResetOffset.from_fields(command.fields)
        if header.group != self._group:
            log.info("reset_offset_of_another_group", group=header.group)
            return
        table = ResetOffsetBody.decode(command.body).offset_table if command.body else {}
        offsets = {mq: offset for mq, offset in table.items() if mq.topic == header.topic and offset >= 0}
        log.info("reset_offset", topic=header.topic, timestamp_ms=header.timestamp, queues=len(offsets))
        self._do.reset_offsets(offsets)

    async def _status(self, command: Command) -> Command:
        header = ConsumerStatusRequest.from_fields(command.fields)
        offsets = self._do.offsets(header.topic) if header.group == self._group else {}
        return command.response(ResponseCode.SUCCESS, body=ConsumerStatus(offsets).encode())

    async def _running_info(self, command: Command) -> Command:
        header = RunningInfoRequest.from_fields(command.fields)
        if header.consumer_group != self._group:
            return self._not_ours(command, header.consumer_group)
        stacks = await self._do.stacks() if header.jstack_enable else None
        return command.response(ResponseCode.SUCCESS, body=self._do.info(stacks).encode())

    async def _consume(self, command: Command) -> Command:
        header = ConsumeDirectly.from_fields(command.fields)
        if header.consumer_group != self._group:
            return self._not_ours(command, header.consumer_group)
        record = bytes(command.body)
        stored = decode_message(record)
        queue = QueueInfo(self._group, stored.topic, header.broker_name or "", stored.queue_id, None, self._namespace)
        try:
            result = await self._do.consume(queue, record)
        except Refused as error:
            return command.response(ResponseCode.SYSTEM_BUSY, remark=str(error))
        return command.response(ResponseCode.SUCCESS, body=result.encode())

    def _not_ours(self, command: Command, group: str) -> Command:
        remark = f"The Consumer Group <{group}> not exist in this consumer"
        return command.response(ResponseCode.SYSTEM_ERROR, remark=remark)
