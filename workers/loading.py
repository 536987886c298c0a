"""Where the handler comes from: an import string, or a function shipped once by dill.

The supervisor describes a handler (`describe`), the worker loads it (`load`). An import string is not imported by the
supervisor: no user code runs there. A function given as an object (a script, a notebook) travels by import path when
its module can be imported in the worker, else by value, with the globals it refers to (shipment.py). dill is the tool
for that, and too slow for anything that happens per message.

The current directory counts as importable, as with gunicorn. Errors carry the user's own frames only (user_errors.py).
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import importlib
import inspect
import os
import pkgutil
import sys
import warnings
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, cast

from ..remoting.errors import UsageError
from .api import Handler
from .bodies import OWN_SIGNATURE, binds, layers, own_signature, plan_of, result_annotation, typed
from .result_types import check_result_type
from .routing import check_order, combine, handler_of, listed, same_topics
from .shipment import named, packed, unpacked
from .user_errors import describe_error, user_traceback


class HandlerLoadError(UsageError):
    """The handler cannot be had; `traceback` has the user's frames, empty when his code is not at fault."""

    def __init__(self, message: str, traceback_text: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback_text


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """A handler on its way to a worker: `import_path` ("package.module:function"), else `pickled` by dill.

    Several handlers of one module are "package.module:one,other". `subscriptions` are those that the handlers name, when they
    were looked at: a worker that finds others does not start. `sends`: whether one of them sends messages. A worker of those
    that send none does not get what opens the cluster, and does not start with one that does. None: nobody has looked.
    """

    name: str
    import_path: str | None = None
    pickled: bytes | None = None
    subscriptions: tuple[str, ...] | None = None
    sends: bool | None = None

    @property
    def module(self) -> str | None:
        """Module to preload in the forkserver, None when shipped by value."""
        return self.import_path.partition(":")[0] if self.import_path else None

    def forget_pickled(self) -> None:
        """In a worker that has loaded it, and hands it on to nobody: it would have a large model of a notebook's twice."""
        if self.pickled is not None:
            object.__setattr__(self, "pickled", b"")


def describe(target: object) -> HandlerSpec:
    """Spec of an import string, a callable, a Handler or several in a list. Raises UsageError for anything else or what dill
    refuses."""
    if isinstance(target, str):
        module, colon, function = target.partition(":")
        dotted = f"{module}.{function.replace(',', '.')}"
        if not colon or not function or not all(part.isidentifier() for part in dotted.split(".")):
            raise UsageError(f'handler "{target}": write it as package.module:function{as_module(target)}')
        if module.endswith(".py"):
            raise UsageError(f'handler "{target}": a module is named without .py{as_module(target)}')
        return HandlerSpec(target, import_path=target)
    handler = handler_of(target)
    wrong = refusal(handler)
    if wrong is not None:
        raise HandlerLoadError(wrong)
    path = None if handler.parts else _import_path(target, handler)
    if path is not None:
        return HandlerSpec(path, import_path=path, subscriptions=handler.subscriptions, sends=handler.sends)
    try:
        # Names that only annotations refer to do not travel, so what these mean is found out here.
        parts = [copy.copy(part) for part in handler.parts or (handler,)]
        for part in parts:
            part.body_plan = (plan_of(part),)
        with _without_names_of([part.function for part in parts]):
            packet = packed(parts)
    except Exception as error:
        raise UsageError(
            f"handler {handler.name} cannot be shipped to a worker process ({type(error).__name__}: {error}"
            f"{_culprit(handler.function)}); make what it uses in its setup or in itself, or put it into a module and name it"
            " as package.module:function"
        ) from error
    for name, reader in packet.unbound.items():
        warnings.warn(
            f"handler {handler.name}: {reader} refers to {name!r}, which nothing defines. Workers get what is defined when"
            " the handler is given; unless its setup defines this, each call that comes to it may fail with a NameError",
            RuntimeWarning,
            stacklevel=5,  # who calls Crew or consume: a decorator and spec_of are between
        )
    return HandlerSpec(handler.name, pickled=packet.pickled, subscriptions=handler.subscriptions, sends=handler.sends)


def _culprit(function: object) -> str:
    """`, in "name"`: the variable of the enclosing function or of its module that does not travel; else nothing."""
    if not inspect.isfunction(function):
        return ""
    names = inspect.getclosurevars(function)
    for name, value in {**names.globals, **names.nonlocals}.items():
        try:
            packed(value)
        except Exception:  # noqa: BLE001  whatever dill or a __reduce__ raises
            return f", in {name!r}"
    return ""


def as_module(target: str) -> str:
    """For a handler that is written as a file, `; did you mean "package.module:function"?`; else nothing."""
    file, colon, function = target.partition(":")
    name = file.removeprefix("./").removesuffix(".py").replace("/", ".")
    if name == file or not all(part.isidentifier() for part in name.split(".")):
        return ""
    return f'; did you mean "{name}{colon}{function}"?'


def _import_path(target: object, handler: Handler) -> str | None:
    """`module:name` when importing that in a worker gives the very same object; None for __main__, lambdas, closures, and
    modules that were loaded in other ways than by their name, as pytest's --import-mode=importlib does."""
    module_name = getattr(handler.function, "__module__", None)
    name = getattr(handler.function, "__qualname__", "")
    module = sys.modules.get(module_name or "")
    if module is None or module_name == "__main__" or not getattr(module, "__file__", None):
        return None
    if not _is_importable(module):
        return None
    found = named(module, name)
    return f"{module_name}:{name}" if found is not None and found in (target, handler.function) else None


def _is_importable(module: ModuleType) -> bool:
    """Whether a worker that imports the module by its name, with our search path, gets this file. Nothing is imported."""
    parts = module.__name__.split(".")
    where: list[str] = search_path()
    found: ModuleSpec | None = None
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
        found = next((spec for finder in finders if (spec := finder.find_spec(name, where)) is not None), None)
        if found is None:
            return False
        where = list(found.submodule_search_locations or ())
    if found is None or not found.has_location:
        return found is not None  # of the interpreter's own
    return os.path.realpath(found.origin or "") == os.path.realpath(module.__file__ or "")


@contextlib.contextmanager
def _without_names_of(functions: Iterable[object]) -> Generator[None]:
    """dill refers by name to what it finds in a module. From one that no worker can import it must take everything by value:
    the modules of `functions` that are such are out of sight meanwhile."""
    found = (sys.modules.get(getattr(function, "__module__", None) or "") for function in functions)
    with contextlib.ExitStack() as hidden:
        for module in {module for module in found if module is not None and getattr(module, "__file__", None)}:
            if module.__name__ != "__main__" and not _is_importable(module):
                hidden.enter_context(_hidden(module))
        yield


@contextlib.contextmanager
def _hidden(module: ModuleType) -> Generator[None]:
    modules: dict[str, Any] = sys.modules
    parent, _, own_name = module.__name__.rpartition(".")
    package = sys.modules.get(parent)
    is_attribute = getattr(package, own_name, None) is module
    modules[module.__name__] = None  # importing it fails, also where its package could find it
    if is_attribute:
        delattr(package, own_name)
    try:
        yield
    finally:
        modules[module.__name__] = module
        if is_attribute:
            setattr(package, own_name, module)


def search_path() -> list[str]:
    """`sys.path` as a worker needs it: the current directory in front unless it is there, no relative entries, and none that
    is no text, which Python passes over."""
    here, path = os.getcwd(), cast("list[object]", sys.path)
    entries = [entry or here for entry in path if isinstance(entry, str)]
    return entries if here in entries else [here, *entries]


def load(spec: HandlerSpec, main: ModuleType | None = None) -> Handler:
    """Import or unpickle the handler. Raises HandlerLoadError, also for one that cannot take a message, names other topics
    than those that are subscribed, or sends messages where it sent none before. `main`: see `unpacked`."""
    handler = ready(find(spec, main))
    if spec.subscriptions is not None and not same_topics(spec.subscriptions, handler.subscriptions):
        raise HandlerLoadError(
            f"handler {spec.name} takes {listed(handler.subscriptions)} now, and the member started with"
            f" {listed(spec.subscriptions)}: stop it and start it again to consume other topics"
        )
    if spec.sends is False and handler.sends:
        raise HandlerLoadError(
            f"handler {spec.name} sends messages now, and the member started with one that sent none, so its workers have no"
            " access to the cluster: stop it and start it again"
        )
    return handler


def ready(handler: Handler) -> Handler:
    """The handler as a function of messages: itself, unless it wants bodies decoded or takes batches. Raises HandlerLoadError
    for one that cannot take what it would get."""
    wrong = refusal(handler)
    if wrong is not None:
        raise HandlerLoadError(wrong)
    try:
        parts = [_of_messages(part) for part in handler.parts or (handler,)]
        made = handler if parts == list(handler.parts) else combine(parts)
        check_order(made, ordered=False)
    except UsageError as error:
        raise HandlerLoadError(str(error)) from error
    return made


def _of_messages(handler: Handler) -> Handler:
    made = typed(handler)
    if made is not handler or not handler.batch:
        return made
    from .batch_lists import keeping_list  # the command line does not wait for it

    return keeping_list(handler, result_annotation(handler.plain))


def find(spec: HandlerSpec, main: ModuleType | None = None) -> Handler:
    """As `load`, for a function that may take whatever it likes."""
    if spec.pickled is not None:
        try:
            return handler_of(unpacked(spec.pickled, main))
        except Exception as error:
            raise HandlerLoadError(f"handler {spec.name}: {describe_error(error)}", user_traceback(error)) from error
    module_name, _, functions = (spec.import_path or "").partition(":")
    module = import_module(module_name)
    found = [_attribute(module, function) for function in functions.split(",")]
    try:
        return handler_of(found if len(found) > 1 else found[0])
    except UsageError as error:
        raise HandlerLoadError(f"{spec.import_path}: {error}") from error


def called_at(import_path: str) -> Callable[..., Any]:
    """A function of the user's at "package.module:function" that is called with something else than messages. Raises
    HandlerLoadError."""
    module_name, _, name = import_path.partition(":")
    found = _attribute(import_module(module_name), name)
    found = found.function if isinstance(found, Handler) else found
    if not callable(found):
        raise HandlerLoadError(f"{import_path} is no function, but of type {type(found).__name__}")
    return found


def _attribute(module: ModuleType, function: str) -> object:
    """What `function` names in the module, perhaps in a class of it."""
    found: object = module
    for part in function.split("."):
        if not hasattr(found, part):
            raise HandlerLoadError(_missing(module, function))
        found = getattr(found, part)
    return found


def import_module(name: str) -> ModuleType:
    """Import a module of the user, the current directory included. Raises HandlerLoadError."""
    sys.path[:] = search_path()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise HandlerLoadError(
                f'cannot find module "{name}" (no "{error.name}" in {os.getcwd()} nor on the Python path){_near(name)}'
            ) from error
        raise HandlerLoadError(f'module "{name}": {describe_error(error)}', user_traceback(error)) from error
    except BaseException as error:
        # SystemExit too: a module that calls sys.exit() at import is a handler that cannot be imported.
        raise HandlerLoadError(f'module "{name}": {describe_error(error)}', user_traceback(error)) from error


def _near(name: str) -> str:
    """`; did you mean "shop"?` for a name that is nearly that of a module of the current directory, or for a function that
    was written with a dot; else nothing."""
    package, _, function = name.rpartition(".")
    if package and hasattr(sys.modules.get(package), function):
        return f'; did you mean "{package}:{function}"?'
    near = difflib.get_close_matches(name, [found.name for found in pkgutil.iter_modules([os.getcwd()])], 1)
    return f'; did you mean "{near[0]}"?' if near else ""


def _missing(module: ModuleType, function: str) -> str:
    callables = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
    near = difflib.get_close_matches(function, callables, 1)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    return f'module "{module.__name__}" ({module.__file__}) has no function "{function}"{hint}'


# Whether a handler, and the functions declared with it, can take what they will be called with. Signatures alone decide that:
# nothing is called, and a function without a known signature (some of C) gets the benefit of the doubt. It is checked before
# anything joins the group: a handler that cannot take a message would send the whole backlog to the retry topic.

SHOWN_MAX: Final = 200
"""Characters of a signature in a message: annotations and defaults may be as long as they like."""


def refusal(handler: Handler) -> str | None:
    """What is wrong, with the signature and what is expected; None when every call will fit."""
    for part in handler.parts:
        if (wrong := refusal(part)) is not None:
            return wrong
    if handler.parts:
        return None
    if (wrong := never_awaited(handler.function)) is not None:
        return f"handler {handler.name} {wrong}"
    if _lacks_its_object(handler.function):
        method = _short_name(handler.function)
        return (
            f"handler {handler.name} is a method, which would be called without its object: give an object's method instead,"
            f" obj.{method}. One that is decorated, too, outside of the class: {method} = handler(obj.{method})"
        )
    expected = "messages" if handler.batch else "message"
    what = "a list of messages (batch=True)" if handler.batch else "one message"
    try:
        plan = None if inspect.isclass(handler.function) else plan_of(handler)
        check_result_type(handler, rows=False)
    except UsageError as error:
        return str(error)
    wrong = _misfit(handler.function, (expected, "body") if plan is not None and plan.with_message else (expected,))
    if wrong is not None:
        name = "handle" if inspect.isclass(handler.function) else _short_name(handler.function)
        return f"handler {handler.name} cannot take {what}: {wrong}. Expected is def {name}({expected})"
    for option, function, arguments in (
        ("filter", handler.filter, ("message",)),
        ("key", handler.key if callable(handler.key) else None, ("message",)),
        ("setup", handler.setup, ()),
        ("teardown", handler.teardown, ()),
    ):
        if function is None:
            continue
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            return f"handler {handler.name}: {option} has a yield, so calling it runs nothing of it: write it without"
        if arguments and (inspect.iscoroutinefunction(function) or _hides_coroutine(function)):
            return (
                f"handler {handler.name}: {option} is a coroutine function, which nothing awaits: write it with `def`"
            )
        wrong = _misfit(function, arguments, a_class_will_do=True)
        if wrong is not None:
            taken = "one message" if arguments else "no arguments"
            return f"handler {handler.name}: {option} is called with {taken}, but {wrong}"
    return None


def _lacks_its_object(function: Callable[..., Any]) -> bool:
    """Whether it is a method as its class has it: its `self` would be the message."""
    if not inspect.isfunction(function) or "." not in function.__qualname__.rpartition("<locals>.")[2]:
        return False
    signature = own_signature(function) or inspect.signature(function)
    return next(iter(signature.parameters), "") == "self"


def never_awaited(function: Callable[..., Any]) -> str | None:
    """Why calling it runs nothing; None when it does."""
    called = None if inspect.isclass(function) else getattr(type(function), "__call__", None)  # noqa: B004  it is looked at
    if inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(called):
        return "is an async generator, which nothing runs: return a list of rows, or write it with `def`"
    if inspect.iscoroutinefunction(called) and not inspect.iscoroutinefunction(function):
        return (
            "is an object whose __call__ is `async def`, which is not awaited: give an `async def` function or method"
        )
    if _hides_coroutine(function):
        return (
            "is `async def` behind a decorator's plain function, which does not await it: write that function with"
            f" `async def` and `await`. If it runs an event loop itself: {OWN_SIGNATURE}"
        )
    return None


def _hides_coroutine(function: Callable[..., Any]) -> bool:
    """Whether `async def` is behind a plain wrapper that fills arguments. One that fills none may run it by itself."""
    _, *behind = layers(function)
    if inspect.iscoroutinefunction(function) or not any(map(_runs_later, behind)):
        return False
    try:
        return own_signature(function) is not None and not binds(inspect.signature(function), 1)
    except (TypeError, ValueError):
        return False


def _runs_later(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def takes_one(function: Callable[..., Any]) -> bool:
    """Whether a plain function can be called with one message."""
    return _misfit(function, ("message",)) is None


def _misfit(function: Callable[..., Any], arguments: tuple[str, ...], *, a_class_will_do: bool = False) -> str | None:
    """Why `function(*arguments)` cannot be called; None when it can."""
    if inspect.isclass(function) and not a_class_will_do:
        return (
            f"{_short_name(function)} is a class, and calling it makes an object and handles nothing (name an instance"
            " with a __call__ method, or a function)"
        )
    try:
        signature = own_signature(function, len(arguments)) or inspect.signature(function)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*arguments)
    except TypeError as error:
        shown = str(signature)
        shown = shown if len(shown) <= SHOWN_MAX else shown[:SHOWN_MAX] + "..."
        return f"its signature is {_short_name(function)}{shown} ({error})"
    return None


def _short_name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", None) or type(function).__name__
