"""Handlers for messages whose body is a number, one of which ends the process, or does not end at all."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rocketcrew import Message, Retry, SoftTimeLimitExceeded, handler

POISON = 777
SCHEMA = "number long"
WAITING: list[Message] = []
"""What a coroutine of this process waits with."""
MEMORY_BYTES = 512 << 20
"""What a worker may take beyond what it has when it starts."""


def number_of(message: Message) -> int:
    return int(message.body)


def row(number: int) -> dict[str, int]:
    return {"number": number}


@handler(schema=SCHEMA)
def exits(message: Message) -> dict[str, int]:
    """The poison ends the process, with an exit code of its own."""
    if number_of(message) == POISON:
        os._exit(7)
    return row(number_of(message))


@handler(schema=SCHEMA)
def segfaults(message: Message) -> dict[str, int]:
    if number_of(message) == POISON:
        follow_a_wild_pointer()
    return row(number_of(message))


def follow_a_wild_pointer() -> None:
    ctypes.string_at(8)


@handler(schema=SCHEMA)
async def exits_in_a_coroutine(message: Message) -> dict[str, int]:
    """Many are under way when the poison's second step ends the process."""
    await asyncio.sleep(0.001)
    if number_of(message) == POISON:
        os._exit(9)
    await asyncio.sleep(0.001)
    return row(number_of(message))


@handler(schema=SCHEMA, batch=True)
def segfaults_in_a_batch(messages: Sequence[Message]) -> list[dict[str, int]]:
    """A true batch handler: it works on all of them at once, and none is in hand by itself."""
    numbers = [number_of(message) for message in messages]
    if POISON in numbers:
        follow_a_wild_pointer()
    return [row(number) for number in numbers]


@handler(schema=SCHEMA, batch=True)
def exits_in_a_batch_one_by_one(messages: Sequence[Message]) -> list[dict[str, int]]:
    rows: list[dict[str, int]] = []
    for message in messages:
        if number_of(message) == POISON:
            os._exit(8)
        rows.append(row(number_of(message)))
    return rows


def exits_at_a_look(message: Message) -> bool:
    if number_of(message) == POISON:
        os._exit(10)
    return True


@handler(schema=SCHEMA, batch=True, filter=exits_at_a_look)
def exits_in_the_filter_of_a_batch(messages: Sequence[Message]) -> list[dict[str, int]]:
    return [row(number_of(message)) for message in messages]


@handler(schema=SCHEMA, order="queue", filter=exits_at_a_look)
def exits_in_the_filter_in_order(message: Message) -> dict[str, int]:
    return row(number_of(message))


def sleeps_over_the_key(message: Message) -> str:
    if number_of(message) == POISON:
        time.sleep(3600)
    return str(number_of(message) % 10)


@handler(schema=SCHEMA, order="key", key=sleeps_over_the_key, hard_time_limit_s=1.5)
def has_a_key_that_is_not_found_out(message: Message) -> dict[str, int]:
    return row(number_of(message))


@handler(schema=SCHEMA, hard_time_limit_s=3)
def endless_c_loop(message: Message) -> dict[str, int]:
    """The poison counts for ever in C, with the interpreter's lock held, at its first attempt."""
    if number_of(message) == POISON and not message.reconsume_times:
        sum(itertools.repeat(0))
    return row(number_of(message))


@handler(schema=SCHEMA, hard_time_limit_s=3)
async def endless_c_loop_in_a_coroutine(message: Message) -> dict[str, int]:
    """The same in one of many calls that are under way: no other can go on, and none of them is to blame."""
    await asyncio.sleep(0.001)
    return endless_c_loop.function(message)


@handler(schema=SCHEMA, hard_time_limit_s=3)
async def endless_coroutine(message: Message) -> dict[str, int]:
    """The poison waits for ever at its first attempt; it must not be running any more at its second."""
    if number_of(message) == POISON and not message.reconsume_times:
        WAITING.append(message)
        try:
            await asyncio.Event().wait()
        finally:
            WAITING.clear()
    if WAITING and message.reconsume_times:
        raise Retry(-1, "the first attempt runs beside this one")
    return row(number_of(message))


@handler(schema=SCHEMA, soft_time_limit_s=1.5)
def sleeps(message: Message) -> dict[str, int]:
    """The poison sleeps for ever at its first two attempts; at the second it cleans up and asks for a retry itself."""
    if number_of(message) == POISON and message.reconsume_times < 2:
        try:
            time.sleep(3600)
        except SoftTimeLimitExceeded:
            if message.reconsume_times:
                raise Retry(1, "cleaned up") from None
            raise
    return row(number_of(message))


@handler(schema=SCHEMA)
def sleeps_for_ever_at_the_poison(message: Message) -> dict[str, int]:
    """The rest of the world is killed around it."""
    if number_of(message) == POISON:
        time.sleep(3600)
    return row(number_of(message))


def limit_memory() -> None:
    with open("/proc/self/statm") as statm:
        taken = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY_BYTES, taken + MEMORY_BYTES))


@handler(schema=SCHEMA, setup=limit_memory)
def allocates(message: Message) -> dict[str, int]:
    """The poison takes memory up to the limit, at its first attempt; what fails to get any ends the process."""
    if number_of(message) == POISON and not message.reconsume_times:
        taken: list[bytearray] = []
        try:
            while True:
                taken.append(bytearray(1 << 24))
        finally:
            del taken
    return row(number_of(message))


@handler(schema=SCHEMA)
def takes_all_memory(message: Message) -> dict[str, int]:
    """The poison takes memory until somebody stops it, at every attempt."""
    taken: list[bytearray] = []
    while number_of(message) == POISON:
        taken.append(bytearray(b"x") * (1 << 24))
    return row(number_of(message))


@handler(schema=SCHEMA)
def naps(message: Message) -> dict[str, int]:
    """A millisecond each, so that a kill finds something in hand; numbers from a million on only say who runs them."""
    time.sleep(0.001)
    sys.stdout.flush()
    return row(number_of(message))


GATES = "TEST_GATES"
"""Names the folder where a test makes the files `killed` (who boots now waits), `run` and `boot` (go on)."""


def gate(name: str) -> Path:
    return Path(os.environ[GATES]) / name


def boots_long() -> None:
    """As one that loads a model: a successor waits for its gate."""
    while gate("killed").exists() and not gate("boot").exists():
        time.sleep(0.01)


def wait_at_the_gate() -> None:
    while not gate("run").exists():
        time.sleep(0.01)


@handler(schema=SCHEMA, setup=boots_long)
def waits_at_gates(message: Message) -> dict[str, int]:
    """Numbers 0 and 1 wait for their gate."""
    if number_of(message) < 2:
        wait_at_the_gate()
    time.sleep(0.001)
    return row(number_of(message))
