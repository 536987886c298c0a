"""A handler looked at before anything is started: is it there, can it take a message, or which handlers has its module?

`rocketcrew run` starts no broker, takes no slot and joins no group for a handler that could not run. User code is imported
in a process of its own, which is this one; it ends when it has answered. Nothing is called: set-up hooks run in workers.
What the module has started by then is ended with it: the module is imported again where workers come from.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from json import dumps, loads  # bound before the user's code, which may replace them
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ..conf.limits import from_outside
from ..conf.own_command import own_command
from ..remoting.errors import RocketcrewError, UsageError
from .api import Handler
from .boot import TableSpec
from .loading import HandlerLoadError, HandlerSpec, describe, import_module, load, search_path, takes_one
from .parent_death import PROGRAMS_GRACE_S, die_with_parent, reap
from .result_types import check_result_type

if TYPE_CHECKING:
    from ..conf.settings import Settings

CHECK_S: Final = 0.05
READ_MAX: Final = 1 << 20
"""Bytes: more than a pipe holds, so that one read takes all that a process has left there."""
STDERR_SHOWN_MAX: Final = 4_000
"""Characters of what a process printed that gave no answer."""


@dataclass(frozen=True, slots=True)
class Examined:
    """A handler that can be run. `columns`: of its rows, as DDL; "" where they were not asked for, or are not declared."""

    spec: HandlerSpec
    columns: str = ""
    misfit: str = ""
    """Why its rows do not go into the table; "" where they do."""


def examine(
    target: str, timeout_ms: int, check: Callable[[], None] = lambda: None, *, schema: str | None = None,
    partition_by: Sequence[str] = (),
) -> HandlerSpec:  # fmt: skip
    """The handler that `target` names: package.module:function, or a module with one handler or several that name topics.
    `schema` is results.schema, None where no rows are kept, `partition_by` spark.partition_by: that process judges them, for
    the types are Arrow's, which take their time to import.

    Raises UsageError when it or `schema` is written wrongly, or `partition_by` names what is no column, HandlerLoadError
    when it cannot be imported within the time, cannot take a message, declares columns that cannot be or a result that is
    no row of them, or when the module has none or several, and WorkerStartError when others end the process that imports
    it. Raises what `check` raises, which is called again and again while the process runs, and when it has ended: Ctrl-C at
    a terminal does not reach it, as it leads a session of its own.
    """
    return _examined(target, timeout_ms, check, [schema, *partition_by], None).spec


def examine_as_set(target: str, settings: Settings, check: Callable[[], None] = lambda: None) -> HandlerSpec:
    """As `examine`, with the columns and the time that the settings have."""
    schema = settings.results.schema if settings.results.enabled else None
    return examine(
        target, settings.workers.boot_timeout_ms, check, schema=schema, partition_by=settings.spark.partition_by
    )


def examine_rows(target: str, timeout_ms: int, *, schema: str, table: TableSpec, columns_file: Path) -> Examined:
    """As `examine`, and whether the rows go into `table`; `schema` is results.schema, `columns_file` where inferred columns
    are kept."""
    return _examined(
        target, timeout_ms, lambda: None, [], {"schema": schema, "file": str(columns_file), **table._asdict()}
    )


def _examined(
    target: str, timeout_ms: int, check: Callable[[], None], columns: list[str | None], rows: dict[str, Any] | None
) -> Examined:
    if ":" in target or not all(part.isidentifier() for part in target.split(".")) or target.endswith(".py"):
        describe(target)
    words = [str(os.getpid()), dumps(search_path()), target, dumps(columns)]
    words += [] if rows is None else [dumps(rows)]
    process = subprocess.Popen(
        own_command("rocketcrew.workers.trial_import", *words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        try:
            out, printed = _written(process, time.monotonic() + timeout_ms / 1000, check)
            late = process.poll() is None
        finally:
            _end(process)
    check()
    if not out.endswith("\n"):
        if late:
            limit = f"workers.boot_timeout_ms = {timeout_ms} ms"
            raise HandlerLoadError(f"handler {target} was not imported within {limit}", printed[-STDERR_SHOWN_MAX:])
        raise why_no_answer(target, process.returncode, printed)
    answer = loads(out)
    if "settings" in answer:
        raise UsageError(answer["settings"])
    if "wrong" in answer:
        raise HandlerLoadError(answer["wrong"], answer["traceback"])
    spec = replace(describe(answer["handler"]), subscriptions=tuple(answer["subscriptions"]), sends=answer["sends"])
    return Examined(spec, answer.get("columns", ""), answer.get("misfit", ""))


def why_no_answer(target: str, exit_code: int, printed: str) -> RocketcrewError:
    """The error of a process that has ended without one. What others end it by is not the handler's fault: another may go
    through, as when a worker boots."""
    from .spawn import CRASHES, WorkerStartError  # nobody else here needs what it brings

    what = f"the process that imports handler {target}"
    if exit_code >= 0:
        return HandlerLoadError(f"{what} ended with exit code {exit_code}", printed[-STDERR_SHOWN_MAX:])
    name = signal.Signals(-exit_code).name
    if -exit_code in {*CRASHES, signal.SIGABRT}:
        return HandlerLoadError(f"{what} ended by signal {name}", printed[-STDERR_SHOWN_MAX:])
    return WorkerStartError(f"{what} was ended by signal {name}, {from_outside(-exit_code)}")


def _written(process: subprocess.Popen[bytes], deadline: float, check: Callable[[], None]) -> tuple[str, str]:
    """What it wrote to stdout and stderr until it had answered or ended, or until the deadline. Not until the end of these:
    processes that the module has started may keep them open."""
    assert process.stdout is not None
    assert process.stderr is not None
    stdout, stderr = bytearray(), bytearray()
    with selectors.DefaultSelector() as pipes:
        pipes.register(process.stdout, selectors.EVENT_READ, stdout)
        pipes.register(process.stderr, selectors.EVENT_READ, stderr)
        while True:
            left = deadline - time.monotonic()
            ended = process.poll() is not None  # before the look: all that it wrote is there
            for key, _ in pipes.select(0 if ended else max(0, min(left, CHECK_S))):
                some = os.read(key.fd, READ_MAX)
                key.data.extend(some)
                if not some:
                    pipes.unregister(key.fileobj)
            if ended or left <= 0 or stdout.endswith(b"\n"):
                return stdout.decode(errors="replace"), stderr.decode(errors="replace")
            check()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it, and who is left in its group: by TERM, as a program may want to clear up, then by KILL. The number is nobody
    else's as long as anybody is left."""
    process.kill()
    with contextlib.suppress(OSError):  # nobody is left, or none that this user may end
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        until = time.monotonic() + PROGRAMS_GRACE_S
        while time.monotonic() < until:
            reap(process.pid)
            os.killpg(process.pid, 0)
            time.sleep(CHECK_S)
        os.killpg(process.pid, signal.SIGKILL)
        reap(process.pid)


