"""Routes on disk, so that a start finds its brokers while every name server is away.

One JSON file: version, name servers and place (whose routes these are), the routes in the form of the wire, and the same of
runs before whose cluster may be this one or another (same_cluster.py). Written whole beside the old one and renamed, so that
a reader finds the old or the new. A file that is damaged, from another version or too large is no error: it is only not
used, and replaced by the next save.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..remoting.bodies import BrokerData, TopicRouteData
from ..remoting.errors import ProtocolError
from .logs import get_logger

ROUTES_FILE = "routes.json"
"""In the slot, and beside the checkpoint of `--engine spark`."""
VERSION = 2
FILE_BYTES_MAX = 16 << 20

_log = get_logger("rocketcrew.client")


@dataclass(frozen=True, slots=True)
class KnownRoutes:
    """What a cluster knows of where things are."""

    name_servers: Sequence[str] = ()
    """As they were configured, or as an address server told them."""
    routes: Mapping[str, TopicRouteData] = field(default_factory=dict[str, TopicRouteData])
    place: str = ""
    """What is the same wherever the name servers are: the address server's URL, an own broker's folder. Often empty."""
    before: Sequence[KnownRoutes] = ()
    """What runs before knew that nobody could compare with this yet."""

    @property
    def brokers(self) -> list[BrokerData]:
        """All that a route names, one of several topics more than once."""
        return [data for route in self.routes.values() for data in route.broker_datas]


def is_folder(place: str) -> bool:
    """Whether the place is an own broker's."""
    return place.startswith("/")


def encode_routes(known: KnownRoutes) -> bytes:
    """The file's content; routes are dropped, the last by name first, that would make it too large."""
    before = [json.loads(encode_routes(one)) for one in known.before]
    names = list(known.name_servers)
    head = json.dumps({"version": VERSION, "name_servers": names, "place": known.place, "before": before})
    parts: list[bytes] = []
    left = FILE_BYTES_MAX - len(head) - 64
    for topic in sorted(known.routes):
        part = json.dumps(topic).encode() + b":" + known.routes[topic].encode()
        left -= len(part) + 2
        if left < 0:
            break
        parts.append(part)
    return head[:-1].encode() + b',"routes":{\n' + b",\n".join(parts) + b"\n}}\n"


def decode_routes(data: bytes) -> KnownRoutes:
    """What a file says. Raises ValueError when it is none of ours."""
    try:
        return _decoded(json.loads(data))
    except (KeyError, TypeError, AttributeError, RecursionError, ProtocolError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _decoded(found: Any) -> KnownRoutes:
    if found["version"] != VERSION:
        raise ValueError(f"version {found['version']}, not {VERSION}")
    return KnownRoutes(
        tuple(str(address) for address in found["name_servers"]),
        {str(topic): TopicRouteData.decode(json.dumps(route).encode()) for topic, route in found["routes"].items()},
        str(found["place"]),
        tuple(map(_decoded, found.get("before", ()))),
    )


class RouteCache:
    """The file of one client, at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._saved = b""
        self._read: KnownRoutes | None = None
        """By `load`, and not replaced since: a file that cannot be used is named once."""

    def load(self) -> KnownRoutes:
        """What was known when it was last saved; nothing when there is no file that can be used."""
        self._read = self._loaded()
        return self._read

    def _loaded(self) -> KnownRoutes:
        try:
            with self.path.open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
            if len(data) > FILE_BYTES_MAX:
                raise ValueError(f"more than {FILE_BYTES_MAX} bytes")
            return decode_routes(data)
        except FileNotFoundError:
            return KnownRoutes()
        except (OSError, ValueError) as error:
            _log.warning("saved_routes_not_used", path=str(self.path), error=str(error))
            return KnownRoutes()

    def load_all(self) -> Iterator[KnownRoutes]:
        """What was known here, and then what the folders beside this one have in such files."""
        yield self.load() if self._read is None else self._read
        for path in sorted(self.path.parent.parent.glob(f"*/{self.path.name}")):
            if path != self.path:
                yield RouteCache(path).load()

    def save(self, known: KnownRoutes) -> None:
        """Write it if it changed. A failure is logged: without the file only a start without name servers fails."""
        data = encode_routes(known)
        if data == self._saved:
            return
        self._read = None
        part = self.path.with_suffix(".part")
        try:
            part.write_bytes(data)
            os.replace(part, self.path)
        except OSError as error:
            _log.warning("routes_not_saved", path=str(self.path), error=str(error))
        else:
            self._saved = data
