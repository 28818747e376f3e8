"""`run_handler` and `run_chunk`: attempts of a handler in this process, without services.

The payload, the call, the outcome and the output are handled as in production. Nothing is stored. The result has what
the handler reported to its context.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import wraps
from typing import ParamSpec, TypeVar

from psycopg import AsyncConnection, Connection

from tidewheel.clock import SystemClock
from tidewheel.errors import refuse
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.complete_in import encode_result
from tidewheel.executor.context_parts import Parent, Previous
from tidewheel.executor.handler_services import parse_added_runs
from tidewheel.executor.handlers import ChunkHandler, Handler, registered
from tidewheel.executor.outcome import Outcome, from_exception, timed_out
from tidewheel.executor.output_capture import captured
from tidewheel.executor.record_outcomes import next_delay
from tidewheel.executor.runners.python import PythonRunner
from tidewheel.ids import job_id
from tidewheel.ids import run_id as derived_run_id
from tidewheel.jobs.parsing import parse_request
from tidewheel.jobs.requests import JobSubmit
from tidewheel.jobs.strict_json import strict_json
from tidewheel.runs import AttemptOutcome, Cause, RunState
from tidewheel.schemas.codec import encode
from tidewheel.schemas.definitions import definition_record
from tidewheel.schemas.generated import records
from tidewheel.transitions.claim import Started

P = ParamSpec("P")
R = TypeVar("R")
_JSON, _BYTES = "application/json", "application/octet-stream"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class HandlerResult:
    """The end of an attempt, with its progress and checkpoint.

    Args:
        outcome: As in an attempt's row: `succeeded`, `failed`, `timed_out`, `cancelled`, `snoozed`.
        result: What it returned, or completed its run with, after a way through JSON as its reader gets it.
        again_in: How long until the next attempt; None where there is none.
        progress: The last progress that it reported.
        checkpoint: The last checkpoint that it saved, or the one it was given.
        next_in: The time to the job's next run that it has set, before the bounds of the job; None if it set none.
        completed_in: The connections that it has called `complete_in` with, in their order.
        added_runs: The runs that it has added to its batch, as plain values.
    """

    outcome: AttemptOutcome
    result: object = None
    error_type: str | None = None
    error_message: str | None = None
    trace: str | None = None
    again_in: timedelta | None = None
    progress: object = None
    checkpoint: object = None
    output: str = ""
    next_in: timedelta | None = None
    completed_in: tuple[object, ...] = ()
    added_runs: tuple[Mapping[str, object], ...] = ()

    @property
    def succeeded(self) -> bool:
        """True if the attempt succeeded."""
        return self.outcome is AttemptOutcome.SUCCEEDED

    def assert_succeeded(self) -> "HandlerResult":
        """Fail with the handler's own traceback unless it succeeded; return this result."""
        if not self.succeeded:
            message = f"the attempt ended {self.outcome}: {self.error_type}: {self.error_message}\n{self.trace or ''}"
            raise AssertionError(message)
        return self


async def run_handler_async(
    handler: str | Callable[..., object],
    payload: object = None,
    *,
    attempt: int = 1,
    checkpoint: object = None,
    previous: Previous | None = None,
    parents: Mapping[str, object] | None = None,
    scheduled_at: datetime | None = None,
    labels: Mapping[str, str] | None = None,
    cancelled: bool = False,
    **job: object,
) -> HandlerResult:
    """Run one attempt of a handler, from a test that is a coroutine.

    Args:
        handler: Its name, or the function itself; registered by `@tidewheel.handler`.
        payload: Any JSON value or pydantic model; bytes are passed unchanged.
        attempt: Which attempt it is, from 1.
        checkpoint: What an earlier attempt has saved.
        parents: The results of its parents by job key; a `Parent` where another state than `succeeded` matters.
        scheduled_at: The run's nominal instant; now when not given.
        cancelled: True if a stop was requested before the start.
        **job: Further fields of its job, such as `key`, `start_to_close` or `retry`, as in a `job.submit`.
    """
    known = find_handler(handler)
    definition = _definition(known.name, job)
    simulated = _simulated(definition, payload, scheduled_at, labels, attempt=attempt, checkpoint=checkpoint)
    simulated.given_previous = previous or Previous()
    simulated.given_parents = {key: _parent(key, given) for key, given in (parents or {}).items()}
    if cancelled:
        simulated.cancelled.set()
    # Its process would be another one, and what a test has set up is in this one.
    runner = PythonRunner({known.name: replace(known, own_process=False)}, threads=1)
    try:
        with captured():
            outcome = await _within_time(runner, simulated)
    finally:
        await runner.close()
    return _result(simulated, outcome)