def look_at_settings(schema: str | None = None, *partition_by: str) -> dict[str, Any]:
    """{"settings": why they declare no columns, or none for those folders}; empty: they do, or leave it to the handler."""
    if not schema:
        return {}
    from ..conf.columns import check_partition_columns, columns_of  # pyarrow takes its time to import
    from .ddl import INFER, parse_ddl

    try:
        if schema != INFER:
            check_partition_columns(partition_by, columns_of(parse_ddl(schema)))
    except UsageError as error:
        return {"settings": str(error).replace("schema: ", "results.schema: ", 1)}
    return {}


def look_at_columns(handler: Handler, schema: str | None = None, *partition_by: str) -> dict[str, Any]:
    """As `look_at_settings`, of the columns that the handler declares itself, where these count; {"wrong": text, "traceback":
    ""} where it is they that cannot be, or what it returns. A worker's boot would find the same, after all has started."""
    if schema is None:
        return {}
    try:
        check_result_type(handler, rows=bool(schema) or handler.schema is not None)
    except UsageError as error:
        return {"wrong": str(error), "traceback": ""}
    if handler.schema is None:
        return {}
    from ..conf.columns import check_partition_columns, columns_of  # pyarrow takes its time to import
    from .ddl import INFER, as_schema

    if schema not in ("", INFER):
        return {}
    try:
        columns = columns_of(as_schema(handler.schema))
    except UsageError as error:
        return {"wrong": f"handler {handler.name}: {error}", "traceback": ""}
    try:
        check_partition_columns(partition_by, columns)
    except UsageError as error:
        return {"settings": str(error)}
    return {}


