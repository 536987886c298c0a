"""A queue that is built anew while the broker runs: no offset is given twice, and no bad place of the disk ends it."""

from __future__ import annotations

import errno

import pytest
from bad_places import CountedStorage

from rocketcrew.broker.consume_queue import ENTRY_BYTES, FILLER_CODE, ConsumeQueue
from rocketcrew.broker.disk import DiskStorage
from rocketcrew.broker.message_store import MessageStore, QueueRebuilding, StoreBounds
from rocketcrew.broker.readable_log import PIECE_BYTES, TRIED_MAX
from rocketcrew.broker.rebuilds import OLD_MAX, OLD_MAX_BYTES, OLD_STEP_ENTRIES, PAUSE_STEPS, STEP_PARTS, old_entries
from rocketcrew.broker.storage import MemoryFile, MemoryStorage, StorageError
from rocketcrew.broker.syncing import DiskCalls
from rocketcrew.broker.tags import message_tags_code
from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.remoting.names import SCHEDULE_TOPIC
from rocketcrew.remoting.stored import StoredMessage, decode_messages

T0 = 1_700_000_000_000
BOUNDS = StoreBounds(32, 262_144, 800, 1 << 20)


def hurt(broker, offset, at, data, topic="T", queue_id=0):
    """Overwrite a part of a queue's record."""
    position, _, _ = broker.core.state.store.queue(topic, queue_id).entry(offset)
    broker.storage.open("commitlog", 1, buffered=False).overwrite(position + at, data)


def rebuild(broker, topic="T", queue_id=0, in_doubt=False):
    store = broker.core.state.store
    store._rebuilds.plan(store.queue(topic, queue_id), in_doubt=in_doubt)
    while store.is_rebuilding:
        store.rebuild_some()


def bodies(answer):
    return [message.body for message in decode_messages(answer.body)]


BODY, HEAD = 100, 20  # where in a record; of the head its queue offset


@pytest.mark.parametrize("last", [1, 3])
@pytest.mark.parametrize("part", [BODY, HEAD])
def test_damage_at_the_end_gives_no_offset_twice(broker, part, last):
    for number in range(10):
        broker.send(body=b"%d" % number * 30, tag="a")
    broker.send(queue_id=1)
    hold = broker.hold(10)
    for offset in range(10 - last, 10):
        hurt(broker, offset, part, b"damaged!")
    rebuild(broker)
    assert broker.core.state.store.max_offset("T", 0) == 10
    assert broker.send(body=b"honest").fields["queueOffset"] == "10"
    (answer,) = [effect.command for effect in broker.effects if effect.command.opaque == hold]
    assert bodies(answer) == [b"honest"]
    for _ in range(2):
        assert bodies(broker.pull(10)) == [b"honest"]
        broker.core.stop()
        broker.start()


@pytest.mark.parametrize("part", [BODY, HEAD])
def test_a_queue_that_was_built_anew_is_not_built_anew_again(broker, part):
    """Whatever looks at its fillers, and at the old entries that it kept."""
    for number in range(10):
        broker.send(body=b"%d" % number * 30, tag="a")
    for offset in (0, 1, 4, 5, 9):
        hurt(broker, offset, part, b"damaged!")
    rebuild(broker)
    store = broker.core.state.store
    queue = store.queue("T", 0)
    for _ in range(2):
        for offset in range(queue.max_offset):
            store.message_in("T", 0, offset)
            store.get("T", 0, offset, 32)
            store.search("T", 0, store.store_time_ms("T", 0, 2))
        assert not store.is_rebuilding
        positions = [queue.entry(offset)[0] for offset in range(queue.max_offset)]
        assert positions == sorted(positions)
        broker.send(tag="a")
    assert store.rebuilt_queues == 1
    codes = {queue.entry(offset)[2] for offset in (0, 1, 4, 5, 9)}
    assert codes == ({FILLER_CODE} if part == HEAD else {queue.entry(2)[2]}), "whose body alone is damaged is read so"


def test_an_old_entry_that_says_something_else_than_its_record_is_not_kept(broker):
    """Else the next read would find it wrong, and build the queue anew again."""
    for topic in ("T", "U"):
        for number in range(3):
            broker.send(topic=topic, body=b"%d" % number * 30)
    hurt(broker, 2, BODY, b"damaged!")
    store = broker.core.state.store
    other = broker.storage.open("consumequeue/U/0", 1, buffered=True).read(40, 20)
    broker.storage.open("consumequeue/T/0", 1, buffered=True).overwrite(40, other)
    rebuild(broker)
    assert store.queue("T", 0).entry(2)[1:] == (0, FILLER_CODE)
    assert broker.pull(2).code == ResponseCode.PULL_RETRY_IMMEDIATELY


