"""The look at a handler before anything is started."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from rocketcrew.cli.exit_codes import exit_code
from rocketcrew.conf.exit_codes import EXIT_FAILURE, EXIT_HANDLER
from rocketcrew.remoting.errors import UsageError
from rocketcrew.workers.api import Handler, handler
from rocketcrew.workers.loading import HandlerLoadError
from rocketcrew.workers.message import Message
from rocketcrew.workers.spawn import WorkerStartError
from rocketcrew.workers.trial_import import _written, examine, handlers_of, look, look_at_columns, why_no_answer

DEADLINE_S = 60.0
HERE = "rocketcrew.workers.trial_import"


def module(text: str) -> ModuleType:
    made = ModuleType("shop")
    made.__file__ = "/somewhere/shop.py"
    exec(f"from rocketcrew.workers.api import Retry, handler\nfrom os.path import basename\n{text}", made.__dict__)
    return made


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("@handler\ndef a(m): pass\n@handler\ndef b(m): pass\ndef c(m): pass", "say which: shop:a, shop:b"),
        ("def a(m): pass\ndef b(m): pass", "say which: shop:a, shop:b"),
        ("", "has no handler"),
        ("def _hidden(m): pass\nclass Order: pass\ndef two(a, b): pass", "has no handler"),
    ],
)
def test_a_module_without_one_handler(text: str, listed: str) -> None:
    with pytest.raises(HandlerLoadError, match=listed):
        handlers_of(module(text))


def test_handlers_that_name_their_topics_are_taken_together() -> None:
    two = "@handler(topic='a')\ndef a(m): pass\n@handler(topic='b', tags='x')\ndef b(m): pass\n"
    assert handlers_of(module(two)) == "shop:a,b"
    assert handlers_of(module(f"{two}@handler\ndef c(m): pass\ndef d(m): pass")) == "shop:a,b"
    assert handlers_of(module("@handler(topic='a')\ndef a(m): pass\ndef b(m): pass")) == "shop:a"
    with pytest.raises(HandlerLoadError, match="say which: shop:a, shop:c"):
        handlers_of(module("@handler(topic='a')\ndef a(m): pass\n@handler\ndef c(m): pass"))


def test_what_is_written_wrongly_is_said_without_a_process() -> None:
    for target in ("shop.py", "shop.py:count", "a/b.py", "shop:", "shop:count()", ""):
        with pytest.raises(UsageError, match=r"write it as|without \.py"):
            examine(target, 1)


def test_a_module_of_its_own_process() -> None:
    found = examine(f"{HERE}:look", 60_000)
    assert (found.import_path, found.subscriptions, found.sends) == (f"{HERE}:look", (), False)
    with pytest.raises(HandlerLoadError, match="its signature is examine"):
        examine(f"{HERE}:examine", 60_000)
    with pytest.raises(HandlerLoadError, match=f"{HERE}:look, {HERE}:handlers_of"):
        examine(HERE, 60_000)


def returns_a_number(message: Message) -> int:
    return len(message.body)


@pytest.mark.parametrize(
    ("made", "schema", "wrong"),
    [
        (handler(look, schema="order_id strin"), "", f'handler {HERE}:look: schema: unknown type "strin" at'),
        (handler(look, schema="order_id strin"), "infer", f'handler {HERE}:look: schema: unknown type "strin" at'),
        (handler(look, schema="_id int"), "", f'handler {HERE}:look: schema: column "_id": names that start with'),
        (handler(returns_a_number, schema="n int"), "", "is annotated to return int, which cannot be a row"),
        (handler(returns_a_number), "n int", "is annotated to return int, which cannot be a row"),
    ],
)
def test_columns_that_a_handler_cannot_have_are_its_fault_where_rows_are_kept(
    made: Handler, schema: str, wrong: str
) -> None:
    assert wrong in look_at_columns(made, schema)["wrong"]
    assert look_at_columns(made, None) == {}


def test_what_the_configuration_declares_goes_before_the_handlers_own() -> None:
    assert look_at_columns(handler(look, schema="order_id strin"), "n int", "n") == {}


def test_folders_are_of_columns_that_the_handler_declares() -> None:
    made = handler(look, schema="n int, day date")
    wrong = "spark.partition_by names 'month', which is no column of the rows: they have n, day"
    assert look_at_columns(made, "", "month") == {"settings": wrong}
    assert look_at_columns(made, "", "day") == {}


def test_the_columns_of_a_handler_are_looked_at_where_it_is_imported(tmp_path: Path) -> None:
    mistyped = "from rocketcrew import handler\n@handler(schema='n itn')\ndef count(message): pass"
    assert (
        examined(tmp_path, mistyped)
        == 'handler shop:count: schema: unknown type "itn" at "itn" (character 3) of "n itn" \n'
    )


def test_columns_that_are_written_wrongly_are_no_fault_of_the_handler() -> None:
    for wrong in ("wrong text", "n int,", "_n int", "n int, N string"):
        with pytest.raises(UsageError, match=r"^results\.schema: (unknown type|expected|column)"):
            examine(f"{HERE}:look", 60_000, schema=wrong)
    with pytest.raises(UsageError, match=r"^spark\.partition_by names 'm', which is no column"):
        examine(f"{HERE}:look", 60_000, schema="n int", partition_by=["n", "m"])
    for right in ("n int", "infer"):
        assert examine(f"{HERE}:look", 60_000, schema=right, partition_by=["n"]).import_path == f"{HERE}:look"


@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_process_that_others_end_is_no_fault_of_the_handler(ended_by: signal.Signals) -> None:
    error = why_no_answer("shop", -ended_by, "")
    assert type(error) is WorkerStartError
    assert f"ended by signal {ended_by.name}, from outside" in str(error)
    assert exit_code(error) == EXIT_FAILURE


@pytest.mark.parametrize("ended_by", [signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT])
def test_a_crash_is_the_handler_s(ended_by: signal.Signals) -> None:
    error = why_no_answer("shop", -ended_by, "Fatal Python error")
    assert isinstance(error, HandlerLoadError)
    assert (str(error), error.traceback) == (
        f"the process that imports handler shop ended by signal {ended_by.name}", "Fatal Python error",
    )  # fmt: skip
    assert exit_code(error) == EXIT_HANDLER


def test_an_exit_in_the_module_is_the_handler_s_too() -> None:
    assert "shop ended with exit code 3" in str(why_no_answer("shop", 3, ""))


def test_an_import_has_a_limit() -> None:
    with pytest.raises(HandlerLoadError, match="was not imported within workers"):
        examine(f"{HERE}:look", 0)


EXAMINES = """
import sys
from pathlib import Path
sys.path[:0] = [Path("no text"), sys.argv[1]]
from rocketcrew.workers.api import Handler, handler
from rocketcrew.workers.loading import HandlerLoadError
from rocketcrew.workers.message import Message
from rocketcrew.workers.trial_import import examine
try:
    print(examine("shop", 300_000, schema="").name)
