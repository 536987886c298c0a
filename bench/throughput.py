"""(a) no-op and body-reading handlers at 1 KiB, consume batch 1 and 32, on the replay source and on the embedded broker.

Messages per second, CPU µs per message of supervisor and workers, memory of the supervisor. Alternating runs, medians; of
memory the largest of all runs: what the slab held at its fullest, and the peak of each kind of process (VmHWM).

    python bench/throughput.py [--runs 5] [--messages 600000]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path

from measure import Crew, EmbeddedBroker, Source, figures, interruptible, median, own_mib, peaks_mib, report

from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.sync import SyncProducer

CASES = [("no_op", 1), ("no_op_batch", 32), ("read_body", 1), ("read_body_batch", 32)]
BUDGET_MIB = 64
MEMORY = ("own_mib", "slab_peak_mib", "supervisor_peak_mib", "worker_peak_mib", "helper_peak_mib")
TOPIC = "replay"


def run(
    handler: str, batch: int, name_server: str, messages: int, topic: str, more: Mapping[str, object] = {}
) -> dict[str, float]:
    """One run over `messages` messages; the first tenth warms up and is not counted. `more`: settings of the crew."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"consumer.consume_message_batch_max_size": batch, "memory.pulled_bytes_mib": BUDGET_MIB, **more}
        crew = Crew(Path(folder), name_server, handler, topic, settings)
        try:
            return {**figures(crew, messages), "own_mib": own_mib(crew.child.pid), **peaks_mib(crew)}
        finally:
            crew.stop()


def on_replay(handler: str, batch: int, messages: int) -> dict[str, float]:
    source = Source(messages)
    try:
        return run(handler, batch, source.name_server, source.messages, TOPIC)
    finally:
        source.stop()


def on_broker(handler: str, batch: int, messages: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        broker = EmbeddedBroker(Path(folder))
        try:
            with SyncProducer(broker.name_server) as producer:
                body = bytes(1024)
                for _ in range(messages // 32):
                    producer.send_batch([OutgoingMessage(TOPIC, body, tags="tag", keys="key") for _ in range(32)])
            return run(handler, batch, broker.name_server, messages // 32 * 32, TOPIC)
        finally:
            broker.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--messages", type=int, default=600_000)
    parser.add_argument("--broker-messages", type=int, default=100_000)
    options = parser.parse_args()
    interruptible()
    found: dict[tuple[str, str, int], list[dict[str, float]]] = {}
    for _ in range(options.runs):
        for handler, batch in CASES:
            found.setdefault(("replay", handler, batch), []).append(on_replay(handler, batch, options.messages))
        for handler, batch in CASES[2:]:
            found.setdefault(("broker", handler, batch), []).append(on_broker(handler, batch, options.broker_messages))
    report("throughput", [
        {"source": source, "handler": handler, "batch": batch, "runs": len(runs),
         **{key: median(entry[key] for entry in runs) for key in runs[0]}}
        for (source, handler, batch), runs in found.items()
    ])  # fmt: skip
    most = {key: max(entry[key] for runs in found.values() for entry in runs) for key in MEMORY}
    print(
        f"peaks: {most['slab_peak_mib']:.1f} MiB of pulled bodies in the slab (budget {BUDGET_MIB} MiB per supervisor);"
        f" resident, with the slab's pages: supervisor {most['supervisor_peak_mib']:.0f} MiB, largest worker"
        f" {most['worker_peak_mib']:.0f} MiB, largest helper {most['helper_peak_mib']:.0f} MiB\n"
        f"supervisor's own memory at the end of a run, without the slab: at most {most['own_mib']:.0f} MiB; limit 96"
    )


if __name__ == "__main__":
    main()
