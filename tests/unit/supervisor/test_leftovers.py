"""What a killed supervisor left is swept by the next owner of its slot, and nothing else is."""

from __future__ import annotations

from pathlib import Path

from rocketcrew.supervisor.slot import TEMP_NOTE, note_sockets, sweep_sockets, temp_dir


def test_sockets_of_the_dead_are_swept(tmp_path: Path) -> None:
    slot, temp = tmp_path / "slot", tmp_path / "pymp-dead"
    slot.mkdir()
    temp.mkdir()
    (temp / "listener-1").touch()
    (slot / "control.sock").touch()
    (slot / TEMP_NOTE).write_text(str(temp))
    sweep_sockets(slot)
    assert not temp.exists()
    assert list(slot.iterdir()) == []
    sweep_sockets(slot)


def test_what_is_not_ours_or_lives_is_left(tmp_path: Path) -> None:
    other = tmp_path / "precious"
    other.mkdir()
    (tmp_path / TEMP_NOTE).write_text(str(other))
    sweep_sockets(tmp_path)
    assert other.exists()
    note_sockets(tmp_path)
    sweep_sockets(tmp_path)
    assert Path(temp_dir()).exists()
