"""Every error Tidewheel raises, split by what the caller does about it.

    TidewheelError
    ├── Refused                  the caller's input: correct it, nothing was changed
    │   ├── UnknownId            no object of this id: a class for each noun
    │   └── UnknownTenant
    │       └── TenantDeleted
    ├── Unavailable              try again: PostgreSQL or Kafka does not answer now
    │   └── InstallationFault    the same call succeeds once the operator has corrected schema, grants or space
    ├── Unusable                 stop and tell the operator: settings, schema, stack
    │   └── SettingsError
    │       ├── ExtraMissing
    │       ├── NotRunning
    │       └── UnsupportedServer
    └── HandlerSignal            raised by users' handlers to choose how an attempt ends

The other errors are direct subclasses of these four, in the same order. A lost claim is no error but a return value.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Never, Self


class TidewheelError(Exception):
    """The root: catching it catches everything Tidewheel raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the error with its fields; building it again from its message would lose them."""
        return _as_it_was, (type(self), self.args), vars(self)

    def without_frames(self) -> Self:
        """Drop the frames that raised this error, before it is kept in a collection.

        They hold what their functions read, and through their callers that collection: a cycle. The garbage collector
        counts objects, not bytes, so a service with long messages would grow by gigabytes before it runs.
        """
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self


def _as_it_was(kind: type[TidewheelError], args: tuple[object, ...]) -> TidewheelError:
    return kind.__new__(kind, *args)


@dataclass(frozen=True, slots=True)
class FieldError:
    """One invalid field: path, problem and remedy.

    Args:
        path: The field, dotted from the request's root, such as ``job.schedule.cron``; empty for the whole message.
        problem: What was read and why it is invalid.
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
    """One or more fields are invalid; `errors` holds each of them."""

    code = "invalid"


def refuse(path: str, problem: str, remedy: str) -> Never:
    """Refuse one field of a request, with path, problem and remedy."""
    raise InvalidInput([FieldError(path, problem, remedy)])


class ScheduleRefused(Refused, ValueError):
    """A schedule that cannot be read, or that can never fire."""

    code = "invalid"

    def __init__(self, problem: str, remedy: str = "", path: str = "") -> None:
        super().__init__((FieldError(path, problem, remedy),))


class UnknownJob(Refused):
    """No job of this key in this tenant.

    Args:
        deleted_at: When the last job of this key was deleted, in RFC 3339; None if there was none, or it is not known.
    """

    code = "unknown_job"

    def __init__(self, tenant: str, key: str, deleted_at: str | None = None) -> None:
        self.tenant, self.key = tenant, key
        problem, remedy = f"tenant {tenant!r} has no job {key!r}", "submit the job first, or correct the key"
        if deleted_at is not None:
            problem, remedy = f"{problem}: it was deleted at {deleted_at}", "submit it again, or list its runs"
        super().__init__((FieldError("key", problem, remedy),))


class UnknownRun(Refused):
    """No run of this id in this tenant.

    Args:
        unread: The archived days that may have it, and that no setting lets this process read.
    """

    code = "unknown_run"

    def __init__(self, run_id: str, unread: Sequence[date] = ()) -> None:
        self.run_id, self.unread = run_id, tuple(unread)
        problem, remedy = f"there is no run {run_id}", "copy the id from a reply or an event"
        if unread:
            problem += f" in the database, but it may be in the archived days {', '.join(map(str, unread))}"
            remedy = "set TIDEWHEEL_ARCHIVE to the archive, for this command or for the API"
        super().__init__((FieldError("run_id", problem, remedy),))


class StaleToken(Refused):
    """The attempt of a task token has ended, or a later attempt has replaced it."""

    code = "attempt_over"

    def __init__(self, run_id: str, state: str | None, attempt: int | None = None) -> None:
        self.run_id, self.state = run_id, state
        which = "the attempt" if attempt is None else f"attempt {attempt}"
        now = f"the run is {state}" if state else "the run is no longer stored"
        remedy = "stop reporting this attempt; each attempt has its own token"
        super().__init__((FieldError("token", f"{which} of run {run_id} is over: {now}", remedy),))


