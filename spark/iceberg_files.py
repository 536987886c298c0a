"""How pyiceberg writes the files of a table of ours: each is on the disk before the catalog is asked to name it.

pyiceberg imports the class by its name (property `py-io-impl`). Data, manifests, their lists and metadata go through it.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, ClassVar, Final

import pyiceberg.io.pyarrow

from ..durable.files import CALLS, FileCalls, sync_path

_module: Any = pyiceberg.io.pyarrow
TABLE: Final = "rocketcrew.folder"
"""The property with the table's folder: folders below it are fsynced with the files in them."""


class SyncedFileIO(_module.PyArrowFileIO):  # type: ignore[misc]
    """pyiceberg's own, but files on this host's file system are fsynced when they are closed, and so are their folders."""

    calls: ClassVar[FileCalls] = CALLS

    def new_output(self, location: str) -> Any:
        """The file to be written at `location`."""
        output: Any = _module.PyArrowFileIO.new_output(self, location)
        scheme, _, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return output
        table = self.properties.get(TABLE)
        return _SyncedFile(output, Path(path), Path(table) if table else None, self.calls)


class _SyncedFile(_module.PyArrowFile):  # type: ignore[misc]
    """A file that will be written."""

    def __init__(self, output: Any, path: Path, table: Path | None, calls: FileCalls) -> None:
        _module.PyArrowFile.__init__(self, output.location, output._path, output._filesystem, output._buffer_size)
        self._table = table
        self._to = path
        self._calls = calls

    def create(self, overwrite: bool = False) -> Any:
        """Open it. Raises FileExistsError when it exists and is not to be overwritten."""
        self._to.parent.mkdir(parents=True, exist_ok=True)
        above = [] if self._table is None else [one for one in self._to.parents if one.is_relative_to(self._table)]
        return _Synced(self._to, "wb" if overwrite else "xb", above or [self._to.parent], self._calls)


class _Synced(io.BufferedWriter):
    """The open file; `close` returns when it and its name are on the disk."""

    def __init__(self, path: Path, mode: str, folders: list[Path], calls: FileCalls) -> None:
        super().__init__(io.FileIO(str(path), mode), 1 << 20)
        self._folders = folders
        self._calls = calls

    def close(self) -> None:
        """Raises OSError when the disk refuses."""
        if self.closed:
            return
        try:
            self.flush()
            self._calls.fsync(self.fileno())
        finally:
            super().close()
        for folder in self._folders:
            sync_path(folder, self._calls)
