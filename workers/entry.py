"""The function a worker process runs. It stands alone so that the supervisor can name it without importing pyarrow."""

from __future__ import annotations

import importlib
import sys

from .boot import WorkerBoot


def run_worker(boot: WorkerBoot) -> None:
    """Run one worker to its end; leaves by SystemExit with the worker's exit code."""
    main = importlib.import_module(".main", __package__)
    sys.exit(main.worker_main(boot))
