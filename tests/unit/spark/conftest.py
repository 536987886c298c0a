"""The loader's tests get their helpers as a fixture."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from segment_helpers import Helpers


@pytest.fixture
def segments() -> Helpers:
    """Ways to write segments and to read the table."""
    return Helpers()
