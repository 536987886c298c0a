"""The crews of a process that run beside each other, and one whose object is collected."""

from __future__ import annotations

import signal
import subprocess
import threading
import warnings
from collections.abc import Iterator

import pytest

from rocketcrew.crew.living import Place, end_with, has_ended, place_of, warn_of_others
from rocketcrew.remoting.errors import UsageError
from rocketcrew.supervisor.consume import settings_from

HELD_S = 60
PLACE = place_of(settings_from("Crew", {"group": "g", "name_servers": "h:1"}, {}, None), embedded=False)


class Owner:
    """What a crew's object is here."""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", str(HELD_S)]) as begun:
        yield begun
        has_ended(begun)
        begun.kill()


def warned(place: Place) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warn_of_others(place, stacklevel=1)
    return [str(one.message) for one in seen]


def test_a_second_of_the_group_is_told_of_the_first_while_that_runs(process: subprocess.Popen[bytes]) -> None:
    owner = Owner()
    assert not warned(PLACE)
    end_with(owner, PLACE, "shop:count", process, lambda: None)
    [said] = warned(PLACE)
    assert (
        f'of the group "g" that was started here before still runs, with the handler shop:count (process {process.pid})'
        in said
    )
    assert not warned(PLACE._replace(group="other"))
    assert not warned(PLACE._replace(cluster="h:2"))
    assert not warned(PLACE._replace(pid=1))
    process.kill()
    process.wait()
    assert not warned(PLACE)


def test_whose_object_is_collected_is_told_to_end(process: subprocess.Popen[bytes]) -> None:
    owner, ended = Owner(), threading.Event()

    def end() -> None:
        process.wait()
        ended.set()

    end_with(owner, PLACE, "shop:count", process, end)
    with pytest.warns(
        UserWarning, match=f"process {process.pid}.* ends, as nothing names it any more: keep what start"
    ):
        del owner
    assert ended.wait(HELD_S / 2)
    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize("closed", [True, False])
def test_one_that_was_closed_or_is_a_parents_is_let_be(process: subprocess.Popen[bytes], *, closed: bool) -> None:
    owner = Owner()
    asked: list[int] = []
    end_with(owner, PLACE if closed else PLACE._replace(pid=1), "h", process, lambda: asked.append(1))
    if closed:
        has_ended(process)
    del owner
    assert process.poll() is None
    assert not asked


def test_an_embedded_broker_is_known_by_its_folder() -> None:
    settings = settings_from("Crew", {"group": "g", "name_servers": None}, {"broker.dir": "/x/y/../z"}, None)
    assert place_of(settings, embedded=True)[1:] == ("/x/z", "g", True)


def test_a_second_with_the_same_embedded_broker_is_refused(process: subprocess.Popen[bytes]) -> None:
    owner = Owner()
    place = PLACE._replace(cluster="/x/z", embedded=True)
    end_with(owner, place, "shop:count", process, lambda: None)
    assert not warned(place._replace(cluster="/x/other"))
    for group in ("g", "other"):
        with pytest.raises(UsageError, match=r"broker has the folder /x/z: close\(\) it first"):
            warned(place._replace(group=group))
    has_ended(process)
