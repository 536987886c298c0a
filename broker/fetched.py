"""What a read of a queue gives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class GetStatus(Enum):
    """How a read of a queue ended; the names are the remarks of pull answers (ST/GetMessageStatus.java)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_RESET = "OFFSET_RESET"


@dataclass(slots=True, frozen=True)
class Fetched:
    """Result of a read; `next_offset` is where the reader goes on."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    body: bytes = b""
    count: int = 0


__all__ = ["Fetched", "GetStatus"]
