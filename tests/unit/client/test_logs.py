"""What is logged in a process of the user's: on standard error, unless he has configured structlog."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture, capture_logs

from rocketcrew.client.logs import get_logger, users_logger

ROOT = Path(__file__).parents[3]
WITH_THE_USER_S_CODE = ("client", "spark", "broker", "source", "workers")

LOAD = "from rocketcrew import load; load('segments', 'table', format='pyarrow')"
SEND = """
from rocketcrew import SyncProducer
from rocketcrew.remoting.errors import UnreachableError
try:
    SyncProducer("127.0.0.1:1").send("orders", b"x")
except UnreachableError:
    pass
"""
IN_HAND = "from rocketcrew import logger; logger().warning('from_a_handler')"
LOGGED = {LOAD: "all_loaded", SEND: "name_server_failed", IN_HAND: "from_a_handler"}
OWN = """
import sys, structlog
structlog.configure(processors=[structlog.processors.JSONRenderer()],
                    logger_factory=lambda *names: structlog.PrintLogger(open(f"{names[0]}.log", "a")))
"""
NO_STREAM_SAID = (
    "structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(20))",
    "from structlog.testing import capture_logs\nwith capture_logs(): pass",
    "structlog.configure(logger_factory=lambda *_: None); structlog.reset_defaults()",
    "structlog.configure_once(processors=[structlog.processors.JSONRenderer()])",
)
STDERR = "structlog.PrintLoggerFactory(sys.stderr)"
UNWRITABLE = {
    "no_reader": "reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 2)",
    "full_disk": "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",
    "closed": "sys.stderr.close()",
}


def said(folder: Path, code: str) -> tuple[str, str]:
    (folder / "segments/ready").mkdir(parents=True, exist_ok=True)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


@pytest.mark.parametrize("code", LOGGED)
def test_a_script_has_its_standard_output_for_itself(tmp_path: Path, code: str) -> None:
    out, err = said(tmp_path, code)
    assert (out, LOGGED[code] in err) == ("", True)


FAILS = """
from rocketcrew.client.logs import get_logger
def check(message):
    raise KeyError("no order")
def asked(body):
    try:
        check(body)
    except KeyError:
        get_logger().exception("transaction_check_failed", bravo=1, alpha=2)
