"""A file of facts: what became of records without rows, sealed before the offset that depends on it is sent. Pure.

    outcomes/<name>.facts         in the staging folder (conf/segment_format.py)
    rocketcrew facts 3 5d0e44a1   version, CRC-32 of it and the second line in hexadecimal
    {"no_rows":[…],…}             an offset set for each kind (outcomes.py)
    outcomes/<plan id>.left       of the same format: what facts say of records that the commit of this plan left unloaded

Such a file never changes: who has more to say writes another one that contains it, and deletes it then. So the loader freezes
names in its plans, and deletes exactly these after the commit. What they say of records that do not count as loaded then it
writes to a file of its own, which takes the place of the one before.

Version 4 is written where something is `undelivered`, else version 3. Version 2 had none that are `elsewhere`, and version 1
none that are `settled`: these were in settled.json. All are read, as kept.json is, which had what is left.
"""

from __future__ import annotations

import json
import zlib
from typing import Final

from .intervals import IntervalSet, OffsetSet, QueueKey
from .outcomes import SETTLED, UNDELIVERED, Outcomes

FACTS_VERSION: Final = 4
FACTS_VERSION_BEFORE: Final = 3
"""Of what an earlier program can read too."""
FACTS_SUFFIX: Final = ".facts"
LEFT_SUFFIX: Final = ".left"
_READ: Final = ("1", "2", str(FACTS_VERSION_BEFORE), str(FACTS_VERSION))
_MAGIC: Final = b"rocketcrew facts "


def facts_to_text(facts: Outcomes) -> str:
    """The whole file."""
    body = json.dumps(facts.to_json(), separators=(",", ":"))
    version = str(FACTS_VERSION if UNDELIVERED in facts.kinds else FACTS_VERSION_BEFORE)
    return f"{_MAGIC.decode()}{version} {_check(version, body.encode())}\n{body}\n"


def _check(version: str, body: bytes) -> str:
    """Of a version too, as one that is read could become another one by a flipped bit; in 1 and 2 of the body alone."""
    named = b"" if version in ("1", "2") else version.encode()
    return f"{zlib.crc32(named + body):08x}"


def facts_from_bytes(data: bytes) -> Outcomes:
    """What `facts_to_text` wrote. Raises ValueError for anything else, also for a file that was changed or cut off."""
    head, _, rest = data.partition(b"\n")
    if not head.startswith(_MAGIC):
        raise ValueError("not a file of facts")
    version, _, check = head.removeprefix(_MAGIC).decode("ascii").partition(" ")
    if version not in _READ:
        raise ValueError(f"facts of version {version}, this program knows {FACTS_VERSION}")
    body, end, more = rest.partition(b"\n")
    if not end or more or check != _check(version, body):
        raise ValueError("the facts are damaged: their checksum is another one")
    return Outcomes.from_json(json.loads(body))


def settled_from_json(data: bytes) -> Outcomes:
    """What settled.json of an earlier version says, as facts. Raises ValueError for anything else."""
    try:
        told = json.loads(data)
        if told["version"] != 1:
            raise ValueError(f"version {told['version']!r}, this program knows 1")
        return Outcomes.of(
            (
                SETTLED,
                OffsetSet.of(
                    [
                        (
                            QueueKey(str(row["group"]), str(row["topic"]), str(row["broker"]), int(row["queue_id"])),
                            IntervalSet.of([(int(row["from"]), int(row["to"]))]),
                        )
                    ]
                ),
            )
            for row in told["queues"]
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a list of settled records: {type(error).__name__}: {error}") from None
