"""`python -m rocketcrew` and the console script: the front door is cli/."""

from __future__ import annotations

from .cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
