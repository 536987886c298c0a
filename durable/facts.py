"""A file of facts: what became of records without rows, sealed before the offset that depends on it is sent. Pure.

    outcomes/<name>.facts         in the staging folder (conf/segment_format.py)
    rocketcrew facts 3 5d0e44a1   version, CRC-32 of it and the second line in hexadecimal
    {"no_rows":[…],…}             an offset set for each kind (outcomes.py)
    outcomes/<plan id>.left       of the same format: what facts say of records that the commit of this plan left unloaded

Such a file never changes: who has more to say writes another one that contains it, and deletes it then. So the loader freezes
names in its plans, and deletes exactly these after the commit. What they say of records that do not count as loaded then it
writes to a file of its own, which takes the place of the one before.
"""

from __future__ import annotations

import json
import zlib
from typing import Final

from .outcomes import Outcomes
from .versions import later_version

FACTS_VERSION: Final = 3
FACTS_SUFFIX: Final = ".facts"
LEFT_SUFFIX: Final = ".left"
_MAGIC: Final = b"rocketcrew facts "


def facts_to_text(facts: Outcomes) -> str:
    """The whole file."""
    body = json.dumps(facts.to_json(), separators=(",", ":"))
    return f"{_MAGIC.decode()}{FACTS_VERSION} {_check(body.encode())}\n{body}\n"


def _check(body: bytes, version: int = FACTS_VERSION) -> str:
    """Of the version too, which a flipped bit could make another one that is read."""
    return f"{zlib.crc32(str(version).encode() + body):08x}"


def facts_from_bytes(data: bytes, where: object = "the file of facts") -> Outcomes:
    """What `facts_to_text` wrote. Raises LaterVersionError for what a later version wrote, ValueError for anything else, also
    for a file that was changed or cut off."""
    head, _, rest = data.partition(b"\n")
    if not head.startswith(_MAGIC):
        raise ValueError("not a file of facts")
    version, _, check = head.removeprefix(_MAGIC).decode("ascii").partition(" ")
    body, end, more = rest.partition(b"\n")
    if version != str(FACTS_VERSION):
        if version.isdigit() and int(version) > FACTS_VERSION and check == _check(body, int(version)):
            raise later_version(where, f"version {version}", FACTS_VERSION)
        raise ValueError(f"facts of version {version}, this program knows {FACTS_VERSION}")
    if not end or more or check != _check(body):
        raise ValueError("the facts are damaged: their checksum is another one")
    return Outcomes.from_json(json.loads(body))
