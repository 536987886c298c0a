"""What `rocketcrew reconcile` says of a report: counts, where failed messages went, and what nobody explains."""

from __future__ import annotations

import re
import shlex
from functools import partial
from pathlib import Path

import pytest

from rocketcrew.cli.commands.reconcile import (
    NOT_AT_BROKERS,
    NOT_READ,
    as_lines,
    as_object,
    ended_loaders,
    looked_again,
    reset_line,
)
from rocketcrew.cli.commands.reset import reset
from rocketcrew.conf.settings import load
from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.durable.outcomes import Outcomes
from rocketcrew.spark.reconciling import Fate, QueueEnds, QueueReport, Report, TableFacts
from rocketcrew.spark.status import FAILED, StatusFile

ORDERS, RETRY = QueueKey("g", "orders", "b", 0), QueueKey("g", "%RETRY%g", "b", 0, 1)
NO_FACTS = TableFacts(OffsetSet(), OffsetSet(), OffsetSet(), Outcomes())


def queue(key: QueueKey, **fates: tuple[int, int]) -> QueueReport:
    pieces = {Fate(fate): IntervalSet.of([piece]) for fate, piece in fates.items()}
    return QueueReport(key, QueueEnds(0, 20, 18), pieces)


REPORT = Report(
    (queue(ORDERS, loaded=(0, 10), sent_back=(10, 13), no_rows=(13, 14), waiting=(14, 20)),
     queue(RETRY, dead_letter=(0, 2), missing=(2, 4))), None,
)  # fmt: skip


def test_where_messages_went_is_named() -> None:
    lines = as_lines(REPORT, ["batch_id=3/x.parquet"])
    assert lines == [
        "orders b 0: 10 loaded, 3 sent back (to %RETRY%g), 1 no rows, 6 waiting",
        "%RETRY%g b 0 epoch 1: 2 dead letter (to %DLQ%g), 2 missing",
        "  UNEXPLAINED missing: 2-3",
        "unreadable batch_id=3/x.parquet",
        "not everything is explained",
    ]


def test_as_an_object_too() -> None:
    told = as_object(REPORT, [])
    queues = told["queues"]
    assert isinstance(queues, list)
    orders, retry = queues
    assert orders["sent_to"] == {"sent_back": "%RETRY%g"}
    assert orders["counts"] == {"loaded": 10, "sent_back": 3, "no_rows": 1, "waiting": 6}
    assert (retry["sent_to"], retry["unexplained"]) == ({"dead_letter": "%DLQ%g"}, {"missing": ((2, 4),)})
    assert told["fine"] is False


def test_what_no_broker_has_any_more_is_said_beside_what_it_is() -> None:
    lost = QueueReport(ORDERS, QueueEnds(8, 20, 20), {Fate.UNKNOWN: IntervalSet.of([(5, 9)])}, IntervalSet.of([(0, 8)]))
    report = Report((lost,), None)
    assert as_lines(report, []) == [
        "orders b 0: 4 unknown",
        "  UNEXPLAINED unknown: 5-8",
        "  cannot be run again: 5-7 (no broker has it now, or a later epoch has begun)",
        "not everything is explained",
    ]
    queues = as_object(report, [])["queues"]
    assert isinstance(queues, list)
    assert queues[0]["cannot_be_run_again"] == ((5, 8),)


def began_at(first: int, others: tuple[int, int] | None = None) -> Report:
    """Offsets before `first` are known to nobody, but for those of another epoch."""
    other = IntervalSet() if others is None else IntervalSet.of([others])
    before, loaded = IntervalSet.of([(0, first)]), IntervalSet.of([(first, 20)])
    fates = {Fate.LOADED: loaded, Fate.BEFORE: before}
    return Report((QueueReport(ORDERS, QueueEnds(0, 20, 20), fates, unseen=before - other),), None)


def test_where_no_staging_folder_was_found_what_was_set_aside_may_be_among_what_is_called_before() -> None:
    """A run with another supervisor.data_dir: ten quarantined messages at the beginning were "explained"."""
    said = (
        "no folder of segments in state/g: rows that were set aside (quarantined) cannot be seen, and 10 messages before"
        " the first that is known may be such. Name the run's own folder by --set supervisor.data_dir=DIR, or its segments by"
        " --staging DIR"
    )
    lines = ["orders b 0: 10 loaded, 10 before", said, "not everything is explained"]
    assert as_lines(began_at(10), [], Path("state/g")) == lines
    told = as_object(began_at(10), [], Path("state/g"))
    assert (told["fine"], told["no_segments_in"]) == (False, "state/g")


