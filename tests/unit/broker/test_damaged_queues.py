"""A consume queue with damaged positions or sizes hides nothing that the log has: that is noticed, and it is made anew.

For a tags code that alone is wrong see test_queue_check.py.
"""

from __future__ import annotations

import errno

import pytest
from bad_places import CountedStorage

from rocketcrew.broker.consume_queue import FILLER_CODE
from rocketcrew.broker.delay import FAILURE_PAUSE_MS
from rocketcrew.broker.fetched import GetStatus
from rocketcrew.broker.lost_places import PATIENCE_STEPS
from rocketcrew.broker.message_store import MessageStore, QueueRebuilding, StoreBounds
from rocketcrew.broker.storage import MemoryStorage
from rocketcrew.broker.tags import message_tags_code, tags_hash
from rocketcrew.broker.wanted import EVERYTHING, Wanted
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.headers import ViewMessage
from rocketcrew.remoting.names import SCHEDULE_TOPIC
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.stored import StoredMessage, decode_messages

T0 = 1_700_000_000_000
SEGMENT_BYTES = 4_096
BOUNDS = StoreBounds(32, 262_144, 800, SEGMENT_BYTES)
SCHEDULE_QUEUE = "consumequeue/SCHEDULE_TOPIC_XXXX/1"


def opened(storage):
    store = MessageStore(storage, BOUNDS, "127.0.0.1", 10911)
    store.recover(lambda topic: topic == "T", message_tags_code)
    return store


def filled(storage, count=60):
    store = opened(storage)
    tagged = encode_properties({"TAGS": "a"}).encode()
    for number in range(count):
        store.put(T0 + number, StoredMessage("T", b"%03d" % number, tagged), tags_hash("a"))
    store.checkpoint_now()
    return store


def damage(storage, at, data, queue="consumequeue/T/0"):
    storage.open(queue, 1, buffered=True).overwrite(at, data)


def rebuilt(store):
    while store.is_rebuilding:
        store.rebuild_some()
    return store.rebuilt_queues


def read(store, wanted=EVERYTHING):
    found, at = [], store.min_offset("T", 0)
    while (fetched := store.get("T", 0, at, 32, wanted)).status in {GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE}:
        found += [message.body for message in decode_messages(fetched.body)] if fetched.count else []
        at = fetched.next_offset
    return found


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (100, bytes(800)),
        (0, bytes(20)),
        (59 * 20, bytes(19) + b"a"),
        (108, bytes(12)),  # the position is whole, and the rest zeros
        (92, bytes(40)),  # from the middle of one entry to the middle of another
        (100, bytes(12)),  # position and size, with the tags code there still
        (100, b"\x7f" * 8),  # a position far behind the log
        (106, b"\xff" * 6),  # a size below 0
    ],
)
@pytest.mark.parametrize("wanted", [EVERYTHING, Wanted(frozenset({tags_hash("a")})), Wanted(frozenset({7}))])
def test_zeros_and_nonsense_in_a_queue_hide_no_message(at, data, wanted):
    storage = MemoryStorage()
    filled(storage)
    damage(storage, at, data)
    store = opened(storage)
    if not store.found.rebuilt:
        with pytest.raises(QueueRebuilding):
            read(store, wanted)
    rebuilt(store)
    assert len(read(store, wanted)) == (0 if wanted.codes == {7} else 60)
    assert len(read(store)) == 60


@pytest.mark.parametrize("look", ["record_in", "store_time_ms", "search"])
def test_each_way_to_look_at_an_entry_notices_zeros(look):
    storage = MemoryStorage()
    filled(storage)
    damage(storage, 600, bytes(20))
    store = opened(storage)
    looks = {
        "record_in": lambda: store.message_in("T", 0, 30).body,
        "store_time_ms": lambda: store.store_time_ms("T", 0, 30),
        "search": lambda: store.search("T", 0, T0 + 30),
    }
    with pytest.raises(QueueRebuilding):
        looks[look]()
    assert rebuilt(store) == 1
    assert looks[look]() == {"record_in": b"030", "store_time_ms": T0 + 30, "search": 30}[look]


def test_retention_does_not_take_zeros_for_old_entries():
    """Entries of zeros in the midst of a queue would make the search for the first kept one pass over all before them."""
    storage = MemoryStorage()
    store = filled(storage, count=400)
    kept = next(offset for offset in range(400) if store.queue("T", 0).entry(offset)[0] >= SEGMENT_BYTES)
    damage(storage, 180 * 20, bytes(100 * 20))
    store = opened(storage)
    store.drop_older_than(T0 + kept + 1)
    assert rebuilt(store) == 1
    assert store.log_start == SEGMENT_BYTES
    assert (store.min_offset("T", 0), len(read(store))) == (kept, 400 - kept)


