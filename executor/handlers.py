"""Users' handlers, by name.

`@handler("send-email")` on a function of (context, payload). A coroutine function runs on the loop, a plain one on a
thread, either in a process of its own where it is told so. The payload is validated against the second parameter's
pydantic model where it has one.
"""

import inspect
import logging
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, TypeVar, cast, get_args, get_type_hints

from pydantic import BaseModel, TypeAdapter

from tidewheel.errors import SettingsError

_LOG = logging.getLogger("tidewheel.executor")

Function = TypeVar("Function", bound=Callable[..., object])

Isolation = Literal["loop", "thread", "process"]

_PARAMETERS = 2


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered handler.

    Args:
        name: What jobs call it.
        function: The user's function.
        is_async: Whether it is a coroutine function.
        payload: Validates a JSON payload; None takes any JSON value.
        own_process: Whether it runs in a process of its own, where it can be killed and can harm nobody.
    """

    name: str
    function: Callable[..., object] | Callable[..., Awaitable[object]]
    is_async: bool
    payload: TypeAdapter[object] | None
    own_process: bool = False


_HANDLERS: dict[str, Handler] = {}


def handler(name: str, *, isolation: Isolation | None = None) -> Callable[[Function], Function]:
    """Register a function as the handler `name`.

    Args:
        name: What jobs call it.
        isolation: `process` runs it in a worker process that is killed when its time is over. Not said: a coroutine
            function runs on the `loop`, a plain one on a `thread`.

    Raises:
        TypeError: It was written without a name.
        ValueError: The name is taken by another function, the function does not take (context, payload), or does not
            run as `isolation` says.
    """
    if callable(name):  # the decorator was written bare, whatever the annotation says
        message = 'write @tidewheel.handler("name"): jobs call a handler by its name'
        raise TypeError(message)

    def register(function: Function) -> Function:
        is_async = inspect.iscoroutinefunction(function)
        _check_isolation(name, isolation, is_async=is_async)
        parameters = list(inspect.signature(function).parameters)
        if len(parameters) != _PARAMETERS:
            message = (
                f"handler {name!r}: {function.__qualname__} must take (context, payload), not ({', '.join(parameters)})"
            )
            raise ValueError(message)
        known = _HANDLERS.get(name)
        if known is not None and _place(known.function) != _place(function):
            message = f"handler {name!r} is {known.function.__module__}.{known.function.__qualname__} already"
            raise ValueError(message)
        adapter = _payload_adapter(function, parameters[1])
        _HANDLERS[name] = Handler(name, function, is_async, adapter, own_process=isolation == "process")
        return function

    return register


def registered() -> dict[str, Handler]:
    """The handlers of this process, by name."""
    return dict(_HANDLERS)


def import_handlers(modules: str | None) -> None:
    """Import the modules that register handlers.

    Args:
        modules: Names separated by commas.

    Raises:
        SettingsError: One cannot be imported; the message says why.
    """
    for name in filter(None, (part.strip() for part in (modules or "").split(","))):
        try:
            import_module(name)
        except (Exception, SystemExit) as error:
            message = (
                f"handlers: module {name!r} cannot be imported: {type(error).__name__}: {error}{_advice(name, error)}"
            )
            raise SettingsError(message) from error
        if not any(f"{each.function.__module__}.".startswith(f"{name}.") for each in _HANDLERS.values()):
            _LOG.info('module %r has no handler of its own: none of its functions has @tidewheel.handler("name")', name)


def _place(function: Callable[..., object]) -> tuple[str, str]:
    return function.__module__, function.__qualname__


def _check_isolation(name: str, isolation: str | None, *, is_async: bool) -> None:
    fitting = ("loop" if is_async else "thread", "process")
    if isolation is None or isolation in fitting:
        return
    kind = "a coroutine function" if is_async else "a plain function"
    reason = f"does not suit {kind}" if isolation in get_args(Isolation) else "is unknown"
    message = f"handler {name!r}: isolation={isolation!r} {reason}; leave it out ({fitting[0]}) or write 'process'"
    raise ValueError(message)


def _advice(name: str, error: BaseException) -> str:
    """What to do about a module that cannot be imported: where the fault is, or how modules are named and found."""
    if name.endswith(".py"):
        return f"; write {name.removesuffix('.py')}, a module's name and not a file's"
    if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
        return "; is it in this folder? then run `PYTHONPATH=. tidewheel executor …`"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f" ({last.filename}, line {last.lineno})"


def _payload_adapter(function: Callable[..., object], parameter: str) -> TypeAdapter[object] | None:
    hint = get_type_hints(function).get(parameter)
    if inspect.isclass(hint) and issubclass(hint, BaseModel):
        return cast("TypeAdapter[object]", TypeAdapter(hint))
    return None