asked(f"the {'secret'} body")
"""


@pytest.mark.parametrize("own", ["", f"import structlog; {NO_STREAM_SAID[0]}"], ids=["nothing", "a level"])
def test_the_traceback_of_a_line_has_no_values_unless_the_user_has_said_so(tmp_path: Path, own: str) -> None:
    _, err = said(tmp_path, own + FAILS)
    assert "KeyError: 'no order'" in err
    assert "transaction_check_failed" in err
    assert "the secret body" not in err
    _, err = said(tmp_path, "import structlog; structlog.configure(processors=[structlog.dev.ConsoleRenderer("
                            f"exception_formatter=lambda out, _: out.write('his own'))]){FAILS}")  # fmt: skip
    assert "his own" in err


@pytest.mark.parametrize("before", [True, False])
def test_what_the_user_tells_the_renderer_that_is_there_holds(tmp_path: Path, before: bool) -> None:
    """As `ConsoleRenderer.get_active()` gives it to him: before our import or after it."""
    active = "import structlog; shown = vars(structlog.get_config()['processors'][-1])"
    for change, his in (
        ("shown['_exception_formatter'] = lambda out, _: out.write('his own')", True), ("shown['_sort_keys'] = False", False),
    ):  # fmt: skip
        told = f"{active}; {change}\n"
        _, err = said(tmp_path, told + FAILS if before else FAILS.replace("def check", f"{told}def check"))
        assert ("his own" in err, "KeyError" in err, "secret" in err) == (his, not his, False)
        assert (err.find("bravo") < err.find("alpha")) != his


def test_what_only_a_search_for_faults_needs_is_shown_where_it_is_asked_for(tmp_path: Path) -> None:
    lines = "from rocketcrew.client.logs import get_logger\nget_logger().debug('each_retry'); get_logger().info('done')"
    _, err = said(tmp_path, lines)
    assert ("each_retry" in err, "done" in err) == (False, True)
    _, err = said(tmp_path, f"import structlog; structlog.configure(cache_logger_on_first_use=False)\n{lines}")
    assert ("each_retry" in err, "done" in err) == (True, True)


def test_what_the_user_configures_holds(tmp_path: Path) -> None:
    for order in (OWN + SEND, SEND.replace("try:", f"{OWN}\ntry:")):  # before our import, and after it
        assert said(tmp_path, order) == ("", "")
    lines = (tmp_path / "rocketcrew.client.log").read_text().splitlines()
    assert [line for line in lines if '"event": "name_server_failed"' not in line] == []
    assert len(lines) >= 2


def test_a_closed_standard_error_is_nobody_s_fault(tmp_path: Path) -> None:
    assert said(tmp_path, f"import sys; sys.stderr = None\n{IN_HAND}") == ("", "")


@pytest.mark.parametrize("own", NO_STREAM_SAID)
def test_a_user_who_says_no_stream_has_his_standard_output_too(tmp_path: Path, own: str) -> None:
    out, err = said(tmp_path, f"import structlog\n{own}\n{IN_HAND}")
    assert (out, "from_a_handler" in err) == ("", True)


def test_a_user_who_says_standard_output_has_the_lines_there(tmp_path: Path) -> None:
    own = "import structlog; structlog.configure(logger_factory=structlog.PrintLoggerFactory())"
    out, err = said(tmp_path, f"{own}\n{IN_HAND}")
    assert ("from_a_handler" in out, err) == (True, "")


@pytest.mark.parametrize("stream", ["no_reader", "full_disk", "closed"])
@pytest.mark.parametrize("configured", [False, True])
def test_a_line_that_cannot_be_written_is_not_the_caller_s_exception(
    tmp_path: Path, stream: str, configured: bool
) -> None:
    own = f"structlog.configure(logger_factory={STDERR})" if configured else ""
    code = f"import os, sys, structlog\n{UNWRITABLE[stream]}\n{own}\n{SEND}\n{IN_HAND}\nprint('went on')"
    assert said(tmp_path, code) == ("went on\n", "")


@pytest.mark.parametrize("own", ["", "structlog.configure(processors=[structlog.processors.JSONRenderer()])"])
def test_a_value_that_cannot_be_rendered_is_not_the_caller_s_exception(tmp_path: Path, own: str) -> None:
    code = (
        "import structlog\nfrom rocketcrew import logger\nfrom structlog.testing import capture_logs\n"
        "class Detached:\n    def __repr__(self): raise RuntimeError\n"
        f"{own}\nlog = logger().bind(n=1)\nlog.info('odd', value={{('a', 1): Detached()}})\n"
        "with capture_logs() as logs: log.info('odd')\nprint(logs)"
    )
    out, err = said(tmp_path, code)
    assert out == "[{'n': 1, 'event': 'odd', 'log_level': 'info'}]\n"
    assert "<repr failed: RuntimeError>" in err


@pytest.mark.parametrize("keys", ["exception=5", "stack=['a']", "stack={'a': 1}"])
def test_a_text_that_the_renderer_wants_is_one(tmp_path: Path, keys: str) -> None:
    out, err = said(tmp_path, f"from rocketcrew import logger\nlogger().info('odd', {keys})")
    assert (out, "odd" in err, eval(f"str(dict({keys}).popitem()[1])") in err) == ("", True, True)


def test_no_processors_are_as_good_as_some(tmp_path: Path) -> None:
    own = (
        "import structlog\nfrom rocketcrew import logger\n"
        "structlog.configure(processors=[], logger_factory=lambda *_: structlog.ReturnLogger())\n"
    )
    assert said(tmp_path, f"{own}print(logger().bind(n=1).info('plain'))") == ("((), {'n': 1, 'event': 'plain'})\n", "")


def test_a_log_file_that_cannot_be_opened_is_not_the_caller_s_exception(tmp_path: Path) -> None:
    (tmp_path / "rocketcrew.client.log").mkdir()
    assert said(tmp_path, f"{OWN}{SEND}\nprint('went on')") == ("went on\n", "")


IN_A_WORKER = """
import asyncio, io, json, structlog
from rocketcrew import logger
from rocketcrew.client.logs import get_logger, keep_configuration
from rocketcrew.conf.logging import set_up
ours = get_logger("rocketcrew.client")
stream = io.StringIO()
set_up("json", "info", stream, process="worker")
keep_configuration()
def refuses(*_): raise KeyError("request_id")
def drops(*_): raise structlog.DropEvent
def tried():
    try:
        structlog.get_logger().warning("his own")
        logger().warning("his of ours")
    except (KeyError, RuntimeError) as error:
        return type(error).__name__
