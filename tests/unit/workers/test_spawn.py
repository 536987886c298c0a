"""What the forkserver imports."""

from __future__ import annotations

import json
import subprocess
import sys


def test_nothing_is_collected_while_the_forkserver_imports_what_workers_need() -> None:
    """But once afterwards, and once at the end, before what is left is kept from the collector."""
    look = (
        "import gc, json, os, sys, tempfile\n"
        "from rocketcrew.workers.preload import prepare_forkserver\n"
        "seen = []\n"
        "gc.callbacks.append(lambda phase, _: seen.append(phase))\n"
        "with tempfile.NamedTemporaryFile() as stacks:\n"
        "    setup = {'supervisor_pid': os.getppid(), 'sys_path': sys.path, 'modules': [], 'stacks': stacks.name}\n"
        "    prepare_forkserver(setup)\n"
        "print(json.dumps([seen.count('start'), gc.isenabled(), 'pyarrow' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-Ic", look], capture_output=True, text=True, timeout=240, check=True)
    collections, enabled, imported = json.loads(done.stdout)
    assert enabled
    assert imported
    assert collections <= 2
