"""What is said of a torn checkpoint of a Delta log: it is moved away only where the log can be read without it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rocketcrew.spark.delta_log import LOG_DIR
from rocketcrew.spark.targets.delta_disk import explain_torn_log

WHOLE, TORN = True, False


@pytest.mark.parametrize(
    ("checkpoints", "entries", "moved"),
    [
        pytest.param({"20": TORN}, range(22), ["20"], id="every entry is there"),
        pytest.param({"10": WHOLE, "20": TORN}, range(11, 22), ["20"], id="every entry after a whole one"),
        pytest.param({"10": WHOLE, "20": TORN}, range(20, 22), [], id="entries after the whole one are gone"),
        pytest.param({"10": WHOLE, "20": TORN}, [*range(11, 15), *range(16, 22)], [], id="one entry is gone"),
        pytest.param({"20": TORN}, range(1, 22), [], id="the first entry is gone"),
        pytest.param({"10": TORN, "20": TORN}, range(11, 22), [], id="both are torn"),
        pytest.param({"10": TORN, "20": TORN}, range(22), ["10", "20"], id="both are torn and every entry is there"),
        pytest.param({"20.1.2": WHOLE, "20.2.2": TORN}, range(20, 22), [], id="one part is torn"),
        pytest.param({"20.1.2": WHOLE, "20.2.2": TORN}, range(22), ["20.2.2"], id="one part, every entry"),
        pytest.param(
            {"10.1.2": WHOLE, "10.2.2": WHOLE, "20.1.2": TORN, "20.2.2": TORN},
            range(11, 22),
            ["20.1.2", "20.2.2"],
            id="after one whole in parts",
        ),
        pytest.param({"10.2.2": WHOLE, "20": TORN}, range(11, 22), [], id="after one that lacks a part"),
        pytest.param({"20": WHOLE}, range(20, 22), [], id="nothing is torn"),
    ],
)
def test_a_checkpoint_is_moved_away_only_where_the_log_can_be_read_without_it(
    tmp_path: Path, checkpoints: dict[str, bool], entries: Iterable[int], moved: list[str]
) -> None:
    log = tmp_path / LOG_DIR
    log.mkdir()

    def path(name: str) -> Path:
        version, *parts = map(int, name.split("."))
        return log / ".".join([f"{version:020d}", "checkpoint", *(f"{part:010d}" for part in parts), "parquet"])

    for name, whole in checkpoints.items():
        pq.write_table(pa.table({"a": [1]}), path(name))  # pyright: ignore[reportUnknownMemberType]
        if not whole:
            path(name).write_bytes(bytes(path(name).stat().st_size))
    for version in entries:
        (log / f"{version:020d}.json").write_text('{"commitInfo":{}}\n')
    (log / "_last_checkpoint").write_text('{"version":20,"size":1}')
    found = re.search(r"move (.+) to another place", explain_torn_log(tmp_path))
    expected = [*map(path, moved), log / "_last_checkpoint"] if moved else []
    assert (found[1].split(" and ") if found else []) == list(map(str, expected))
