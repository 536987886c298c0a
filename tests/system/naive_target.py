"""What loading is without a loaded set: append the rows, then mark the plan as done. The control of the kill tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from rocketcrew.durable.intervals import OffsetSet
from rocketcrew.durable.outcomes import BatchOutcomes
from rocketcrew.spark.accounts import Accounts
from rocketcrew.spark.convert import Staged
from rocketcrew.spark.plan import Plan
from rocketcrew.spark.targets.target import TableState


class NaiveTarget:
    """Files in one folder. It knows how many batches there are, and nothing of what is in them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._staged: Staged | None = None

    def state(self) -> TableState:
        return TableState(
            len({path.name.partition("-")[0] for path in self._path.glob("*.parquet")}), "", OffsetSet(), ()
        )

    def has(self, plan: Plan) -> bool:
        """It cannot know."""
        return False

    def start(self) -> None:
        self._path.mkdir(exist_ok=True)

    def write(self, plan: Plan, staged: Staged) -> None:
        self._staged = staged

    def commit(self, plan: Plan, accounts: Accounts, told: BatchOutcomes) -> None:
        assert self._staged is not None
        for at, file in enumerate(self._staged.files):
            shutil.copy(file, self._path / f"{plan.batch}-{at}.parquet")

    def outcomes(self, above: int = 0) -> Iterator[BatchOutcomes]:
        del above
        return iter(())

    def discard(self, plan: Plan) -> None:
        pass

    def sweep(self) -> None:
        pass

    def close(self) -> None:
        pass