def test_with_a_folder_to_look_into_the_group_began_there() -> None:
    assert as_lines(began_at(10), []) == ["orders b 0: 10 loaded, 10 before", "everything is explained"]
    said = as_object(began_at(10), [])
    assert (said["fine"], said["no_segments_in"]) == (True, None)


@pytest.mark.parametrize(("first", "others"), [(0, None), (10, (0, 10))])
def test_without_a_folder_a_table_that_knows_all_is_explained_and_says_what_was_not_seen(
    first: int, others: tuple[int, int] | None
) -> None:
    lines = as_lines(began_at(first, others), [], Path("state/g"))
    assert "(quarantined) cannot be seen. Name" in lines[-2]
    assert lines[-1] == "everything is explained"


def test_a_topic_made_again_is_said_with_what_to_do() -> None:
    fates = {Fate.LOADED: IntervalSet.of([(5, 20)]), Fate.UNKNOWN: IntervalSet.of([(0, 5)])}
    report = Report((QueueReport(ORDERS, QueueEnds(0, 20, 20), fates, made_again=IntervalSet.of([(0, 5)])),), None)
    lines = as_lines(report, [])
    assert lines[:2] == ["orders b 0: 15 loaded, 5 unknown", "  UNEXPLAINED unknown: 0-4"]
    assert lines[2].startswith("  made again: the broker stored its 0-4, at least, later than ")
    assert "`rocketcrew reset -t orders --to earliest`" in lines[2]
    assert lines[3:] == ["not everything is explained"]
    queues = as_object(report, [])["queues"]
    assert isinstance(queues, list)
    assert queues[0]["made_again"] == ((0, 5),)


def test_a_topic_made_again_that_the_loader_cannot_tell_needs_a_new_epoch() -> None:
    """The new topic's broker has a clock that is behind: its records look older than the table's."""
    made_again = IntervalSet.of([(0, 5)])
    fates = {Fate.LOADED: IntervalSet.of([(5, 20)]), Fate.UNKNOWN: made_again}
    report = Report((QueueReport(ORDERS, QueueEnds(0, 20, 20), fates, made_again=made_again, newer=False),), None)
    line = as_lines(report, [])[2]
    assert line.startswith("  made again: the broker stored its 0-4, at least, at other times than ")
    assert "stop the group's members, run `rocketcrew reset -t orders --to earliest --reprocess` and start them" in line


def test_an_end_that_a_failover_has_replaced_is_brought_from_where_it_begins() -> None:
    """In another queue of the topic a little earlier: one command is for the topic."""
    replaced = IntervalSet.of([(5, 9)])
    fates = {Fate.LOADED: IntervalSet.of([(0, 5), (9, 20)]), Fate.UNKNOWN: replaced}
    queues = [
        QueueReport(ORDERS._replace(queue_id=n), QueueEnds(0, 20, 20), fates, made_again=replaced, since_ms=since_ms)
        for n, since_ms in enumerate((1_700_000_000_500, 1_700_000_000_400))
    ]
    said = [line for line in as_lines(Report(tuple(queues), None), []) if line.startswith("  replaced: ")]
    assert len(said) == 2
    for line in said:
        assert "the broker stored its 5-8, at least, later than" in line
        assert "a failover to a replica that lagged has replaced the end of the queue" in line
        assert "`rocketcrew reset -t orders --to 1700000000400`" in line