class RunBusy(Refused):
    """Another transaction holds the lock on the run."""

    code = "busy"

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        problem = f"run {run_id} is locked by a transaction that has not ended"
        super().__init__((FieldError("token", problem, "report again after a second, or with the next heartbeat"),))


class UnknownExecutor(Refused):
    """No executor in another language of this id: it never registered, has left, or its lease was ended."""

    code = "unknown_executor"

    def __init__(self, executor_id: object) -> None:
        self.executor_id = str(executor_id)
        problem = f"there is no executor {executor_id}: it left, or its lease ended"
        remedy = "stop its attempts, because other executors may be running them, and register again"
        super().__init__((FieldError("executor_id", problem, remedy),))


class UnknownId(Refused):
    """No object of this id in this tenant; the id of an address that has none is 0."""

    path = "id"
    noun: str
    remedy = "copy the id from the reply to the request that created it"

    def __init__(self, wanted: str | int) -> None:
        self.wanted = wanted
        problem = f"there is no {self.noun} {wanted}" if wanted else f"the URL has no valid {self.noun} id"
        super().__init__((FieldError(self.path, problem, self.remedy),))


class UnknownBackfill(UnknownId):
    """No backfill of this id in this tenant."""

    code, path, noun = "unknown_backfill", "backfill_id", "backfill"


class UnknownBatch(UnknownId):
    """No batch of this id in this tenant."""

    code, path, noun = "unknown_batch", "batch_id", "batch"


class UnknownCancellation(UnknownId):
    """No cancellation by filter of this id in this tenant."""

    code, path, noun = "unknown_cancellation", "cancellation_id", "cancellation"


class UnknownDeadLetter(UnknownId):
    """No dead letter of this id in this tenant."""

    code, noun = "unknown_dead_letter", "dead letter"
    remedy = "copy the id from the list of dead letters, unless it was purged"


class UnknownWork(UnknownId):
    """No bulk work of this id in this tenant."""

    code, path, noun = "unknown_work", "work_id", "bulk work"
    remedy = "copy the id from the list of bulk work"


class UnknownApiKey(UnknownId):
    """No API key of this id."""

    code, path, noun = "unknown_api_key", "key_id", "API key"
    remedy = "copy the id from the list of keys"


class UnknownWorkflow(Refused):
    """No occurrence of a workflow with this root's run."""

    code = "unknown_workflow"

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        remedy = "copy the id from the list of workflows, after the root run has ended"
        super().__init__((FieldError("run_id", f"there is no workflow with the root run {run_id}", remedy),))


class UnknownFreeze(Refused):
    """No freeze in force has exactly this scope."""

    code = "unknown_freeze"

    def __init__(self, path: str) -> None:
        remedy = "copy the exact scope from the list of freezes"
        super().__init__((FieldError(path, "no freeze in force has this scope", remedy),))


class UnknownCalendar(Refused):
    """No calendar of this name in this tenant."""

    code = "unknown_calendar"

    def __init__(self, tenant: str, name: str, remedy: str) -> None:
        self.tenant, self.name = tenant, name
        super().__init__((FieldError("name", f"tenant {tenant!r} has no calendar {name!r}", remedy),))


class UnknownTenant(Refused):
    """No tenant of this name in this installation."""

    code = "unknown_tenant"

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        problem, remedy = f"there is no tenant {tenant!r}", "name another tenant, or create this one"
        super().__init__((FieldError("tenant", problem, remedy),))


class TenantDeleted(UnknownTenant):
    """A tenant that is being deleted, or that was deleted and whose name is reserved.

    Args:
        free_at: The time from which a tenant may have this name again; None until the deletion has ended.
        in_archive: True if that time is over, and the archive alone reserves the name.
    """

    code = "tenant_deleted"

    def __init__(self, tenant: str, free_at: datetime | None, *, in_archive: bool = False) -> None:
        self.tenant, self.free_at = tenant, free_at
        if free_at is None:
            problem = f"tenant {tenant!r} is being deleted"
            remedy = "name another tenant, or wait until the deletion ends"
        elif in_archive:
            problem = f"tenant {tenant!r} was deleted, and its runs may still be in the archive"
            remedy = "name another tenant, or create this one again after the next `tidewheel admin archive run`"
        else:
            until = f"{free_at:%Y-%m-%d %H:%M}Z"
            problem = f"tenant {tenant!r} was deleted, and its name is reserved until {until}"
            remedy = f"name another tenant, or create this one again after {until}"
        Refused.__init__(self, (FieldError("tenant", problem, remedy),))


