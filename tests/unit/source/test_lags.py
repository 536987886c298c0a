"""The lag in Spark's progress."""

from __future__ import annotations

import json
from typing import Any

from pyspark_rocketmq import stream_lag

BESIDE = {"@marks": {"orders": {"a": {"0": [3, 1_760_000_000_000]}}}, "@group": "crew"}
END: dict[str, Any] = BESIDE | {"orders": {"a": {"0": 10, "1": 5}, "b": {"0": 7}}, "more": {"a": {"0": 1}}}
LATEST = {"orders": {"a": {"0": 30, "1": 5}, "b": {"0": 9}}, "more": {"a": {"0": 1}}, "new": {"a": {"0": 4}}}


class Progress:
    """As Spark's StreamingQueryProgress is."""

    def __init__(self, *sources: dict[str, Any]) -> None:
        self.json = json.dumps({"sources": sources})


def test_the_lag_is_by_topic() -> None:
    ours = {"endOffset": END, "latestOffset": LATEST}
    assert stream_lag(Progress(ours)) == {"orders": 22, "more": 0, "new": 4}
    as_text = {name: json.dumps(value) for name, value in ours.items()}
    assert stream_lag({"sources": [as_text]}) == {"orders": 22, "more": 0, "new": 4}


def test_what_is_none_of_ours_and_what_is_not_there_yet() -> None:
    rate = {"endOffset": 5, "latestOffset": 9}
    files = {"endOffset": {"logOffset": 3}, "latestOffset": None}
    assert stream_lag(Progress(rate, files, {"endOffset": None, "latestOffset": None})) == {}
    assert stream_lag(None) == {}
