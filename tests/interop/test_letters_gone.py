"""A replay of all dead letters that was interrupted, whose letters the broker has deleted meanwhile: it ends."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from fault_servers import run_site
from harness import patient_producer, send_numbers
from needs import need_jars
from terminal import Terminal, asked, run

from rocketcrew.cli.letters import NOTES_FILE, REPLAYED
from rocketcrew.client.outgoing import OutgoingMessage

FILE_BYTES = 1 << 20
BODY_BYTES = 16_000
BROKER = "broker-a"
SETTINGS = {"brokerName": BROKER, "mappedFileSizeCommitLog": FILE_BYTES}


def notes_of(folder: Path) -> str:
    file = folder / ".rocketcrew" / "gone" / NOTES_FILE
    return file.read_text() if file.exists() else ""


@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
def test_a_replay_ends_where_all_letters_of_a_queue_are_deleted(version: str, tmp_path: Path) -> None:
    """The first file of the store is taken away between two runs of the broker. 4.9 names the queue's first offset as it was
    before."""
    need_jars(version)
    with run_site(version, tmp_path) as site:
        site.make_whole(BROKER, settings=SETTINGS)
        for topic in ("%DLQ%gone", "%RETRY%gone", "filler"):
            site.create_topic(topic, 1)
        send_numbers(site, "filler", range(1))  # at place 0 of the log 4.9 takes any bytes for a message
        send_numbers(site, "%DLQ%gone", range(3))
        words = ("dlq", "replay", "-g", "gone", "--all", "-n", site.name_server)
        with Terminal(tmp_path, *words, "--rate", "1/h") as replay:
            asked(lambda: notes_of(tmp_path), lambda text: REPLAYED in text, "a letter that was sent")
            replay.stop(signal.SIGKILL)
        with patient_producer(site, compress_from_bytes=FILE_BYTES) as producer:
            body = b"0".ljust(BODY_BYTES)
            producer.send_many(OutgoingMessage("filler", body) for _ in range(2 * FILE_BYTES // BODY_BYTES))
        site.broker(BROKER).stop()
        files = sorted((site.folder / BROKER / "store" / "commitlog").iterdir())
        assert len(files) > 1
        files[0].unlink()
        site.make_whole(BROKER, settings=SETTINGS)
        done = run(tmp_path, *words)
        assert (done.returncode, "2 letters of this replay were not sent: deleted" in done.stderr) == (0, True), (
            done.stderr
        )
        again = run(tmp_path, *words)
        assert (again.returncode, again.stderr) == (0, "")
