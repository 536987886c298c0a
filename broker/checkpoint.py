"""The checkpoint of a store.

`config/checkpoint.json` says up to which position of the log all queues were on the disk, and how many entries each had
there. `checkpoint` says the same to a genuine broker in its own words: store times of 8 bytes each (ST/StoreCheckpoint.java).
"""

from __future__ import annotations

import json
from struct import Struct

from .storage import Storage

CHECKPOINT = "config/checkpoint.json"
CHECKPOINT_OF_GENUINE = "checkpoint"
GENUINE_BYTES = 4_096
_TIMES = Struct(">qqq")  # of the newest record in the log, in the queues, in whole index files


def for_genuine(stored_ms: int) -> bytes:
    """The genuine broker's file: it makes its indexes anew after a kill, as ours are not whole at that time."""
    return _TIMES.pack(stored_ms, stored_ms, 0).ljust(GENUINE_BYTES, b"\0")


Counts = dict[str, dict[int, int]]


def checkpoint_in(text: bytes | None, log_start: int, log_end: int) -> tuple[int, Counts | None]:
    """Where to read the log from, and how many entries each queue had there; from its start, and None, when nobody knows."""
    try:
        document = json.loads(text or b"")
        position = document["position"]
        counts = {
            topic: {int(key): int(count) for key, count in part.items()} for topic, part in document["queues"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return log_start, None
    if not isinstance(position, int) or not log_start <= position <= log_end:
        return log_start, None
    return position, counts


def saved_checkpoint(storage: Storage, log_start: int, log_end: int) -> bytes | None:
    """The newest one of a log between these positions; that before it where the newest says nothing: a kill came between the
    two renames that replace it, or a crash of the machine left it empty."""
    newest = storage.load(CHECKPOINT)
    for text in (newest, storage.load_previous(CHECKPOINT)):
        if checkpoint_in(text, log_start, log_end)[1] is not None:
            return text
    return newest


def stored_ms_in(text: bytes | None) -> int:
    """The newest store time at the checkpoint, 0 when nobody knows."""
    try:
        return int(json.loads(text or b"").get("stored_ms", 0))
    except (ValueError, TypeError, AttributeError):
        return 0


def indexed_in(text: bytes | None) -> tuple[int, int]:
    """As `KeyIndex.covered` at the checkpoint; of an index that is not there when nobody knows."""
    try:
        last, end = json.loads(text or b"")["indexed"]
        return int(last), int(end)
    except (ValueError, KeyError, TypeError):
        return -1, 0
