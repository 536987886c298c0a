"""A handler's module may put what it likes into the standard library's modules: what is bound at our import stays."""

from __future__ import annotations

import subprocess
import sys

REPLACED = """
import json
from rocketcrew.workers import cells, context, packets, ranges
from rocketcrew.remoting.errors import ProtocolError
json.dumps, json.loads = lambda *_, **__: b"{}", lambda *_, **__: None
sets = ranges.OffsetSets()
sets.add(("orders", "broker-a", 3), 5, 9)
again = ranges.OffsetSets()
again.add_json(sets.to_json(), "here")
print(again.to_json().decode())
print(cells.queue_words("orders", "broker-a", 3)[1])
print(packets.decode_notice(packets.encode_notice("progress", done=1)))
"""


def test_json_of_the_user_s_making_is_his_alone() -> None:
    done = subprocess.run([sys.executable, "-c", REPLACED], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        '[["orders","broker-a",3,[[5,9]]]]', str(len('["orders","broker-a",3]')), "{'about': 'progress', 'done': 1}",
    ]  # fmt: skip
