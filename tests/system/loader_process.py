"""A loader process for tests: its arguments are one JSON object, LoaderConfig's fields and `writer`.

`writer` is "spark", "arrow" (no JVM), or "naive": a table that is appended to and remembers nothing, as the control.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "spark"))

from naive_target import NaiveTarget
from segment_helpers import ArrowWriter

from rocketcrew.conf.logging import set_up
from rocketcrew.spark.config import LoaderConfig
from rocketcrew.spark.front import run_loader
from rocketcrew.spark.targets import make_target, spark_writer


def main() -> None:
    settings = json.loads(sys.argv[1])
    writer = settings.pop("writer")
    paths = {name: Path(settings.pop(name)) for name in ("staging", "target")}
    set_up("human", "info", sys.stderr, process="loader")
    config = LoaderConfig(**paths, **settings, env=dict(os.environ))
    sys.exit(
        run_loader(
            config,
            spark_writer if writer == "spark" else lambda _: ArrowWriter(),
            (lambda config, _writer, _threads: NaiveTarget(config.folder)) if writer == "naive" else make_target,
        )
    )


if __name__ == "__main__":
    main()