@pytest.mark.parametrize("begin", range(0, 8_000, 512))
@pytest.mark.parametrize("segment", [1, 2, 4])
def test_retention_does_not_take_a_zeroed_sector_for_old_entries(begin, segment):
    """Pages and entries do not align: where it ends in an entry, what is left of that one may look like an old one."""
    storage = MemoryStorage()
    store = filled(storage, count=400)
    damage(storage, begin, bytes(512))
    start = storage.open("commitlog", 1, buffered=False).segment_starts()[segment]
    store._keep_from(start)
    rebuilt(store)
    found = []
    while len(found) < 400:
        try:
            found = read(store)
            break
        except QueueRebuilding:
            rebuilt(store)
    assert found == [b"%03d" % number for number in range(400 - len(found), 400)]
    assert store.queue("T", 0).entry(store.min_offset("T", 0))[0] == start


def test_fillers_stand_for_lost_messages_wherever_the_next_one_is():
    """Also at the very front of the log. One of size 0 without their mark is none."""
    storage = MemoryStorage()
    store = filled(storage, count=20)
    queue = store.queue("T", 0)
    queue.restart_at(0)
    queue.append_missing(0, 3)
    assert [queue.entry(offset) for offset in range(3)] == [(0, 0, FILLER_CODE)] * 3
    assert [queue.is_filler(offset, queue.entry(offset)) for offset in range(3)] == [True] * 3, "also at the end"
    queue.append(0, 100, 0)
    queue.append_entries(
        [(100, 0, FILLER_CODE), (100, 90, 0), (190, 0, 0), (190, 90, 0), (300, 0, FILLER_CODE), (280, 90, 0)]
    )
    assert [queue.is_filler(offset, queue.entry(offset)) for offset in range(10)] == [
        *(True, True, True, False),
        *(True, False, False, False),
        *(False, False),  # it is behind the next one
    ]


def test_damaged_delay_levels_deliver_all_and_not_too_early(make):
    broker = make(message_delay_level="200ms 5m")
    for number in range(20):
        broker.send(body=b"%02d" % number, properties={"DELAY": "2"})
    broker.core.stop()
    damage(broker.storage, 0, bytes(200), SCHEDULE_QUEUE)
    broker.start()
    broker.later(1_000)
    broker.later(1_000)
    assert broker.read() == []
    for _ in range(3):
        broker.later(300_000)
    assert [message.body for message in broker.read()] == [b"%02d" % number for number in range(20)]
    assert broker.core.state.store.rebuilt_queues == 1


def test_a_damaged_delay_level_holds_up_no_other(make):
    broker = make(message_delay_level="200ms 300ms")
    for level in ("1", "2", "1"):
        broker.send(body=b"of level " + level.encode(), properties={"DELAY": level})
    broker.core.stop()
    damage(broker.storage, 0, bytes(20), "consumequeue/SCHEDULE_TOPIC_XXXX/0")
    broker.start()
    broker.later(300)
    assert [message.body for message in broker.read()] == [b"of level 2"]
    broker.later(FAILURE_PAUSE_MS)
    assert [message.body for message in broker.read()] == [b"of level 2", b"of level 1", b"of level 1"]


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_a_delayed_message_that_the_disk_cannot_read_is_passed_over(make, number):
    """Unless the disk reads nothing at all: then all of its level wait."""
    broker = make(CountedStorage(), message_delay_level="200ms 300ms")
    for level in (b"1", b"2", b"1"):
        broker.send(body=level * 20, properties={"DELAY": level.decode()})
    broker.send(body=bytes(4_000), queue_id=1)
    store, log = broker.core.state.store, broker.storage.log
    position, size, _ = store.queue(SCHEDULE_TOPIC, 0).entry(0)
    log.bad, log.error_number = range(position, position + size), number
    for _ in range(PATIENCE_STEPS + 2):
        broker.later(FAILURE_PAUSE_MS)
        broker.later(1)
    gone = ("store.delayed_message_gone", {"delay_level": 1, "queue_offset": 0, "count": 1}) in store.events
    assert gone == (number == errno.EIO)
    assert [message.body[:1] for message in broker.read()] == ([b"2", b"1"] if gone else [b"2"])
    log.bad = range(0)
    broker.later(FAILURE_PAUSE_MS)
    assert not broker.core.state.delays.next_due_ms()
    assert len(broker.read()) == (2 if gone else 3)


def seconds_pass(broker, count):
    for _ in range(count):
        broker.later(FAILURE_PAUSE_MS)
        broker.later(1)


