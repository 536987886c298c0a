"""A source that answers pulls with recorded bodies, so that the broker is not what is measured.

It is name server and broker on one port: routes, heartbeats, members, offsets and pulls are answered, nothing is stored. Each
pull of a queue gets the next 32 messages with the right queue offsets (`--per-pull`; 32 is what a broker gives from memory by
default), until `--messages` were given out; later pulls are held for their suspend time, as a broker does. Sends back are
accepted and counted.

    python bench/replay.py --port 19876 --queues 8 --messages 1000000 --body-bytes 1024
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys

import numpy as np

from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.frame import FrameReader, encode, encode_head
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.stored import StoredMessage, encode_message

TOPIC = "replay"
PER_PULL = 32
POOL_BYTES = 4 << 20
"""Of different records in each queue, before they come again: more than Parquet's dictionaries and compressors look back."""


Table = np.ndarray[tuple[int, int], np.dtype[np.uint8]]


class Queue:
    """One message queue: a few bodies of `per_pull` records, in turn, whose offsets are rewritten for each pull."""

    def __init__(self, queue_id: int, body_bytes: int, messages: int, per_pull: int) -> None:
        self.per_pull = per_pull
        first = self._table(queue_id, body_bytes)
        more = min(POOL_BYTES // first.size, messages // per_pull)
        self.tables = [first, *(self._table(queue_id, body_bytes) for _ in range(more))]
        self.left = messages
        self.messages = messages

    def _table(self, queue_id: int, body_bytes: int) -> Table:
        records = []
        for index in range(self.per_pull):
            properties = {"KEYS": f"key-{index:04d}", "UNIQ_KEY": f"{index:032X}", "WAIT": "true", "TAGS": "tag",
                          "CLUSTER": "c", "MSG_REGION": "DefaultRegion"}  # fmt: skip
            body = f"{index:08d}".encode() + os.urandom(body_bytes - 8)
            records.append(encode_message(StoredMessage(
                TOPIC, body, encode_properties(properties).encode(), queue_id=queue_id, born_timestamp_ms=1,
                store_timestamp_ms=1,
            )))  # fmt: skip
        size = len(records[0])
        assert all(len(record) == size for record in records)
        return np.frombuffer(b"".join(records), dtype=np.uint8).reshape(self.per_pull, size).copy()

    def body(self, offset: int) -> bytes:
        """The records `[offset, offset + per_pull)`."""
        offsets = np.arange(offset, offset + self.per_pull, dtype=">i8")
        table = self.tables[offset // self.per_pull % len(self.tables)]
        table[:, 20:28] = offsets.view(np.uint8).reshape(self.per_pull, 8)
        table[:, 28:36] = table[:, 20:28]
        return table.tobytes()


class Source(asyncio.Protocol):
    """One connection of the consumer."""

    def __init__(self, queues: list[Queue], address: str) -> None:
        self.queues = queues
        self.address = address
        self.reader = FrameReader()
        self.clients: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=64 << 20)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.reader.feed(data)
        while (command := self.reader.next()) is not None:
            if command.code == RequestCode.PULL_MESSAGE:
                self.pull(command)
            elif not command.is_oneway:
                self.transport.write(encode(self.answer(command)))

    def pull(self, command: Command) -> None:
        fields = command.fields
        offset = int(fields["queueOffset"])
        queue = self.queues[int(fields["queueId"])]
        head = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": str(queue.messages)}
        if offset >= queue.messages:
            answer = command.response(ResponseCode.PULL_NOT_FOUND, {**head, "nextBeginOffset": str(offset)})
            asyncio.get_running_loop().call_later(5.0, self.late, answer)
            return
        body = queue.body(offset)
        answer = command.response(ResponseCode.SUCCESS, {**head, "nextBeginOffset": str(offset + queue.per_pull)})
        self.transport.writelines((encode_head(answer, len(body)), body))

    def late(self, answer: Command) -> None:
        if not self.transport.is_closing():
            self.transport.write(encode(answer))

    def answer(self, command: Command) -> Command:
        code, fields = command.code, command.fields
        if code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            if fields["topic"] != TOPIC:
                return command.response(ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")
            count = len(self.queues)
            route = {
                "brokerDatas": [{"brokerAddrs": {"0": self.address}, "brokerName": "replay", "cluster": "c"}],
                "queueDatas": [{"brokerName": "replay", "perm": 6, "readQueueNums": count, "writeQueueNums": count}],
            }
            return command.response(ResponseCode.SUCCESS, body=json.dumps(route).encode())
        if code == RequestCode.HEART_BEAT:
            self.clients = [json.loads(bytes(command.body))["clientID"]]
            return command.response(ResponseCode.SUCCESS)
        if code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            return command.response(ResponseCode.SUCCESS, body=json.dumps({"consumerIdList": self.clients}).encode())
        if code == RequestCode.GET_MAX_OFFSET:
            return command.response(ResponseCode.SUCCESS, {"offset": str(self.queues[int(fields["queueId"])].messages)})
        if code in (RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MIN_OFFSET):
            return command.response(ResponseCode.SUCCESS, {"offset": "0"})
        return command.response(ResponseCode.SUCCESS)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--per-pull", type=int, default=PER_PULL)
    options = parser.parse_args()
    each = options.messages // options.queues // options.per_pull * options.per_pull
    queues = [Queue(number, options.body_bytes, each, options.per_pull) for number in range(options.queues)]
    loop = asyncio.get_running_loop()
    address = f"127.0.0.1:{options.port}"
    server = await loop.create_server(lambda: Source(queues, address), "127.0.0.1", options.port)
    print(json.dumps({"ready": options.port, "messages": each * options.queues}), flush=True)
    # The parent holds our standard input: when it is gone, so are we.
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