async def run_chunk_async(
    handler: str | Callable[..., object],
    payloads: Sequence[object],
    *,
    scheduled_at: datetime | None = None,
    labels: Mapping[str, str] | None = None,
    **job: object,
) -> list[HandlerResult]:
    """Run a call of a chunk handler, from a test that is a coroutine; one result for each payload.

    At-most-once runs have a call each, as in production.

    Args:
        payloads: Those of the runs, each as in `run_handler`.

    Raises:
        TypeError: The handler has no chunk.
        ValueError: It takes fewer runs in one call.
    """
    known = find_handler(handler)
    if not isinstance(known, ChunkHandler):
        raise TypeError(f"handler {known.name!r} has no chunk; write run_handler(…)")
    if len(payloads) > known.chunk.most:
        raise ValueError(f"payloads: {len(payloads)} runs are more than Chunk.most, {known.chunk.most}; pass fewer")
    outcomes, definition = dict[Attempt, Outcome](), _definition(known.name, job)
    simulated = [_simulated(definition, each, scheduled_at, labels, number=n) for n, each in enumerate(payloads)]
    for one in simulated:
        one.on_report = outcomes.__setitem__
    runner = PythonRunner({known.name: known}, threads=1)
    try:
        with captured():
            for call in [[one] for one in simulated] if definition.at_most_once else [simulated]:
                await asyncio.create_task(runner.run_chunk(call))
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise asyncio.CancelledError  # from outside, whatever the handler has done with it
    finally:
        await runner.close()
    return [_result(one, outcomes[one]) for one in simulated]


def _synchronous(run: Callable[P, Coroutine[None, None, R]]) -> Callable[P, R]:
    @wraps(run)
    def synchronous(*arguments: P.args, **fields: P.kwargs) -> R:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(run(*arguments, **fields))
        name = run.__name__
        message = f"{name.removesuffix('_async')} would block the event loop; write `await {name}(…)`"
        raise RuntimeError(message)

    return synchronous


run_handler = _synchronous(run_handler_async)
"""As `run_handler_async`, from a test that is no coroutine; raises RuntimeError on an event loop."""

run_chunk = _synchronous(run_chunk_async)
"""As `run_chunk_async`, from a test that is no coroutine; raises RuntimeError on an event loop."""


