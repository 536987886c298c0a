"""By which way a failed message of a stream goes back."""

from __future__ import annotations

import pytest

from rocketcrew.engine.sending import way_back
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.workers.failures import Cause, Failure, Mode


@pytest.mark.parametrize(
    ("long_bytes", "times", "way"),
    [
        (10, 0, (Mode.SEND_BACK, False)),
        (10, 16, (Mode.SEND_BACK, True)),
        (31_500, 0, (Mode.SEND_BACK, False)),
        (32_700, 0, (Mode.DEAD_LETTER, True)),
    ],
)
def test_what_no_retry_topic_can_hold_is_a_dead_letter_at_once(
    long_bytes: int, times: int, way: tuple[Mode, bool]
) -> None:
    properties = encode_properties({"long": "a" * long_bytes}).encode()
    message = StoredMessage("T", b"x", properties, 0, reconsume_times=times)
    assert way_back(Failure(Cause.FAILED, "no"), encode_message(message), message, "g", 0, -1) == way


@pytest.mark.parametrize(("times", "last"), [(0, False), (15, False), (16, True)])
def test_what_cannot_be_decoded_goes_by_the_send_back(times: int, last: bool) -> None:
    record = encode_message(StoredMessage("T", b"x", reconsume_times=times)).replace(b"x", b"y")
    assert way_back(Failure(Cause.FAILED, "no"), record, None, "g", 0, -1) == (Mode.SEND_BACK, last)
