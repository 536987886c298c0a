"""One worker as the staffing sees it, what staffing orders, and by which numbers it decides."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from zlib import crc32


class Post(Enum):
    """Life of one worker: it boots, serves, finishes what it has and leaves. One that ended is forgotten."""

    BOOTING = "booting"
    SERVING = "serving"
    LEAVING = "leaving"


class PostEvent(Enum):
    READY = "ready"
    RETIRED = "retired"


POST: dict[tuple[Post, PostEvent], Post] = {
    (Post.BOOTING, PostEvent.READY): Post.SERVING,
    (Post.SERVING, PostEvent.RETIRED): Post.LEAVING,
}


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that decide; 0 = no such limit. See [workers] in conf/defaults.toml."""

    count: int
    recycle_messages: int = 0
    recycle_jitter_percent: int = 0
    recycle_age_s: float = 0.0
    recycle_share_percent: int = 25
    boot_timeout_s: float = 60.0
    canary_messages: int = 0
    canary_s: float = 60.0
    leave_max_s: float = 900.0
    """So long one that leaves counts for the share; by then it has ended, unless its handler has other limits."""

    @property
    def replaced_at_once_max(self) -> int:
        """Workers that may be under replacement at the same time."""
        return max(1, self.count * self.recycle_share_percent // 100)


@dataclass(slots=True, eq=False)
class Hand:
    """One worker."""

    worker_id: str
    index: int
    generation: int
    started: float
    successor_of: str | None
    """The worker that leaves when this one is ready."""
    salvages: tuple[str, ...]
    """Dead workers whose segments it salvages before its handler is set up; empty when it has."""
    messages_max: int
    """It is replaced after so many; 0 = never for that."""
    age_max_s: float
    post: Post = Post.BOOTING
    since: float = 0.0
    """When the post was taken."""
    messages: int = 0
    failed: int = 0
    wish: str = ""
    """Why it is to be replaced, said by itself or by an operator."""
    boot_error: str = ""


def new_hand(
    policy: Policy, worker_id: str, index: int, generation: int, now: float, successor_of: str | None,
    salvages: tuple[str, ...],
) -> Hand:  # fmt: skip
    """A worker that is about to be started; its limits are a little below the policy's, each worker's another little.

    Workers that started together and share the work would otherwise all be due together.
    """
    less = 1 - policy.recycle_jitter_percent / 100 * (crc32(worker_id.encode()) / (1 << 32))
    messages_max = max(1, round(policy.recycle_messages * less)) if policy.recycle_messages else 0
    hand = Hand(worker_id, index, generation, now, successor_of, salvages, messages_max, policy.recycle_age_s * less)
    hand.since = now
    return hand


@dataclass(frozen=True, slots=True)
class Start:
    """Start this worker."""

    worker_id: str
    index: int
    generation: int
    salvages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Retire:
    """Let it finish what it has, seal and end."""

    worker_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End it: it does not get ready."""

    worker_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class DropGeneration:
    """No worker of this generation is left, and none will be started."""

    generation: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No worker can boot."""

    error: str


@dataclass(frozen=True, slots=True)
class Note:
    """An event for the log."""

    level: str
    event: str
    keys: dict[str, object]


Order = Start | Retire | Kill | DropGeneration | GiveUp | Note
