"""`results.schema = "infer"`: workers that find out the columns together, and a later start that keeps to them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from harness import WAIT_S, Broker, Crew, send_numbers, wait_until


def test_columns_are_those_of_the_first_rows(tmp_path: Path, broker: Broker) -> None:
    settings = {"results.schema": "infer", "workers.count": 2}
    crew = Crew(tmp_path, broker, "numbers_handler:undeclared", "undeclared", load=False, **settings)
    file = tmp_path / "state" / crew.group / "columns.ddl"
    for first in (0, 200):
        send_numbers(broker, "undeclared", range(first, first + 200))
        crew.start()
        wait_until(lambda: crew.lag() == 0, WAIT_S, "all offsets committed")
        assert crew.stop() == 0
        assert file.read_text() == "number bigint, text string\n"
    rows = crew.staged_rows()
    assert sorted(rows.column("number").to_pylist()) == list(range(400))
    assert set(rows.column("text").to_pylist()) == {"7", "other"}
