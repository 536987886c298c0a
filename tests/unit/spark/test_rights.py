"""Who reads the model reads what is made alike, and nobody else but its maker: looked at as other users, by root."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Generator
from pathlib import Path

import pytest

from rocketcrew.spark.rights import make_alike, rights_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes others")
LOADER, OTHER, THIRD, STRANGER = 5001, 5002, 5003, 5004
GROUP = 6001
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"


@contextlib.contextmanager
def acting_as(user: int, *groups: int) -> Generator[None]:
    """The last group is the main one."""
    before = os.getgroups()
    os.setgroups(groups)
    os.setegid(groups[-1] if groups else user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)


@pytest.fixture
def folder(tmp_path: Path) -> Generator[Path]:
    """The folder that we are in, as others have no way to it."""
    tmp_path.chmod(0o777)
    with contextlib.chdir(tmp_path):
        yield Path()


def set_acl(path: Path, name: str, *entries: tuple[int, int, int]) -> None:
    data = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, name, data)
    except OSError:
        pytest.skip("a file system without ACLs")


def shared_with(user: int, mask: int = 6) -> tuple[tuple[int, int, int], ...]:
    none = 2**32 - 1
    return ((1, 6, none), (2, 6, user), (4, 4, none), (16, mask, none), (32, 0, none))


def model_of(folder: Path, user: int, group: int, mode: int) -> Path:
    model = folder / "model"
    model.touch()
    os.chown(model, user, group)
    model.chmod(mode)
    return model


def made_by(user: int, model: Path, *groups: int) -> Path:
    made = model.with_name("made")
    with acting_as(user, *groups), made.open("xb") as file:
        make_alike(file.fileno(), model)
    return made


def reads(path: Path, user: int, *groups: int) -> bool:
    with acting_as(user, *groups), contextlib.suppress(PermissionError):
        path.read_bytes()
        return True
    return False


def test_where_an_acl_shares_a_folder_the_other_s_file_is_its_owner_s_to_read(folder: Path) -> None:
    set_acl(folder, DEFAULT, *shared_with(OTHER))
    made = made_by(OTHER, model_of(folder, LOADER, LOADER, 0o660))
    assert reads(made, LOADER)
    assert reads(made, OTHER)
    assert reads(made, THIRD, LOADER), "of the group of the model"
    assert not reads(made, THIRD, OTHER), "of the maker's group, who could not read the model"
    assert not reads(made, STRANGER)


def test_the_mask_of_an_acl_lets_in_nobody_else(folder: Path) -> None:
    model = model_of(folder, LOADER, GROUP, 0o604)
    set_acl(model, ACCESS, *shared_with(THIRD, mask=2)[:-1], (32, 4, 2**32 - 1))  # none reads but others
    made = made_by(OTHER, model)
    assert reads(made, LOADER)
    assert (reads(model, THIRD), reads(made, THIRD)) == (False, False)
    assert (reads(model, THIRD, GROUP), reads(made, THIRD, GROUP)) == (False, False)


def test_a_group_that_the_maker_has_left_goes_on_to_read(folder: Path) -> None:
    set_acl(folder, ACCESS, (1, 7, 2**32 - 1), (4, 7, 2**32 - 1), (32, 7, 2**32 - 1))  # it knows ACLs
    made = made_by(LOADER, model_of(folder, LOADER, GROUP, 0o640))
    assert reads(made, THIRD, GROUP)
    assert not reads(made, THIRD, LOADER)
    assert not reads(made, STRANGER)


def test_the_model_s_owner_reads_what_a_member_of_its_group_makes(folder: Path) -> None:
    """In a set-group-ID folder of a group that he is not of."""
    set_acl(folder, ACCESS, (1, 7, 2**32 - 1), (4, 7, 2**32 - 1), (32, 7, 2**32 - 1))  # it knows ACLs
    os.chown(folder, LOADER, GROUP)
    folder.chmod(0o2777)
    made = made_by(OTHER, model_of(folder, LOADER, GROUP, 0o660), GROUP)
    assert (made.stat().st_uid, made.stat().st_gid) == (OTHER, GROUP)
    assert reads(made, LOADER)
    assert reads(made, THIRD, GROUP)
    assert not reads(made, STRANGER)


@pytest.mark.parametrize("refused", [GROUP + 1, GROUP])
def test_who_is_in_a_group_that_may_not_read_gets_nothing_by_the_maker_s_group(folder: Path, refused: int) -> None:
    model = model_of(folder, LOADER, GROUP, 0o644)
    none, own = 2**32 - 1, 0 if refused == GROUP else 4
    set_acl(model, ACCESS, (1, 6, none), (4, own, none), (8, 0, GROUP + 1), (16, 4, none), (32, 4, none))
    made = made_by(OTHER, model)
    for groups in ((refused,), (refused, OTHER), (OTHER, refused)):
        assert (reads(model, THIRD, *groups), reads(made, THIRD, *groups)) == (False, False)
    assert reads(made, STRANGER)


def test_what_root_makes_is_the_same_whatever_its_folder_hands_down(folder: Path) -> None:
    set_acl(folder, DEFAULT, *shared_with(OTHER))
    model = model_of(folder, LOADER, GROUP, 0o640)
    for acl in (None, shared_with(THIRD)):
        os.removexattr(model, ACCESS) if acl is None else set_acl(model, ACCESS, *acl)
        made = made_by(0, model)
        assert rights_of(made).mode == rights_of(model).mode
        assert (rights_of(made).user, rights_of(made).group) == (LOADER, GROUP)
        assert (rights_of(made).acls == rights_of(model).acls, reads(made, OTHER)) == (True, False)
        made.unlink()


def test_without_acls_our_group_has_the_rights_of_others(folder: Path) -> None:
    """A pipe has an owner and a mode, and no ACL."""
    model = model_of(folder, LOADER, GROUP, 0o664)
    for mode, made in ((0o664, 0o644), (0o640, 0o600), (0o604, 0o644)):
        model.chmod(mode)
        with acting_as(LOADER):
            ends = os.pipe()
            make_alike(ends[0], model)
        assert os.fstat(ends[0]).st_mode & 0o777 == made
        for end in ends:
            os.close(end)
