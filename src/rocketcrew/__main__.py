"""`python -m rocketcrew` and the console script: the front door is cli/."""

from __future__ import annotations

try:
    from .cli.main import main
except KeyboardInterrupt:  # Ctrl-C before there was anything to interrupt
    raise SystemExit(130) from None

__all__ = ["main"]

if __name__ == "__main__":
    main()
