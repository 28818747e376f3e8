"""Every error Tidewheel raises, split by what the caller does about it.

    TidewheelError
    ├── Refused                  the caller's input: mend it, nothing was changed
    │   ├── InvalidInput         fields that do not fit, each with path, problem and remedy
    │   ├── ScheduleRefused      a schedule that cannot be read or can never fire (also a ValueError)
    │   ├── UnknownJob           no such job in this tenant
    │   ├── UnknownRun           no such run in this tenant
    │   ├── StaleToken           a task token whose attempt is over, or superseded
    │   ├── RunBusy              a run that a transaction has in hand: only where asking again is the sender's to do
    │   ├── UnknownExecutor      an executor in another language that has no lease, or has lost it
    │   ├── UnknownBackfill      no such backfill in this tenant
    │   ├── UnknownCancellation  no such cancellation by filter in this tenant
    │   ├── UnknownDeadLetter    no such dead letter in this tenant
    │   ├── UnknownCalendar      no such calendar in this tenant
    │   ├── VersionConflict      the job's current version is another one
    │   └── RequestConflict      a request_id seen before with another body
    ├── Unavailable              try again: PostgreSQL or Kafka does not answer now
    ├── Unusable                 stop and tell the operator: settings, schema, stack
    │   ├── SettingsError
    │   ├── MigrationError
    │   ├── UndecodableMessage   bytes that no schema known here describes
    │   └── StackError           the embedded stack cannot be started
    └── HandlerSignal            raised by users' handlers to say how an attempt ends
        ├── Permanent            do not retry
        ├── RetryAfter           retry, but not before a given delay
        ├── Snooze               come again later, no attempt used
        ├── Cancel               end the run as cancelled
        └── AttemptOver          raised by `complete_in`: the attempt counts no more, let this pass

A lost claim is no error: it is a return value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Never


class TidewheelError(Exception):
    """The root: catching it catches everything Tidewheel raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        """How another process gets it: as it is, not made again from its message, which is none of its fields."""
        return _as_it_was, (type(self), self.args), vars(self)


def _as_it_was(kind: type[TidewheelError], args: tuple[object, ...]) -> TidewheelError:
    return kind.__new__(kind, *args)


@dataclass(frozen=True, slots=True)
class FieldError:
    """What is wrong with one field and how to mend it.

    Args:
        path: Where, dotted from the request's root, such as ``job.schedule.cron``; empty for the whole message.
        problem: What was read and why it does not fit.
        remedy: What to write instead.
    """

    path: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{where}{self.problem}; {self.remedy}" if self.remedy else f"{where}{self.problem}"


