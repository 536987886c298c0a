"""Which groups pop a topic instead of pulling it (BR/loadbalance/MessageRequestModeManager.java)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..remoting.body import Body
from ..remoting.pop_headers import SetMessageRequestMode

MODES_TABLE = "config/messageRequestMode.json"
MODES_MAX = 10_000  # by an administrator


@dataclass(frozen=True, slots=True)
class _ModesDocument(Body):
    message_request_mode_map: dict[str, dict[str, SetMessageRequestMode]] = field(
        default_factory=dict[str, dict[str, SetMessageRequestMode]]
    )


class RequestModes:
    """By topic and group: what an administrator set."""

    def __init__(self) -> None:
        self._modes: dict[str, dict[str, SetMessageRequestMode]] = {}

    def get(self, topic: str, group: str) -> SetMessageRequestMode:
        """What was set, else to pull."""
        return self._modes.get(topic, {}).get(group) or SetMessageRequestMode(topic, group)

    @property
    def has_room(self) -> bool:
        return sum(map(len, self._modes.values())) < MODES_MAX

    def set(self, mode: SetMessageRequestMode) -> None:
        self._modes.setdefault(mode.topic, {})[mode.consumer_group] = mode

    def dump(self) -> bytes:
        """The text of messageRequestMode.json, as the genuine broker has it."""
        return _ModesDocument(self._modes).encode()

    def load(self, text: bytes) -> None:
        """Take over what was dumped. Raises ProtocolError when it is something else."""
        self._modes = {
            topic: dict(groups) for topic, groups in _ModesDocument.decode(text).message_request_mode_map.items()
        }
