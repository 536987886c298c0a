"""Settings of consumer groups (BR/subscription/SubscriptionGroupManager.java).

A group appears with default settings when somebody first uses its name. The text form is
`config/subscriptionGroup.json`, as the genuine broker has it.
"""

from __future__ import annotations

import re

from ..remoting.admin_bodies import DataVersion, SubscriptionGroupConfig, SubscriptionGroupTable

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

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """The group, made with defaults when it is unknown and may be; None when it may not."""
        group = self._groups.get(name)
        if group is None and self._auto_create and not illegal_group(name) and self.has_room:
            group = self._groups[name] = SubscriptionGroupConfig(name)
            self.changes += 1
        return group

    @property
    def has_room(self) -> bool:
        return len(self._groups) < self._groups_max

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

    def table(self) -> SubscriptionGroupTable:
        """All groups, as subscriptionGroup.json and admin tools (request 201) have them."""
        return SubscriptionGroupTable(dict(self._groups), DataVersion(counter=self.changes))

    def load(self, text: bytes) -> None:
        """Take over what `table().encode()` wrote. Raises ProtocolError when it is something else."""
        self._groups = dict(SubscriptionGroupTable.decode(text).subscription_group_table)
