"""Iceberg by Spark, on the pyspark that Iceberg is built for: another one than this environment's, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from needs import need
from spark_for_iceberg import iceberg_jars, older_pyspark

RUN_MAX_S = 10_000
OURS = ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT")
"""What tests/system/ports.py looks at: with all ports to choose from, one of a server that another worker of this run has
stopped for a while would be among them."""


@pytest.mark.timeout(RUN_MAX_S)
def test_iceberg_by_spark(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    need("the pyspark that Iceberg is built for", older_pyspark)
    need("Iceberg's jar for Spark", iceberg_jars)
    messages = request.config.getoption("--fault-messages")
    full = [f"--fault-messages={messages}"] if messages else []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'base'}", *full]
    # Of a run with -n only what says which ports are ours.
    env = {name: value for name, value in os.environ.items() if name in OURS or not name.startswith("PYTEST_")}
    stories = Path(__file__).with_name("iceberg_by_spark.py")
    ran = subprocess.run(
        [*command, str(stories)], env={**env, "PYTHONPATH": str(older_pyspark())},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=RUN_MAX_S,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-20_000:]
    assert " passed" in ran.stdout
