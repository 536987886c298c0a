"""What the page on sending shows works as written, but for the address and what is the reader's own."""

from __future__ import annotations

import re
from pathlib import Path

from rocketcrew import LocalTransactionState
from rocketcrew.client.admin import Admin
from rocketcrew.client.sync import run_with_cluster

PAGE = Path(__file__).parents[3] / "docs/how-to/send.md"


def test_each_block_runs_and_its_messages_arrive(served):
    name_server = served.broker.name_server
    known = {"is_paid": lambda _: True, "pay": lambda _: LocalTransactionState.COMMIT_MESSAGE}
    found = [
        block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "secret" not in block
    ]
    assert len(found) >= 2
    for block in found:
        assert "10.0.0.5:9876" in block
        exec(block.replace("10.0.0.5:9876", name_server), dict(known))
    stats = run_with_cluster(name_server, lambda cluster: Admin(cluster).topic_stats("orders"))
    assert sum(one.max_offset for one in stats.offset_table.values()) == 2 + 1 + 1 + 1000 + 1