def look(target: str, columns: Sequence[Any] = ()) -> dict[str, Any]:
    """{"handler": import string, "subscriptions": those that it names, "sends": whether it sends messages} of a handler that
    can be run, else {"wrong": text, "traceback": text}, or what `look_at_columns` says; `columns` are its arguments."""
    try:
        name = target if ":" in target else handlers_of(import_module(target))
        handler = load(describe(name))
        return look_at_columns(handler, *columns) or {
            "handler": name,
            "subscriptions": handler.subscriptions,
            "sends": handler.sends,
        }
    except HandlerLoadError as error:
        return {"wrong": str(error), "traceback": error.traceback}


def look_at_rows(target: str, rows: Mapping[str, Any]) -> dict[str, Any]:
    """As `look`, with "columns" and "misfit" of a handler that can be run; `rows` is what `examine_rows` was given."""
    answer = look(target)
    if "wrong" in answer:
        return answer
    from .ddl import INFER, as_schema, to_ddl  # pyarrow takes its time to import
    from .inferring import declared_columns
    from .table_fit import check_fits

    table = TableSpec(
        rows["target"], tuple((name, type_) for name, type_ in rows["columns"]), tuple(rows["partition_by"]),
        rows["format"], rows["new_maps_names"],
    )  # fmt: skip
    try:
        declared = declared_columns(rows["schema"], load(describe(answer["handler"])).schema, Path(rows["file"]))
        check_result_type(load(describe(answer["handler"])), rows=declared is not None or rows["schema"] == INFER)
        if declared is None:
            return answer
        schema = as_schema(declared)
        answer["columns"] = to_ddl(schema)
        check_fits(schema, table, None)
    except UsageError as error:
        answer["misfit"] = str(error)
    return answer


def handlers_of(module: ModuleType) -> str:
    """Import string of the module's only handler, or of all that name their topics where there are several of these.

    Raises HandlerLoadError when there is none, or more than one otherwise."""
    own = [name for name, value in vars(module).items() if not name.startswith("_") and _is_of(module, value)]
    decorated = [name for name in own if isinstance(getattr(module, name), Handler)]
    found = decorated or [name for name in own if takes_one(getattr(module, name))]
    name = module.__name__
    if not found:
        raise HandlerLoadError(
            f'module "{name}" ({module.__file__}) has no handler: write def handle(message) in it, then name {name}:handle'
        )
    if len(found) > 1:
        routed = [function for function in decorated if getattr(module, function).subscriptions]
        if len(routed) > 1:
            return f"{name}:{','.join(routed)}"
        listed = ", ".join(f"{name}:{function}" for function in found)
        raise HandlerLoadError(
            f'module "{name}" has several handlers; say which: {listed} (or give each its @handler(topic="..."), and all of'
            " these run in one group)"
        )
    return f"{name}:{found[0]}"


def _is_of(module: ModuleType, value: Any) -> bool:
    """A handler or a function that is defined in this module, not imported into it."""
    function = value.function if isinstance(value, Handler) else value
    of_it = getattr(function, "__module__", None) == module.__name__
    return of_it and (isinstance(value, Handler) or inspect.isfunction(value))


def main() -> None:
    """`python -m rocketcrew.workers.trial_import PARENT_PID PATH TARGET COLUMNS [ROWS]`: one line of JSON, and out."""
    die_with_parent(int(sys.argv[1]))
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # what the user's module prints is no answer
        path, target, columns, *rows = sys.argv[2:]
        sys.path[:] = loads(path)
        declared = loads(columns)
        wrong = look_at_settings(*declared)
        answer = wrong or (look_at_rows(target, loads(rows[0])) if rows else look(target, declared))
        out.write(dumps(answer) + "\n")
    os._exit(0)  # threads that the module has started are not waited for


if __name__ == "__main__":
    main()