def find_handler(handler: str | Callable[..., object]) -> Handler:
    """Return the registered handler of that name or function, or raise LookupError."""
    known = registered()
    if isinstance(handler, str):
        if handler in known:
            return known[handler]
        near = get_close_matches(handler, known, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else "import the module that registers it"
        raise LookupError(f"there is no handler {handler!r}; {remedy}")
    for each in known.values():
        if each.function is handler:
            return each
    raise LookupError(f"{handler!r} is not a handler; decorate it with @tidewheel.handler")


@dataclass(slots=True, eq=False)
class _Attempt(Attempt):
    """An attempt without an executor: its reports stay here."""

    given_previous: Previous = field(default_factory=Previous)
    given_parents: Mapping[str, Parent] = field(default_factory=dict[str, Parent])
    progress: bytes | None = None
    checkpoint: bytes | None = None
    completed: list[tuple[object, bytes | None]] = field(default_factory=list[tuple[object, bytes | None]])
    added: dict[str, Mapping[str, object]] = field(default_factory=dict[str, Mapping[str, object]])

    def heartbeat(self, progress: bytes | None, checkpoint: bytes | None) -> None:
        self.progress = self.progress if progress is None else progress
        self.checkpoint = self.checkpoint if checkpoint is None else checkpoint

    def wait_saved(self) -> None:
        pass

    def previous(self) -> Previous:
        return self.given_previous

    def parents(self, key: str | None) -> Mapping[str, Parent]:
        return {each: parent for each, parent in self.given_parents.items() if key in {None, each}}

    def add_runs(self, document: bytes) -> bool:
        request = parse_added_runs(self.run_id, document)
        new = {run.ref: given for run, given in zip(request.runs, json.loads(document)["runs"], strict=True)}
        known = new.keys() & self.added.keys()
        if known and known != new.keys():
            refuse("runs", f"the batch has a run {min(known)!r} already", "give it another ref")
        self.added |= new
        return not known

    def completing(self) -> "_Noted":  # type: ignore[override]  # it has all that a context uses
        return _Noted(self)


class _Noted:
    """Collects completions and writes none; the handler and its database decide if they are committed."""

    def __init__(self, attempt: _Attempt) -> None:
        self._attempt = attempt

    def complete_in(self, connection: Connection[object], result: object) -> None:
        self._attempt.completed.append((connection, encode_result(result)))

    async def complete_in_async(self, connection: AsyncConnection[object], result: object) -> None:
        self._attempt.completed.append((connection, encode_result(result)))


async def _within_time(runner: PythonRunner, attempt: _Attempt) -> Outcome:
    seconds = attempt.start_to_close_seconds
    try:
        async with asyncio.timeout(seconds):
            return await runner.run(attempt)
    except TimeoutError:
        attempt.cancelled.set()
        return timed_out("start_to_close", seconds)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return from_exception(error)  # raised by the handler's own code


def _result(attempt: _Attempt, outcome: Outcome) -> HandlerResult:
    result = outcome.result
    if attempt.completed and outcome.kind is AttemptOutcome.SUCCEEDED:
        result = attempt.completed[-1][1]
    again = next_delay(attempt, outcome)
    return HandlerResult(
        outcome=outcome.kind,
        result=_value(result),
        error_type=outcome.error_type,
        error_message=outcome.error_message,
        trace=outcome.trace,
        again_in=outcome.snooze if outcome.kind is AttemptOutcome.SNOOZED else again,
        progress=_value(attempt.progress),
        checkpoint=_value(attempt.checkpoint),
        output=(attempt.output.tail() or b"").decode("utf-8", "replace") if attempt.output else "",
        next_in=attempt.next_in,
        completed_in=tuple(connection for connection, _ in attempt.completed),
        added_runs=tuple(attempt.added.values()),
    )


def _definition(name: str, job: Mapping[str, object]) -> records.JobDefinition:
    document = {"key": name, "schedule": "manual", "target": name} | dict(job)
    request = parse_request({"type": "job.submit", "job": document})
    assert isinstance(request, JobSubmit)  # noqa: S101 - by its type
    key = request.job.key or name
    return definition_record(
        request.job, tenant=request.tenant, job_id=str(job_id(request.tenant, key)), job_version=_VERSION
    )


def _simulated(
    definition: records.JobDefinition,
    payload: object,
    scheduled_at: datetime | None,
    labels: Mapping[str, str] | None,
    *,
    attempt: int = 1,
    checkpoint: object = None,
    number: int = 0,
) -> _Attempt:
    started = _started(definition, attempt, scheduled_at or SystemClock().now(), number)
    return _Attempt(
        started,
        _request(definition, started, payload, checkpoint=checkpoint, labels=labels),
        definition,
        on_report=lambda _, __: None,
        on_release=lambda _: None,
        checkpoint=_text(checkpoint),
    )


def _started(definition: records.JobDefinition, attempt: int, at: datetime, number: int) -> Started:
    run = derived_run_id(job_id(definition.tenant, definition.job_key), at, Cause.TRIGGER, b"test%d" % number)
    now = SystemClock().now()
    return Started(run, attempt, failed_attempts=attempt - 1, lost_attempts=0, publish_at=at, started_at=now)


def _request(
    definition: records.JobDefinition,
    started: Started,
    payload: object,
    *,
    checkpoint: object,
    labels: Mapping[str, str] | None,
) -> records.RunRequest:
    given = payload if isinstance(payload, bytes) else None if payload is None else strict_json(payload)
    return records.RunRequest(
        run_id=str(started.run_id),
        job_id=definition.job_id,
        job_version=_VERSION,
        attempt=started.attempt,
        cause=records.Cause.TRIGGER,
        shard=0,
        scheduled_at=started.publish_at,
        publish_at=started.publish_at,
        payload=given,
        payload_content_type=_BYTES if isinstance(payload, bytes) else _JSON,
        labels=None if labels is None else dict(labels),
        checkpoint=_text(checkpoint),
        definition=encode(definition),
    )


def _parent(key: str, given: object) -> Parent:
    """Return a parent as its reader gets it: the result has gone through JSON."""
    if isinstance(given, Parent):
        return given
    return Parent(job_id("default", key), RunState.SUCCEEDED, _value(_text(given)))


def _text(value: object) -> bytes | None:
    return None if value is None else strict_json(value)


def _value(text: bytes | None) -> object:
    return None if text is None else json.loads(text)
