"""The handler of the differential test: does with each message what its property "rule" says, and notes what it saw.

The same as tests/interop/java/Scripted.java does; SCRIPT_LOG names the file of the notes.
"""

from __future__ import annotations

import os

from rocketcrew import Message, Retry, handler
from rocketcrew.remoting.properties import encode_properties


@handler(schema="number bigint")
def scripted(message: Message) -> dict[str, int] | None:
    """Rules: `ok:0`, `later:N`, `throw:N`, `none:N`, `level:N:LEVEL`: failing in that way until N retries were made."""
    note(message)
    kind, until, *level = message.properties["rule"].split(":")
    if message.reconsume_times >= int(until):
        return {"number": int(message.properties["number"])}
    if kind == "throw":
        raise ValueError("as the script says")
    raise Retry(int(level[0]) if level else 0)


def note(message: Message) -> None:
    words = (
        "SEEN", message.properties["number"], str(message.reconsume_times), message.topic, str(message.queue_id),
        str(len(message.body)), encode_properties(message.properties),
    )  # fmt: skip
    line = ("\t".join(words) + "\n").encode()
    log = os.open(os.environ["SCRIPT_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(log, line)
    finally:
        os.close(log)
