"""The process around the core, by the clock: signals that come twice, a loader that ends, topics that come late. Every seed
holds what it must, and each bug that was there is found again when it is planted."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random

import pytest

from rocketcrew.supervisor.core.pauses import (
    LOADER_PAUSE_MAX_S,
    LOOK_SOON_S,
    LOOK_SOON_TIMES,
    LoaderPauses,
    MissingTopics,
    StopSignals,
    StopWish,
)

from .world import Violation

SEEDS = 100
PLANTED_SEEDS = 20
ROUTES_S = 30.0
COPIES_WITHIN_S = 0.2
TEN_S, STARTS_MAX = 10.0, 6
"""More starts than so many in so long are a loop."""


def wishes(seed: int, signals: StopSignals) -> None:
    """An operator wishes once or more; each wish comes as one signal or several. The first drains, each later one forces."""
    random, now, heard = Random(seed), 0.0, list[StopWish]()
    meant = random.choice([1, 1, 2, 3])
    for _ in range(meant):
        now += 1.0 + random.expovariate(0.2)
        copies = sorted(random.random() * COPIES_WITHIN_S for _ in range(random.choice([1, 2, 2, 4])))
        heard += [signals.heard(now + after) for after in copies]
    if [wish for wish in heard if wish is not StopWish.SAME] != [StopWish.STOP, *[StopWish.FORCE] * (meant - 1)]:
        raise Violation(f"{meant} wishes were understood as {heard}")


def lives(seed: int, pauses: LoaderPauses) -> None:
    """A loader ends, or cannot be started, until some moment; then the next start is good. It comes soon, and not at once for
    ever."""
    random, now, starts = Random(seed), 0.0, list[float]()
    until = random.choice([10.0, 300.0, 3_000.0])
    while now <= until:
        starts = [at for at in starts if now - at < TEN_S] + [now]
        lived_s = random.choice([0.0, 0.0, 1.0, 100.0])
        pause_s = pauses.after(lived_s)
        if pause_s > LOADER_PAUSE_MAX_S or len(starts) > STARTS_MAX:
            raise Violation(f"{len(starts)} starts in {TEN_S} s, the next one in {pause_s} s")
        now += lived_s + pause_s


def late_topic(seed: int, looks: MissingTopics) -> None:
    """A topic that is missing at the start is made at some moment: found within a second in the first minute, else with the
    routes."""
    random, now = Random(seed), 0.0
    made = random.choice([0.5, 20.0, 90.0, 1_000.0]) * random.random()
    while now < made:
        due_s = looks.next_s(missing=True)
        now += due_s if due_s is not None else ROUTES_S - now % ROUTES_S
    late_s = LOOK_SOON_S if made <= LOOK_SOON_S * (LOOK_SOON_TIMES - 1) else ROUTES_S
    if now - made > late_s:
        raise Violation(f"a topic that was made after {made:.1f} s is found {now - made:.1f} s later")
    if looks.next_s(missing=False) is not None:
        raise Violation("what is found is looked for")


class CountsEach(StopSignals):
    """Each signal counts."""

    def heard(self, now: float) -> StopWish:
        before, self._counted_at = self._counted_at, now
        return StopWish.STOP if before is None else StopWish.FORCE


class GivesUp(LoaderPauses):
    """A loader that could not be started is never started again."""

    def after(self, lived_s: float) -> float:
        return super().after(lived_s) if lived_s else inf


class AtOnce(LoaderPauses):
    """Without a pause."""

    def after(self, lived_s: float) -> float:
        super().after(lived_s)
        return 0.0


class WithTheRoutes(MissingTopics):
    """A topic that does not exist is looked up when the routes are."""

    def next_s(self, *, missing: bool) -> float | None:
        del missing
        return None


def plays(
    signals: Callable[[], StopSignals] = StopSignals, pauses: Callable[[], LoaderPauses] = LoaderPauses,
    looks: Callable[[float], MissingTopics] = MissingTopics,
) -> Callable[[int], None]:  # fmt: skip
    def play(seed: int) -> None:
        wishes(seed, signals())
        lives(seed, pauses())
        late_topic(seed, looks(ROUTES_S))

    return play


def test_all_that_must_hold_holds() -> None:
    for seed in range(SEEDS):
        plays()(seed)


@pytest.mark.parametrize(
    "play",
    [plays(signals=CountsEach), plays(pauses=GivesUp), plays(pauses=AtOnce), plays(looks=WithTheRoutes)],
    ids=["each signal counts", "a loader is given up", "a loader is started at once", "looked up with the routes"],
)
def test_a_planted_bug_is_found(play: Callable[[int], None]) -> None:
    for seed in range(PLANTED_SEEDS):
        try:
            play(seed)
        except Violation:
            return
    pytest.fail(f"it went through {PLANTED_SEEDS} seeds and was not found")
