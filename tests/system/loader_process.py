"""A loader process for tests: its arguments are one JSON object, LoaderConfig's fields and `writer`.

`writer` is "spark", "arrow" (no JVM), or "naive": a table that is appended to and remembers nothing, as the control.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from naive_target import NaiveTarget

from rocketcrew.conf.logging import set_up
from rocketcrew.spark.arrow_writer import ArrowWriter
from rocketcrew.spark.config import LoaderConfig
from rocketcrew.spark.front import run_loader
from rocketcrew.spark.targets.making import make_target, make_writer


def main() -> None:
    settings = json.loads(sys.argv[1])
    writer = settings.pop("writer")
    staging = Path(settings.pop("staging"))
    set_up("human", "info", sys.stderr, process="loader")
    config = LoaderConfig(staging, **settings, env=dict(os.environ))
    sys.exit(
        run_loader(
            config,
            make_writer if writer == "spark" else lambda _: ArrowWriter(),
            (lambda config, _writer, _threads: NaiveTarget(config.folder)) if writer == "naive" else make_target,
        )
    )


if __name__ == "__main__":
    main()