@pytest.mark.parametrize("newer", [True, False])
def test_the_command_that_is_printed_is_one_that_can_be_run(tmp_path: Path, newer: bool) -> None:
    """With all that this one knew: a namespace, a table, several folders of segments, a data_dir of its own."""
    flags = {
        "consumer.group": "billing", "cluster.name_servers": "h:9876", "cluster.namespace": "ns", "spark.target": "my table",
        "supervisor.data_dir": "state",
    }  # fmt: skip
    settings = load(flags, {}, None)
    stagings = [tmp_path / "0", tmp_path / "1"]
    for folder in stagings:
        folder.mkdir()
    again = IntervalSet.of([(0, 5)])
    key = QueueKey("ns%billing", "ns%orders", "b", 0)
    report = Report(
        (QueueReport(key, QueueEnds(0, 20, 20), {Fate.UNKNOWN: again}, made_again=again, newer=newer),), None
    )
    said = "\n".join(as_lines(report, [], reset=partial(reset_line, settings, stagings)))
    found = re.search("`rocketcrew reset (.*?)`", said)
    assert found is not None
    context = reset.make_context("reset", shlex.split(found[1]))
    asked = {
        "name_servers": "h:9876", "group": "billing", "topics": ("orders",), "where": "earliest",
        "stagings": tuple(stagings), "reprocess": not newer, "target": None if newer else "my table",
    }  # fmt: skip
    assert {name: context.params[name] for name in asked} == asked
    assert "cluster.namespace=ns" in found[1]
    assert "supervisor.data_dir=state" in found[1]


def test_a_queue_that_no_broker_knows_is_not_explained() -> None:
    gone = QueueReport(ORDERS, None, {Fate.LOADED: IntervalSet.of([(0, 3)])}, not_at_brokers=True)
    lines = as_lines(Report((gone,), None), [])
    assert lines == ["orders b 0: 3 loaded", NOT_AT_BROKERS, "not everything is explained"]
    told = as_object(Report((gone,), None), [])
    queues = told["queues"]
    assert isinstance(queues, list)
    assert (told["fine"], queues[0]["not_at_brokers"]) == (False, True)


@pytest.mark.parametrize(("waiting", "said"), [((3, 5), [NOT_READ]), ((3, 3), [])])
def test_what_waits_in_a_queue_without_readers_is_said(waiting: tuple[int, int], said: list[str]) -> None:
    pieces = {Fate.LOADED: IntervalSet.of([(0, 3)]), Fate.WAITING: IntervalSet.of([waiting])}
    fates = {fate: offsets for fate, offsets in pieces.items() if offsets}
    unread = QueueReport(ORDERS, QueueEnds(0, waiting[1], 3, read=False), fates)
    assert as_lines(Report((unread,), None), [])[1:] == [*said, "everything is explained"]


def test_what_nobody_reads_of_a_retry_topic_comes_with_the_cure() -> None:
    """Brokers put what fails into as many queues as the group's retryQueueNums says: "everything is explained" hid them."""
    waits = {Fate.WAITING: IntervalSet.of([(0, 3)])}
    its = [
        QueueReport(RETRY._replace(queue_id=number, epoch=0), QueueEnds(0, 3, None, read=number == 0), waits)
        for number in range(3)
    ]
    said = (
        f"{NOT_READ}. Brokers put what fails there (the group's retryQueueNums): `mqadmin updateTopic -t %RETRY%g -r 3 -w 3`"
        " at each of its brokers (with the group's retryQueueNums, where that is more)"
    )
    assert as_lines(Report(tuple(its), None), []) == [
        "%RETRY%g b 0: 3 waiting", "%RETRY%g b 1: 3 waiting", said, "%RETRY%g b 2: 3 waiting", said,
        "everything is explained",
    ]  # fmt: skip


def unknown_in(*looks: tuple[int, int], looks_max: int = 3) -> tuple[str, int]:
    """What the queue has after looks to each of which those of 0-19 are unknown, and how often was waited."""
    left, waits = list(looks), list[None]()

    def look() -> tuple[Report, TableFacts, list[str]]:
        start, stop = left.pop(0)
        fates = {Fate.UNKNOWN: IntervalSet.of([(start, stop)]), Fate.LOADED: IntervalSet.of([(0, start), (stop, 20)])}
        shown = {fate: offsets for fate, offsets in fates.items() if offsets}
        return Report((QueueReport(ORDERS, QueueEnds(0, 20, 20), shown),), None), NO_FACTS, []

    report, _, _ = looked_again(look, looks_max, lambda: waits.append(None))
    return as_lines(report, [])[0], len(waits)


