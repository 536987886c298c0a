"""Data folders that are not served, and why: what only some genuine brokers write, a store that is being converted, and one
of a broker with another name.

Nothing here changes a folder.
"""

from __future__ import annotations

from pathlib import Path

from ..remoting.errors import UsageError
from .syncing import PREVIOUS
from .topic_table import MAKER_TABLE, TOPICS_TABLE, maker_in, makers_in

FOREIGN = {
    "consumequeue_r": "consume queues in RocksDB (storeType = defaultRocksDB)",
    "batchconsumequeue": "batch consume queues",
    "compaction/compactionLog": "compacted topics",  # the folder itself is made by each clean stop of 5.x
    "compaction/compactionCq": "compacted topics",
    "config/tieredStoreMetadata.json": "tiered storage",
}
"""What only some genuine brokers write, and this one does not read."""


def refuse_foreign(folder: Path) -> None:
    """Raise UsageError when the data folder is of a kind that cannot be served whole. Changes nothing."""
    for name, what in FOREIGN.items():
        place = folder / name
        if place.is_file() or (place.is_dir() and any(place.iterdir())):
            raise UsageError(
                f"broker data folder {folder} has {what} ({name}), which this broker does not read: "
                "serve it with a genuine broker, or use another folder"
            )
    # 5.5 always makes `rocksdbstore`, for its indexes; messages, queues and tables are not in it unless it was told so.
    for current in [path for part in ("config", "consumequeue") for path in sorted((folder / part).rglob("CURRENT"))]:
        if any(current.parent.glob("MANIFEST-*")):
            raise UsageError(
                f"broker data folder {folder} has a RocksDB database ({current.parent.relative_to(folder)}), which this "
                "broker does not read: serve it with a genuine broker, or use another folder"
            )
    for group in sorted((folder / "commitlog").glob("*.dledger")) + sorted(folder.glob("dledger-*")):
        raise UsageError(
            f"broker data folder {folder} is of a DLedger group ({group.name}), which this broker does not read"
        )


def refuse_other_name(folder: Path, name: str) -> None:
    """Raise UsageError when a broker of another name made the data folder, or none whose name may be this one. The maker is
    certain once the folder was served here; topics are a hint for a genuine broker's. Changes nothing."""
    made_by, certain = _makers(folder)
    if not made_by or name in made_by:
        return
    whose, meant = f"the broker {made_by[0]}", made_by[0]
    if not certain or len(made_by) > 1:
        whose, meant = f"another broker, by its topics one of {', '.join(made_by)}", "NAME"
    raise UsageError(
        f"broker data folder {folder} is of {whose}, and this one is {name}: members and tables know queues by their broker's"
        f" name, and would take these for others. Give the folder's name (--set broker.name={meant}, in Python"
        f' settings={{"broker.name": "{meant}"}}), or use another folder'
    )


def _makers(folder: Path) -> tuple[list[str], bool]:
    """See `makers_in`."""
    if maker := maker_in(_bytes_of(folder / MAKER_TABLE)):
        return [maker], True
    tables = folder / TOPICS_TABLE, folder / (TOPICS_TABLE + PREVIOUS)
    found = [makers_in(_bytes_of(table)) for table in tables]
    return next((makers for makers in found if makers[0]), (list[str](), False))


def _bytes_of(file: Path) -> bytes:
    """Empty for one that is not there, or cannot be read: a start says that where it matters."""
    try:
        return file.read_bytes()
    except OSError:
        return b""


CONVERTING, CONVERTED = ".converting", "converted"
"""What `broker convert` puts after the folder's name for the store that it makes, and a file in that one: it is whole."""


def refuse_half_converted(folder: Path) -> None:
    """Raise UsageError where a kill left no store, but a converted one that has not its name yet. Changes nothing."""
    fresh = Path(f"{folder.absolute()}{CONVERTING}")
    if not (folder / "commitlog").exists() and (fresh / CONVERTED).exists():
        raise UsageError(
            f"broker data folder {folder} is being converted: its messages are in {fresh}. If no `rocketcrew broker convert` "
            "runs, one was cut short: run it again"
        )


__all__ = ["CONVERTED", "CONVERTING", "refuse_foreign", "refuse_half_converted", "refuse_other_name"]
