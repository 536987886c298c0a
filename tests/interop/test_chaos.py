"""`rocketcrew chaos` on genuine servers: a good verdict, and topic and group are gone afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from servers import VERSIONS, Servers

ON_ALL = pytest.mark.parametrize("servers", VERSIONS, ids=str, indirect=True, scope="session")
TIMEOUT_S = 300


@ON_ALL
def test_chaos_on_a_configured_cluster(servers: Servers, tmp_path: Path) -> None:
    words = ["--fault", "kill-worker", "--fault", "term", "--seconds", "1", "--messages", "200", "--json"]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("ROCKETCREW_", "NAMESRV_"))
    }
    done = subprocess.run(
        [sys.executable, "-Im", "rocketcrew", "chaos", "-n", servers.name_server, *words],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"] == "good"
    assert "not removed" not in done.stderr
    topics = "\n".join(servers.admin("topicList"))
    assert found["topic"] not in topics
