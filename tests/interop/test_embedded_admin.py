"""RocketMQ's own tools against our embedded broker and a member of ours: they show and steer it as on a genuine one."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from harness import Broker, Crew, patient_producer, send_numbers, wait_until
from servers import VERSIONS, run_tools

from rocketcrew.client.outgoing import OutgoingMessage

QUEUES, MESSAGES = 4, 100
TOPIC, GROUP = "steered", "steered-group"


@pytest.mark.parametrize("version", [kind.version for kind in VERSIONS])
def test_tools_show_and_steer_our_member_on_our_broker(
    version: str, tmp_path: Path, java_classes: Callable[[str], str]
) -> None:
    java_classes(version)  # are there, or it is skipped
    broker = Broker(tmp_path)
    crew = Crew(tmp_path, broker, "numbers_handler:number", TOPIC, load=False, group=GROUP)
    with contextlib.ExitStack() as started:
        started.callback(broker.stop)
        started.callback(crew.stop)
        crew.start()
        admin = started.enter_context(run_tools(tmp_path, version, broker.name_server))
        with patient_producer(broker) as producer:
            first = producer.send(OutgoingMessage(TOPIC, b"320")).offset_message_id
        send_numbers(broker, TOPIC, range(100, 100 + MESSAGES - 1))
        wait_until(lambda: crew.counter("done_messages") >= MESSAGES and crew.lag() == 0, what="all messages finished")
        status = crew.status()
        assert status is not None
        me = str(status["client_id"])
        text = admin("consumerStatus", "-g", GROUP, "-i", me, "-s")
        offsets = re.findall(rf"^{TOPIC} +\S+ +(\d+) +(\d+) *$", text, re.MULTILINE)
        assert sum(int(offset) for _, offset in offsets) == MESSAGES, text
        assert text.count("=== worker") == 2, text
        for words in (("consumerStatus", "-g", GROUP), ("consumerConnection", "-g", GROUP)):
            text = admin(*words)
            assert me in text, text
        text = admin("consumerProgress")
        assert re.search(rf"^{GROUP} +1 +V5_5_0 +PUSH +CLUSTERING +\d+ +0 *$", text, re.MULTILINE), text
        text = admin("topicStatus", "-t", TOPIC)
        ends = re.findall(r"^broker-a +\d+ +0 +(\d+) ", text, re.MULTILINE)
        assert sum(map(int, ends)) == MESSAGES, text
        topic = () if version.startswith("4") else ("-t", TOPIC)
        text = admin("queryMsgById", *topic, "-i", first, "-g", GROUP, "-d", me)
        assert "CR_SUCCESS" in text, text
        text = admin("queryMsgById", *topic, "-i", first)
        assert GROUP in text, text
        assert "CONSUMED" in text, text
        text = admin("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "0")
        wait_until(lambda: crew.counter("done_messages") >= 2 * MESSAGES, what="everything again")
        wait_until(lambda: crew.lag() == 0, what="all committed")
        assert crew.counter("invariant_violations") == 0, text