def test_only_what_all_looks_share_is_unknown() -> None:
    """Beside members that run: another look finds others that are in hand just then."""
    assert unknown_in((5, 5)) == ("orders b 0: 20 loaded", 0)
    assert unknown_in((5, 8), (8, 8)) == ("orders b 0: 20 loaded", 1)
    assert unknown_in((5, 8), (10, 12)) == ("orders b 0: 18 loaded, 2 waiting", 1)
    assert unknown_in((5, 8), (6, 12), (7, 9)) == ("orders b 0: 18 loaded, 1 waiting, 1 unknown", 2)
    assert unknown_in((5, 8), looks_max=1) == ("orders b 0: 3 unknown, 17 loaded", 0)


def test_the_queue_of_a_broadcasting_member_says_whose_it_is() -> None:
    own = queue(ORDERS._replace(group="g@10.0.0.7@7"), loaded=(0, 20))
    lines = as_lines(Report((own,), None), [])
    assert lines == ["orders b 0 of the broadcasting member 10.0.0.7@7: 20 loaded", "everything is explained"]


def test_queues_that_nobody_here_ever_had_are_named() -> None:
    """Java's members may have finished them: nobody here knows."""
    java = QueueReport(ORDERS, QueueEnds(0, 20, 20), {Fate.BEFORE: IntervalSet.of([(0, 20)])}, known=False)
    said = (
        "before: 20 messages of queues of which nothing is known here: the group began after them, or other members of it, as"
        " Java's, have finished them"
    )
    assert as_lines(Report((java,), None), []) == ["orders b 0: 20 before", said, "everything is explained"]


def test_that_a_loader_has_ended_with_what_waits_is_said(tmp_path: Path) -> None:
    status = StatusFile(tmp_path, "table")
    status.status.state, status.status.error = FAILED, "the queue begins anew"
    status.write(0)
    assert ended_loaders([tmp_path, tmp_path / "another"]) == [], "nothing waits"
    (tmp_path / "ready").mkdir()
    (tmp_path / "ready" / "w-1.arrows").touch()
    ended = ended_loaders([tmp_path])
    assert ended == [f"{tmp_path}: the queue begins anew"]
    fine = Report((queue(ORDERS, waiting=(0, 20)),), None)
    assert as_lines(fine, [], None, ended)[1:] == [
        f"what waits is not loaded: the loader has ended, {ended[0]}",
        "everything is explained",
    ]
    assert as_object(fine, [], None, ended)["ended_loaders"] == ended


def test_batches_that_loaders_have_made_and_the_table_has_not_are_not_explained() -> None:
    fine = Report((queue(ORDERS, before=(0, 20)),), None, batches=(1, 2))
    lines = as_lines(fine, [], load="rocketcrew load --table-replaced …")
    assert lines[1].startswith(
        "UNEXPLAINED batches: the table is at batch 1, and loaders of these folders have made 2: it was"
    )
    assert "`rocketcrew load --table-replaced …`" in lines[1]
    assert lines[1].endswith("so do members that start after `rocketcrew reset -t orders --to earliest`")
    assert lines[-1] == "not everything is explained"
    told = as_object(fine, [])
    assert (told["fine"], told["batches_differ"]) == (False, {"found": 1, "loaded": 2})


def test_batches_that_are_known_to_be_lost_are_named_as_long_as_something_may_have_been_in_them() -> None:
    lost = Report((queue(ORDERS, unknown=(0, 20)),), None, batches_lost=1)
    lines = as_lines(lost, [])
    assert lines[2].startswith(
        "lost with an earlier table: 1 batch. From the beginning of each queue on, what is unknown"
    )
    assert "`rocketcrew reset -t orders --to earliest`" in lines[2]
    assert as_object(lost, [])["batches_lost"] == 1
    back = Report((queue(ORDERS, loaded=(0, 20)),), None, batches_lost=2)
    assert as_lines(back, []) == ["orders b 0: 20 loaded", "everything is explained"]


def test_batches_whose_outcomes_are_gone_are_named() -> None:
    report = Report((queue(ORDERS, loaded=(0, 20)),), None, untold=IntervalSet.of([(1, 2), (33, 65)]))
    lines = as_lines(report, [])
    assert lines[1].startswith("outcomes are gone of all or some of the batches 1, 33-64: the number of rows")
    assert lines[2:] == ["everything is explained"]
    assert as_object(report, [])["batches_without_outcomes"] == ((1, 2), (33, 65))
