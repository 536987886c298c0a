"""How far each group has come in each queue (BR/offset/ConsumerOffsetManager.java).

Rules: a commit overwrites, also a higher offset (never lowering is the client's promise, not ours); a reset that an
operator asked for is kept apart until the group's pulls of that queue follow it, and while it is pending commits are
accepted and ignored, else a member that still runs would undo it, also after a restart of the broker.

A pending reset answers each pull of the queue until a pull begins at its offset: an answer that was lost is repeated, and
repeating one that arrived does nothing. (A genuine broker forgets the reset with its first answer.) A client that does not
go where it is sent is sent there GIVEN_MAX times on one connection, GIVEN_ALL_MAX times on all of them, and then served as it
asks, as a genuine broker does after one time.

The text form is `config/consumerOffset.json`: `{"offsetTable":{"topic@group":{0:12,1:9}}}` with bare numbers as keys,
as fastjson writes it; admin tools get the same text (request 43). Pending resets, where there are any, follow in the same
form as `pendingResets`: a member of ours, which a genuine broker passes over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from ..remoting.body import Body
from .table_text import BucketedText

SEPARATOR = "@"
PAIRS_MAX = 200_000  # of topic and group
ROOM_STEP_PAIRS = 5_000  # some 30 ms, and as many more when those are used up
GIVEN_MAX = 3  # answers with one reset on one connection
GIVEN_ALL_MAX = 16  # on all connections: several may pull the queue in turn, and new ones come


Kept = list[tuple[str, str, dict[int, int] | None, dict[int, int]]]
"""Topic, group, the committed offset of each queue (None: the pair was not there), and the pending resets."""


@dataclass(frozen=True, slots=True)
class _OffsetDocument(Body):
    offset_table: dict[str, dict[int, int]]
    pending_resets: dict[str, dict[int, int]] = field(default_factory=dict[str, dict[int, int]])


class OffsetTable:
    """Committed offsets and pending resets; `changes` grows with every change, so that the owner knows when to save."""

    def __init__(self) -> None:
        self.changes = 0
        self._committed: dict[str, dict[int, int]] = {}
        # By group, and the other way round: a look at one pair costs no look at all.
        self._topics_of: dict[str, set[str]] = {}
        self._groups_of: dict[str, set[str]] = {}
        self._resets: dict[str, dict[int, int]] = {}  # by the same keys
        self._given: dict[str, dict[int, dict[int, int]]] = {}  # of these: how often each connection was answered
        self.text = BucketedText()  # of the offsets
        self._resets_text = BucketedText()

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> bool:
        """Overwrite the committed offset; False when a pending reset made it void."""
        key = topic + SEPARATOR + group
        if queue_id in self._resets.get(key, ()):
            return False
        queues = self._queues(topic, group)
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self.text.changed(key)
            self.changes += 1
        return True

    def query(self, topic: str, group: str, queue_id: int) -> int | None:
        """The pending reset, else the committed offset, else None."""
        key = topic + SEPARATOR + group
        reset = self._resets[key].get(queue_id) if key in self._resets else None
        if reset is not None:
            return reset
        queues = self._committed.get(key)
        return None if queues is None else queues.get(queue_id)

    def reset(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Make the group's next pull of the queue begin at `offset`."""
        key = topic + SEPARATOR + group
        self._queues(topic, group)[queue_id] = offset
        self._resets.setdefault(key, {})[queue_id] = offset
        self._given.get(key, {}).pop(queue_id, None)
        self.text.changed(key)
        self._resets_text.changed(key)
        self.changes += 1

    def kept(self, pairs: Iterable[tuple[str, str]]) -> Kept:
        """What there is of these pairs of topic and group, for `put_back`."""
        found: Kept = []
        for topic, group in pairs:
            queues = self._committed.get(topic + SEPARATOR + group)
            resets = self._resets.get(topic + SEPARATOR + group, {})
            found.append((topic, group, None if queues is None else dict(queues), dict(resets)))
        return found

    def put_back(self, kept: Kept) -> None:
        """Undo what was changed since: the disk refused it."""
        for topic, group, queues, resets in kept:
            if topic + SEPARATOR + group in self._committed:
                self._forget([(topic, group)])
            for queue_id, offset in (queues or {}).items():
                self.commit(topic, group, queue_id, offset)
            for queue_id, offset in resets.items():
                self.reset(topic, group, queue_id, offset)

    def _queues(self, topic: str, group: str) -> dict[int, int]:
        """The offsets of the pair, which is made when there is none."""
        key = topic + SEPARATOR + group
        queues = self._committed.get(key)
        if queues is None:
            queues = self._committed[key] = {}
            self._index(key)
        return queues

    def _index(self, key: str) -> None:
        topic, group = _pair(key)
        self._topics_of.setdefault(group, set()).add(topic)
        self._groups_of.setdefault(topic, set()).add(group)

    def pending_reset(self, topic: str, group: str, queue_id: int) -> int | None:
        """The offset of the reset that is pending in a queue, if one is."""
        pending = self._resets.get(topic + SEPARATOR + group)
        return None if pending is None else pending.get(queue_id)

    def is_followed(self, topic: str, group: str, queue_id: int, offset: int, channel: int) -> bool:
        """Whether the pending reset is over with a pull at `offset` on the connection `channel`; else that pull is to be
        answered with it, and counts as answered."""
        key = topic + SEPARATOR + group
        given = self._given.setdefault(key, {}).setdefault(queue_id, {})
        times = given.get(channel, 0)
        if given and (
            offset == self._resets[key][queue_id] or times == GIVEN_MAX or sum(given.values()) == GIVEN_ALL_MAX
        ):
            return True
        given[channel] = times + 1
        return False

    def take_reset(self, topic: str, group: str, queue_id: int) -> int | None:
        """The pending reset of a queue, which is then no longer pending."""
        key = topic + SEPARATOR + group
        pending = self._resets.get(key)
        reset = pending.pop(queue_id, None) if pending is not None else None
        if reset is not None:
            self._given.get(key, {}).pop(queue_id, None)
            if not pending:
                del self._resets[key]
                self._given.pop(key, None)
            self._resets_text.changed(key)
            self.changes += 1
        return reset

    def has_room(self, topic: str, group: str) -> bool:
        """Whether one more can be kept: this pair of topic and group is known, or there are not too many."""
        return topic + SEPARATOR + group in self._committed or len(self._committed) < PAIRS_MAX

    def make_room(self, is_needed: Callable[[str], bool]) -> bool:
        """Forget offsets of groups that are not needed, but where a reset is pending: ROOM_STEP_PAIRS at most, as others
        wait meanwhile. False when there were fewer."""
        unneeded = (
            (topic, group)
            for group in self._topics_of
            if not is_needed(group)
            for topic in self.topics_of(group)
            if topic + SEPARATOR + group not in self._resets
        )
        pairs = list(islice(unneeded, ROOM_STEP_PAIRS))
        self._forget(pairs)
        return len(pairs) == ROOM_STEP_PAIRS

    def has_group(self, group: str) -> bool:
        """Whether the group has a committed offset anywhere."""
        return group in self._topics_of

    def topics_of(self, group: str) -> list[str]:
        """Topics in which the group has a committed offset, sorted."""
        return sorted(self._topics_of.get(group, ()))

    def groups_of(self, topic: str) -> list[str]:
        return sorted(self._groups_of.get(topic, ()))

    def forget_topic(self, topic: str) -> None:
        self._forget([(topic, group) for group in self.groups_of(topic)])

    def forget_topics(self, is_gone: Callable[[str], bool]) -> None:
        """Forget the offsets of all topics that are gone."""
        for topic in [topic for topic in self._groups_of if is_gone(topic)]:
            self.forget_topic(topic)

    def forget_group(self, group: str) -> None:
        self._forget([(topic, group) for topic in self.topics_of(group)])

    def _forget(self, pairs: list[tuple[str, str]]) -> None:
        for topic, group in pairs:
            key = topic + SEPARATOR + group
            self._committed.pop(key, None)
            self._resets.pop(key, None)
            self._given.pop(key, None)
            _remove(self._topics_of, group, topic)
            _remove(self._groups_of, topic, group)
            self.text.changed(key)
            self._resets_text.changed(key)
            self.changes += 1

    def clamp(self, max_of: Callable[[str, int], int | None]) -> list[tuple[str, int, int, int]]:
        """Lower offsets above the end of their queue; `max_of` gives that end, None for a queue that nobody knows.

        Returns what was lowered: topic@group, queue, the offset that it was, and is.
        """
        lowered: list[tuple[str, int, int, int]] = []
        for key, queues in self._committed.items():
            topic = key.partition(SEPARATOR)[0]
            for queue_id, offset in queues.items():
                end = max_of(topic, queue_id)
                if end is not None and offset > end:
                    lowered.append((key, queue_id, offset, end))
        for key, queue_id, _, end in lowered:
            self._committed[key][queue_id] = end
            if queue_id in self._resets.get(key, ()):
                self._resets[key][queue_id] = end
                self._resets_text.changed(key)
            self.text.changed(key)
            self.changes += 1
        return lowered

    def dump(self) -> bytes:
        """The text form; costs what changed since the last one, and a look at each bucket."""
        text = b'{"offsetTable":{%s}' % self.text.text(self._committed.get)
        pending = self._resets_text.text(self._resets.get)
        return b'%s,"pendingResets":{%s}}' % (text, pending) if pending else text + b"}"

    def load(self, text: bytes) -> None:
        """Take over what `dump` wrote. Raises ProtocolError when it is something else."""
        document = _OffsetDocument.decode(text)
        self._committed = document.offset_table
        self._resets = {
            key: kept
            for key, queues in document.pending_resets.items()
            if (kept := {queue: max(at, 0) for queue, at in queues.items() if queue in self._committed.get(key, {})})
        }
        for members, keys in ((self.text, self._committed), (self._resets_text, self._resets)):
            members.clear()
            for key in keys:
                members.changed(key)
        self._topics_of.clear()
        self._groups_of.clear()
        for key in self._committed:
            self._index(key)


def _pair(key: str) -> tuple[str, str]:
    """Topic and group of a key."""
    topic, _, group = key.partition(SEPARATOR)
    return topic, group


def _remove(table: dict[str, set[str]], name: str, other: str) -> None:
    table[name].discard(other)
    if not table[name]:
        del table[name]
