"""The charges on disk, and the cells that a dead run left: what a container that was killed as a whole must not forget.

The file is replaced when a count has grown, before the message runs again, and within a second when something is over. A cell
that is found set at a start belongs to a worker that died with its supervisor: a record that was alone in hand in the whole
member is charged with one death, once, because the cell is cleared when that is written; the records of a batch are
suspected, and run alone. Where several workers had something in hand, that is noted and nobody is charged (core/charges.py).
Nobody is charged either where the member was already stopping: it was killed because its grace period was over, however
innocent the long message in hand.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from ...durable.files import write_atomically
from ...remoting.errors import ProtocolError
from ...remoting.log_keys import queue_keys
from ...workers.cells import CELLS_FILE, CellFile
from ..core.blame import Verdict
from ..core.charges import Charges, Left
from .post_mortem import in_hand_of

CHARGES_FILE = "deaths.json"

log = structlog.get_logger("rocketcrew.supervisor")


def read_charges(folder: Path, charges: Charges) -> None:
    """Add what the slot `folder` knows; a file that cannot be read is left out with a log line: counts start again at 0."""
    path = folder / CHARGES_FILE
    try:
        charges.add_json(path.read_bytes(), str(path))
    except FileNotFoundError:
        pass
    except (OSError, ProtocolError) as error:
        log.warning("charges_not_read", path=str(path), error=str(error))


def write_charges(folder: Path, charges: Charges) -> bool:
    """Replace the file. A disk that refuses costs no more than the count; False then."""
    path = folder / CHARGES_FILE
    try:
        if not charges.empty:
            write_atomically(path, charges.to_json(), durable=True)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        log.error("charges_not_written", path=str(path), error=str(error))
        return False
    return True


def take_over_charges(folder: Path, other: Path) -> None:
    """What the slot `other` of a dead run knows becomes ours; repeated after a kill it changes nothing."""
    if not (other / CHARGES_FILE).exists() and not (other / CELLS_FILE).exists():
        return
    charges = Charges()
    read_charges(other, charges)
    charge_left_cells(other, charges)
    read_charges(folder, charges)
    if write_charges(folder, charges):
        (other / CHARGES_FILE).unlink(missing_ok=True)


def charge_left_cells(folder: Path, charges: Charges) -> int:
    """Charge what the cells of a dead run name, unless it was about to stop, and clear them; how many there were. `charges`
    is written before."""
    path = folder / CELLS_FILE
    if not path.exists():
        return 0
    cells = CellFile(path, 1)
    try:
        found = {slot: left for slot in range(cells.slots) if (left := _left(cells, slot)) is not None}
        stopping = cells.stopping
        verdicts = charges.member_died(list(found.values()), stopping=stopping)
        if found:
            write_charges(folder, charges)
        for left, verdict in zip(found.values(), verdicts, strict=True):
            _log(left, verdict, charges, stopping=stopping)
        for slot in found:
            cells.clear(slot)
        cells.stopping = False
        return len(found)
    finally:
        cells.close()


def _left(cells: CellFile, slot: int) -> Left | None:
    """What the cell names; None when no call was under way."""
    cell = cells.read(slot)
    if cell is None:
        return None
    facts = {"pid": str(cell.pid)}
    if cell.rss_peak_bytes:
        facts["rss_peak_bytes"] = str(cell.rss_peak_bytes)
    return Left(cells.queue(slot), in_hand_of(cell), facts)


def _log(left: Left, verdict: Verdict, charges: Charges, *, stopping: bool) -> None:
    mq, in_hand, facts = left
    if mq is None or in_hand is None:
        return
    keys: dict[str, object] = {"offset": None if in_hand.waiting else in_hand.offset, "pid": int(facts["pid"])}
    if verdict is Verdict.NOBODY:
        keys["reason"] = "killed while it stopped: nobody is charged" if stopping else "all its calls waited"
    elif verdict is Verdict.NOTED:
        keys["reason"] = "other messages were in hand too: nobody is charged"
        noted = charges.noted.get((mq, in_hand.offset))  # more may have been in hand than is remembered
        keys |= {"runs": noted.runs} if noted is not None else {}
    elif (charge := charges.get(mq, in_hand.offset)) is not None:
        keys |= {"deaths": charge.deaths, "records": in_hand.records}
    log.warning("left_in_hand", **queue_keys(mq), **keys)
