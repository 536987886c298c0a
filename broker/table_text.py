"""The text of a table of topics, groups or offsets: an entry that did not change is not encoded again.

Tables are saved whole once a second while they change, and encoding 10,000 entries takes the loop 200 to 300 ms; this way a
save costs what changed, and a look at each name. Of offsets there are up to 200,000 entries, and a look at each would take
70 ms: there it costs what changed, and a look at each bucket.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from zlib import crc32

from ..remoting.admin_bodies import DataVersion
from ..remoting.body import Body
from ..remoting.fastjson import dumps


class TableText:
    """Remembers the text of each entry. An entry is a frozen body, replaced when it changes."""

    def __init__(self, member: str) -> None:
        """`member` is what the entries are called in the JSON object; it comes after "dataVersion"."""
        self._member = member
        self._texts: dict[str, tuple[Body, bytes]] = {}
        self.encoded = 0  # entries, since the start

    def encode(self, version: DataVersion, entries: Mapping[str, Body]) -> bytes:
        """`{"dataVersion":...,"<member>":{"<name>":<entry>,...}}`. Raises UsageError when an entry has no JSON form."""
        texts, parts = self._texts, list[bytes]()
        for name, entry in entries.items():
            known = texts.get(name)
            if known is None or known[0] is not entry:
                self.encoded += 1
                known = texts[name] = entry, b"%s:%s" % (dumps(name), entry.encode())
            parts.append(known[1])
        if len(texts) > len(entries):
            for name in [name for name in texts if name not in entries]:
                del texts[name]
        return b'{"dataVersion":%s,"%s":{%s}}' % (version.encode(), self._member.encode(), b",".join(parts))


class BucketedText:
    """The members of a JSON object, in buckets by their names; only buckets with a change are joined again."""

    BUCKETS = 4_096  # 200,000 members: 49 in each

    def __init__(self) -> None:
        self._members: dict[int, dict[str, bytes]] = {}
        self._joined: dict[int, bytes] = {}
        self._changed: dict[str, None] = {}
        self.looks = 0  # at members and buckets, since the start

    def changed(self, name: str) -> None:
        """The member is another one from now on, or gone."""
        self._changed[name] = None

    def clear(self) -> None:
        for table in (self._members, self._joined, self._changed):
            table.clear()

    def text(self, value_of: Callable[[str], Mapping[int, int] | None]) -> bytes:
        """`"<name>":{<number>:<number>,...},...`; `value_of` a name that has changed, None when it is gone."""
        touched: set[int] = set()
        for name in self._changed:
            bucket = crc32(name.encode()) % self.BUCKETS
            members = self._members.setdefault(bucket, {})
            value = value_of(name)
            if value is None:
                members.pop(name, None)
            else:
                inner = ",".join([f"{key}:{number}" for key, number in value.items()])
                members[name] = f"{json.dumps(name)}:{{{inner}}}".encode()
            touched.add(bucket)
        self._changed.clear()
        for bucket in sorted(touched):
            members = self._members[bucket]
            self.looks += len(members)
            if members:
                self._joined[bucket] = b",".join(members.values())
            else:
                del self._members[bucket]
                self._joined.pop(bucket, None)
        self.looks += len(self._joined)
        return b",".join(self._joined.values())
