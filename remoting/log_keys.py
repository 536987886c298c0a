"""The keys under which every process logs a message, a place in a message queue, or a worker. Pure.

| key | what it is |
|---|---|
| `topic`, `broker`, `queue_id` | the message queue; `topic` as the broker has it, so of a retry the group's retry topic |
| `offset` | the queue offset |
| `msg_id`, `keys`, `reconsume_times` | of the message: the id that clients show, the producer's keys, the finished attempts |
| `group`, `client_id`, `worker` | who logs or is meant: consumer group, member of it, worker process |
| `outcome` | of a message or a call: `failed`, `time_limit`, `given_up`, `retry`, `held`, `dropped`, or RocketMQ's word |
| `duration_ms` | how long something took, in ms |
| `error` | what was wrong, as text |
| `reason` | why something was done, as text; of what went wrong it is `error` |
| `trace_id` | of OpenTelemetry's span that is current, or was during the message's call, 32 hexadecimal digits |

A line that speaks of one queue has all of the first three, so that `topic=orders` finds it; no key is another word for one
of these (SYNONYMS, which a test holds against every call of a logger).
"""

from __future__ import annotations

from typing import Final, Protocol, TypedDict


class EndedKeys(TypedDict):
    """How a call of the handler ended; `duration_ms` in whole ms."""

    outcome: str
    duration_ms: int


class Queue(Protocol):
    """What names a message queue: a MessageQueue, or what a worker is told of it."""

    @property
    def topic(self) -> str: ...
    @property
    def broker_name(self) -> str: ...
    @property
    def queue_id(self) -> int: ...


class QueueKeys(TypedDict):
    """One message queue."""

    topic: str
    broker: str
    queue_id: int


class PlaceKeys(QueueKeys):
    """One place in it."""

    offset: int


def queue_keys(mq: Queue) -> QueueKeys:
    """For `log.info(event, **queue_keys(mq))`."""
    return {"topic": mq.topic, "broker": mq.broker_name, "queue_id": mq.queue_id}


def place_keys(mq: Queue, offset: int) -> PlaceKeys:
    """The queue and one queue offset."""
    return {"topic": mq.topic, "broker": mq.broker_name, "queue_id": mq.queue_id, "offset": offset}


SYNONYMS: Final = {
    "queue": "topic, broker and queue_id", "mq": "topic, broker and queue_id", "message_queue": "topic, broker and queue_id",
    "partition": "queue_id", "qid": "queue_id", "broker_name": "broker", "topic_name": "topic",
    "message_id": "msg_id", "msgid": "msg_id", "unique_key": "msg_id", "key": "keys", "message_keys": "keys",
    "queue_offset": "offset", "at": "offset", "consumer_group": "group", "group_name": "group",
    "client": "client_id", "member": "client_id", "worker_id": "worker", "reconsumes": "reconsume_times",
    "retry_times": "reconsume_times", "result": "outcome", "status": "outcome",
    "seconds": "duration_ms", "elapsed": "duration_ms", "elapsed_ms": "duration_ms", "took": "duration_ms",
    "took_ms": "duration_ms", "took_s": "duration_ms", "ran_ms": "duration_ms", "for_ms": "duration_ms",
    "duration": "duration_ms", "duration_s": "duration_ms", "err": "error", "exc": "error", "trace": "trace_id",
    "why": "reason", "because": "reason",
    "body": "no body is logged unless asked for", "payload": "no body is logged unless asked for",
}  # fmt: skip
"""Words that were used, or would be, and the key that is to be used instead."""
