"""Requests about runs: `run.cancel`, `runs.cancel` by a filter, and `run.retry`.

`run.cancel` works in every state, is idempotent, and replies with the state that it found: unchanged if the run was
being cancelled or has ended. A run without a running attempt ends at once. A running attempt gets a cancel signal, and
can only become cancelled from then on. If another transaction holds the run for longer than 200 ms, the cancel is
stored in `pending_cancels`, under `claims_lock`. From its commit on no claim starts the run, and no other transaction
ends it as other than cancelled. The scheduler cancels it as soon as it is free, unless its holder has ended it.

`runs.cancel` writes one row that every claim reads, so that it takes effect at once for any number of runs. The row is
written under `claims_lock`: a batch of claims comes wholly before it, or sees it. The scheduler ends the runs in
batches (scheduler/cancels.py). Runs that are created after the request was applied are not cancelled.

`run.retry` creates a new run of an ended one (transitions/requested_changes.py), or makes the next attempt of a
retrying one due now. The old run keeps its state. The new one has its payload under the job's current version.

Only a request that names the next attempt concerns a retrying run. So a repeat of it, or one that comes after the run
has gone on, changes nothing: it neither creates a run nor starts a later attempt.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple, cast
from uuid import UUID

from psycopg.types.json import Jsonb

from tidewheel.errors import Refused, UnknownJob, UnknownRun, refuse
from tidewheel.intake.locks import RowLocked, still_open, try_lock, try_lock_runs
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.intake.writing import Writing, one_by_one
from tidewheel.jobs.requests import RunCancel, RunRetry, RunsCancel
from tidewheel.jobs.values import format_timestamp
from tidewheel.postgres.session import Conn, OwnConnection
from tidewheel.postgres.statements import Statements
from tidewheel.runs import MOVES, OPEN, Move, RunState
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.cancellation import LOOKED_AT, count_matches, request_cancel
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.new_runs import NewRun
from tidewheel.transitions.requested_changes import RetryRequest, hasten_run, retry_runs

_SQL = Statements("tidewheel.intake")
_FIND_LABELLED_JOBS = _SQL["find_labelled_jobs"]
_READ_JOB_KEY = Statements("tidewheel.transitions")["read_job_key"]

_REQUESTED = "requested"  # the reason when the request gives none

MAX_JOBS = 10_000  # jobs of one cancellation by labels: a row each, a few hundredths of a second in all


class CancelNeedsClaims(Exception):
    """A cancel of a locked run must block claims until its commit; nothing was written.

    It has to be the only request of its transaction: claims wait for rows of the others.
    """

    def __init__(self, received: ReceivedRequest) -> None:
        super().__init__("a cancel of a locked run is applied on its own")
        self.origin = received.origin


def apply_cancels(writing: Writing, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Cancel runs."""
    cancels = _Cancels(writing)
    return [cancels.apply(received) for received in batch]


class _Done(NamedTuple):
    """The effect of a cancel; `changed` is false if the run was being cancelled, or has ended."""

    before: RunState
    changed: bool


