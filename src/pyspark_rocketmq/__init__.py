"""What PySpark looks for by itself: a top-level package `pyspark_…` with a `DefaultSource`.

So `format("rocketmq")` needs no registration. The code is rocketcrew's room `source/`; this package has no other purpose.
"""

from __future__ import annotations

from rocketcrew.source.default_source import DefaultSource

__all__ = ["DefaultSource"]
