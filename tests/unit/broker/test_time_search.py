"""Search by store time: never too high, whatever pages of the log cannot be read; too low by nothing that can."""

from __future__ import annotations

import errno
from itertools import accumulate
from random import Random

import pytest
from bad_places import CountedStorage
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.broker.consume_queue import ENTRY_BYTES
from rocketcrew.broker.message_store import MessageStore, QueueRebuilding, StoreBounds
from rocketcrew.broker.readable_log import PIECE_BYTES, pieces_of
from rocketcrew.broker.record_heads import HEAD_BYTES
from rocketcrew.broker.storage import StorageError
from rocketcrew.broker.tags import message_tags_code
from rocketcrew.broker.time_search import UNREAD_MAX, TimeSearch
from rocketcrew.remoting.stored import StoredMessage

T0 = 1_700_000_000_000
BOUNDS = StoreBounds(32, 262_144, 800, 1 << 24)


class Times:
    """Store times of messages on pages of a log, some of which are bad."""

    def __init__(self, times, pages, bad):
        self.times, self.pages, self.bad = times, pages, bad
        self.failed = 0

    def stored_ms(self, offset):
        if self.pages[offset] not in self.bad:
            return self.times[offset]
        self.failed += 1
        error = OSError(errno.EIO, "Input/output error")
        raise StorageError("cannot read") from error

    def page_of(self, offset):
        page = self.pages[offset]
        return self.pages.index(page), self.pages.index(page) + self.pages.count(page)

    def search(self, timestamp_ms, *, upper=False):
        return TimeSearch(self.stored_ms, self.page_of).run(0, len(self.times), timestamp_ms, upper=upper)

    def wanted(self, timestamp_ms, *, upper=False):
        count = sum(each < timestamp_ms or (upper and each == timestamp_ms) for each in self.times)
        while count and self.pages[count - 1] in self.bad:
            count -= 1
        return count


STEPS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=1, max_size=60)


@given(STEPS, st.sets(st.integers(0, 40), max_size=4), st.integers(-1, 80), st.booleans())
def test_it_is_the_first_one_behind_the_last_that_is_known_to_be_older(steps, bad, timestamp_ms, upper):
    times = Times([*accumulate(ms for ms, _ in steps)], [*accumulate(page for _, page in steps)], bad)
    assert times.search(timestamp_ms, upper=upper) == times.wanted(timestamp_ms, upper=upper)
    assert times.failed <= UNREAD_MAX


@pytest.mark.parametrize("each", [1, 1_000])
def test_a_page_is_asked_for_once_however_many_messages_it_has(each):
    times = Times(list(range(10 * each)), [number // each for number in range(10 * each)], {4, 5})
    assert times.search(5 * each) == 4 * each
    assert times.failed <= 3


def test_only_so_many_pages_are_tried():
    times = Times(list(range(1_000)), list(range(1_000)), range(1_000))
    with pytest.raises(StorageError):
        times.search(500)
    assert times.failed == UNREAD_MAX + 1


def filled(random):
    store = MessageStore(storage := CountedStorage(), BOUNDS, "127.0.0.1", 10911)
    store.recover(lambda _: True, message_tags_code)
    now_ms = T0
    for _ in range(random.randrange(20, 200)):
        now_ms += random.choice((0, 1, 1, 5))
        store.put(now_ms, StoredMessage("T", b"x" * random.choice((10, 100, 3_000, 9_000))), 0)
        if random.random() < 0.3:
            store.put(now_ms, StoredMessage("U", b"x" * 5_000), 0)
    return storage, store, now_ms


@pytest.mark.parametrize("seed", range(30))
def test_a_search_in_a_store_passes_over_bad_pages(seed):
    storage, store, end_ms = filled(random := Random(seed))
    queue = store.queue("T", 0)
    offsets = range(queue.max_offset)
    times = [store.store_time_ms("T", 0, offset) for offset in offsets]
    first = random.randrange(storage.log.end // PIECE_BYTES)
    storage.log.bad_pages = bad = {first, first + 1, random.randrange(storage.log.end // PIECE_BYTES)}
    is_bad = [not bad.isdisjoint(pieces_of(queue.entry(offset)[0], HEAD_BYTES)) for offset in offsets]
    for timestamp_ms in range(T0 - 2, end_ms + 2, 3):
        lower, upper = (store.search("T", 0, timestamp_ms, upper=upper) for upper in (False, True))
        older = sum(each < timestamp_ms for each in times)
        assert lower <= older and all(is_bad[lower:older])
        last = max(sum(each <= timestamp_ms for each in times) - 1, 0)
        assert upper <= last and all(is_bad[upper + 1 : last + 1])


def test_an_entry_that_cannot_be_read_on_the_way_behind_a_bad_page_has_the_queue_built_anew():
    storage, store, _ = filled(Random(1))
    end = store.max_offset("T", 0)
    position = store.queue("T", 0).entry(end // 2)[0]
    storage.log.bad = range(position, position + 1)
    further = (end // 2 + 1 + end) // 2
    storage.open("consumequeue/T/0", 1, buffered=True).bad = range(further * ENTRY_BYTES, (further + 1) * ENTRY_BYTES)
    with pytest.raises(QueueRebuilding):
        store.search("T", 0, T0 - 1)
