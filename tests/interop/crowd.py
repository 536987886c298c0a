"""Genuine consumers of one Java process that join and leave on request; see java/Crowd.java."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers import CLIENT_OPTIONS, Java


class Crowd:
    """Talks to one Crowd process."""

    def __init__(self, folder: Path, classes: str, name_server: str, offsets: Path | None = None) -> None:
        options = [*CLIENT_OPTIONS, "-Drocketmq.client.rebalance.waitInterval=1000"]
        if offsets is not None:
            options.append(f"-Drocketmq.client.localOffsetStoreDir={offsets}")
        self.java = Java("java-crowd", folder, classes, ["Crowd", name_server], options)
        try:
            self.java.wait_for(lambda: "READY" in self.java.lines(), "start")
        except BaseException:
            self.java.stop()
            raise

    def _ask(self, line: str, answer: str) -> str:
        before = len([each for each in self.java.lines() if each.startswith(answer)])
        self.java.write(line)
        self.java.wait_for(
            lambda: len([each for each in self.java.lines() if each.startswith(answer)]) > before, f"answer {line!r}"
        )
        return [each for each in self.java.lines() if each.startswith(answer)][-1]

    def join(
        self, name: str, group: str, topic: str, filter_text: str = "*", *, strategy: str = "-", model: str = "CLUSTERING",
        where: str = "CONSUME_FROM_FIRST_OFFSET", instance: str = "-",
    ) -> None:  # fmt: skip
        wish = filter_text.replace(" ", "+")
        self._ask(f"join {name} {group} {topic} {wish} {strategy} {model} {where} {instance}", f"JOINED {name}")

    def leave(self, name: str) -> None:
        self._ask(f"leave {name}", f"LEFT {name}")

    def queues(self) -> dict[str, set[int]]:
        """Member -> its queues of its topic."""
        words = self._ask("queues", "QUEUES").split()[1:]
        pairs = (word.split("=") for word in words)
        return {name: {int(queue) for queue in queues.split(",") if queue} for name, queues in pairs}

    def first(self, name: str, topic: str) -> int:
        """Where the member would begin the topic's only queue."""
        return int(self._ask(f"first {name} {topic}", "FIRST").split()[1])

    def done(self, name: str) -> list[int]:
        """The numbers that the member has finished."""
        return [int(line.split()[2]) for line in self.java.lines() if line.startswith(f"DONE {name} ")]


@contextmanager
def crowd_of(folder: Path, classes: str, name_server: str, offsets: Path | None = None) -> Iterator[Crowd]:
    """A process for a `with` block."""
    crowd = Crowd(folder, classes, name_server, offsets)
    try:
        yield crowd
    finally:
        crowd.java.stop()