def test_a_queue_all_of_whose_records_are_damaged_goes_on_counting(broker):
    for number in range(3):
        broker.send(body=b"%d" % number * 30)
    broker.send(queue_id=1)
    for offset in range(3):
        hurt(broker, offset, HEAD, b"damaged!")
    rebuild(broker)
    assert broker.send().fields["queueOffset"] == "3"
    assert broker.pull(0).fields["nextBeginOffset"] == "3"


def test_a_delay_level_goes_on_where_its_last_message_was_damaged(broker):
    for number in range(3):
        broker.send(body=b"%d" % number * 30, properties={"DELAY": "1"})
    broker.later(200)
    hurt(broker, 2, BODY, b"damaged!", SCHEDULE_TOPIC)
    rebuild(broker, SCHEDULE_TOPIC)
    broker.send(body=b"honest", properties={"DELAY": "1"})
    broker.later(200)
    assert [message.body for message in broker.read()][3:] == [b"honest"]


def test_a_kill_after_damage_at_the_end_gives_no_offset_of_the_checkpoint_twice():
    """The queue is broken as well, so that the start builds it anew."""
    storage = MemoryStorage()

    def opened():
        store = MessageStore(storage, BOUNDS, "127.0.0.1", 10911)
        store.recover(lambda topic: topic in {"T", "U"}, message_tags_code)
        return store

    store = opened()
    for number in range(5):
        store.put(T0, StoredMessage("T", b"%d" % number * 30), 0)
    store.put(T0, StoredMessage("U", b"other"), 0)
    store.checkpoint_now()
    position, _, _ = store.queue("T", 0).entry(4)
    storage.open("commitlog", 1, buffered=False).overwrite(position + BODY, b"damaged!")
    storage.open("consumequeue/T/0", 1, buffered=True).truncate(60)
    for _ in range(2):
        store = opened()
        assert store.max_offset("T", 0) == 5
    assert store.put(T0, StoredMessage("T", b"next"), 0).queue_offset == 5


@pytest.mark.parametrize("how", ["kill", "kill after the rebuild", "stop while rebuilding"])
@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_start_gives_no_offset_twice_that_was_given_since_the_checkpoint(broker, how, checkpointed):
    store = broker.core.state.store
    for number in range(20):
        if checkpointed and number == 10:
            store.checkpoint_now()
        broker.send(body=b"%d" % number * 30)
    broker.send(queue_id=1)
    store.queue("T", 0).flush()
    hurt(broker, 19, BODY, b"damaged!")
    if how == "stop while rebuilding":
        store._rebuilds.plan(store.queue("T", 0))
        broker.core.stop()
        broker.start()
    else:
        if how == "kill after the rebuild":
            rebuild(broker)
        broker.crash()
    assert broker.send(body=b"honest").fields["queueOffset"] == "20"
    broker.crash()
    assert bodies(broker.pull(20)) == [b"honest"]


def test_what_a_crash_of_the_machine_leaves_of_a_queue_does_not_count(broker):
    """What is in its file may be anything then."""
    broker.send()
    store = broker.core.state.store
    store.checkpoint_now()
    store.queue("T", 0).append_missing(0, 5)
    store.queue("T", 0).flush()
    broker.storage.kept_all = False
    broker.crash()
    assert broker.send().fields["queueOffset"] == "1"


@pytest.mark.parametrize("sysflag", [4, 12])
@pytest.mark.parametrize("first", [True, False])
def test_a_message_with_a_half_message_s_sysflag_and_an_offset_is_kept(broker, sysflag, first):
    store = broker.core.state.store
    broker.send(queue_id=1)
    if not first:
        broker.send(body=b"first")
    store.put(broker.now_ms, StoredMessage("T", b"odd", sysflag=sysflag), 0)
    before = [message.body for message in broker.read()]
    rebuild(broker)
    assert [message.body for message in broker.read()] == before
    broker.send(body=b"last")
    broker.crash()
    if first:  # it is a half message for all that anybody knows, and keeps its offset
        assert bodies(broker.pull(1)) == [b"last"]
    else:
        assert bodies(broker.pull(0)) == [*before, b"last"]


