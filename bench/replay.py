"""A source that answers pulls with recorded bodies, so that the broker is not what is measured.

It is name server and broker on one port: routes, heartbeats, members, offsets and pulls are answered, nothing is stored. Each
pull of a queue gets the next 32 messages with the right queue offsets (`--per-pull`; 32 is what a broker gives from memory by
default), until `--messages` were given out; later pulls are held for their suspend time, as a broker does. Sends back are
accepted and counted. With `--topics` there are several, "replay", "replay-1", ..., and the queues are shared out to them.
With `--hold` every pull waits until a line "go" is on standard input, so that no start is counted with the messages.

A line "join MEMBERS BROKERS MS" on standard input has members join the group, one every so many milliseconds, and the
consumer hear of each from so many brokers; a second later a line with the look-ups that it made since is printed.

    python bench/replay.py --port 19876 --queues 8 --messages 1000000 --body-bytes 1024
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys

import numpy as np

from rocketcrew.remoting.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.frame import FrameReader, encode, encode_head
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.stored import StoredMessage, encode_message

TOPIC = "replay"
PER_PULL = 32
POOL_BYTES = 4 << 20
"""Of different records in each queue, before they come again: more than Parquet's dictionaries and compressors look back."""
POOLS_BYTES = 256 << 20
"""Of all queues together."""


Table = np.ndarray[tuple[int, int], np.dtype[np.uint8]]


class Queue:
    """One message queue: a few bodies of `per_pull` records, in turn, whose offsets are rewritten for each pull."""

    def __init__(
        self, topic: str, queue_id: int, body_bytes: int, messages: int, per_pull: int, pool_bytes: int
    ) -> None:
        self.topic = topic
        self.per_pull = per_pull
        first = self._table(queue_id, body_bytes)
        more = min(pool_bytes // first.size, messages // per_pull)
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
                self.topic, body, encode_properties(properties).encode(), queue_id=queue_id, born_timestamp_ms=1,
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


class Gate:
    """Holds pulls until it is opened."""

    def __init__(self, *, held: bool) -> None:
        self._waiting: list[tuple[Source, Command]] | None = [] if held else None

    def holds(self, source: Source, command: Command) -> bool:
        """Whether it keeps this pull for later."""
        if self._waiting is None:
            return False
        self._waiting.append((source, command))
        return True

    def open(self) -> dict[str, int]:
        waiting, self._waiting = self._waiting or [], None
        for source, command in waiting:
            source.pull(command)
        return {"pulls": len(waiting)}


class Group:
    """The consumer group: the members that are here, and those that are said to have joined."""

    def __init__(self) -> None:
        self.name = ""
        self.here: dict[str, Source] = {}
        self.joined: list[str] = []
        self.look_ups = 0

    async def join(self, members: int, brokers: int, every_ms: int) -> dict[str, int]:
        """They come one after the other, each broker says so; how many look-ups of members that made."""
        before = self.look_ups
        for number in range(members):
            self.joined.append(f"~joined-{number:04d}@1#1")  # behind ours: what is ours shrinks
            for _ in range(brokers):
                for source in self.here.values():
                    notice = Command(
                        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": self.name}, flag=FLAG_ONEWAY
                    )
                    source.transport.write(encode(notice))
                await asyncio.sleep(every_ms / 1000 / brokers)
        await asyncio.sleep(1.0)
        return {"members": members, "look_ups": self.look_ups - before}


class Source(asyncio.Protocol):
    """One connection of the consumer."""

    def __init__(self, topics: dict[str, list[Queue]], address: str, group: Group, gate: Gate) -> None:
        self.topics = topics
        self.address = address
        self.group = group
        self.gate = gate
        self.reader = FrameReader()

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
        if self.gate.holds(self, command):
            return
        fields = command.fields
        offset = int(fields["queueOffset"])
        queue = self.topics[fields["topic"]][int(fields["queueId"])]
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
            if fields["topic"] not in self.topics:
                return command.response(ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")
            count = len(self.topics[fields["topic"]])
            route = {
                "brokerDatas": [{"brokerAddrs": {"0": self.address}, "brokerName": "replay", "cluster": "c"}],
                "queueDatas": [{"brokerName": "replay", "perm": 6, "readQueueNums": count, "writeQueueNums": count}],
            }
            return command.response(ResponseCode.SUCCESS, body=json.dumps(route).encode())
        if code == RequestCode.HEART_BEAT:
            data = json.loads(bytes(command.body))
            self.group.name = data["consumerDataSet"][0]["groupName"]
            self.group.here = {data["clientID"]: self}
            return command.response(ResponseCode.SUCCESS)
        if code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            self.group.look_ups += 1
            members = [*self.group.here, *self.group.joined]
            return command.response(ResponseCode.SUCCESS, body=json.dumps({"consumerIdList": members}).encode())
        if code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
            asked = json.loads(bytes(command.body))["mqSet"]
            return command.response(ResponseCode.SUCCESS, body=json.dumps({"lockOKMQSet": asked}).encode())
        if code == RequestCode.GET_MAX_OFFSET:
            queue = self.topics[fields["topic"]][int(fields["queueId"])]
            return command.response(ResponseCode.SUCCESS, {"offset": str(queue.messages)})
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
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--hold", action="store_true")
    options = parser.parse_args()
    each = options.messages // options.queues // options.per_pull * options.per_pull
    pool_bytes = min(POOL_BYTES, POOLS_BYTES // options.queues)
    topics = {
        name: [
            Queue(name, number, options.body_bytes, each, options.per_pull, pool_bytes)
            for number in range(options.queues // options.topics)
        ]
        for name in (TOPIC, *(f"{TOPIC}-{number}" for number in range(1, options.topics)))
    }
    loop = asyncio.get_running_loop()
    address = f"127.0.0.1:{options.port}"
    group, gate = Group(), Gate(held=options.hold)
    server = await loop.create_server(lambda: Source(topics, address, group, gate), "127.0.0.1", options.port)
    messages = each * sum(map(len, topics.values()))
    print(json.dumps({"ready": options.port, "messages": messages}), flush=True)
    # The parent holds our standard input: when it is gone, so are we.
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        what, *numbers = line.split()
        said = gate.open() if what == "go" else await group.join(*map(int, numbers))
        print(json.dumps(said), flush=True)
    server.close()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
