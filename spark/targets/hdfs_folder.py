"""A Parquet table's folder on HDFS: each try writes to a folder of its own, and one rename that only one loader can have.

    TARGET/_tmp/<plan id>.<try>/    a batch being written, by Spark's executors

Nothing is locked: among loaders the rename decides, and nobody exchanges folders here, as `compact` does on a disk. After
its loader was killed a job may go on for a while, in executors: it writes to the folder of its own try, which nobody renames
any more. What such jobs leave is deleted with the next try of the plan, or by age.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import Final

from ..errors import LoaderError
from ..hdfs import HdfsPath
from ..object_store import Place
from ..plan import Plan

TMP_DIR: Final = "_tmp"
LEFT_S: Final = 86_400.0
"""Age at which what is being written is nobody's any more. Should somebody write to it still, its rename finds nothing."""


class HdfsFolder:
    """The folder `path` as a `TableFolder`."""

    def __init__(self, path: HdfsPath) -> None:
        self.path = path
        self._tmp = path / TMP_DIR

    def identity(self) -> object:
        """Always the same while there is a folder: none takes the place of another."""
        return True if self.path.exists() else None

    def prepare(self, plan: Plan) -> HdfsPath:
        """Delete what earlier tries left. That a folder can be made is known before a job begins."""
        self._delete_tries(plan)
        output = self._tmp / f"{plan.id}.{secrets.token_hex(4)}"
        output.make_folders()
        return output

    def writing(self, output: Place) -> contextlib.AbstractContextManager[None]:
        """Nothing to do meanwhile: HDFS syncs."""
        del output
        return contextlib.nullcontext()

    def rows(self, output: Place) -> int:
        """As `TableFolder`."""
        place = _hdfs(output)
        return sum(place.root.rows(file) for file in place.data_files())

    def make_durable(self, output: Place) -> None:
        """Nothing to do: HDFS syncs."""
        del output

    def publish(self, output: Place, batch: Place) -> None:
        """As `TableFolder`."""
        try:
            self.path.root.rename(_hdfs(output), _hdfs(batch), replacing=False)
        except FileNotFoundError:
            raise LoaderError(
                f"{output} is gone, so batch {batch} was not committed: who deletes in {self._tmp}? The segments stay"
            ) from None

    def sync(self) -> None:
        """Nothing to do: a rename is in the name node's log when it returns."""

    def release(self, plan: Plan) -> None:
        """As `discard`: after the commit nothing of the plan is there."""
        self.discard(plan)

    def discard(self, plan: Plan) -> None:
        """Delete the folders of all tries, and `_tmp` when nothing else is in it."""
        self._delete_tries(plan)
        self._tidy()

    def sweep(self) -> None:
        """Delete what nobody has touched for a day."""
        for left in self._tries():
            with contextlib.suppress(FileNotFoundError):
                if left.stat().st_mtime < time.time() - LEFT_S:
                    left.remove_tree()
        self._tidy()

    def close(self) -> None:
        """Nothing is locked."""

    def _tries(self) -> list[HdfsPath]:
        try:
            return list(self._tmp.iterdir())
        except FileNotFoundError:
            return []

    def _delete_tries(self, plan: Plan) -> None:
        for left in self._tries():
            if left.name.startswith(f"{plan.id}."):
                left.remove_tree()

    def _tidy(self) -> None:
        """The table then holds batches and nothing else. Who makes a folder in `_tmp` at this moment makes `_tmp` too."""
        if self._tmp.exists() and not self._tries():
            with contextlib.suppress(LoaderError):  # another loader has put something there
                self._tmp.unlink()


def _hdfs(place: Place) -> HdfsPath:
    assert isinstance(place, HdfsPath)
    return place