@pytest.fixture
def segmented(make):
    """120 messages of 1,000 bytes in segments of 40,000."""
    broker = make(CountedStorage(), mapped_file_size_commit_log=40_000, body_max_bytes=1_000)
    for number in range(120):
        broker.send(body=b"%1000d" % number, tag="a")
    return broker


def test_a_place_that_cannot_be_read_does_not_end_a_rebuild(segmented):
    broker = segmented
    broker.storage.log.bad = range(10_000, 10_001)
    rebuild(broker)
    assert [bodies(broker.pull(offset))[-1] for offset in (100, 119)] == [b"%1000d" % 119] * 2
    assert broker.send().code == 0
    store = broker.core.state.store
    assert fillers(broker) == [], "what cannot be read may be the next time"
    assert [event for event, _ in store.events] == ["store.place_unreadable", "store.queue_rebuilt", "store.damaged"]


def fillers(broker):
    return fillers_of(broker.core.state.store)


def fillers_of(store):
    queue = store.queue("T", 0)
    return [offset for offset in range(queue.min_offset, queue.next_offset) if queue.entry(offset)[1] == 0]


def read_offsets(broker):
    at, found, end_ms = broker.core.state.store.min_offset("T", 0), [], broker.now_ms + 100_000
    while broker.now_ms < end_ms and at < broker.core.state.store.max_offset("T", 0):
        answer = broker.pull(at)
        if "nextBeginOffset" not in answer.fields:
            broker.later(1_000)  # until it is given up
            continue
        found += [message.queue_offset for message in decode_messages(answer.body)]
        at = int(answer.fields["nextBeginOffset"])
    return found


def test_many_bad_pages_cost_no_record_behind_them(segmented):
    """Those that were not tried in one read are tried in the next; and what was tried is not tried again at the end."""
    broker = segmented
    for _ in range(400):
        broker.send(body=bytes(1_000), queue_id=1)
    broker.storage.log.bad = range(40_960, 40_960 + (TRIED_MAX + 1) * PIECE_BYTES)
    bad = broker.storage.log.bad
    queue = broker.core.state.store.queue("T", 0)
    entries = [queue.entry(offset) for offset in range(120)]
    hit = [at for at, (position, size, _) in enumerate(entries) if position < bad.stop and position + size > bad.start]
    rebuild(broker)
    assert broker.storage.log.failed_reads <= 2 * TRIED_MAX + 4
    assert fillers(broker) == []
    assert read_offsets(broker) == [offset for offset in range(120) if offset not in hit]
    broker.storage.log.bad = range(0)
    assert [entry[0] for entry in map(queue.entry, range(120))] == [entry[0] for entry in entries], "as it was"


def stored(bounds=BOUNDS):
    store = MessageStore(storage := CountedStorage(), bounds, "127.0.0.1", 10911)
    store.recover(lambda topic: topic in {"T", "U"}, message_tags_code)
    while store.is_rebuilding:
        store.rebuild_some()
    return storage, store


def put(store, bodies, topic="T"):
    for start in range(0, len(bodies), 100):
        messages = [StoredMessage(topic, body) for body in bodies[start : start + 100]]
        store.put_all(T0, messages, [0] * len(messages))


def steps_of_rebuild(store):
    """One after the other, of the only queue that is planned."""
    store._rebuilds.plan(store.queue("T", 0), in_doubt=True)
    while store._rebuilds:
        store._rebuild_a_queue()
        yield


