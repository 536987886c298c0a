"""What PySpark looks for by itself: a top-level package `pyspark_…` with a `DefaultSource`.

So `format("rocketmq")` needs no registration. The code is rocketcrew's room `source/`. `stream_lag(query.lastProgress)`
says how far a stream is behind.
"""

from __future__ import annotations

from rocketcrew.source.default_source import DefaultSource
from rocketcrew.source.lags import stream_lag

__all__ = ["DefaultSource", "stream_lag"]