class TenantLimitExceeded(Refused):
    """A job or a payload beyond the limits of its tenant."""

    code = "tenant_limit"

    def __init__(self, error: FieldError) -> None:
        super().__init__((error,))


class PausedByOperator(Refused):
    """An operator froze the tenant, so the tenant's own keys cannot thaw it."""

    code = "paused_by_operator"

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        problem = f"an operator froze tenant {tenant}, so the tenant's own keys cannot thaw it"
        remedy = f"run `tidewheel admin tenant resume {tenant}` as an operator, or use a key of all tenants"
        super().__init__((FieldError("scope", problem, remedy),))


class VersionConflict(Refused):
    """The job's current version is not the one that the change expects."""

    code = "version_conflict"

    def __init__(self, expected: int, current: int | None) -> None:
        self.expected, self.current = expected, current
        problem = "there is no such job" if current is None else f"the current version is {current}, not {expected}"
        remedy = "leave it out, or write 0" if current is None else "read the job again and reapply the change"
        if expected == 0:
            problem, remedy = f"the job already exists, at version {current}", "update it instead"
        super().__init__((FieldError("if_version", problem, remedy),))

    @classmethod
    def from_problem(cls, problem: str, expected: int) -> "VersionConflict":
        """Return the error that a reply describes.

        >>> VersionConflict.from_problem(VersionConflict(3, 4).errors[0].problem, 3).current
        4
        """
        found = re.search(r"(?:current version is|at version) (\d+)", problem)
        return cls(expected, int(found[1]) if found else None)


class RequestConflict(Refused):
    """The request_id was already used with a different body."""

    code = "request_conflict"

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        problem = f"request_id {request_id!r} was already used with a different body"
        super().__init__((FieldError("request_id", problem, "send a new request_id for a new request"),))


class Unavailable(TidewheelError):
    """PostgreSQL or Kafka does not answer; the same call may succeed later."""


class InstallationFault(Unavailable):
    """PostgreSQL refuses a statement for a cause that no job, run or request has: schema, grants, space."""

    def __init__(self, problem: str, remedy: str, sqlstate: str) -> None:
        self.problem, self.remedy, self.sqlstate = problem, remedy, sqlstate
        super().__init__(f"{problem} (SQLSTATE {sqlstate}); {remedy}")


class Unusable(TidewheelError):
    """An error that only an operator can correct."""


class SettingsError(Unusable):
    """A setting is missing or invalid."""


class ExtraMissing(SettingsError):
    """The packages of an extra are not installed."""


class NotRunning(SettingsError):
    """No server is named, and no local stack runs."""


class UnsupportedServer(SettingsError):
    """The database server is too old, or the brokers lack an API."""


class MigrationError(Unusable):
    """This release cannot work with the database's schema."""


class UndecodableMessage(Unusable):
    """Bytes that are neither JSON nor Avro under a schema known here."""


class ArchiveDamaged(Unusable):
    """A file of the archive is missing, or is not what was written."""


class StackError(Unusable):
    """The embedded PostgreSQL or Kafka could not be started, stopped or found."""


class HandlerSignal(TidewheelError):
    """Raised by a handler to choose how its attempt ends."""


class Permanent(HandlerSignal):
    """The failure is permanent: no further attempt."""


class RetryAfter(HandlerSignal):
    """Retry after at least `delay`; the attempt is counted."""

    def __init__(self, delay: timedelta | float, message: str = "") -> None:
        self.delay = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
        super().__init__(message or f"retry after {self.delay.total_seconds():g} s")


class Snooze(HandlerSignal):
    """Run again after `delay`, at least one second; the attempt is not counted."""

    def __init__(self, delay: timedelta | float) -> None:
        self.delay = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
        super().__init__(f"snoozed for {self.delay.total_seconds():g} s")


class Cancel(HandlerSignal):
    """End the run as cancelled."""


class AttemptOver(HandlerSignal):
    """Raised by `complete_in` and `batch.add`: the run was cancelled, ended or claimed again.

    The transaction has failed. `heartbeat` raises it once the executor has seen that it lost the run.
    """
