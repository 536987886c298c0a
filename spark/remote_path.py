"""Places below a table that is not on a disk, used like a `pathlib.Path`: how they are named, and what `stat` gives."""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, Self, TypeVar


class Root(Protocol):
    """The table: all places are below its URL, which ends without a slash."""

    url: str


RootT = TypeVar("RootT", bound=Root)


class RemoteStat(NamedTuple):
    """`st_size` in bytes, and when it was written, in seconds since 1970, under both names of that."""

    st_size: int
    st_mtime: float
    st_ctime: float


class RemotePath(Generic[RootT]):
    """One place. What can be done with it is its subclass's."""

    __slots__ = ("_key", "root")

    def __init__(self, root: RootT, key: str = "") -> None:
        """`key`: below the table; "" is the table itself."""
        self.root = root
        self._key = key

    def __truediv__(self, name: str) -> Self:
        return type(self)(self.root, f"{self._key}/{name}".strip("/"))

    def __str__(self) -> str:
        return f"{self.root.url}/{self._key}".rstrip("/")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __lt__(self, other: Self) -> bool:
        return str(self) < str(other)

    @property
    def name(self) -> str:
        """What follows the last slash."""
        return str(self).rpartition("/")[2]

    @property
    def parent(self) -> Self:
        """What precedes the last slash; of the table itself the table."""
        return type(self)(self.root, self._key.rpartition("/")[0])
