"""The consume queues that a start finds, as far as their files agree with the checkpoint.

A file that the disk cannot read is moved aside, and its queue is broken: recovery makes it anew from the log. Not while the
disk reads hardly anything of that: the start fails then, and nothing was changed.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field

from ..remoting.stored import RECORD_MIN_BYTES
from .checkpoint import Counts
from .consume_queue import SEGMENT_BYTES, ConsumeQueue
from .readable_log import is_bad_place, is_of_a_place
from .record_heads import is_head
from .recovery import Key
from .storage import Storage, StorageError, StoredFile

QUEUES = "consumequeue"


def queue_name(topic: str, queue_id: int) -> str:
    return f"{QUEUES}/{topic}/{queue_id}"


def new_queue(storage: Storage, topic: str, queue_id: int) -> ConsumeQueue:
    """An empty one. Raises StorageError."""
    name = queue_name(topic, queue_id)
    file = storage.open(name, SEGMENT_BYTES, buffered=True)
    if file.end > file.start or file.start:  # left over from a topic that is not there any more
        storage.move_aside(name)
        file = storage.open(name, SEGMENT_BYTES, buffered=True)
    return ConsumeQueue(file, topic, queue_id)


@dataclass(slots=True)
class Opened:
    """`broken` are those whose entries cannot be right; `ends`, where each ended, if what the last process wrote is there."""

    queues: dict[Key, ConsumeQueue] = field(default_factory=dict[Key, ConsumeQueue])
    broken: set[Key] = field(default_factory=set[Key])
    ends: dict[Key, int] = field(default_factory=dict[Key, int])


class Opening:
    def __init__(self, storage: Storage, log: StoredFile, begin: int, counts: Counts | None) -> None:
        """`begin` is the checkpoint, and `counts` how many entries each queue has there; None when nobody knows."""
        self._storage = storage
        self._log = log
        self._begin = begin
        self._counts = counts

    def run(self, knows: Callable[[str], bool], removed: Container[str]) -> Opened:
        """Open all queues, cut back to the checkpoint. Removes nothing but what is left of `removed` topics, and folders that
        are empty. Raises StorageError."""
        opened = Opened()
        for name in self._storage.names(QUEUES + "/", tidies=True):
            _, topic, queue_id = name.split("/")
            if knows(topic):
                self._open(opened, name, (topic, int(queue_id)))
            elif topic in removed:  # the kill came while it was being deleted
                self._storage.remove(name)
            else:
                self._storage.move_aside(name)
        for topic, queue_counts in (self._counts or {}).items():
            for number, count in queue_counts.items():
                if knows(topic) and (topic, number) not in opened.queues:
                    opened.queues[topic, number] = new_queue(self._storage, topic, number)
                    if count:
                        opened.broken.add((topic, number))
        return opened

    def _open(self, opened: Opened, name: str, key: Key) -> None:
        for _ in range(2):
            try:
                self._open_file(opened, name, key)
                return
            except StorageError as error:
                if not is_bad_place(error, self._log):
                    raise
        self._storage.move_aside(name)
        opened.queues[key] = new_queue(self._storage, *key)
        opened.broken.add(key)

    def _open_file(self, opened: Opened, name: str, key: Key) -> None:
        queue = ConsumeQueue(self._storage.open(name, SEGMENT_BYTES, buffered=True), *key)
        if self._storage.kept_all:
            opened.ends.setdefault(key, queue.next_offset)  # at the second try, the first one has cut it
        if self._counts is None:
            is_sound = False
        else:
            queue.cut_records_from(self._begin)
            count = self._counts.get(key[0], {}).get(key[1], 0)
            is_sound = not queue.has_holes and queue.next_offset == count and self._ends_well(queue)
        opened.queues[key] = queue
        if not is_sound:
            opened.broken.add(key)

    def _ends_well(self, queue: ConsumeQueue) -> bool:
        """Whether the last entry is that of its record, or of none that is still there."""
        if queue.next_offset == queue.file_start:
            return True
        offset = queue.next_offset - 1
        position, size, _ = entry = queue.entry(offset)
        if size < RECORD_MIN_BYTES:
            return queue.is_filler(offset, entry)
        if position < self._log.start:
            return True
        try:
            return is_head(self._log, queue.queue_id, (offset, position, size))
        except StorageError as error:
            if not is_of_a_place(error):
                raise
            return True  # nothing speaks against it


__all__ = ["QUEUES", "Opened", "Opening", "new_queue", "queue_name"]