"""
CONFIGURED = {
    "structlog.configure(processors=[refuses])": "KeyError",
    "structlog.configure(processors=[drops])": "None",
    "structlog.configure(wrapper_class=structlog.stdlib.AsyncBoundLogger)": "RuntimeError",
    "structlog.configure(logger_factory=refuses)": "KeyError",
    "structlog.configure(context_class=refuses)": "KeyError",
    "structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))": "None",
    "structlog.get_config()['processors'][:] = [refuses]": "KeyError",
    "structlog.reset_defaults(); structlog.configure(processors=[drops])": "None",
}


@pytest.mark.parametrize("own", CONFIGURED)
def test_in_a_worker_what_the_user_configures_is_for_his_own_loggers_only(tmp_path: Path, own: str) -> None:
    ask = "print(tried()); ours.warning('of ours', n=1); ours.bind(n=2).warning('of ours')"
    shown = "print([(line['event'], line['n'], line['process']) for line in map(json.loads, stream.getvalue().splitlines())])"
    out, _ = said(tmp_path, f"{IN_A_WORKER}\n{own}\n{ask}\n{shown}")
    assert out.splitlines() == [CONFIGURED[own], "[('of ours', 1, 'worker'), ('of ours', 2, 'worker')]"]


def test_a_logger_that_was_bound_before_is_captured() -> None:
    log = get_logger().bind(member="a")
    with capture_logs() as lines:
        log.warning("said")
    assert lines == [{"event": "said", "member": "a", "log_level": "warning"}]


def test_a_line_is_written_by_the_processors_of_its_beginning() -> None:
    """Where another thread entered `capture_logs()` meanwhile, the rest was passed over, and the caller's call failed."""
    configured = structlog.get_config()["processors"]

    def cleared(_logger: object, _method: str, event: Any) -> Any:
        configured.clear()
        return event

    with capture_logs() as lines:
        configured.insert(0, cleared)
        get_logger().warning("said", n=1)
    assert lines == [{"event": "said", "n": 1, "log_level": "warning"}]


@pytest.mark.parametrize(
    "own", ["", "structlog.configure(processors=[])", f"structlog.configure(logger_factory={STDERR})"]
)
def test_a_line_is_written_also_while_the_list_of_processors_is_empty(tmp_path: Path, own: str) -> None:
    """As it is between two steps of a `capture_logs()` of another thread: the caller's call failed by a TypeError."""
    code = (
        f"import structlog, sys\nfrom rocketcrew.client.logs import get_logger, users_logger\n{own}\n"
        "structlog.get_config()['processors'].clear()\n"
        "for log in (get_logger('x'), users_logger('x'), get_logger('x').bind(m=1)):\n    log.warning('said', n=1)\n"
        "try:\n    raise KeyError('no order')\nexcept KeyError:\n    log.exception('failed')\nprint('went on')"
    )
    out, err = said(tmp_path, code)
    assert (out, err.count("said"), err.count("n=1"), err.count("KeyError: 'no order'")) == ("went on\n", 3, 3, 1)
    assert "TypeError" not in err


def test_a_line_that_nothing_has_rendered_and_the_logger_does_not_take_is_dropped(tmp_path: Path) -> None:
    code = "structlog.configure(processors=[], logger_factory=lambda *_: structlog.BytesLogger(sys.stderr.buffer))"
    assert said(tmp_path, f"import structlog, sys\n{code}\n{IN_HAND}\nprint('went on')") == ("went on\n", "")


class EmptiedAfterALook(list[Any]):
    """As `capture_logs()` of another thread leaves it."""

    def __iter__(self) -> Iterator[Any]:
        yield from self.copy()
        self.clear()

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.clear()
        return found


def test_a_line_of_the_user_s_is_written_by_the_processors_of_its_beginning(tmp_path: Path) -> None:
    configured, captured = structlog.get_config()["processors"], LogCapture()
    structlog.configure(processors=EmptiedAfterALook([captured]))
    try:
        users_logger("x").warning("said", n=1)
    finally:
        structlog.configure(processors=configured)
    assert captured.entries == [{"event": "said", "n": 1, "log_level": "warning"}]


def test_rooms_that_run_beside_the_user_s_code_have_these_loggers() -> None:
    files = [file for room in WITH_THE_USER_S_CODE for file in (ROOT / room).rglob("*.py")]
    found = [file for file in files if "import structlog" in file.read_text(encoding="utf-8")]
    assert found == [ROOT / "client/logs.py"]
