"""The table of pending requests: deadlines in order, bounded, opaques unique."""

from __future__ import annotations

import random

from rocketcrew.client.pending import OPAQUE_MAX, STALE_MIN, PendingTable


def add(table, deadline_s, now_s=0.0):
    opaque = table.next_opaque()
    return table.add(opaque, 11, None, now_s=now_s, deadline_s=deadline_s, sink=None)


def test_deadlines_expire_in_order_and_answered_ones_do_not():
    table = PendingTable(100)
    late, early, answered = add(table, 30.0), add(table, 3.0), add(table, 2.0)
    assert table.take(answered.opaque) is answered
    assert table.take(answered.opaque) is None
    assert table.next_deadline_s() == 3.0
    assert table.expire(2.9) == []
    assert table.expire(3.0) == [early]
    assert table.expire(100.0) == [late]
    assert table.next_deadline_s() is None
    assert len(table) == 0


def test_the_heap_stays_bounded_while_all_are_answered():
    table = PendingTable(100)
    for _ in range(50 * STALE_MIN):
        table.take(add(table, 30.0).opaque)
        assert len(table._deadlines) <= STALE_MIN + 2
    assert table.next_deadline_s() is None


def test_full_at_its_bound():
    table = PendingTable(2)
    first = add(table, 1.0)
    add(table, 1.0)
    assert table.full
    table.take(first.opaque)
    assert not table.full


def test_opaques_wrap_and_skip_those_in_use():
    table = PendingTable(10)
    add(table, 1.0)
    table._last_opaque = OPAQUE_MAX
    assert table.next_opaque() == 1
    assert add(table, 1.0).opaque == 2


def test_random_history_matches_a_plain_model():
    seed = random.Random(7)
    table, model, now_s = PendingTable(10_000), {}, 0.0
    for _ in range(5000):
        step = seed.random()
        if step < 0.5:
            entry = add(table, now_s + seed.choice([0.5, 3.0, 30.0]), now_s)
            model[entry.opaque] = entry.deadline_s
        elif step < 0.9 and model:
            opaque = seed.choice(list(model))
            assert table.take(opaque).opaque == opaque
            del model[opaque]
        else:
            now_s += seed.random()
            gone = {opaque for opaque, deadline_s in model.items() if deadline_s <= now_s}
            assert {entry.opaque for entry in table.expire(now_s)} == gone
            model = {opaque: deadline_s for opaque, deadline_s in model.items() if opaque not in gone}
        assert table.next_deadline_s() == min(model.values(), default=None)
    assert {entry.opaque for entry in table.take_all()} == set(model)
