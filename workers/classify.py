"""Keys by the user's own function: what each record of a pull is ordered by, as a digest that is equal in every worker.

A function that fails on a message, or returns something that is no key, puts it into one lane with all others like it: in
order rather than not, since the same message fails in the same way each time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from ..remoting.errors import ProtocolError
from ..remoting.log_keys import place_keys, queue_keys
from ..remoting.stored import SYSFLAG_LOW_BYTE, walk
from .forks import end_if_forked
from .message import INNER_BATCH_BIT, Message, expand_inner_batch
from .ordered_packets import KEY_BYTES, NO_KEY
from .packets import QueueInfo
from .user_errors import describe_error

UNUSABLE = b"?"


def digest(key: Any) -> bytes:
    """A key's digest; keys of different types differ. Raises TypeError for what is no key."""
    if key is None:
        return NO_KEY
    if isinstance(key, str):
        data = b"s" + key.encode("utf-8", "surrogatepass")
    elif isinstance(key, bytes):
        data = b"b" + key
    elif isinstance(key, int):
        data = b"i" + str(key).encode()
    else:
        raise TypeError(f"the key function returned {type(key).__name__}; a key is a str, bytes, int, or None")
    return blake2b(data, digest_size=KEY_BYTES).digest()


_UNUSABLE_DIGEST = blake2b(UNUSABLE, digest_size=KEY_BYTES).digest()


def classify(
    function: Callable[[Any], object],
    queue: QueueInfo,
    data: bytes,
    records: int,
    log: Any,
    name: Callable[[int], None],
) -> list[bytes]:
    """One digest a record, which is named by its offset before. Whatever is wrong with a record or the function is logged,
    never raised."""
    try:
        positions, offsets = walk(data)
    except ProtocolError as error:
        log.error("records_undecodable", **queue_keys(queue), error=str(error))
        return [_UNUSABLE_DIGEST] * records
    found: list[bytes] = []
    pid = os.getpid()
    for index, offset in enumerate(offsets):
        name(offset)
        try:
            found.append(digest(function(_first_message(data, positions[index], positions[index + 1], queue))))
        except BaseException as error:  # noqa: BLE001  whatever it is, it is the function's
            end_if_forked(pid, error)
            note_failure(log, queue, offset, error)
            found.append(_UNUSABLE_DIGEST)
    return (found + [_UNUSABLE_DIGEST] * records)[:records]


def note_failure(log: Any, queue: QueueInfo, offset: int, error: BaseException) -> None:
    """Why there is no key."""
    log.warning("key_function_failed", **place_keys(queue, offset),
                error=describe_error(error))  # fmt: skip


def _first_message(data: bytes, position: int, end: int, queue: QueueInfo) -> Message:
    """The record's message; of an inner batch, which is handled as one, its first."""
    if data[position + SYSFLAG_LOW_BYTE] & INNER_BATCH_BIT:
        return expand_inner_batch(data, position, end, queue)[0]
    return Message(data, position, queue)
