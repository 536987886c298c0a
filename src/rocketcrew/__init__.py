"""rocketcrew: a RocketMQ push consumer for CPU-heavy Python.

What a handler's module needs is here: `handler`, `Message`, `Retry`, `BatchResult`.
"""

from __future__ import annotations

from .workers.api import BatchResult, Handler, Retry, handler
from .workers.message import Message

__all__ = ["BatchResult", "Handler", "Message", "Retry", "__version__", "handler"]

__version__ = "0.1.0"
