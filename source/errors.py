"""What may go wrong between Spark and brokers that is neither a wrong option nor a broken connection."""

from __future__ import annotations

from ..remoting.errors import RocketcrewError


class DataLossError(RocketcrewError):
    """Offsets that were to be read are not in the queue any more, or never were. Nobody's mistake that we could name."""
