"""Registered handlers: users' functions by name, and calling them.

`@handler("send-email")` registers a function of (context, payload). A coroutine function runs on the event loop, a
plain one on a thread; with `isolation="process"` either runs in a worker process. Pydantic validates the payload
against the annotation of the second parameter. The loop, threads and worker processes call it in the same way.

With `chunk=Chunk(…)` the function takes several runs as items, and gives an outcome to each.
"""

import inspect
import json
import logging
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic import PydanticSchemaGenerationError, TypeAdapter
from pydantic_core import from_json

from tidewheel.errors import SettingsError
from tidewheel.executor.chunk import Chunk, Item
from tidewheel.executor.context import Context
from tidewheel.executor.outcome import Outcome, failed, from_exception, serialize_result

_LOG = logging.getLogger("tidewheel.executor")

Function = TypeVar("Function", bound=Callable[..., object])

Isolation = Literal["loop", "thread", "process"]


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered handler."""

    name: str
    function: Callable[..., object] | Callable[..., Awaitable[object]]
    is_async: bool
    payload: TypeAdapter[object] | None  # None accepts any JSON value
    own_process: bool = False  # where it can be killed and cannot harm other attempts

    def call(self, context: Context, payload: object) -> Outcome:
        """Call a plain function and return its outcome."""
        try:
            return serialize_result(self.function(context, payload))
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - any is its attempt's outcome
            return raised(error)

    async def call_async(self, context: Context, payload: object) -> Outcome:
        """Call a coroutine function and return its outcome; a cancellation propagates."""
        try:
            returned = await cast("Awaitable[object]", self.function(context, payload))
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - any is its attempt's outcome
            return raised(error)
        return serialize_result(returned)

    def read_payload(self, payload: bytes, content_type: str) -> object:
        """Return the payload as the function takes it: its model, a JSON value, or bytes.

        Raises:
            ValueError: It does not fit the model (pydantic's error is a ValueError too).
        """
        if content_type != "application/json":
            return payload
        text = payload or b"null"  # a job without a payload has an empty one
        if self.payload is not None:
            return self.payload.validate_json(text)
        try:
            return from_json(text)
        except ValueError:
            return json.loads(text)  # accepts some texts that from_json refuses: lone surrogates, very deep nesting


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkHandler(Handler):
    """A registered handler of chunks; `call` and `call_async` give it one run alone."""

    chunk: Chunk

    def call(self, context: Context, payload: object) -> Outcome:
        """Call a plain function with one run and return its outcome."""
        item = Item(payload, context)
        try:
            rest = left_out(self.function([item]))
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - as in `Handler.call`
            rest = raised(error)
        return item.outcome or rest

    async def call_async(self, context: Context, payload: object) -> Outcome:
        """Call a coroutine function with one run and return its outcome; a cancellation propagates."""
        item = Item(payload, context)
        try:
            rest = left_out(await cast("Awaitable[object]", self.function([item])))
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - as in `Handler.call`
            rest = raised(error)
        except BaseException:
            if item.outcome is None:
                raise
            return item.outcome  # given before the cancellation
        return item.outcome or rest


def raised(error: BaseException) -> Outcome:
    """Return the outcome of an exception of a handler; one that ends processes does not end this one."""
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return failed(type(error).__name__, f"the handler tried to end the process: {error}")
    return from_exception(error)


def left_out(returned: object) -> Outcome:
    """Return the outcome of a run to which a chunk handler has given none."""
    message = "the handler returned without an outcome for this run; call item.succeed or item.fail for each item"
    if returned is not None:
        message += f", and return nothing: the returned {type(returned).__name__} has no effect"
    return failed("NoOutcome", message)


def invalid_payload(error: ValueError) -> Outcome:
    """Return the outcome of an invalid payload: permanent, since the same bytes fail on every attempt."""
    return failed("InvalidPayload", str(error), permanent=True)


_HANDLERS: dict[str, Handler] = {}
_PARAMETERS = {False: ("context", "payload"), True: ("items",)}  # by whether it has a chunk


class DuplicateHandler(ValueError):
    """Two functions have the name of one handler; the message has the place of each."""


def handler(
    name: str, *, isolation: Isolation | None = None, chunk: Chunk | None = None
) -> Callable[[Function], Function]:
    """Register a function as the handler `name`.

    Args:
        isolation: `process` runs it in a worker process that is killed when its time is over. By default a coroutine
            function runs on the `loop`, a plain one on a `thread`.
        chunk: The function takes up to so many runs in one call, as a `Sequence[Item[…]]`.

    Raises:
        TypeError: The decorator was written without a name, or `chunk` is no Chunk.
        ValueError: Another function has the name, the function does not take (context, payload), or `isolation` or
            `chunk` does not suit it.
    """
    if callable(name):  # the decorator was written bare, whatever the annotation says
        raise TypeError('write @tidewheel.handler("name"): jobs call a handler by its name')

    def register(function: Function) -> Function:
        is_async = inspect.iscoroutinefunction(function)
        _check_isolation(name, isolation, is_async=is_async)
        parameters, expected = list(inspect.signature(function).parameters), _PARAMETERS[chunk is not None]
        if len(parameters) != len(expected):
            wanted = f"({', '.join(expected)}), not ({', '.join(parameters)})"
            raise ValueError(f"handler {name!r}: {function.__qualname__} must take {wanted}")
        known = _HANDLERS.get(name)
        if known is not None and _qualified_name(known.function) != _qualified_name(function):
            places = f"{_place(known.function)} and {_place(function)}"
            raise DuplicateHandler(f"two functions are registered as handler {name!r}: {places}; rename one")
        hint = get_type_hints(function, include_extras=True).get(parameters[-1], object)
        if chunk is None:
            _HANDLERS[name] = Handler(name, function, is_async, _adapter(hint), own_process=isolation == "process")
        else:
            _check_chunk(name, function, isolation, chunk)
            adapter = _adapter(_payload_of_items(name, parameters[-1], hint))
            _HANDLERS[name] = ChunkHandler(name, function, is_async, adapter, chunk=chunk)
        return function

    return register


def registered() -> dict[str, Handler]:
    """Return the handlers of this process, by name."""
    return dict(_HANDLERS)


def import_handlers(modules: str | None) -> None:
    """Import the modules, separated by commas, that register handlers."""
    for name in filter(None, (part.strip() for part in (modules or "").split(","))):
        try:
            import_module(name)
        except (Exception, SystemExit) as error:
            raise SettingsError(
                f"handlers: module {name!r} cannot be imported: {type(error).__name__}: "
                f"{error.msg if isinstance(error, SyntaxError) else error}{_advice(name, error)}"
            ) from error
        if not any(f"{each.function.__module__}.".startswith(f"{name}.") for each in _HANDLERS.values()):
            _LOG.info('module %r has no handler of its own: none of its functions has @tidewheel.handler("name")', name)


def _qualified_name(function: Callable[..., object]) -> tuple[str, str]:
    return function.__module__, function.__qualname__


def _check_isolation(name: str, isolation: str | None, *, is_async: bool) -> None:
    fitting = ("loop" if is_async else "thread", "process")
    if isolation is None or isolation in fitting:
        return
    kind = "a coroutine function" if is_async else "a plain function"
    reason = f"does not suit {kind}" if isolation in get_args(Isolation) else "is unknown"
    message = f"handler {name!r}: isolation={isolation!r} {reason}; leave it out ({fitting[0]}) or write 'process'"
    raise ValueError(message)


def _check_chunk(name: str, function: Callable[..., object], isolation: Isolation | None, chunk: object) -> None:
    if not isinstance(chunk, Chunk):
        raise TypeError(f"handler {name!r}: chunk={chunk!r} is no Chunk; write chunk=tidewheel.Chunk(most=500)")
    if isolation == "process":
        raise ValueError(f"handler {name!r}: chunk does not suit isolation='process'; leave one of them out")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        remedy = "call item.succeed or item.fail for each item, and return nothing"
        raise ValueError(f"handler {name!r}: chunk does not suit {function.__qualname__}, which yields; {remedy}")


def _payload_of_items(name: str, parameter: str, hint: Any) -> object:  # noqa: ANN401 - an annotation
    item = next(iter(get_args(hint)), None)
    if item is Item or hint in (object, Any, list, Sequence):
        return object
    if get_origin(item) is not Item:
        raise ValueError(f"handler {name!r}: annotate {parameter} as Sequence[tidewheel.Item[…]], not as {hint}")
    return get_args(item)[0]


def _advice(name: str, error: BaseException) -> str:
    """Return the remedy for a failed import: the faulty line, or how modules are named and found."""
    if name.endswith(".py"):
        return f"; write {name.removesuffix('.py')}, the name of the module, not of the file"
    if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
        if str(Path.cwd()) in sys.path:  # as in `dev` and `run`
            return f"; it is neither in this folder, {Path.cwd()}, nor installed"
        return "; is it in this folder? then run `PYTHONPATH=. tidewheel service executor …`"
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    if isinstance(error, DuplicateHandler):
        return ""
    # Without the frame of the decorator, which refuses what the user's line has.
    last = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__][-1]
    return f" ({last.filename}, line {last.lineno})"


def _place(function: Callable[..., object]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    at = f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""
    return f"{function.__module__}.{function.__qualname__}{at}"


def _adapter(hint: Any) -> TypeAdapter[object] | None:  # noqa: ANN401 - an annotation
    """Return what validates a payload; None for an annotation that takes any, or has no schema."""
    if hint in (object, Any, bytes):
        return None
    try:
        return cast("TypeAdapter[object]", TypeAdapter(hint))
    except PydanticSchemaGenerationError:
        return None
