"""Where the ledger of a staging folder is; for loaders, and for supervisors that take over a slot. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

from ..conf.segment_format import LEDGER_AT, LEDGER_DIR, LEDGER_ID, LEDGER_STATE


def known_ledger(staging: Path) -> Path | None:
    """The folder of the ledger with which `staging` was loaded, its own or another folder's; None before the first batch.

    By the name that was given, as a link may lead elsewhere later. Two names may be one folder's: compare resolved ones.
    """
    own = staging.absolute() / LEDGER_DIR
    if is_begun(own):
        return own
    try:
        return Path((staging / LEDGER_AT).read_bytes().decode().rstrip("\n"))
    except FileNotFoundError:
        return None


def is_begun(ledger: Path) -> bool:
    """Whether the folder is a ledger. One that a LEDGER_AT names has its id before that; where it has none, it is not this
    folder: a mount point whose disk is not mounted is an empty folder too."""
    return (ledger / LEDGER_ID).exists() or (ledger / LEDGER_STATE).exists()
