"""Bounds of one connection, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass

from .receiver import BUFFER_BYTES


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """Bounds of one connection; the defaults are Java's where it has one."""

    pending_max: int = 65_535
    """Requests waiting at once (NettySystemConfig client async and one-way semaphores)."""
    peer_requests_max: int = 256
    """Requests of the peer served at once; more are answered SYSTEM_BUSY."""
    write_high_bytes: int = 1 << 20
    """Unsent bytes from which `request` waits for room before it adds its own."""
    write_bytes_max: int = 64 << 20
    """Unsent bytes from which a peer that does not read is given up."""
    read_buffer_bytes: int = BUFFER_BYTES
    idle_ms: int = 120_000
    silent_ms: int = 3_000


@dataclass(slots=True)
class ConnectionStats:
    """Counters of one connection since it was made."""

    requests: int = 0
    answers: int = 0
    timeouts: int = 0
    late_answers: int = 0
    dropped_bodies: int = 0
    peer_requests: int = 0
    peer_requests_refused: int = 0
    read_bytes: int = 0
    writes: int = 0
    written_bytes: int = 0