class _Cancels:
    """The cancels of one batch; after one has waited for a lock in vain, the rest do not wait."""

    def __init__(self, writing: Writing) -> None:
        self._writing, self._connection, self._may_wait = writing, writing.connection, True

    def apply(self, received: ReceivedRequest) -> Reply:
        request = received.of(RunCancel)
        columns: dict[str, object] = {"run_id": UUID(request.run_id), "tenant": received.tenant}
        found = self._writing.read(_SQL["read_run"], **columns)
        if not found:
            return rejected(received, UnknownRun(request.run_id))
        job_id, version, final, _ = found[0]
        # The open row has the state. Without one the run has ended, and runs may be newer than the row read above.
        done = self._cancel(received, columns, request.reason or _REQUESTED)
        if done is None:
            again = self._writing.read(_SQL["read_run"], **columns)
            done = _Done(RunState(str(again[0][2] if again else final)), changed=False)
        about = {"job_id": str(job_id), "job_version": version, "run_id": request.run_id}
        return accepted(received, **about, run_status=done.before.value, unchanged=not done.changed)

    def _cancel(self, received: ReceivedRequest, columns: dict[str, object], reason: str) -> _Done | None:
        """Cancel a run now or later; None if it has ended."""
        run_id = cast("UUID", columns["run_id"])
        found = self._connection.execute(_SQL["lock_run"], columns, binary=True).fetchone()
        if found is None and (left := still_open(self._connection, [run_id]).get(run_id)):
            if self._connection.execute(_SQL["find_pending_cancel"], columns).fetchone() is not None:
                return _Done(RunState(left), changed=False)
            self._may_wait = self._may_wait and try_lock_runs(self._connection, [run_id])
            found = self._connection.execute(_SQL["lock_run"], columns, binary=True).fetchone()
        if found is None:
            return self._cancel_later(received, columns, reason)
        state = RunState(str(found[0]))
        attempt, executor_id = cast("tuple[int, UUID | None]", found[1:])
        if state in MOVES[Move.REQUEST_CANCEL].sources:
            request_cancel(self._connection, {run_id: reason})
        elif state is not RunState.CANCELLING:
            end = RunEnd(run_id, attempt, RunState.CANCELLED, executor_id, reason=reason)
            self._writing.finish([end])
        return _Done(state, changed=state is not RunState.CANCELLING)

    def _cancel_later(self, received: ReceivedRequest, columns: dict[str, object], reason: str) -> _Done | None:
        """Store the cancel of a run that another transaction holds; not if the run has ended."""
        run_id = cast("UUID", columns["run_id"])
        if not self._writing.may_block_claims:
            raise CancelNeedsClaims(received)
        # A claim that began before would not see the row, and could start the run after the reply.
        block_claims(self._connection, [received])
        left = still_open(self._connection, [run_id]).get(run_id)
        if left is None:
            return None
        self._connection.execute(_SQL["add_pending_cancel"], {**columns, "reason": reason})
        return _Done(RunState(left), changed=True)


def block_claims(connection: Conn, batch: Sequence[ReceivedRequest]) -> None:
    """Wait for the claims under way, and block new ones until the end of the caller's transaction.

    New claims queue behind the waiting lock. An executor that is frozen within a claim holds its share until the server
    ends its transaction: so this waits for 200 ms at most, and all other claims go on between two tries.

    Raises:
        RowLocked: A claim has been under way for longer: roll back and try again.
    """
    if isinstance(connection, OwnConnection) and connection.on_block is not None:
        connection.on_block()
    if not (try_lock(connection, _SQL["block_claims"], {}) and try_lock(connection, _SQL["block_old_claims"], {})):
        claims = "the lock on claims"
        raise RowLocked(claims, batch)


def cancel_by_filter(writing: Writing, received: ReceivedRequest) -> Reply:
    """Write a cancellation."""
    request = received.of(RunsCancel)
    job = _job(writing, received, request)
    labelled = _labelled(writing, received.tenant, request)
    created_before = _created_before(request, writing.now())
    [(number,)] = writing.read(_SQL["next_cancellation_id"])
    if labelled:
        writing.execute(_SQL["add_cancelled_jobs"], id=number, tenant=received.tenant, job_ids=labelled)
    columns: dict[str, object] = {
        "id": number,
        "tenant": received.tenant,
        "job_id": job,
        "labels": Jsonb(request.labels) if request.labels else None,
        "queue": request.queue,
        "lane": request.lane,
        "handler": request.handler,
        "cause": request.cause,
        "created_before": created_before,
        "include_started": request.include_started,
        "reason": request.reason,
    }
    matched, _, at_least = count_matches(writing.connection, columns)
    # As late as possible: no executor can claim from here to the commit.
    block_claims(writing.connection, [received])
    columns |= {
        "created_before": created_before or writing.now(),
        "named_count": LOOKED_AT + 1 if at_least else matched,
    }
    writing.execute(_SQL["add_cancellation"], **columns)
    return accepted(received, job_id=str(job) if job else None, cancellation_id=number)