class Refused(TidewheelError):
    """The input was refused; nothing was changed by it."""

    code = "refused"

    def __init__(self, errors: Sequence[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(str(error) for error in self.errors))


class InvalidInput(Refused):
    """One or more fields do not fit; `errors` holds each of them."""

    code = "invalid"


def refuse(path: str, problem: str, remedy: str) -> Never:
    """Refuse one field of what was asked: where, what was read, and what to write.

    Raises:
        InvalidInput: Always.
    """
    raise InvalidInput([FieldError(path, problem, remedy)])


class ScheduleRefused(Refused, ValueError):
    """A schedule that cannot be read, or that can never fire."""

    code = "invalid"

    def __init__(self, problem: str, remedy: str = "", path: str = "") -> None:
        super().__init__((FieldError(path, problem, remedy),))


class UnknownJob(Refused):
    """No job of this key in this tenant."""

    code = "unknown_job"

    def __init__(self, tenant: str, key: str) -> None:
        self.tenant, self.key = tenant, key
        problem = f"tenant {tenant!r} has no job {key!r}"
        super().__init__((FieldError("key", problem, "submit the job first, or correct the key"),))


class UnknownRun(Refused):
    """No run of this id in this tenant."""

    code = "unknown_run"

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__((FieldError("run_id", f"there is no run {run_id}", "copy the id from a reply or an event"),))


class StaleToken(Refused):
    """The attempt that a task token is for has ended, or another one has taken its place."""

    code = "attempt_over"

    def __init__(self, run_id: str, state: str | None, attempt: int | None = None) -> None:
        self.run_id, self.state = run_id, state
        which = "the attempt" if attempt is None else f"attempt {attempt}"
        now = f"the run is {state}" if state else "nothing is kept of the run any more"
        remedy = "say no more about it; a later attempt has a token of its own"
        super().__init__((FieldError("token", f"{which} of run {run_id} is over: {now}", remedy),))


class RunBusy(Refused):
    """A transaction that has not ended has the run in hand."""

    code = "busy"

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        problem = f"run {run_id} is locked by a transaction that has not ended"
        super().__init__((FieldError("token", problem, "send the next one as usual"),))


class UnknownExecutor(Refused):
    """No executor in another language of this id: it never registered, has left, or its lease was ended."""

    code = "unknown_executor"

    def __init__(self, executor_id: object) -> None:
        self.executor_id = str(executor_id)
        problem = f"there is no executor {executor_id}: it has left, or was silent for longer than its lease"
        remedy = "stop its attempts, which others may run by now, and register again"
        super().__init__((FieldError("executor_id", problem, remedy),))


class UnknownBackfill(Refused):
    """No backfill of this id in this tenant."""

    code = "unknown_backfill"

    def __init__(self, backfill_id: str) -> None:
        self.backfill_id = backfill_id
        problem = f"there is no backfill {backfill_id}"
        super().__init__((FieldError("backfill_id", problem, "copy the id from the reply that it was made with"),))


class UnknownCancellation(Refused):
    """No cancellation by filter of this id in this tenant."""

    code = "unknown_cancellation"

    def __init__(self, number: int) -> None:
        self.number = number
        remedy = "copy the id from the reply that it was made with"
        super().__init__((FieldError("cancellation_id", f"there is no cancellation {number}", remedy),))


class UnknownDeadLetter(Refused):
    """No dead letter of this id in this tenant."""

    code = "unknown_dead_letter"

    def __init__(self, number: int) -> None:
        self.number = number
        remedy = "copy the id from `tidewheel dlq list`; it may have been purged"
        super().__init__((FieldError("id", f"there is no dead letter {number}", remedy),))


class UnknownCalendar(Refused):
    """No calendar of this name in this tenant."""

    code = "unknown_calendar"

    def __init__(self, tenant: str, name: str, remedy: str) -> None:
        self.tenant, self.name = tenant, name
        super().__init__((FieldError("name", f"tenant {tenant!r} has no calendar {name!r}", remedy),))


class VersionConflict(Refused):
    """The job's current version is not the one that the change was made for."""

    code = "version_conflict"

    def __init__(self, wanted: int, current: int | None) -> None:
        self.wanted, self.current = wanted, current
        problem = "there is no such job" if current is None else f"the current version is {current}, not {wanted}"
        remedy = "leave it out, or write 0" if current is None else "read the job again and apply the change to that"
        if wanted == 0:
            problem, remedy = f"there is such a job already, at version {current}", "change it instead of making it"
        super().__init__((FieldError("if_version", problem, remedy),))


class RequestConflict(Refused):
    """The request_id was used before with another body."""

    code = "request_conflict"

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        problem = f"request_id {request_id!r} was used before with another body"
        super().__init__((FieldError("request_id", problem, "send a new request_id for a new request"),))


class Unavailable(TidewheelError):
    """PostgreSQL or Kafka does not answer; the same call may succeed later."""


class Unusable(TidewheelError):
    """Something that only an operator can mend."""


class SettingsError(Unusable):
    """A setting is missing or does not fit."""


class MigrationError(Unusable):
    """The database's schema is not one this release can work with."""


class UndecodableMessage(Unusable):
    """Bytes that are neither JSON nor Avro under a schema known here."""


class StackError(Unusable):
    """The embedded PostgreSQL or Kafka could not be started, stopped or found."""


class HandlerSignal(TidewheelError):
    """Raised by a handler to say how its attempt ends."""


class Permanent(HandlerSignal):
    """The failure will not go away: no further attempt."""


class RetryAfter(HandlerSignal):
    """Retry, charged, but not before `delay` has passed."""

    def __init__(self, delay: timedelta | float, message: str = "") -> None:
        self.delay = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
        super().__init__(message or f"retry after {self.delay.total_seconds():g} s")


class Snooze(HandlerSignal):
    """Come again after `delay`; the attempt is not charged."""

    def __init__(self, delay: timedelta | float) -> None:
        self.delay = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
        super().__init__(f"snoozed for {self.delay.total_seconds():g} s")


class Cancel(HandlerSignal):
    """End the run as cancelled."""


class AttemptOver(HandlerSignal):
    """Raised by `complete_in`: the run was cancelled, given up or taken over. The handler's transaction has failed."""
