"""A disk that refuses what it is asked to refuse, so often."""

from __future__ import annotations

from typing import Any

from rocketcrew.broker.storage import MemoryStorage, StorageError


class RefusingDisk(MemoryStorage):
    """`refuses`: by the name of a journal or a table, how many of its next lines or replacements fail."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: dict[str, int] = {}

    def refuse(self, name: str) -> None:
        if self.refuses.get(name, 0) > 0:
            self.refuses[name] -= 1
            raise StorageError(f"cannot write {name}: No space left on device")

    def open(self, name: str, segment_bytes: int, buffered: bool) -> Any:
        file, outer = super().open(name, segment_bytes, buffered), self

        class Journal(type(file)):  # type: ignore[misc]
            __slots__ = ()

            def append(self, data: Any) -> Any:
                outer.refuse(name)
                return super().append(data)

        file.__class__ = Journal
        return file

    def replace(self, table: str, content: bytes, *, sync: bool = False) -> None:
        self.refuse(table)
        super().replace(table, content, sync=sync)
