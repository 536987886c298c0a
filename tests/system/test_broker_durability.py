"""kill -9 of a real broker process while messages are sent: what was acknowledged is there afterwards, whole and in order."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rocketcrew.remoting.codes import PULL_SUBSCRIPTION, RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.frame import FrameReader, encode
from rocketcrew.remoting.headers import PullRequest, SendRequest
from rocketcrew.remoting.stored import decode_messages

DEADLINE_S = 240
KILLS = 3
ACKNOWLEDGED = 300  # before each kill
IN_FLIGHT = 50  # requests without an answer at any time

PROGRAM = """
import sys
from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.server import run
config = BrokerConfig(dir=sys.argv[1], name_server_port=0, port=0, mapped_file_size_commit_log=100_000)
sys.exit(run(config, on_ready=lambda name_server, broker: print("READY", broker, file=sys.stderr, flush=True)))
"""


started: list[asyncio.subprocess.Process] = []


def bounded(story: Callable[[], Awaitable[None]]) -> None:
    """Run a story to its end or the deadline; whatever happens, none of its processes stays."""

    async def run() -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                await story()
        finally:
            for process in started:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            started.clear()

    asyncio.run(run())


async def start(folder: Path) -> tuple[asyncio.subprocess.Process, int]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(folder), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    started.append(process)
    assert process.stderr is not None
    while True:
        line = (await process.stderr.readline()).decode()
        assert line, "the broker ended before it was ready"
        if line.startswith("READY"):
            return process, int(line.rpartition(":")[2])


async def send_until_killed(process: asyncio.subprocess.Process, port: int, first: int) -> list[int]:
    """Numbers whose acknowledgement was read; the process is killed in the middle of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    frames = FrameReader()
    acknowledged: list[int] = []
    number = first

    def send() -> None:
        nonlocal number
        header = SendRequest("pg", "T", "TBW102", 4, number % 4, 0, 1, 0, None)
        body = b"%d:" % number + b"x" * (number % 997)
        writer.write(encode(Command(RequestCode.SEND_MESSAGE, header.to_fields(), body, number)))
        number += 1

    for _ in range(IN_FLIGHT):
        send()
    while data := await reader.read(1 << 16):
        frames.feed(data)
        while (answer := frames.next()) is not None:
            assert answer.code == 0, answer
            acknowledged.append(answer.opaque)
            if process.returncode is None:
                send()
        if len(acknowledged) >= ACKNOWLEDGED:
            os.kill(process.pid, signal.SIGKILL)
            break
    try:
        while data := await reader.read(1 << 16):  # what it had written before it died
            frames.feed(data)
            while (answer := frames.next()) is not None:
                acknowledged.append(answer.opaque)
    except ConnectionResetError:
        pass
    writer.close()
    assert await process.wait() == -signal.SIGKILL
    return acknowledged


async def read_all(port: int, *, holes: bool = False) -> dict[int, list[bytes]]:
    """All bodies by queue; without `holes` each offset must be there."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    frames = FrameReader()
    queues: dict[int, list[bytes]] = {}
    for queue_id in range(4):
        bodies = queues[queue_id] = []
        at = 0
        while True:
            header = PullRequest("g", "T", queue_id, at, 32, PULL_SUBSCRIPTION, 0, 0, 0, "*")
            writer.write(encode(Command(RequestCode.PULL_MESSAGE, header.to_fields(), opaque=1)))
            while (answer := frames.next()) is None:
                frames.feed(await reader.read(1 << 16))
            if answer.code not in {ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY}:
                break
            messages = decode_messages(answer.body)
            offsets = [message.queue_offset for message in messages]
            assert holes or offsets == list(range(at, at + len(messages)))
            at = int(answer.fields["nextBeginOffset"])
            bodies += [message.body for message in messages]
    writer.close()
    return queues


def test_acknowledged_messages_survive_kill_9(tmp_path: Path) -> None:
    async def story() -> None:
        acknowledged: list[int] = []
        for kill in range(KILLS):
            process, port = await start(tmp_path)
            acknowledged += await send_until_killed(process, port, kill * 100_000)
        process, port = await start(tmp_path)
        queues = await read_all(port)
        numbers = [int(body.partition(b":")[0]) for bodies in queues.values() for body in bodies]
        assert set(acknowledged) <= set(numbers)
        assert len(numbers) == len(set(numbers)), "nothing is stored twice"
        for queue_id, bodies in queues.items():
            stored = [int(body.partition(b":")[0]) for body in bodies]
            assert stored == sorted(stored)
            assert all(number % 4 == queue_id for number in stored)
            assert all(
                len(body.partition(b":")[2]) == number % 997 for body, number in zip(bodies, stored, strict=True)
            )
        process.terminate()
        assert await process.wait() == 0

    bounded(story)


async def check(folder: Path) -> tuple[int, dict[str, Any]]:
    """`rocketcrew broker check`: its exit code and what it says."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rocketcrew", "broker", "check", "--dir", str(folder), "--json",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    started.append(process)
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, json.loads(output)


def test_planted_damage_costs_what_it_hit_and_kills_cost_nothing(tmp_path: Path) -> None:
    """Two kills, a hundred zeroed bytes in the log, no consume queues and an empty checkpoint; then a start as ever."""

    async def story() -> None:
        acknowledged: list[int] = []
        for kill in range(2):
            process, port = await start(tmp_path)
            acknowledged += await send_until_killed(process, port, kill * 100_000)
        code, report = await check(tmp_path)
        assert (code, report["fine"], report["damaged"], report["set_aside"]) == (0, True, [], [])
        before = sorted((tmp_path / "commitlog").iterdir())
        victim = next(number for number in acknowledged[100:] if number % 997 >= 200)
        body = b"%d:" % victim + b"x" * (victim % 997)
        for path in before:
            content = path.read_bytes()
            at = content.find(len(body).to_bytes(4, "big") + body) + 50
            if at >= 50:
                path.write_bytes(content[:at] + bytes(100) + content[at + 100 :])
        sizes = [path.stat().st_size for path in before]
        shutil.rmtree(tmp_path / "consumequeue")
        (tmp_path / "config" / "checkpoint.json").write_bytes(b"")
        code, report = await check(tmp_path)
        ((position, length),) = report["damaged"]
        assert code == 1
        process, port = await start(tmp_path)
        numbers = {
            int(body.partition(b":")[0]) for bodies in (await read_all(port, holes=True)).values() for body in bodies
        }
        lost = set(acknowledged) - numbers
        assert lost == {victim}
        assert [path.name for path in (tmp_path / "damaged").iterdir()] == [f"{position}-{length}"]
        assert [path.stat().st_size for path in before] == sizes
        process.terminate()
        assert await process.wait() == 0

    bounded(story)


def test_a_second_broker_on_the_folder_is_refused_and_a_stop_releases_it(tmp_path: Path) -> None:
    async def story() -> None:
        process, _ = await start(tmp_path)
        second = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PROGRAM,
            str(tmp_path),
            stderr=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
        )
        _, error = await second.communicate()
        assert f"in use by another broker (process {process.pid})".encode() in error
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
        third, _ = await start(tmp_path)
        third.terminate()
        assert await third.wait() == 0

    bounded(story)
