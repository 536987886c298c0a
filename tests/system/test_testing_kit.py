"""The test kit as its users have it: the page about it, run as it is written, and a plug-in that costs nothing unused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from documented import blocks_of, run_pytest


def test_the_page_on_testing_runs_as_it_is_written(tmp_path: Path) -> None:
    blocks = blocks_of("testing.md")
    tests = sum(text.count("\ndef test_") for text in blocks.values())
    assert {"shop.py", "test_call.py", "test_run.py", "test_broker.py"} <= blocks.keys()
    for name, text in blocks.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tests} passed" in done.stdout


def test_the_plug_in_imports_nothing_of_the_package_before_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n\n\ndef test_nothing():\n    assert not [each for each in sys.modules if 'rocketcrew.' in each]\n"
    )
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_and_the_kit_need_no_pytest() -> None:
    code = (
        "import sys; sys.modules['pytest'] = None; import rocketcrew.testing as k; [getattr(k, n) for n in k.__all__]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def outcome(folder: Path, text: str, *words: str) -> str:
    """What pytest says of that module."""
    (folder / "shop.py").write_text("def fine(message):\n    return {'pid': __import__('os').getpid()}\n")
    (folder / "test_it.py").write_text(text, encoding="utf-8")
    done = run_pytest(folder, "--tb=line", *words)
    return done.stdout + done.stderr


@pytest.mark.parametrize("scope", ["session", "module"])
@pytest.mark.parametrize("asked", ["rocketmq", "producer", "crew"])
def test_a_fixture_of_a_wider_scope_is_told_what_it_asked_for(tmp_path: Path, scope: str, asked: str) -> None:
    said = outcome(
        tmp_path,
        f"import pytest\n\n@pytest.fixture(scope='{scope}')\ndef mine({asked}):\n    return {asked}\n\n"
        "def test_it(mine):\n    pass\n",
    )
    assert f"You tried to access the function scoped fixture {asked} with a {scope} scoped request" in said
    assert "1 error" in said


def test_a_fixture_of_the_session_has_its_own_producer_of_the_session_s_broker(tmp_path: Path) -> None:
    said = outcome(
        tmp_path,
        """
import pytest
from rocketcrew import SyncProducer

@pytest.fixture(scope="session")
def mine(rocketmq_session):
    with SyncProducer(rocketmq_session.name_server) as made:
        yield made

def test_it(mine, rocketmq):
    topic = rocketmq.topic()
    mine.send(topic, b"x")
    assert [message.body for message in rocketmq.messages(topic)] == [b"x"]
""",
    )
    assert "1 passed" in said, said


CANNOT = "cannot be shipped to a worker process"
WRONG = {
    "crew(lambda m: file.write('x'), topics=topic)": rf"{CANNOT} \(TypeError: an open file, .*out.txt.*, in 'file'\); make",
    "producer.send(topic, b'x'); crew(lambda m: producer.send(topic, b'x'), topics=topic)": (
        rf"{CANNOT} .*, in 'producer'\); make what it uses"
    ),
    "crew(lambda m: rocketmq.messages(topic), topics=topic)": rf"{CANNOT} .*, in 'rocketmq'\); make what it uses",
    "crew(Local, topics=topic)": "Local is a class, and calling it makes an object",
    "crew('nosuch:handle', topics=topic)": 'cannot find module "nosuch"',
    "crew('shop:handle', topics=topic)": 'has no function "handle"',
    "crew(None, topics=topic)": "None is not callable; give a function that takes one message",
    "crew(shop.fine, topics='a b')": r"from argument topics=\) holds 'a b', whose topic has a character",
    "crew(shop.fine, topics=[])": "consumer.topics: give topics=",
    "crew(shop.fine, topics=topic, group='a b')": r"from argument group=\) holds a character",
    "crew(shop.fine, topics=topic, settings=3)": r"crew\(settings=3\): give a dict whose names are str",
    "rocketmq.topic('a b')": "topic 'a b-[0-9]+' cannot be made: letters, digits",
    "rocketmq.topic('')": r"topic\(name=''\): give a str that is not blank",
    "rocketmq.topic('x' * 127)": "cannot be made: .* 127 at most",
    "rocketmq.messages('a b')": "topic 'a b' contains illegal characters",
    "producer.send('a b', b'x')": "topic 'a b' contains illegal characters",
    "producer.send('SCHEDULE_TOPIC_XXXX', b'x')": "sending to topic SCHEDULE_TOPIC_XXXX is forbidden",
}


def test_each_wrong_use_of_a_fixture_is_one_clear_sentence(tmp_path: Path) -> None:
    head = "import shop\n\nclass Local:\n    def handle(self, message):\n        return None\n"
    cases = "".join(
        f"\ndef test_{number}(rocketmq, producer, crew, tmp_path):\n    topic = rocketmq.topic()\n"
        f"    with open(tmp_path / 'out.txt', 'w') as file:\n        {call}\n"
        for number, call in enumerate(WRONG)
    )
    said = outcome(tmp_path, head + cases)
    assert f"{len(WRONG)} failed" in said, said
    assert [
        call for call, wanted in WRONG.items() if not re.search(rf"^E   .*Error: .*{wanted}", flat(said), re.MULTILINE)
    ] == []


def flat(said: str) -> str:
    """A sentence that goes on in indented lines, as those of settings, as one line."""
    return re.sub(r"\n {6,}", " ", said)


def test_processes_of_xdist_have_a_broker_each(tmp_path: Path) -> None:
    said = outcome(
        tmp_path,
        """
import os
import pytest
import shop

@pytest.mark.parametrize("number", range(4))
def test_it(rocketmq, producer, crew, number):
    topic = rocketmq.topic("orders")
    for _ in range(3):
        producer.send(topic, b"x")
    running = crew(shop.fine, topics=topic)
    running.wait(timeout_s=120)
    rows = list(running.results())
    assert len(rows) == 3 and os.getpid() not in {row["pid"] for row in rows}
    with open("brokers.txt", "a") as file:
        file.write(f"{os.environ['PYTEST_XDIST_WORKER']} {rocketmq.name_server}\\n")
""",
        "-p", "xdist", "-n", "2",
    )  # fmt: skip
    assert "4 passed" in said, said
    pairs = {tuple(line.split()) for line in (tmp_path / "brokers.txt").read_text().splitlines()}
    assert len(pairs) == len({broker for _, broker in pairs}) == len({worker for worker, _ in pairs}) == 2
