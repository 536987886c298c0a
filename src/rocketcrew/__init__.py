"""rocketcrew: a RocketMQ push consumer for CPU-heavy Python."""

from __future__ import annotations

__version__ = "0.1.0"