def test_what_cannot_be_read_stays_however_many_records_before_it_are_damaged():
    storage, store = stored()
    put(store, [bytes(50)] * (OLD_MAX + 100) + [bytes(1_000)] * 200)
    put(store, [bytes(1_000)] * 3_000, "U")
    queue = store.queue("T", 0)
    for offset in range(OLD_MAX + 50):
        storage.log.overwrite(queue.entry(offset)[0] + 4, b"damaged!")
    storage.log.bad_pages = {queue.entry(OLD_MAX + 200)[0] // PIECE_BYTES}
    before = queue.entries(OLD_MAX + 100, 200)
    for _ in steps_of_rebuild(store):
        pass
    assert queue.entries(OLD_MAX + 100, 200) == before


@pytest.mark.parametrize("size", [1 << 20, OLD_MAX_BYTES + 1])
def test_what_cannot_be_read_stays_however_large_it_is(size):
    storage, store = stored(StoreBounds(32, 262_144, 800, 1 << 27))
    put(store, [bytes(size), b"next"])
    put(store, [bytes(1 << 20)] * 5, "U")
    queue = store.queue("T", 0)
    before = queue.entries(0, 2)
    storage.log.bad_pages = {20}
    for _ in steps_of_rebuild(store):
        pass
    assert (store.rebuilt_queues, queue.entries(0, 2)) == (1, before)


def test_a_cold_part_of_the_log_that_cannot_be_read_costs_many_short_steps_and_no_entry():
    storage, store = stored()
    count = 5 * OLD_STEP_ENTRIES
    put(store, [b""] * count)
    cold = store.log_end // PIECE_BYTES - 3
    put(store, [bytes(2_000)] * 1_000, "U")
    queue = store.queue("T", 0)
    before = queue.entries(0, count)
    storage.log.bad_pages = set(range(cold))
    steps = sum(1 for _ in steps_of_rebuild(store))
    assert (store.rebuilt_queues, queue.entries(0, count)) == (1, before)
    assert steps >= 4 + cold // TRIED_MAX


def test_a_rebuild_with_many_bad_pages_has_no_step_in_which_many_reads_fail():
    """Each may take the disk seconds, and the loop waits for it."""
    storage, store = stored(StoreBounds(32, 262_144, 800, 1 << 24))
    put(store, [b"%0800d" % number for number in range(6_000)])
    pages = store.log_end // PIECE_BYTES
    storage.log.bad_pages = set(range(50, pages // 2 - 5, 12))
    assert len(storage.log.bad_pages) > 5 * TRIED_MAX
    most = 0
    for _ in steps_of_rebuild(store):
        most, storage.log.failed_reads = max(most, storage.log.failed_reads), 0
    assert (store.rebuilt_queues, fillers_of(store)) == (1, [])
    assert most <= 5 * TRIED_MAX


def test_what_the_queue_s_file_has_no_more_is_missing():
    """A rebuild could not replace it, and dropped a part."""
    queue = ConsumeQueue(file := MemoryFile(1 << 20, buffered=True), "T", 0)
    queue.append_entries([(number * 100, 100, 7) for number in range(5)])
    file.truncate(3 * ENTRY_BYTES)
    assert old_entries(queue, 2) == [(200, 100, 7)]
    for offset in (3, 4):
        assert old_entries(queue, offset)[0] == (0, 0, FILLER_CODE)


def test_what_is_damaged_is_set_aside_in_steps():
    """Each copy is brought to the disk, and the loop waits for it."""
    storage, store = stored()
    put(store, [bytes(100)] * 100)
    for offset in range(0, 100, 2):
        storage.log.overwrite(store.queue("T", 0).entry(offset)[0] + BODY, b"damaged!")
    most = before = 0
    for _ in steps_of_rebuild(store):
        most, before = max(most, len(storage.aside()) - before), len(storage.aside())
    assert (most, before) == (1, 50)


def test_small_records_make_no_step_longer():
    _, store = stored()
    put(store, [b""] * (3 * STEP_PARTS))
    assert len(list(steps_of_rebuild(store))) == 4


def test_a_bad_page_of_the_queue_s_file_costs_the_old_entries_in_it_alone():
    """And few looks, whatever of the log is gone."""
    storage, store = stored()
    put(store, [b""] * 2_000)
    cold = store.log_end // PIECE_BYTES - 2
    put(store, [bytes(2_000)] * 1_000, "U")
    storage.log.bad_pages = set(range(cold))
    file = storage.open("consumequeue/T/0", 1, buffered=True)
    file.bad_pages, file.failed_reads, most = {3}, 0, 0
    for _ in steps_of_rebuild(store):
        most = max(most, file.failed_reads)
    hit = [
        offset for offset in range(2_000) if (offset * 20) // PIECE_BYTES == 3 or (offset * 20 + 19) // PIECE_BYTES == 3
    ]
    assert fillers_of(store) == hit
    assert most <= 2 * TRIED_MAX


def test_a_record_whose_properties_cannot_be_read_is_given_up_by_who_reads(make):
    """The CRC is that of the body alone."""
    broker = make(CountedStorage(), mapped_file_size_commit_log=1 << 20)
    queue = page = None
    while page is None:
        broker.send(body=bytes(20), properties={"K": "v" * 100})
        queue = broker.core.state.store.queue("T", 0)
        position, size, _ = queue.entry(queue.next_offset - 1)
        page = next((at for at in range(position + size - 100, position + size) if at % PIECE_BYTES == 0), None)
    hit = queue.next_offset - 1
    broker.send(body=bytes(2 * PIECE_BYTES))
    broker.send()
    broker.storage.log.bad = range(page, page + PIECE_BYTES)
    rebuild(broker)
    assert fillers(broker) == []
    assert read_offsets(broker) == [*range(hit), hit + 2]


def test_a_damaged_head_sends_the_queue_s_end_nowhere(segmented):
    """Where it is the only record of the queue that can be read nothing speaks against it, but the queue itself."""
    cut_front(segmented)
    segmented.send(queue_id=1)
    hurt(segmented, 0, HEAD, (7 << 60).to_bytes(8, "big"), queue_id=1)
    rebuild(segmented, queue_id=1)
    assert segmented.send(queue_id=1).fields["queueOffset"] == "1"


def cut_front(broker):
    """Retention drops the log's first segment; returns the queue, which begins later then."""
    store = broker.core.state.store
    store._keep_from(broker.storage.log.segment_starts()[1])
    return store.queue("T", 0)


def test_at_the_queue_s_beginning_too_whose_body_alone_is_damaged_stays(segmented):
    queue = cut_front(segmented)
    begin = queue.min_offset
    assert begin > 0
    for offset, at in ((begin, BODY), (begin + 1, HEAD), (begin + 3, BODY)):
        hurt(segmented, offset, at, b"damaged!")
    rebuild(segmented)
    assert (queue.min_offset, fillers(segmented)) == (begin, [begin + 1])
    assert segmented.core.state.store.events[-1][1]["missing_offsets"] == 1


def test_what_the_queue_s_beginning_lost_is_counted(segmented):
    queue = cut_front(segmented)
    begin = queue.min_offset
    for offset in range(begin, begin + 3):
        hurt(segmented, offset, HEAD, b"damaged!")
    rebuild(segmented)
    assert queue.min_offset > begin
    assert segmented.core.state.store.events[-1][1]["missing_offsets"] == queue.min_offset - begin
    assert read_offsets(segmented) == list(range(queue.min_offset, 120))


def test_what_cannot_be_read_at_the_queue_s_beginning_stays(segmented):
    queue = cut_front(segmented)
    before = queue.entries(queue.min_offset, 10)
    segmented.storage.log.bad = range(40_960, 40_961)
    rebuild(segmented)
    assert queue.entries(queue.min_offset, 10) == before


@pytest.mark.parametrize("in_doubt", [True, False])
def test_a_rebuild_that_the_disk_ends_is_tried_again_after_a_pause(segmented, in_doubt):
    broker = segmented
    store, log = broker.core.state.store, broker.storage.log
    log.bad, log.error_number = range(10_000, 10_001), errno.EMFILE
    with pytest.raises(StorageError):
        rebuild(broker, in_doubt=in_doubt)
    log.bad = range(0)
    assert not store.is_rebuilding
    assert (broker.pull().code == 0) == in_doubt, "what the check found can be read as before"
    for _ in range(PAUSE_STEPS):
        store._rebuilds.rest()
    rebuild(broker, in_doubt=in_doubt)
    assert (store.rebuilt_queues, len(broker.read())) == (1, 120)


def test_a_read_that_finds_the_queue_wrong_ends_the_doubt(segmented):
    broker = segmented
    store, log = broker.core.state.store, broker.storage.log
    queue = store.queue("T", 0)
    store._rebuilds.plan(queue, in_doubt=True)
    store._rebuilds.plan(queue)
    store._rebuilds.plan(queue, in_doubt=True)
    log.bad, log.error_number = range(1, 2), errno.EMFILE
    with pytest.raises(StorageError):
        store.rebuild_some()
    with pytest.raises(QueueRebuilding):
        store.get("T", 0, 0, 1)


def test_where_the_old_entries_cannot_be_looked_at_the_queue_is_as_it_was(segmented):
    """A descriptor was missing, and nothing of the queue was touched: it is not refused until the next try."""
    broker = segmented
    store, log = broker.core.state.store, broker.storage.log
    queue = store.queue("T", 0)
    position, size, _ = queue.entry(119)
    hurt(broker, 119, BODY, b"damaged!")
    store._rebuilds.plan(queue, in_doubt=True)
    rebuilds = store._rebuilds
    while rebuilds._current is None or rebuilds._current._scan.position < log.end:
        assert rebuilds.step(1, store._queues) is None
    log.bad, log.error_number = range(position, position + size), errno.EMFILE
    with pytest.raises(StorageError):
        rebuild(broker, in_doubt=True)
    log.bad = range(0)
    assert (broker.pull().code, broker.send().code) == (0, 0)


def test_the_end_of_a_queue_whose_rebuild_failed_half_way_does_not_fall(broker):
    """Its file had none of its entries then."""

    class Full(MemoryFile):
        __slots__ = ()

        def append(self, data):
            raise StorageError("cannot write: No space left on device")

    for number in range(5):
        broker.send(body=b"%d" % number)
    hurt(broker, 4, HEAD, b"damaged!")
    file = broker.storage.open("consumequeue/T/0", 1, buffered=True)
    file.__class__ = Full
    with pytest.raises(StorageError):
        rebuild(broker)
    store = broker.core.state.store
    assert store.queue("T", 0).next_offset == 0
    file.__class__ = MemoryFile
    for _ in range(PAUSE_STEPS):
        store._rebuilds.rest()
    rebuild(broker)
    assert broker.send().fields["queueOffset"] == "5"


def test_a_full_disk_at_the_end_of_a_rebuild_hides_nothing_of_it(make):
    class Full(MemoryFile):
        __slots__ = ()

        def flush(self):
            raise StorageError("cannot write: No space left on device")

    broker = make()
    broker.send(body=b"kept")
    broker.storage.open("consumequeue/T/0", 1, buffered=True).__class__ = Full
    with pytest.raises(StorageError):
        rebuild(broker)
    store = broker.core.state.store
    assert not store.is_rebuilding
    assert [event for event, _ in store.events] == ["store.queue_rebuilt"]
    assert bodies(broker.pull()) == [b"kept"]


@pytest.mark.parametrize("in_doubt", [True, False])
def test_a_rebuild_that_cannot_replace_the_queue_s_file_is_tried_again_after_a_pause(make, tmp_path, in_doubt):
    """It was tried again at once, for ever, and read the whole log each time."""

    class Calls(DiskCalls):
        refuses = False

        def unlink(self, path):
            if self.refuses and "consumequeue" in path:
                raise OSError(errno.EROFS, "Read-only file system", path)
            super().unlink(path)

    calls = Calls()
    broker = make(DiskStorage(tmp_path, calls=calls, has_thread=False), flush="async")
    for number in range(30):
        broker.send(body=b"%d" % number)
    store = broker.core.state.store
    store.queue("T", 0).flush()
    broker.send(body=b"30")
    calls.refuses = True
    with pytest.raises(StorageError, match="Read-only"):
        rebuild(broker, in_doubt=in_doubt)
    assert not store.is_rebuilding
    assert broker.send().code == ResponseCode.SYSTEM_BUSY
    calls.refuses = False
    for _ in range(PAUSE_STEPS):
        store._rebuilds.rest()
    rebuild(broker, in_doubt=in_doubt)
    assert store.rebuilt_queues == 1
    assert [message.body for message in broker.read()] == [b"%d" % number for number in range(31)]
    broker.storage.abandon()


def test_a_topic_that_is_deleted_meanwhile_is_forgotten(segmented):
    broker = segmented
    store = broker.core.state.store
    for _ in range(2):
        store._rebuilds.plan(store.queue("T", 0))
        store._rebuilds.step(1_000, store._queues)
        store.remove_topic("T")
        assert not store.is_rebuilding
        broker.send(body=b"of the next life")
    assert bodies(broker.pull()) == [b"of the next life"]


def test_a_front_that_cannot_be_removed_at_the_end_of_a_rebuild_shows_nothing_too_early():
    """Who waits for the disk saw messages that it did not have."""

    class Kept(MemoryFile):
        __slots__ = ()

        def drop_before(self, position):
            raise StorageError("cannot remove: Input/output error")

    store = MessageStore(storage := MemoryStorage(), BOUNDS, "127.0.0.1", 10911, waits_for_disk=True)
    store.recover(lambda _: True, message_tags_code)
    for number in range(5):
        store.put(T0, StoredMessage("T", b"%d" % number), 0)
        if number == 2:
            store.flushed_to(store.log_end)
    store._rebuilds.plan(store.queue("T", 0))
    storage.open("consumequeue/T/0", 1, buffered=True).__class__ = Kept
    with pytest.raises(StorageError):
        while store.is_rebuilding:
            store.rebuild_some()
    assert (store.max_offset("T", 0), store.rebuilt_queues, store._checkpoint) == (3, 1, -1)
    assert [event for event, _ in store.events] == ["store.queue_rebuilt"]
