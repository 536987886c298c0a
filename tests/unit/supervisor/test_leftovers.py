"""What a killed supervisor left is removed by the next owner of its slot, and nothing outside of it is."""

from __future__ import annotations

from pathlib import Path

from rocketcrew.supervisor.slot import forget_socket


def test_the_socket_of_the_dead_is_removed_and_nothing_that_the_slot_only_names(tmp_path: Path) -> None:
    """A copied slot may name what is of the original, which may run."""
    slot, temp = tmp_path / "slot", tmp_path / "pymp-named"
    slot.mkdir()
    temp.mkdir()
    (slot / "temp_dir").write_text(str(temp))
    (slot / "control.sock").touch()
    forget_socket(slot)
    forget_socket(slot)
    assert temp.exists()
    assert [path.name for path in slot.iterdir()] == ["temp_dir"]
