"""The whole batches of a segment file: what of it can be trusted after a kill, a loss of power or a failed sync."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pyarrow

from ..conf.segment_format import END_OF_STREAM, META_BATCH_OUTCOMES, read_batches
from .ranges import OffsetSets

pa: Any = pyarrow

# What a reader of a torn or foreign file may raise (OSError without a number, too); anything else is a bug and shows.
_TORN: Final = (pa.ArrowException, OSError, EOFError, ValueError)


class Prefix:
    """The readable part of a segment."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.rows = 0
        self.batches = 0
        self.finished = OffsetSets()


def complete_prefix(path: Path) -> Prefix:
    """The whole batches of a segment that may be torn at its end; changes nothing. Raises OSError for a file unread."""
    prefix = Prefix()
    with pa.OSFile(str(path), "rb") as file:
        try:
            reader = pa.ipc.open_stream(file)
            prefix.size_bytes = file.tell()
            for read in read_batches(file, reader):
                if not read.holds:
                    break
                prefix.finished.add_json(read.metadata.get(META_BATCH_OUTCOMES, b""), f"segment {path.name}")
                prefix.size_bytes = read.end
                prefix.rows += read.batch.num_rows
                prefix.batches += 1
            else:
                file.seek(prefix.size_bytes)
                if file.read(len(END_OF_STREAM)) == END_OF_STREAM:
                    prefix.size_bytes += len(END_OF_STREAM)
        except _TORN as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk refuses: what it does not give now must not be cut off
    return prefix
