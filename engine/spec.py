"""What a task is told, and what it reports: both travel between the driver and executors. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..conf.folders import NO_FOLDERS, FolderNames
from ..durable.outcomes import Outcomes
from ..remoting.queues import MessageQueue
from ..workers.boot import WorkerBounds
from ..workers.loading import HandlerSpec

RECORD_SCHEMA = "topic string, brokerName string, queueId int, queueOffset bigint, record binary"
"""What is read of the source: the message as it is stored, so that the handler gets the message it always gets."""
REPORT_SCHEMA = "report string"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """One job's tasks. `folder` and everything in it is seen by the driver and by every executor at the same path.

    `group` and the topics of `tags` are as brokers know them. `run` names the run: a Python process sets the handler up once
    for each. Files are named by `prefix` and run. `after`: the first message that is not done yet, of queues (with topics
    as the source has them) whose range begins with some that are. `seen`: note the origin of every message, for a comparison.
    """

    handler: HandlerSpec
    run: str
    prefix: str
    folder: Path
    group: str
    namespace: str = ""
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    after: Mapping[MessageQueue, int] = field(default_factory=dict[MessageQueue, int])
    schema: str = ""
    results: bool = True
    folders: FolderNames = NO_FOLDERS
    seen: bool = False
    bounds: WorkerBounds = field(default_factory=WorkerBounds)
    deaths_max: int = 3
    spans: bool = False
    log_format: str = "auto"
    log_level: str = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one task has done: files by their names in the job's folder. `error`: the handler cannot be had;
    `unwritable`: who may not write there."""

    partition: int
    segments: tuple[str, ...] = ()
    rows: int = 0
    handled: int = 0
    failures: str = ""
    failed: int = 0
    seen: str = ""
    outcomes: Outcomes = field(default_factory=Outcomes)
    error: str = ""
    traceback: str = ""
    unwritable: str = ""

    def to_json(self) -> str:
        """One line."""
        told = {one.name: getattr(self, one.name) for one in fields(self)}
        return json.dumps(told | {"outcomes": self.outcomes.to_json()}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Report:
        """What `to_json` wrote. Raises ValueError or TypeError for anything else."""
        data: dict[str, Any] = json.loads(text)
        told: dict[str, Any] = {
            "outcomes": Outcomes.from_json(data["outcomes"]),
            "segments": tuple(data["segments"]),
        }
        return cls(**{**data, **told})
