"""The place that is named of an error is the user's own line, whoever raised it there; and of a group, what is in it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import json
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rocketcrew.workers.user_errors import (
    FRAMES_CHARS_MAX,
    LEAVES_MAX,
    MESSAGE_CHARS_MAX,
    describe_error,
    failure_of,
    user_traceback,
)

HERE = Path(__file__).name


def raised(code: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011  whatever it is
        code()
    return caught.value


def line_of(code: Callable[..., object], after: int = 1) -> str:
    return f"{HERE}:{inspect.getsourcelines(code)[1] + after}"


def parse() -> object:
    return json.loads("{")


def inner() -> None:
    raise ValueError("tg inner")


def installed(file: str, source: str, **names: Any) -> Callable[..., Any]:
    """The function `run` of a module that lies there."""
    exec(compile(source, file, "exec"), names)
    run: Callable[..., Any] = names["run"]
    return run


def test_what_the_standard_library_raises_is_told_at_the_line_that_called_it() -> None:
    words = describe_error(raised(parse))
    assert words.endswith(")")
    own, _, library = words[:-1].rpartition(" (")[2].partition(", in ")
    assert own == line_of(parse)
    assert library.startswith("decoder.py:")
    assert "decoder.py" in user_traceback(raised(parse))


def test_what_an_installed_package_raises_too() -> None:
    run = installed("/venv/lib/site-packages/lib/a.py", "def run():\n    raise KeyError('k')\n")

    def calls() -> None:
        run()

    assert describe_error(raised(calls)) == f"KeyError: 'k' ({line_of(calls)}, in a.py:2)"


def test_a_future_of_another_process_is_told_where_it_was_asked_for() -> None:
    future = Future[None]()
    future.set_exception(ValueError("there"))

    def asks() -> None:
        future.result()

    assert f"({line_of(asks)}, in _base.py:" in describe_error(raised(asks))


def test_a_future_of_a_thread_is_told_where_that_failed() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert describe_error(raised(pool.submit(inner).result)) == f"ValueError: tg inner ({line_of(inner)})"


def test_generated_code_is_not_the_place() -> None:
    @dataclasses.dataclass(frozen=True)
    class Row:
        a: int

    def changes() -> None:
        Row(1).a = 2  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]

    assert f"({line_of(changes)}, in <string>:" in describe_error(raised(changes))


def test_where_the_handler_is_installed_its_own_package_is_the_place() -> None:
    library = installed("/venv/site-packages/lib/a.py", "def run():\n    raise KeyError('k')\n")
    helper = installed("/venv/site-packages/shop/helper.py", "def run():\n    library()\n", library=library)
    error = raised(installed("/venv/site-packages/shop/tasks.py", "def run():\n    helper()\n", helper=helper))
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # type: ignore[union-attr]  # without this test's own
    assert describe_error(error) == "KeyError: 'k' (helper.py:2, in a.py:2)"


@contextlib.contextmanager
def nothing() -> Generator[None]:
    yield


def without_this_test(error: BaseException) -> BaseException:
    assert error.__traceback__ is not None
    inner = error.__traceback__.tb_next
    while inner is not None and inner.tb_frame.f_code.co_filename == __file__:
        inner = inner.tb_next
    return error.with_traceback(inner)


def test_what_a_decorator_of_the_standard_library_calls_is_the_place() -> None:
    error = without_this_test(raised(nothing()(parse)))
    assert f" ({line_of(parse)}, in decoder.py:" in describe_error(error)


def test_so_is_what_its_futures_have_called() -> None:
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(parse).exception()
    assert error is not None
    assert f" ({line_of(parse)}, in decoder.py:" in describe_error(error)


def test_so_is_what_it_calls_of_an_installed_handler() -> None:
    run = nothing()(installed("/venv/site-packages/shop/tasks.py", "def run():\n    parse('{')\n", parse=json.loads))
    assert " (tasks.py:2, in decoder.py:" in describe_error(without_this_test(raised(run)))


def test_a_task_group_is_followed_by_what_failed_in_it() -> None:
    async def fails() -> None:
        inner()

    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fails())
            tasks.create_task(fails())

    error = raised(lambda: asyncio.run(group()))
    words = "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions): ValueError: tg inner"
    assert describe_error(error) == f"{words} ({line_of(inner)})"
    assert failure_of(error).error == describe_error(error)
    text = user_traceback(error)
    assert text.count('  |     raise ValueError("tg inner")\n') == 2
    assert text.count("  | ValueError: tg inner\n") == 2
    assert "  +---------------- 2 ----------------\n  | Traceback (most recent call last):\n" in text


def test_a_group_in_a_group_is_followed_by_the_first_error_that_is_none() -> None:
    nested: Any = raised(inner)
    for _ in range(3):
        nested = ExceptionGroup("g", [nested, KeyError("later")])
    assert (
        describe_error(nested) == "ExceptionGroup: g (2 sub-exceptions): ValueError: tg inner " + f"({line_of(inner)})"
    )


def test_errors_of_a_group_that_were_not_raised_have_the_place_of_the_group() -> None:
    def group() -> None:
        raise ExceptionGroup("g", [ValueError("v")])

    assert describe_error(raised(group)) == f"ExceptionGroup: g (1 sub-exception): ValueError: v ({line_of(group)})"


def test_groups_of_any_depth_and_size_have_texts_of_a_bounded_length() -> None:
    deep: Any = ValueError("v" * 1_000_000)
    for _ in range(500):
        deep = ExceptionGroup("g", [deep])
    assert describe_error(deep) == "ExceptionGroup: g (1 sub-exception)"
    wide = ExceptionGroup("w" * 1_000_000, [ValueError("v" * 1_000_000)] * 50)
    assert len(describe_error(wide)) < 2 * MESSAGE_CHARS_MAX + 100
    assert len(user_traceback(wide)) <= FRAMES_CHARS_MAX + 2 * MESSAGE_CHARS_MAX + 100
    assert user_traceback(ExceptionGroup("g", [ValueError("v")] * 50)).count("| ValueError: v") == LEAVES_MAX