def _job(writing: Writing, received: ReceivedRequest, request: RunsCancel) -> UUID | None:
    if request.key is None:
        return None
    job = received.job_id
    # A deleted job too: its started runs go on.
    if writing.execute(_READ_JOB_KEY, job_id=job).fetchone() is None:
        raise UnknownJob(received.tenant, request.key)
    return job


def _labelled(writing: Writing, tenant: str, request: RunsCancel) -> list[UUID]:
    if not request.labels:
        return []
    labels = Jsonb(request.labels)
    found = writing.read_unindexed(_FIND_LABELLED_JOBS, tenant=tenant, labels=labels, limit=MAX_JOBS + 1)
    if not found:
        refuse("labels", "no job has all of these labels", "correct them; filter the list of jobs by label to check")
    if len(found) > MAX_JOBS:
        problem = f"more than {MAX_JOBS} jobs have these labels"
        refuse("labels", problem, "add a label, or cancel by queue, lane or handler")
    return [cast("UUID", job) for (job,) in found]


def _created_before(request: RunsCancel, now: datetime) -> datetime | None:
    if request.created_before is not None and request.created_before > now:
        clock = f"the database's clock is at {format_timestamp(now)}"
        problem = f"{format_timestamp(request.created_before)} is in the future; {clock}"
        refuse("created_before", problem, "leave it out to cover all runs created until the request is applied")
    return request.created_before


def apply_retries(writing: Writing, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Retry runs."""
    # First those that may wait for a row: the others lock keys, and with a key locked no statement waits.
    named = [received for received in batch if received.of(RunRetry).attempt is not None]
    hastened = iter(one_by_one(named, partial(_hasten, writing)))
    requests = [_retry_request(received) for received in batch if received.of(RunRetry).attempt is None]
    done = iter(retry_runs(writing.connection, writing.installation, requests))
    return [
        _retried(received, next(done)) if received.of(RunRetry).attempt is None else next(hastened)
        for received in batch
    ]


def _retry_request(received: ReceivedRequest) -> RetryRequest:
    request = received.of(RunRetry)
    return RetryRequest(
        tenant=received.tenant,
        run_id=UUID(request.run_id),
        seed=received.seed(),
        delay=request.delay,
        traceparent=received.traceparent,
        request_id=request.request_id,
        requested_from=received.requested_from,
    )


def _retried(received: ReceivedRequest, done: NewRun | Refused) -> Reply:
    if isinstance(done, Refused):
        return rejected(received, done)
    return accepted(received, job_id=str(done.job_id), job_version=done.job_version, run_id=str(done.run_id))


def _hasten(writing: Writing, received: ReceivedRequest) -> Reply:
    """Make the next attempt of a retrying run due now; the reply has the state that was found."""
    request = received.of(RunRetry)
    run_id, attempt = UUID(request.run_id), request.attempt or 0
    found = writing.read(_SQL["read_run"], run_id=run_id, tenant=received.tenant)
    if found and found[0][2] in OPEN:
        if not try_lock_runs(writing.connection, [run_id]):
            what = f"run {run_id}"
            raise RowLocked(what, [received])
        # Again: as a claim or an end has left it.
        found = writing.read(_SQL["read_run"], run_id=run_id, tenant=received.tenant)
    if not found:
        raise UnknownRun(str(run_id))
    job_id, version, state, begun = cast("tuple[UUID, int, str, int]", found[0])
    if state in OPEN and attempt > begun:
        if state != RunState.RETRYING:
            refuse("run_id", f"run {run_id} is {state}", "only a retrying run has a next attempt to make due")
        if attempt > begun + 1:
            refuse("attempt", f"the next attempt of run {run_id} is {begun + 1}", f"send {begun + 1}")
    due = state == RunState.RETRYING and hasten_run(writing.connection, writing.installation, run_id, attempt)
    about = {"job_id": str(job_id), "job_version": version, "run_id": str(run_id)}
    return accepted(received, **about, run_status=state, unchanged=not due)
