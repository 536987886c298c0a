"""What a worker tells the supervisor beside its work: small, rare, as JSON. Pure.

NOTICE  u8 31 | JSON {"about": ..., ...}
"wants out": replace me, `reason`; I go on until my successor is there
"leaves":    I end now, between two messages, for `reason`; what I have not reported goes to others
"""

from __future__ import annotations

import json
from typing import Any, Final

from ..remoting.errors import ProtocolError
from .packets import Buffer

NOTICE: Final = 31
WANTS_OUT: Final = "wants out"
LEAVES: Final = "leaves"


def encode_notice(about: str, **facts: object) -> bytes:
    """NOTICE packet."""
    return bytes((NOTICE,)) + json.dumps({"about": about, **facts}).encode()


def decode_notice(packet: Buffer) -> dict[str, Any]:
    """Raises ProtocolError."""
    try:
        found: Any = json.loads(bytes(packet[1:]))
        return {"about": str(found["about"]), **found}
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"unusable: {error!r}", "NOTICE packet") from error
