"""What one seed plays: sizes, settings, how messages behave, which faults come how often.

Each run draws its own mix (some faults not at all), because a world in which everything always fails hides what only
happens in a calm one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from zlib import crc32

from rocketcrew.broker.config import BrokerConfig

GROUP = "crew"
TOPIC = "orders"
RETRY_TOPIC = "%RETRY%" + GROUP
DLQ_TOPIC = "%DLQ%" + GROUP
BROKER = "broker-a"
REPORT_AFTER_MS = 5.0
READS_ON = 0.25
READ_MS = 2.0
"""How often a read brings more than this answer or report, and for how long what is told is not acted on."""
MAX_RECONSUME_TIMES = 3
MAX_WORKER_DEATHS = 3
FOCUS_WEIGHT = 12
SLOW_IN_ORDER_MS = 600
LOCK_LIVE_MS, LOCK_EXPIRY_MS = 750, 1_500
"""A message that began while its lock was good for certain ends before the broker gives that lock away."""
ASKED_LEVELS = (1, 2)
"""Delay levels that handlers ask for, see `fate`."""
ROWS_MAX = 100
"""With `rows_always`: rows at which a worker seals by itself."""
MANY_QUEUES, MANY_WORKERS = 64, 16
BURSTS, BACKLOG_BURSTS = (1, 1, 2, 5, 20), (20, 100)
"""How many messages are sent at once."""
LARGE_FROM_US = 40_000
PULL_BYTES_MAX = 20_000
"""Every answer fits the smallest slab when it comes alone, as in reality."""
DELAY_LEVELS = "40ms 80ms 150ms 300ms 600ms 1s"

FAULTS = (
    "cut", "cut after delivery", "stall broker", "kill broker", "refuse send-backs", "refuse pulls", "refuse commits",
    "flow control", "kill worker", "kill worker while it writes", "kill worker behind its rename",
    "lose an open segment", "recycle worker", "kill forkserver", "pause", "kill member", "kill member in a step",
    "stop member", "start member", "reset back", "reset forward", "slow network",
)  # fmt: skip
STALLS = "worker stands still"
BOOTS = "fail a boot"
ACTIONS = "fail an action"
POWER = "lose power"
ANEW = "subscribe anew"
CUT_OFF = "cut off"
TAKES = "take what is sealed"
CLOSED = "close the retry topic"
"""These eight are of some seeds only, see `perhaps_limited`."""


@dataclass(frozen=True)
class Script:
    """Drawn once a run."""

    queues: int
    members: int
    """Members at the beginning; more may join."""
    members_max: int
    workers: int
    slab_units: int
    chunk_messages_max: int
    threshold_messages: int
    threshold_bytes: int
    span_max: int
    pull_batch: int
    subscription: str
    body_large: float
    """Share of messages with a large body."""
    messages_max: int
    faults: dict[str, int]
    fault_rate: float
    """Chance of a fault before a step."""
    handler_us: int
    """What workers report as handler time a message; it decides how many go into a chunk."""
    slow: float
    """Share of messages that take long."""
    pull_interval_ms: int
    strategy: str
    commit_after_loaded: bool
    """Offsets wait for the table."""
    refusing: float
    """Share of messages whose handling fails by chance."""
    order: str = "concurrent"
    keys: int = 1
    """Different keys; one in ten messages has none."""
    order_holds: bool = True
    auto_commit: bool = True
    key_function: bool = False
    broadcasting: bool = False
    """The one member reads all queues, keeps its offsets itself, and drops what fails."""
    batch: int = 1
    """Messages a handler call gets."""
    topic_limit: int = 0
    """Calls at once that work on the topic, or on its retries; 0 = as many as there are workers."""
    rate: float = 0.0
    """Messages of the topic a second, retries included; 0 = no limit."""
    seal_rows: int = 50_000
    """Messages that wait for one segment, above which its worker is asked to seal it."""
    deadly: int = 0
    """Of a thousand messages: how many end their worker, always or once."""
    run_deadly: int = 0
    """Of a thousand messages: how many kill their whole member, each time."""
    hard_limit_ms: int = 0
    """0 = none. With a limit, as many messages as are deadly never come to an end at their first attempt."""
    late_links: float = 0.0
    """Share of what workers say that the supervisor, being busy, reads only after some tens of milliseconds."""
    rows_always: bool = False
    """A backlog, each message of which succeeds and returns a row: see `segments_max`."""
    delay_level: int = 0
    """Of failed messages whose handler names none, 0 = by their attempts."""
    # Not in `repr`, from which `perhaps_limited` makes what it decides.
    restart_ms: float = field(default=1_500.0, repr=False)
    """After how long a dead member is started again, at most."""
    boot_fails_ms: float = field(default=1.0, repr=False)
    """After how long a start that fails does, at most."""
    rows_never: bool = field(default=False, repr=False)
    """Each message succeeds and returns nothing."""
    report_after_ms: float = field(default=REPORT_AFTER_MS, repr=False)
    """Of the core's settings."""
    claims_all: bool = field(default=False, repr=False)
    """The members have asked for everything: by what is in `subscription` the broker filters all the same, as it does where
    another member of the group subscribes less."""
    pushes_resets: bool = field(default=False, repr=False)
    """The broker is one before 5.2: it tells the members of a reset once, and it is for them to commit the offset."""

    chunk_target_us: int = field(default=2_000, repr=False)
    """Of the core's settings."""
    call_ms: float = field(default=1.0, repr=False)
    """How long calls take, on average; `handler_us` is what is reported."""
    holds_reports: bool = field(default=False, repr=False)
    """Workers report when the real one does, and not by chance."""
    bursts: tuple[int, ...] = field(default=BURSTS, repr=False)
    """How many messages are sent at once."""
    pull_bytes_max: int = field(default=PULL_BYTES_MAX, repr=False)
    """Of an answer of the broker."""

    @classmethod
    def draw(cls, random: Random) -> Script:
        members_max = random.choice([1, 1, 2, 3])
        order = random.choice(["concurrent", "concurrent", "queue", "key"])
        return (
            cls(
                queues=random.choice([1, 2, 3, 4]),
                members=random.randint(1, members_max),
                members_max=members_max,
                workers=random.choice([1, 2, 3]),
                slab_units=random.choice([4, 8, 8, 16, 64]),
                chunk_messages_max=random.choice([1, 3, 8, 32]),
                threshold_messages=random.choice([8, 30, 1000]),
                threshold_bytes=random.choice([20_000, 1 << 20]),
                span_max=random.choice([16, 60, 2000]),
                pull_batch=random.choice([2, 8, 32]),
                subscription=random.choice(["*", "*", "A || B"]),
                body_large=random.choice([0.0, 0.05, 0.3]),
                messages_max=random.choice([120, 250, 400]),
                faults={kind: random.choice([0, 1, 1, 3]) for kind in FAULTS},
                fault_rate=random.choice([0.002, 0.01, 0.02, 0.03]),
                handler_us=random.choice([3, 50, 300, 3_000]),
                slow=random.choice([0.0, 0.01, 0.05, 0.15]),
                pull_interval_ms=random.choice([0, 0, 0, 5]),
                strategy=random.choice(["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"]),
                commit_after_loaded=random.random() < 0.2,
                refusing=random.choice([0.0, 0.01, 0.1]),
                order=order,
                keys=random.choice([1, 3, 20]),
                order_holds=random.random() < 0.7,
                auto_commit=order != "queue" or random.random() < 0.7,
                key_function=order == "key" and random.random() < 0.4,
                broadcasting=members_max == 1 and order == "concurrent" and random.random() < 0.3,
                batch=random.choice([1, 1, 1, 4]) if order == "concurrent" else 1,
                deadly=random.choice([0, 0, 8, 25]),
                hard_limit_ms=random.choice([0, 0, 500, 2_500 if order == "concurrent" else 500]),
            )
            .perhaps_limited()
            .without_operators()
        )

    def perhaps_limited(self) -> Script:
        """Decided by what was drawn: a draw of its own would make every seed another world."""
        draw = crc32(repr(self).encode())
        later = crc32(repr(self).encode(), 1)  # all bits of the first one are used
        limit = [1, 2, 0, 0, 0, 0, 0, 0][draw % 8]
        # Other bits for each that was drawn later, so that each stands with each.
        faults = self.faults | {STALLS: [0, 0, 1, 3][draw // 8 % 4], BOOTS: [0, 1, 1, 3][draw // 32 % 4]}
        faults[ACTIONS] = [0, 1, 1, 3][draw // 128 % 4]
        faults[POWER] = [0, 0, 1, 2][draw // 2048 % 4]
        faults[ANEW] = [0, 0, 1, 3][draw >> 27 & 3]
        faults[CUT_OFF] = [0, 0, 1, 3][later & 3]
        faults[TAKES] = [0, 0, 1, 3][later >> 2 & 3] if self.members_max > 1 else 0
        faults[CLOSED] = [0, 0, 1, 3][later >> 4 & 3]
        seal_rows = [12, 40, 50_000, 50_000][draw // 512 % 4]
        limit = limit if self.order == "concurrent" else 0
        level = [0, 0, 0, 5][draw // 8192 % 4]
        drawn = replace(self, topic_limit=limit, faults=faults, seal_rows=seal_rows, delay_level=level)
        drawn = replace(drawn, pushes_resets=draw >> 29 & 1 == 0, rows_never=draw >> 30 & 3 == 0)
        drawn = replace(drawn, rate=[30.0, 200.0, 0, 0, 0, 0, 0, 0][draw >> 22 & 7])
        drawn = replace(drawn, report_after_ms=[1.5, REPORT_AFTER_MS, REPORT_AFTER_MS, 20.0][draw >> 25 & 3])
        if draw >> 15 & 15 == 0:
            drawn = replace(drawn, queues=MANY_QUEUES, workers=MANY_WORKERS, slab_units=64)
        return replace(drawn, rows_always=True, messages_max=600) if draw >> 19 & 7 == 0 else drawn

    def segments_max(self, messages: int, workers: int) -> int:
        """How many segments so many messages with a row each, at so many workers, may be sealed into for their number alone:
        two for each full one, and one of each worker."""
        return 2 * messages // min(self.seal_rows, ROWS_MAX) + workers

    def is_large(self, messages: int) -> bool:
        """So many are a large chunk: calls of one message each, that take long together."""
        return messages > 1 and messages * self.handler_us >= LARGE_FROM_US

    def without_operators(self) -> Script:
        """Nobody can reset the offsets of a broadcasting member: the brokers have none."""
        if not self.broadcasting:
            return self
        return replace(self, faults=self.faults | {"reset back": 0, "reset forward": 0})

    def focused(self, kinds: Iterable[str], fields: Mapping[str, Any]) -> Script:
        """The same, with some faults more often and some fields given."""
        if not fields.get("auto_commit", self.auto_commit):
            # What is uncommitted keeps its bytes, and a filtered tail would hide the newest message.
            fields = {**fields, "slab_units": 64, "subscription": "*", "threshold_messages": 1000, "span_max": 2000}
            fields["threshold_bytes"] = 1 << 24
        weights = self.faults | {kind: self.faults[kind] + FOCUS_WEIGHT for kind in kinds}
        drawn_for = weights != self.faults or fields  # something that is known to show in such worlds
        rate = max(self.fault_rate, 0.02) if weights != self.faults else self.fault_rate
        alone: dict[str, Any] = {}
        if drawn_for:
            alone = {
                "broadcasting": False,
                "report_after_ms": REPORT_AFTER_MS,
                "pushes_resets": False,
                "rows_never": False,
            }
            weights = {
                kind: weight
                for kind, weight in weights.items()
                if kind not in (ANEW, CUT_OFF, TAKES, CLOSED) or kind in kinds
            }
        drawn: dict[str, Any] = {"faults": weights, "fault_rate": rate}
        if fields.get("order", self.order) != "concurrent":
            drawn["topic_limit"] = 0
        return replace(self, **drawn | alone | dict(fields)).without_operators()


def broker_config(script: Script) -> BrokerConfig:
    return BrokerConfig(
        name=BROKER,
        message_delay_level=DELAY_LEVELS,
        pull_bytes_max=script.pull_bytes_max,
        flush_interval_ms=2_000,
        checkpoint_interval_ms=3_000,
        offset_flush_interval_ms=400,
        lock_expiry_ms=LOCK_EXPIRY_MS,
        hold_sweep_interval_ms=1_500,
        hold_timeout_max_ms=2_000,
        channel_expiry_ms=30_000,
        expiry_scan_interval_ms=10_000,
        registration_interval_ms=20_000,
    )


def fate(number: int, attempt: int, random: Random, script: Script) -> tuple[int | None, int]:
    """(delay level of a failure or None, rows): what the handler makes of message `number`, handled the n-th time."""
    if script.rows_always:
        return None, 1
    if script.rows_never:
        return None, 0
    draw = crc32(f"{number}/{attempt}".encode()) % 1000
    if crc32(f"poor {number}".encode()) % 1000 < 15:
        return 0, 0  # never succeeds: ends in the dead-letter topic
    if not attempt and _dies_later(number):
        return 0, 0
    if draw < 80 or random.random() < script.refusing:
        return (-1 if draw == 0 else draw % 3), 0
    return None, (0 if draw % 5 == 0 else 1 + draw % 3)


def doom(numbers: list[int], attempt: int, script: Script, cost: dict[int, int]) -> str:
    """Whether a call with these messages "dies", "hangs", "ends all" of its member, or (empty) comes to its end. `cost`:
    deaths by number so far."""
    for number in numbers:
        draw = crc32(f"doom {number}".encode()) % 1000
        if 900 <= draw < 900 + script.run_deadly:
            return "ends all"
        if draw < script.deadly and (draw % 3 or not cost.get(number)):
            return "dies"
        if attempt and script.deadly and _dies_later(number):
            return "dies"
        if 500 <= draw < 500 + script.deadly and script.hard_limit_ms and not attempt:
            return "hangs"
    return ""


def _dies_later(number: int) -> bool:
    """It fails at its first attempt, and ends its worker at each one after it."""
    return crc32(f"later {number}".encode()) % 1000 < 30


def spoils_its_worker(number: int, script: Script, cost: dict[int, int]) -> str:
    """What its rows do to the worker that writes them, when its call is over: it "crashes", or "stalls" until it is ended;
    each time, or as long as it cost none. Empty: nothing."""
    draw = crc32(f"rows {number}".encode()) % 1000
    if draw >= script.deadly or not (draw % 3 or not cost.get(number)):
        return ""
    return "crashes" if draw % 2 else "stalls"


def has_deadly_key(number: int, script: Script) -> bool:
    """Whether the key function ends its worker at that message, each time: it is given no key in the end."""
    return script.key_function and crc32(f"key {number}".encode()) % 1000 < script.deadly


def body_of(number: int, size: int) -> bytes:
    return b"%08d" % number + b"." * size


def number_of(body: bytes | memoryview) -> int:
    return int(bytes(body[:8]))
