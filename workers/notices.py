"""What a worker tells the supervisor beside its work: small, rare, as JSON. Pure.

A NOTICE is the kind byte and JSON {"about": ..., ...}, where "about" is one of:
- "wants out": replace me, `reason`; I go on until my successor is there
- "leaves": I end now, between two messages, for `reason`; what I have not reported goes to others
- "progress": how far the message in hand is: `done`, `total` or null, `text`
- "window": so many `chunks` I can have in hand
"""

from __future__ import annotations

import json
from typing import Any, Final

from ..remoting.errors import ProtocolError
from .packets import Buffer

NOTICE: Final = 31
WANTS_OUT: Final = "wants out"
LEAVES: Final = "leaves"
PROGRESS: Final = "progress"
WINDOW: Final = "window"


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


def progress_text(notice: dict[str, Any]) -> str:
    """How far a handler is, for people, as in "3/10 pages"."""
    total = "" if notice.get("total") is None else f"/{notice['total']}"
    return f"{notice.get('done')}{total} {notice.get('text', '')}".rstrip()
