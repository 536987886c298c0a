"""Records of a chunk become the messages that a call of the handler gets. Nothing here calls the handler.

A record is one message, except an inner batch, whose messages are handled and finished as one.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..remoting.errors import ProtocolError
from ..remoting.stored import record_info
from .choosing import Wants
from .message import INNER_BATCH_BIT, SYSFLAG_LOW_BYTE, Message, expand_inner_batch
from .packets import QueueInfo
from .run import Run


def plain_messages(data: bytes, positions: Sequence[int], queue: QueueInfo) -> list[Message] | None:
    """A message for each record, its body looked at; None when one is an inner batch or damaged."""
    messages: list[Message] = []
    try:
        for position in positions:
            if data[position + SYSFLAG_LOW_BYTE] & INNER_BATCH_BIT:
                return None
            message = Message(data, position, queue)
            _ = message.body
            messages.append(message)
    except ProtocolError:
        return None
    return messages


def open_unit(run: Run, index: int, data: bytes, position: int, end: int, wants: Wants | None) -> list[Message]:
    """The wanted messages of an inner batch; `run` learns which offsets it spans. Raises ProtocolError when damaged."""
    run.spans[index] = record_info(data, position, end).queue_offset
    messages = expand_inner_batch(data, position, end, run.queue)
    return [message for message in messages if wants is None or wants(message)]


def messages_of(
    run: Run, index: int, data: bytes, positions: list[int], wants: Wants | None
) -> tuple[list[Message], ProtocolError | None]:
    """The wanted messages of one record, or why it cannot be decoded."""
    position, end = positions[index], positions[index + 1]
    message = Message(data, position, run.queue)
    try:
        if data[position + SYSFLAG_LOW_BYTE] & INNER_BATCH_BIT:
            messages = open_unit(run, index, data, position, end, wants)
        else:
            messages = [message] if wants is None or wants(message) else []
        # A batch handler shall not fail as a whole for one damaged body.
        for each in messages:
            _ = each.body
    except ProtocolError as error:
        return [], error
    if not messages:
        run.filtered += 1
    return messages, None
