"""A handler changes its worker's current folder, and the data folder was given by a relative path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness import HANDLERS, Broker, Crew, send_numbers, wait_until

TOPIC = "elsewhere"
NUMBERS = range(20)


def test_rows_are_where_they_were_to_be(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("ELSEWHERE", str(elsewhere))
    data_dir = os.path.relpath(tmp_path / "state", HANDLERS)
    crew = Crew(
        tmp_path, broker, "numbers_handler:number_from_elsewhere", TOPIC, load=False,
        **{"supervisor.data_dir": data_dir, "results.seal_idle_ms": 200},
    )  # fmt: skip
    send_numbers(broker, TOPIC, NUMBERS)
    crew.start()
    wait_until(lambda: crew.staged_rows().num_rows == len(NUMBERS), what="all rows to be sealed")
    wait_until(lambda: crew.lag() == 0, what="the end")
    assert crew.stop() == 0
    assert sorted(crew.staged_rows()["number"].to_pylist()) == [*NUMBERS]
    assert not list(elsewhere.iterdir())
