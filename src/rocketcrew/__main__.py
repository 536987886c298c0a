"""`python -m rocketcrew` and the console script: the front door is cli/."""

from __future__ import annotations

from .cli.interrupts import Interrupts


def main() -> None:
    """Answer Ctrl-C first, and only then import a command."""
    interrupts = Interrupts()
    interrupts.install()
    from .cli.main import main as front_door

    front_door(interrupts)


if __name__ == "__main__":
    main()
