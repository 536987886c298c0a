"""Text that others chose, for a person's eyes: a terminal would obey its control characters.

A producer chooses keys, tags, properties and bodies, a broker its remarks, a client its id. In a terminal one of them could
clear the screen, write other lines than there are, set the window's title, or type answers. So their control characters (C0,
DEL and C1) are shown as Python writes them, but for ends of lines and tabs; and so are those that set the direction of
writing, by which a line would read otherwise than it is (CVE-2021-42574).
"""

from __future__ import annotations

import re
from typing import Final

_CONTROLS: Final = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]|\r(?!\n)"
)


def visible(text: str) -> str:
    r"""The text with \x1b instead of what does something."""
    if text.isprintable():  # most are, and that is quick to see
        return text
    return _CONTROLS.sub(_shown, text)


def _shown(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