except HandlerLoadError as error:
    print(error, error.traceback)
"""


def examined(folder: Path, text: str) -> str:
    """What a script says of the module `shop` with this text, which is where only the script's own search path finds it."""
    (folder / "found").mkdir()
    (folder / "found" / "shop.py").write_text(text)
    words = [sys.executable, "-c", EXAMINES, str(folder / "found")]
    done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=True)
    return done.stdout


def test_a_module_is_found_where_who_asks_would_find_it(tmp_path: Path) -> None:
    assert examined(tmp_path, "def count(message): pass") == "shop:count\n"


def test_what_a_module_starts_is_not_waited_for_and_ends_with_its_process(tmp_path: Path) -> None:
    """Also a program that has its stdout and stderr, a fork, and what does not obey TERM."""
    os.mkfifo(tmp_path / "kept")
    kept = os.open(tmp_path / "kept", os.O_RDONLY | os.O_NONBLOCK)
    try:
        starts = f"""
import multiprocessing, os, subprocess
kept = os.open({str(tmp_path / "kept")!r}, os.O_WRONLY)
os.write(kept, b"begun")
subprocess.Popen(["sleep", "1000"], pass_fds=[kept])
manager = multiprocessing.get_context("fork").Manager()
deaf = ["sh", "-c", "trap '' TERM; echo deaf; sleep 1000; sleep 1000"]
assert subprocess.Popen(deaf, stdout=subprocess.PIPE, stderr=-3, pass_fds=[kept]).stdout.readline()
def count(message): pass
"""
        assert examined(tmp_path, starts) == "shop:count\n"
        os.set_blocking(kept, True)
        said: list[bytes] = []
        while said[-1:] != [b""]:
            assert select.select([kept], [], [], DEADLINE_S)[0], "somebody has the other end"
            said.append(os.read(kept, 100))
        assert said == [b"begun", b""]
    finally:
        os.close(kept)


def test_what_a_process_printed_is_shown_while_its_programs_have_its_output(tmp_path: Path) -> None:
    ends = "import os, subprocess\nsubprocess.Popen(['sleep', '1000'])\nos.write(2, b'no licence')\nos._exit(3)"
    assert "ended with exit code 3 no licence" in examined(tmp_path, ends)


def test_what_a_process_printed_is_shown_when_its_time_is_over() -> None:
    asks = ["sh", "-c", "echo password: >&2; exec sleep 1000"]
    with subprocess.Popen(asks, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            assert select.select([process.stderr], [], [], DEADLINE_S)[0]
            assert _written(process, time.monotonic(), lambda: None) == ("", "password:\n")
        finally:
            process.kill()