def with_delayed(make, count=5):
    broker = make(CountedStorage(), message_delay_level="200ms 300ms")
    for number in range(count):
        broker.send(body=b"%d" % number, properties={"DELAY": "1"})
    return broker


@pytest.mark.parametrize("share", [1, 0.6])
def test_an_outage_of_the_disk_passes_no_delayed_message_over(make, share):
    """Though what was written last is in memory, and can be read."""
    broker = with_delayed(make)
    broker.storage.log.bad = range(int(broker.storage.log.end * share))
    seconds_pass(broker, 3 * PATIENCE_STEPS)
    broker.storage.log.bad = range(0)
    seconds_pass(broker, 1)
    assert [message.body for message in broker.read()] == [b"%d" % number for number in range(5)]
    assert "store.delayed_message_gone" not in dict(broker.core.state.store.events)


@pytest.mark.parametrize("bad", [range(40), range(20, 40), range(1 << 40)])
def test_a_place_of_a_level_s_queue_that_the_disk_cannot_read_loses_no_delayed_message(make, bad):
    """Its second entry is read when the first message was delivered."""
    broker = with_delayed(make)
    file = broker.storage.open(f"consumequeue/{SCHEDULE_TOPIC}/0", 1, buffered=True)
    file.bad = bad
    seconds_pass(broker, 3)
    assert [message.body for message in broker.read()] == [b"%d" % number for number in range(5)]
    assert broker.core.state.store.rebuilt_queues == 1
    assert broker.core.state.delays.next_due_ms() is None


def test_while_the_disk_reads_nothing_no_level_s_queue_is_built_anew(make):
    broker = with_delayed(make)
    file = broker.storage.open(f"consumequeue/{SCHEDULE_TOPIC}/0", 1, buffered=True)
    file.bad = broker.storage.log.bad = range(1 << 40)
    seconds_pass(broker, 2 * PATIENCE_STEPS)
    file.bad = broker.storage.log.bad = range(0)
    seconds_pass(broker, 1)
    assert [message.body for message in broker.read()] == [b"%d" % number for number in range(5)]
    assert broker.core.state.store.rebuilt_queues == 0


@pytest.mark.parametrize("code", [b"\0\0\0\0", b"\xff\xff\xff\xff"])
def test_a_delivery_time_that_is_half_damaged_delivers_nothing_too_early(make, code):
    """Pages and entries do not align: a damaged page may take the lower half of a delivery time, and no more of its entry."""
    broker = make(message_delay_level="200ms 5m")
    for number in range(3):
        broker.send(body=b"%02d" % number, properties={"DELAY": "2"})
    broker.core.stop()
    damage(broker.storage, 16, code, SCHEDULE_QUEUE)
    broker.start()
    for seconds in (1, 100, 190):
        broker.later(seconds * 1_000)
        assert broker.read() == []
    broker.later(9_000)
    assert [message.body for message in broker.read()] == [b"%02d" % number for number in range(3)]


def test_retention_before_the_first_step_of_a_rebuild_is_no_trouble(make):
    """The rebuild, which would have begun at the old front of the log, begins anew."""
    broker = make(mapped_file_size_commit_log=70_000, body_max_bytes=1_000, retention_ms=3_600_000)
    for round_number in range(4):
        for number in range(400):
            broker.send(body=b"%d-%d" % (round_number, number))
        broker.later(1_000_000)
    broker.core.stop()
    store = broker.core.state.store
    for at in range(0, store.queue("T", 0).next_offset * 20 - 2_000, 4_000):
        damage(broker.storage, at, bytes(2_000))
    broker.start()
    store = broker.core.state.store
    before = store.log_start
    assert store.is_rebuilding
    broker.later(1_500_000)
    assert (store.log_start > before, broker.core.trouble) == (True, None)
    broker.later(1_000)
    assert (store.rebuilt_queues, broker.core.trouble) == (1, None)
    assert store.get("T", 0, store.min_offset("T", 0), 32).status is GetStatus.FOUND


def test_a_message_is_found_by_its_place_when_its_entry_is_damaged(make):
    broker = make()
    broker.send(body=b"kept")
    broker.send(body=b"next")
    (message, _) = broker.read()
    broker.core.stop()
    damage(broker.storage, 0, bytes(20))
    broker.start()
    view = ViewMessage(message.physical_offset)
    assert broker.call(RequestCode.VIEW_MESSAGE_BY_ID, view).code == 2
    broker.later(1_000)
    assert broker.call(RequestCode.VIEW_MESSAGE_BY_ID, view).code == 0
