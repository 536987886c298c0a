"""Message traces of our producer and our workers, read by RocketMQ's own tools; and spans across genuine brokers."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from harness import WAIT_S, Crew, patient_producer, wait_until
from reading import on_cluster, read_topic
from servers import VERSIONS, Servers, answers

from rocketcrew import OutgoingMessage

from ..unit.remoting.trace_records import split_records

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ON_BOTH = pytest.mark.parametrize("servers", VERSIONS, ids=str, indirect=True, scope="session")


def traced(servers: Servers, message_id: str, count: int) -> list[list[str]]:
    """The lines that `mqadmin queryMsgTraceById` prints for a message, by words, without headings, as soon as there are so
    many: a broker puts a message into its index some time after it has stored it."""
    found: list[list[str]] = []

    def came() -> bool:
        lines = servers.admin("queryMsgTraceById", "-i", message_id)
        found[:] = [line.split() for line in lines if line.startswith(("Pub", "Sub"))]
        return len(found) >= count

    wait_until(came, what=f"{count} traces of {message_id}")
    return found


@ON_BOTH
def test_a_coroutine_is_traced_and_its_hooks_are_called(servers: Servers, tmp_path: Path) -> None:
    topic, group = "traced-coroutines", "traced-coroutines-group"
    servers.create_topic(topic, 1)
    with patient_producer(servers) as producer:
        sent = [producer.send(OutgoingMessage(topic, b"%d" % number)).message_id for number in range(6, 12)]
    before_ms = int(time.time() * 1000)
    crew = Crew(tmp_path, servers, "hooked_handler:later", topic, load=False, group=group,
                **{"trace.enabled": "true", "workers.count": 1})  # fmt: skip
    crew.start()
    try:
        wait_until(
            lambda: crew.counter("done_messages") >= len(sent) and crew.lag() == 0, WAIT_S, "all messages finished"
        )
    finally:
        assert crew.stop() == 0
    rows = {row["number"]: row for row in crew.staged_rows().to_pylist()}
    assert {number: row["attempt"] for number, row in rows.items()} == {6: 0, 7: 1, 8: 1, 9: 0, 10: 0, 11: 0}
    assert all(before_ms <= row["started"] <= time.time() * 1000 for row in rows.values())
    ended = set(",".join(row["ended"] for row in rows.values()).split(","))
    assert ended >= {
        f"CONSUME_SUCCESS SUCCESS {group}",
        f"RECONSUME_LATER FAILED {group}",
        f"RECONSUME_LATER EXCEPTION {group}",
    }
    for number, wanted in ((7, ["failed", "success"]), (11, ["success"])):
        found = traced(servers, sent[number - 6], len(wanted))
        assert sorted(line[-1] for line in found if line[:2] == ["Sub", group]) == wanted


@ON_BOTH
def test_spans_continue_the_senders(servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The context travels through a genuine broker and its retry topic: both attempts stand below the sender's span."""
    monkeypatch.setenv("SPANS_FILE", str(tmp_path / "spans"))
    servers.create_topic("spans", 1)
    crew = Crew(tmp_path, servers, "tracing_handler:number", "spans", load=False, group="spans-group",
                **{"consumer.max_reconsume_times": 3})  # fmt: skip
    crew.start()
    try:
        with patient_producer(servers) as producer:
            properties = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
            sent = producer.send(OutgoingMessage("spans", b"1", tags="twice", properties=properties))
        wait_until(lambda: crew.counter("done_messages") == 1 and crew.lag() == 0, WAIT_S, "the message finished")
    finally:
        assert crew.stop() == 0
    spans = [json.loads(line) for file in tmp_path.glob("spans.*") for line in file.read_text().splitlines()]
    calls = sorted(
        (span for span in spans if span["name"] == "process spans"), key=lambda span: str(span["start_time"])
    )
    assert [call["status"]["status_code"] for call in calls] == ["ERROR", "UNSET"]
    assert {call["parent_id"] for call in calls} == {f"0x{SPAN_ID}"}
    assert {call["context"]["trace_id"] for call in calls} == {f"0x{TRACE_ID}"}
    assert {call["attributes"]["messaging.message.id"] for call in calls} == {sent.message_id}


@ON_BOTH
@pytest.mark.parametrize("trace_topic", ["", "my-traces"], ids=["system", "custom"])
def test_mqadmin_reads_our_traces(servers: Servers, tmp_path: Path, trace_topic: str) -> None:
    topic = f"traced{trace_topic}"
    group = f"{topic}-group"
    servers.create_topic(topic, 2)
    if trace_topic:
        servers.create_topic(trace_topic, 1)
    with patient_producer(servers, "tracing-senders", trace=trace_topic or True) as producer:
        good = producer.send(OutgoingMessage(topic, b"1", tags="t", keys="first order-1"))
        retried = producer.send(OutgoingMessage(topic, b"7", keys="second"))  # fails twice
    crew = Crew(tmp_path, servers, "numbers_handler:number", topic, load=False, group=group,
                **{"trace.enabled": "true", "trace.topic": trace_topic, "consumer.max_reconsume_times": 3})  # fmt: skip
    crew.start()
    try:
        wait_until(lambda: crew.counter("done_messages") >= 2 and crew.lag() == 0, WAIT_S, "all messages finished")
    finally:
        assert crew.stop() == 0  # sends what is left of the traces
    if not trace_topic:
        pub, sub = traced(servers, good.message_id, 2)
        assert (pub[:2], pub[-1]) == (["Pub", "tracing-senders"], "success")
        assert (sub[:2], sub[-1]) == (["Sub", group], "success")
        ends = [line[-1] for line in traced(servers, retried.message_id, 4) if line[0] == "Sub"]
        assert sorted(ends) == ["failed", "failed", "success"]
        return
    fields: list[list[str]] = []

    def came() -> bool:
        records = on_cluster(servers, lambda cluster: read_topic(cluster, trace_topic))
        fields[:] = [record for message in records for record in split_records(message.body.decode())]
        kinds = [record[0] for record in fields]
        return kinds.count("Pub") >= 2 and kinds.count("SubBefore") >= 4

    wait_until(lambda: answers(came), what="the traces of all attempts")
    assert sorted(record[5] for record in fields if record[0] == "Pub") == sorted([good.message_id, retried.message_id])
    before = [record for record in fields if record[0] == "SubBefore" and record[5] == retried.message_id]
    assert sorted(record[6] for record in before) == ["0", "1", "2"], "how often it was sent back before"
    assert {record[7] for record in before} == {"second"}
