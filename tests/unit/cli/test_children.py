"""Ports and logs for child processes."""

from __future__ import annotations

from pathlib import Path

from rocketcrew.cli.children import free_log, free_ports, listens


def test_free_ports_are_different_and_nobody_listens_there() -> None:
    ports = free_ports(200)
    assert len(set(ports)) == 200
    assert not listens(ports[0])


def test_a_log_has_one_writer_at_a_time(tmp_path: Path) -> None:
    with free_log(tmp_path / "broker.log") as first:
        first.write(b"first\n")
        first.flush()
        with free_log(tmp_path / "broker.log") as second, free_log(tmp_path / "broker.log") as third:
            assert [Path(each.name).name for each in (second, third)] == ["broker-2.log", "broker-3.log"]
    with free_log(tmp_path / "broker.log") as again:
        assert again.name == first.name
        assert again.tell() == 6  # what was there is kept
