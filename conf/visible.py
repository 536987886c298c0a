"""Text that others chose, for a person's eyes: a terminal would obey its control characters.

A producer chooses keys, tags, properties and bodies, a broker its remarks, a client its id. In a terminal one of them could
clear the screen, write other lines than there are, set the window's title, or type answers. So their control characters (C0,
DEL and C1) are shown as Python writes them, but for ends of lines and tabs.
"""

from __future__ import annotations

import re
from typing import Final

_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")


def visible(text: str) -> str:
    r"""The text with \x1b instead of what does something."""
    if text.isprintable():  # most are, and that is quick to see
        return text
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
