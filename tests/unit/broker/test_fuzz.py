"""Whatever a peer sends, both cores answer it (or hold it): nothing raises, nothing is answered twice."""

from __future__ import annotations

from dataclasses import fields

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocketcrew.broker.effects import Reply
from rocketcrew.broker.name_server import NameServerCore
from rocketcrew.broker.requests.table import HANDLERS
from rocketcrew.remoting.codes import FLAG_ONEWAY, RequestCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.fields import camel_case
from rocketcrew.remoting.headers import SendRequestV2

from ..remoting.header_index import REQUEST_HEADERS

CODES = sorted({*HANDLERS, *NameServerCore()._handlers, 9_999})
_numbers = st.sampled_from(["0", "1", "-1", "2147483647", "-2147483648", "9223372036854775807", "-9223372036854775808"])
_words = st.sampled_from(
    ["T", "%RETRY%g", "%DLQ%g", "g", "c1", "TBW102", "", " ", "*", "a || b", "true", "TAGS\x01a\x02", "..", "é"]
)
_values = st.one_of(_numbers, _words, st.text(st.characters(codec="utf-8"), max_size=8))
_bodies = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            b"{}",
            b'{"clientID":"c1","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"T"}]}]}',
            b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"T","brokerName":"broker-a","queueId":0}]}',
            b'{"groupName":"g"}',
        ]
    ),
)


@st.composite
def commands(draw):
    code = draw(st.sampled_from(CODES))
    header = REQUEST_HEADERS.get(RequestCode(code)) if code != 9_999 else SendRequestV2
    wires = [header.WIRE.get(item.name, camel_case(item.name)) for item in fields(header)] if header else []
    chosen = {wire: draw(_values) for wire in wires if draw(st.integers(0, 9))}
    flag = draw(st.sampled_from([0, 0, 0, FLAG_ONEWAY]))
    return Command(code, chosen, draw(_bodies), draw(st.integers(0, 5)), flag)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(commands(), min_size=1, max_size=12))
def test_nothing_raises(make, requests):
    broker = make()
    broker.send()
    for number, command in enumerate(requests):
        command.opaque = 1_000 + number
        for core in (broker.core, broker.name_server):
            effects = core.handle(broker.now_ms, 1, "127.0.0.1:5", command)
            answers = [item for item in effects if isinstance(item, Reply) and item.command.opaque == command.opaque]
            assert len(answers) <= (0 if command.is_oneway else 1)
    broker.later(100_000)
    assert len(broker.core.state.held) == 0
    broker.core.channel_closed(broker.now_ms, 1)
    assert broker.core.state.clients.consumer_groups() == []
    broker.crash()
