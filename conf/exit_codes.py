"""Exit codes of every process of ours, by which parents, shells and users know how it ended."""

from __future__ import annotations

from typing import Final

EXIT_FINE: Final = 0
EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
EXIT_HANDLER: Final = 4
EXIT_FORCED: Final = 5
EXIT_SPARK: Final = 6
