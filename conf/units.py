"""Factors between units."""

from __future__ import annotations

NS_PER_MS = 1_000_000
