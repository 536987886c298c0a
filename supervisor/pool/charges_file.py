"""The charges on disk, and the cells that a dead run left: what a container that was killed as a whole must not forget.

The file is replaced at every change, before the message runs again. A cell that is found set at a start belongs to a worker
that died with its supervisor: its record is charged with one death (blame.py, End.RUN), once, because the cell is cleared
when that is written; the records of a batch are suspected, and run alone. Nobody is charged where the run had begun to stop:
then it was killed because its grace period was over, however innocent the long message in hand.
"""

from __future__ import annotations

import os
from pathlib import Path

import structlog

from ...remoting.errors import ProtocolError
from ...workers.cells import CELLS_FILE, CellFile
from ..core.blame import Death, End, Verdict
from ..core.charges import Charges
from .post_mortem import in_hand_of

CHARGES_FILE = "deaths.json"
SUSPECTS_MAX = 1024
"""Records of one batch call, as in `consumer.consume_message_batch_max_size`."""

log = structlog.get_logger("rocketcrew.supervisor")


def read_charges(folder: Path, charges: Charges) -> None:
    """Add what the slot `folder` knows; a file that cannot be read is left out with a log line: counts begin anew."""
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
    beside = path.with_suffix(".new")
    try:
        if not charges.empty:
            beside.write_text(charges.to_json())
            os.rename(beside, path)
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
        found = [slot for slot in range(cells.slots) if _charge(cells, slot, charges)]
        if found:
            write_charges(folder, charges)
        for slot in found:
            cells.clear(slot)
        cells.stopping = False
        return len(found)
    finally:
        cells.close()


def _charge(cells: CellFile, slot: int, charges: Charges) -> bool:
    cell, mq = cells.read(slot), cells.queue(slot)
    in_hand = in_hand_of(cell)
    if cell is None or in_hand is None:
        return False
    if mq is None:
        return True
    verdict = Death(End.TOLD if cells.stopping else End.RUN, in_hand).verdict
    if verdict is Verdict.NOBODY:
        why = "all its calls waited" if in_hand.waiting else "killed while it stopped: nobody is charged"
        log.warning("left_in_hand", topic=mq.topic, broker=mq.broker_name, queue_id=mq.queue_id,
                    offset=None if in_hand.waiting else cell.offset, pid=cell.pid, why=why)  # fmt: skip
        return True
    if verdict is Verdict.CHARGED:
        facts = {"end": End.RUN.value, "cause": "unknown", "pid": str(cell.pid)}
        if cell.rss_peak_bytes:
            facts["rss_peak_bytes"] = str(cell.rss_peak_bytes)
        charge = charges.charge(mq, cell.offset, in_hand.mark, facts)
        log.warning("left_in_hand", topic=mq.topic, broker=mq.broker_name, queue_id=mq.queue_id, offset=cell.offset,
                    pid=cell.pid, deaths=charge.deaths)  # fmt: skip
        return True
    for offset in range(cell.offset, min(cell.last, cell.offset + SUSPECTS_MAX) + 1):
        charges.suspect(mq, offset)
    log.warning("left_in_hand", topic=mq.topic, broker=mq.broker_name, queue_id=mq.queue_id, offset=cell.offset,
                pid=cell.pid, records=cell.records)  # fmt: skip
    return True
