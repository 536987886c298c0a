"""Latency fault tolerance: which brokers are better left alone for a while. Pure, off unless asked for.

Each attempt tells how long a broker took. A slow answer makes it unavailable for a time that grows with the latency, a
failure for 10 s as if it had taken 10 s; a refusal also makes it unreachable, which only a later success (or a probe)
ends. Queues of available brokers are preferred, then of reachable ones, then any.

Sources: client/latency/{MQFaultStrategy,LatencyFaultToleranceImpl}.java. `sendLatencyFaultEnable` is off there too, as it
moves messages away from a broker that is merely slow.
"""

from __future__ import annotations

from dataclasses import dataclass

LATENCY_FROM_MS = (50, 100, 550, 1_800, 3_000, 5_000, 15_000)
UNAVAILABLE_MS = (0, 0, 2_000, 5_000, 6_000, 10_000, 30_000)
ISOLATED_AS_MS = 10_000
BROKERS_MAX = 4_096


def unavailable_ms(latency_ms: float) -> int:
    """How long a broker that took so long is left alone (MQFaultStrategy.computeNotAvailableDuration)."""
    found = 0
    for from_ms, duration_ms in zip(LATENCY_FROM_MS, UNAVAILABLE_MS, strict=True):
        if latency_ms >= from_ms:
            found = duration_ms
    return found


@dataclass(slots=True)
class _Fault:
    available_from_ms: float = 0.0
    reachable: bool = True


class LatencyFaults:
    """What is known of each broker, by name; times are monotonic milliseconds."""

    def __init__(self) -> None:
        self._faults: dict[str, _Fault] = {}

    def answered(self, now_ms: float, broker_name: str, latency_ms: float) -> None:
        """The broker took the message after `latency_ms`."""
        self._update(now_ms, broker_name, latency_ms, reachable=True)

    def failed(self, now_ms: float, broker_name: str, *, reachable: bool) -> None:
        """An attempt failed; `reachable` is false for a refusal, and for every failure while probes look after it."""
        self._update(now_ms, broker_name, ISOLATED_AS_MS, reachable=reachable)

    def probed(self, broker_name: str) -> None:
        """A probe was answered."""
        fault = self._faults.get(broker_name)
        if fault is not None:
            fault.reachable = True

    def _update(self, now_ms: float, broker_name: str, latency_ms: float, *, reachable: bool) -> None:
        if broker_name not in self._faults and len(self._faults) >= BROKERS_MAX:
            del self._faults[next(iter(self._faults))]
        fault = self._faults.setdefault(broker_name, _Fault())
        fault.reachable = reachable
        pause_ms = unavailable_ms(latency_ms)
        if pause_ms:
            fault.available_from_ms = max(fault.available_from_ms, now_ms + pause_ms)

    def unreachable(self) -> list[str]:
        """Brokers that a probe should ask."""
        return [name for name, fault in self._faults.items() if not fault.reachable]

    def is_available(self, now_ms: float, broker_name: str) -> bool:
        fault = self._faults.get(broker_name)
        return fault is None or now_ms >= fault.available_from_ms

    def is_reachable(self, broker_name: str) -> bool:
        fault = self._faults.get(broker_name)
        return fault is None or fault.reachable
