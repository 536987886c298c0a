"""Settings of consumer groups (BR/subscription/SubscriptionGroupManager.java).

A group gets into the table by its members' heartbeats, or by an administrator; whoever else uses a name works with default
settings and leaves nothing behind. The table is bounded. When it is full, groups that nobody needs make room: those with
default settings that have neither members nor offsets, the one that was heard of least recently first. The text form is
`config/subscriptionGroup.json`, as the genuine broker has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ..remoting.admin_bodies import DataVersion, SubscriptionGroupConfig, SubscriptionGroupTable
from ..remoting.errors import UsageError
from .table_text import TableText

GROUP_MAX_CHARS = 255
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


def illegal_group(name: str) -> bool:
    """Whether no group can be called `name` (CL/Validators.java, checkGroup)."""
    return not name.strip() or len(name) > GROUP_MAX_CHARS or _NAME.fullmatch(name) is None


class GroupTable:
    """All groups by name; `changes` grows with every change."""

    def __init__(self, auto_create: bool, groups_max: int) -> None:
        self.changes = 0
        self._auto_create = auto_create
        self._groups_max = groups_max
        self._groups: dict[str, SubscriptionGroupConfig] = {}
        self._text = TableText("subscriptionGroupTable")

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """The group's settings, those of a new one when it is unknown and may be made; None when it may not."""
        group = self._groups.get(name)
        if group is None and self._auto_create and not illegal_group(name):
            return SubscriptionGroupConfig(name)
        return group

    def heard(self, name: str, needed: Callable[[str], bool]) -> SubscriptionGroupConfig | None:
        """The group of a heartbeat, made when it is unknown; None when it may not be made.

        `needed` says of another group whether it has members or offsets. Raises UsageError when there is no room.
        """
        group = self._groups.pop(name, None)
        if group is None:
            if not self._auto_create or illegal_group(name):
                return None
            if not self.has_room and not self._make_room(needed):
                raise UsageError(self.full(name))
            group = SubscriptionGroupConfig(name)
            self.changes += 1
        self._groups[name] = group  # the last heard of is the last to go
        return group

    def _make_room(self, needed: Callable[[str], bool]) -> bool:
        for name, group in self._groups.items():
            if not needed(name) and group == SubscriptionGroupConfig(name):
                self.remove(name)
                return True
        return False

    @property
    def has_room(self) -> bool:
        return len(self._groups) < self._groups_max

    def full(self, name: str) -> str:
        """Why a group more is refused."""
        return (
            f"this broker has {len(self._groups)} consumer groups in use, of {self._groups_max}, and takes no new one "
            f"({name}): remove groups (mqadmin deleteSubGroup)"
        )

    def known(self, name: str) -> SubscriptionGroupConfig | None:
        """The group as far as it exists; never makes one."""
        return self._groups.get(name)

    def put(self, group: SubscriptionGroupConfig) -> None:
        if self._groups.get(group.group_name) != group:
            self._groups[group.group_name] = group
            self.changes += 1

    def remove(self, name: str) -> bool:
        if self._groups.pop(name, None) is None:
            return False
        self.changes += 1
        return True

    def names(self) -> list[str]:
        return sorted(self._groups)

    def dump(self) -> bytes:
        """The text of all groups, as subscriptionGroup.json and admin tools (request 201) have it."""
        return self._text.encode(DataVersion(counter=self.changes), self._groups)

    def load(self, text: bytes) -> None:
        """Take over what `dump` wrote. Raises ProtocolError when it is something else."""
        self._groups = dict(SubscriptionGroupTable.decode(text).subscription_group_table)
