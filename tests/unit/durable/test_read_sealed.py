"""Sealed files are read until the same ones are there as before: what replaces one of them is not missed."""

from __future__ import annotations

from pathlib import Path

from rocketcrew.durable.files import LOOKS_MAX, read_sealed


def as_number(path: Path) -> int:
    return int(path.read_text())


def test_drafts_other_files_damaged_ones_and_links_that_lead_nowhere_are_passed_over(tmp_path: Path) -> None:
    for name, text in (("b.facts", "2"), ("a.left", "1"), (".c.facts", "3"), ("d.json", "4"), ("e.facts", "no number")):
        (tmp_path / name).write_text(text)
    (tmp_path / "f.facts").symlink_to(tmp_path / "nowhere")
    found = read_sealed(tmp_path, ".facts", ".left", read=as_number)
    assert found == {tmp_path / "a.left": 1, tmp_path / "b.facts": 2}


def test_a_file_that_another_one_replaces_meanwhile_is_found_in_that(tmp_path: Path) -> None:
    old, new = tmp_path / "1.facts", tmp_path / "0.facts"
    old.write_text("1")

    def replaced(path: Path) -> int:
        if path == old:
            old.replace(new)
        return as_number(path)

    assert read_sealed(tmp_path, ".facts", read=replaced) == {new: 1}


def test_files_that_are_replaced_all_the_time_are_read_a_bounded_number_of_times(tmp_path: Path) -> None:
    (tmp_path / "0.facts").write_text("1")
    reads: list[Path] = []

    def replaced(path: Path) -> int:
        reads.append(path)
        path.replace(tmp_path / f"{len(reads)}.facts")
        return as_number(path)

    assert read_sealed(tmp_path, ".facts", read=replaced) == {}
    assert len(reads) == LOOKS_MAX
