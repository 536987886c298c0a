"""The table of what POP gave out: texts that are done, twice or with the table besides, and nonsense."""

from __future__ import annotations

from random import Random

import pytest

from rocketcrew.broker.pop_table import (
    InFlight,
    Key,
    PopTable,
    acknowledged,
    begun,
    changed,
    forgotten,
    popped,
    revived,
)
from rocketcrew.remoting.errors import ProtocolError

KEY = Key("T", "g", 0)


def applied(*texts):
    table = PopTable()
    for text in texts:
        table.apply(text)
    return table


def test_only_the_newest_pop_time_counts():
    table = applied(popped(KEY, 0, 3, 100, 50, [0, 1, 2]), changed(KEY, 1, 100, 130, 90))
    table.apply(acknowledged(KEY, 100, [0, 1, 7]))
    assert (len(table), table.floor(KEY), table.next_offset(KEY)) == (2, 1, 3)
    table.apply(changed(KEY, 1, 100, 999, 999))
    assert table.in_flight(KEY, 1) == InFlight(130, 90)
    table.apply(acknowledged(KEY, 130, [1]))
    assert table.floor(KEY) == 2


def test_times_come_in_their_order_and_one_that_is_shown_again_is_out_of_reach():
    table = applied(popped(KEY, 0, 2, 100, 50, [0, 1]), changed(KEY, 0, 100, 120, 90))
    assert table.next_due_ms() == 150
    assert [offset for _, offset, _ in table.take_due(149, 10)] == []
    assert [offset for _, offset, _ in table.take_due(500, 10)] == [1, 0]
    assert table.in_flight(KEY, 1) is None
    assert table.next_due_ms() is None
    table.put_off(KEY, 1, 700)
    assert table.next_due_ms() == 700
    table.apply(revived(KEY, [0, 1]))
    assert (len(table), table.next_due_ms(), table.floor(KEY)) == (0, None, 2)


def test_a_new_beginning_and_a_deletion_leave_nothing_of_before():
    other = Key("T", "other", 1)
    table = applied(popped(KEY, 0, 9, 1, 1, [8]), popped(other, 0, 4, 1, 1, [3]), begun(KEY, 2))
    assert (len(table), table.next_offset(KEY)) == (1, 2)
    table.apply(forgotten("", "other"))
    assert (len(table), table.all_keys()) == (0, [KEY])
    table.apply(forgotten("T", ""))
    assert table.all_keys() == []


def test_after_a_missing_text_the_group_pops_again_what_that_one_had():
    texts = [popped(KEY, first, first + 2, first, 50, [first, first + 1]) for first in (0, 2, 4)]
    table = applied(texts[0], texts[2], acknowledged(KEY, 0, [0]))
    assert (len(table), table.floor(KEY), table.next_offset(KEY)) == (1, 1, 2)
    assert applied(texts[2]).next_offset(KEY) == 0


@pytest.mark.parametrize("seed", range(20))
def test_lines_that_the_table_has_already_change_nothing(seed):
    """A kill may come between the table and the end of the journal that it has."""
    random = Random(seed)
    texts, table, loaded = [], PopTable(), b""
    for now in range(1, 120):
        key = Key(random.choice("TU"), "g", random.randrange(2))
        flying = list(table._in_flight.get(key, {}).items())
        chance = random.random()
        if chance < 0.4 or not flying:
            first = table.next_offset(key) or 0
            text = popped(key, first, first + 3, now, 50, [first, first + 2])
        elif chance < 0.7:
            offset, entry = random.choice(flying)
            text = acknowledged(key, entry.pop_time_ms, [offset])
        elif chance < 0.85:
            offset, entry = random.choice(flying)
            text = changed(key, offset, entry.pop_time_ms, now, 70)
        elif chance < 0.95:
            text = revived(key, [random.choice(flying)[0]])
        else:
            text = begun(key, random.randrange(5)) if random.random() < 0.5 else forgotten(key.topic, "")
        texts.append(text)
        table.apply(text)
        if now == 80:
            loaded = table.dump()
    again = PopTable()
    again.load(loaded)
    for text in texts:
        again.apply(text)
    assert state(again) == state(table)
    assert len(again) == len(table)
    without_front = PopTable()
    without_front.load(loaded)
    for text in texts[random.randrange(80) :]:
        without_front.apply(text)
    assert state(without_front) == state(table)
    once_more = PopTable()
    once_more.load(table.dump())
    assert state(once_more) == state(table)


def state(table):
    return {key: (table.next_offset(key), table._in_flight.get(key, {})) for key in table.all_keys()}


@pytest.mark.parametrize("text", [b"", b"t", b"x T@g@0 1", b"a T@g 1 2", b"t T@g@0 1", b"a T@g@0 one", b"\xff T@g@0 1"])
def test_nonsense_is_an_error(text):
    with pytest.raises(ProtocolError, match="is no line"):
        PopTable().apply(text)


@pytest.mark.parametrize("text", [b'{"inFlight":{"T@g@0":[1,2]}}', b'{"next":{"T":1}}', b"[]"])
def test_a_table_that_is_none_is_an_error(text):
    with pytest.raises(ProtocolError):
        PopTable().load(text)
