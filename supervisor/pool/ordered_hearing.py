"""What ordered workers say beside outcomes, told to the core."""

from __future__ import annotations

from ...workers import ordered_packets as packets
from ..core import events as ev
from ..core.decisions import Core


def hear(core: Core, worker_id: str, packet: bytes, now: float) -> bool:
    """Tell the core what an ordered packet says; False = it is another kind. Raises ProtocolError."""
    kind = packet[0]
    if kind == packets.RETURNED:
        said = packets.decode_returned(packet)
        core.handle(ev.Returned(worker_id, said.chunk_id, said.start, said.failed, said.failure, said.suspend_ms), now)
    elif kind == packets.CONSUMED:
        core.handle(ev.Consumed(worker_id, packets.decode_consumed(packet)), now)
    elif kind == packets.KEYS:
        core.handle(ev.Classified(worker_id, *packets.decode_keys(packet)), now)
    else:
        return False
    return True
