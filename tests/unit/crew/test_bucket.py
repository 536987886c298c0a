"""`read` of a table in a bucket, as far as it goes without one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rocketcrew import read
from rocketcrew.remoting.errors import UsageError

SESSION = SimpleNamespace(createDataFrame=None)
"""What has no JVM, as one of Spark Connect."""


@pytest.mark.parametrize(
    ("target", "given", "said"),
    [
        ("s3://bucket", {}, "is not s3://bucket/table"),
        ("s3://bucket/table", {"spark": SESSION}, "read it without spark="),
        ("s3://bucket/table", {"options": {"secret": "x"}}, "into the environment"),
        ("s3://bucket/table", {"form": "csv"}, "is none of arrow"),
        ("gs://bucket/table", {}, "is a URL"),
        ("hdfs://host/table", {}, "read by Spark only"),
        ("hdfs://host", {"spark": SESSION}, "is not hdfs://namenode:port/path"),
        ("hdfs://host/table", {"spark": SESSION}, "a session of Spark Connect has none here"),
    ],
)
def test_what_cannot_be_read_is_said_before_anything_is_asked(target: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(target, **given)
