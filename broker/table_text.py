"""The text of a table of topics or groups: an entry that did not change is not encoded again.

Tables are saved whole once a second while they change, and encoding 10,000 entries takes the loop 200 to 300 ms; this way a
save costs what changed, and a look at each name.
"""

from __future__ import annotations

from collections.abc import Mapping

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
