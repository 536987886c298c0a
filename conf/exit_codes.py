"""Exit codes of every process of ours, by which parents, shells and users know how it ended."""

from __future__ import annotations

from typing import Final

EXIT_FINE: Final = 0
"""Also a worker that stopped as asked, or whose supervisor closed the link."""
EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
EXIT_HANDLER: Final = 4
"""The handler cannot be imported, or its set-up hook raised; of a worker a BOOT_FAILED packet has the error."""
EXIT_FORCED: Final = 5
EXIT_SPARK: Final = 6
EXIT_INTERRUPTED: Final = 130
"""What shells give a command that ended by Ctrl-C."""

# Of processes that only we start.
EXIT_ORPHAN: Final = 3
"""Its parent was gone before it could ask to end with it: nobody is there to read this."""
EXIT_DESCRIPTORS: Final = 8
"""The handler closed the descriptors that the worker works with; its cell names the messages that may have done it."""
