"""`python -m rocketcrew` and the console script: the front door is cli/."""

from __future__ import annotations

import os
import sys

from .conf.exit_codes import EXIT_USAGE
from .conf.hiding import hidden_module


def open_closed_streams() -> None:
    """Open /dev/null in place of each standard stream that was closed (`>&-`), for us and for processes that we start: the
    next file opened would get its number, and what is printed would go into that file."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # for the process's life
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115


def main() -> None:
    """Answer Ctrl-C first, and only then import a command."""
    try:
        from .cli.interrupts import Interrupts

        interrupts = Interrupts()
        interrupts.install(first=os.getpid() == 1)
        open_closed_streams()
        from .cli.main import main as front_door
    except (ImportError, AttributeError) as error:
        hidden = hidden_module()
        if not hidden:
            raise
        print(f"rocketcrew: {hidden} ({error})", file=sys.stderr)  # noqa: T201  click is not there
        sys.exit(EXIT_USAGE)
    front_door(interrupts)


if __name__ == "__main__":
    main()
