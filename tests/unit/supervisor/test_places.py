"""The lines of workers against a plain list of them, after every move."""

from __future__ import annotations

import random

import pytest

from rocketcrew.supervisor.core.places import Places

WORKERS = "abcdefg"


@pytest.mark.parametrize("seed", range(20))
def test_every_answer_is_that_of_a_look_at_all(seed: int) -> None:
    chance, places = random.Random(seed), Places[str]()
    loads: dict[str, tuple[int, int]] = {}
    for _ in range(400):
        worker = chance.choice(WORKERS)
        if chance.random() < 0.1:
            loads.pop(worker, None)
            places.leave(worker)
        else:
            load, own = loads.get(worker, (0, 0))
            far, other = chance.random() < 0.2, chance.random() < 0.1
            load = chance.randrange(9) if far else max(0, load + chance.choice((-1, 1)))
            loads[worker] = load, chance.choice((0, 3)) if other else own
            places.put(worker, *loads[worker])
        window, but = chance.randrange(1, 9), chance.choice((None, *WORKERS))
        room = {name: load for name, (load, own) in loads.items() if name != but and load < (own or window)}
        least, most = places.least(window, but), places.most(window, but)
        assert (None if least is None else room[least]) == min(room.values(), default=None)
        assert (None if most is None else room[most]) == max(room.values(), default=None)
        assert places.free(window, but) == len(room)
        assert places.idle(but) == any(load == 0 for name, (load, _) in loads.items() if name != but)
