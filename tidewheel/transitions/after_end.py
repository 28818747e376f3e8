"""Apply the effects of a run's end: failure policies, the next time of a fixed_delay, inputs, figures.

`pause_on_failure` pauses a job after some consecutive failures. `on_failure` triggers another job. Both requests go
through the outbox, in the ending transaction, and come back by intake. So one piece of code pauses jobs and creates
runs, under its own locks. The request_id contains the failed run's id, so that it is applied once. A run that
`on_failure` has triggered triggers none itself, so that failures cannot trigger each other in a circle.

The end of a fixed_delay's scheduled run sets the next fire time, in the ending transaction. The timer is held while
that run is open (`HoldReason.RUN`), and a pause in between keeps it held. Both writes are one transaction, so no crash
leaves a timer held without an open run. A time that the attempt has set by `next_in` is a second write of that
transaction, which other ends do not have (ADR 0091).

A client's own transaction may stay open for long, so it must lock no timer, job, inputs or active run. A completion
there (`lasting`) inserts rows with the effects that are left, which commit or roll back with it. The scheduler applies
them within about a second. No service sees the commit of such a connection: its ends are in no figure.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.activity import Class, Stage, activity, begin_of
from tidewheel.ids import tenant_key_id
from tidewheel.jobs.values import format_timestamp
from tidewheel.outbox import OutboxRow
from tidewheel.postgres.pg_binary import instants, uuids
from tidewheel.postgres.session import Conn, at_commit, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.runs import DEAD_LETTERED, Cause, Gate, RunState
from tidewheel.transitions.active_runs import release_active_runs
from tidewheel.transitions.finished import ClosedRun, FinishedRun
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.messages import request_row
from tidewheel.transitions.places import FreedPlace
from tidewheel.transitions.run_keys import settle_keys

_SQL = Statements("tidewheel.transitions")
_LOCK_COUNTED_JOBS = _SQL["lock_counted_jobs"]
_COUNT_FAILURES = _SQL["count_failures"]

_PAUSE = "pause-on-failure"
_ON_FAILURE = "on-failure"
ON_FAILURE_OF = "tidewheel.on_failure_of"  # label of a run that on_failure triggers: the id of the failed run

MAX_APPLIED = 1000
"""Runs per transaction: about ten milliseconds of work."""


def keep_inputs(connection: Conn, ended: Sequence[tuple[UUID, datetime, datetime]]) -> None:
    """Move the inputs of runs that were open for long to the day of the latest end.

    Their first partition may be dropped before the rows of the finished runs.

    Args:
        connection: Inside the transaction that ends the runs, or a later one.
        ended: The id, the creation and the end of each run.
    """
    if ended:
        created = [created_at for _, created_at, _ in ended]
        columns: dict[str, object] = {
            "run_ids": uuids(run_id for run_id, _, _ in ended),
            "first": min(created),
            "last": max(created),
            "now": max(ended_at for _, _, ended_at in ended),
        }
        connection.execute(_SQL["keep_inputs"], columns)


def schedule_after_end(connection: Conn, ended: Iterable[tuple[UUID, datetime, datetime]]) -> int:
    """Set the next fire time of fixed_delay jobs whose scheduled run ends, in the caller's transaction.

    Args:
        connection: Inside the transaction that ends the runs. It must not have locked active runs yet: this may wait.
        ended: The job, the scheduled time and the end of each run.

    Returns:
        The number of timers that were set.
    """
    rows = sorted(ended)
    if not rows:
        return 0
    columns = {
        "job_ids": uuids(job for job, _, _ in rows),
        "scheduled_at": instants(at for _, at, _ in rows),
        "ended_at": instants(at for _, _, at in rows),
    }
    connection.execute(_SQL["lock_chained_timers"], columns)
    return connection.execute(_SQL["move_chained_timers"], columns).rowcount


def schedule_next_in(connection: Conn, ended: Iterable[tuple[UUID, int | None, datetime, timedelta | None]]) -> None:
    """Move next fire times that `schedule_after_end` has just set to those that attempts have set.

    Args:
        ended: The job, the version and the end of each run, and the time that its attempt has set; None if it set none.
    """
    own = [each for each in ended if each[3] is not None]
    if own:
        columns = {
            "job_ids": uuids(job for job, *_ in own),
            "versions": [version for _, version, *_ in own],
            "ended_at": instants(ended_at for _, _, ended_at, _ in own),
            "delays": [delay for *_, delay in own],
        }
        connection.execute(_SQL["move_by_attempts"], columns)


def failure_triggers(installation: Installation, dead: Iterable[FinishedRun]) -> list[OutboxRow]:
    """Return the requests that trigger `on_failure` jobs; none for a run of such a trigger."""
    return [
        _trigger(installation, run, on_failure)
        for run in dead
        if (on_failure := run.definition.on_failure) and ON_FAILURE_OF not in (run.request.labels or {})
    ]


def count_failures(connection: Conn, installation: Installation, finished: Iterable[FinishedRun]) -> list[OutboxRow]:
    """Count consecutive failures, in the caller's transaction; return the requests to pause jobs."""
    by_job: dict[UUID, list[FinishedRun]] = {}
    for run in finished:
        if run.state in DEAD_LETTERED or run.state is RunState.SUCCEEDED:
            by_job.setdefault(run.row.job_id, []).append(run)
    if not by_job:
        return []
    jobs = sorted(by_job)
    streaks = [_streak(by_job[job]) for job in jobs]
    columns = {
        "job_ids": jobs,
        "failures": [failures for failures, _ in streaks],
        "broken": [broken for _, broken in streaks],
    }
    connection.execute(_LOCK_COUNTED_JOBS, {"job_ids": jobs})
    rows = cast("list[tuple[UUID, int, int]]", connection.execute(_COUNT_FAILURES, columns, binary=True).fetchall())
    pauses: list[OutboxRow] = []
    for job, before, after in rows:
        last = by_job[job][-1]
        if before < (last.definition.pause_on_failure or 0) <= after:
            pauses.append(_pause(installation, last, after))
    return pauses


def reset_failures(connection: Conn, job_ids: Iterable[UUID]) -> None:
    """Reset the consecutive failures of jobs after a success, in the caller's transaction."""
    jobs = sorted(set(job_ids))
    if jobs:
        columns = {"job_ids": jobs, "failures": [0] * len(jobs), "broken": [True] * len(jobs)}
        connection.execute(_LOCK_COUNTED_JOBS, {"job_ids": jobs})
        connection.execute(_COUNT_FAILURES, columns)


def is_pause_on_failure(request_id: str | None) -> bool:
    """Return True if `count_failures` made the request."""
    return request_id is not None and request_id.startswith(f"{_PAUSE}/")


def _streak(finished: Sequence[FinishedRun]) -> tuple[int, bool]:
    """Return the number of failures since the last success, and True if there was a success."""
    failures = 0
    for run in reversed(finished):
        if run.state is RunState.SUCCEEDED:
            return failures, True
        failures += 1
    return failures, False


def _pause(installation: Installation, run: FinishedRun, failures: int) -> OutboxRow:
    row, definition = run.row, run.definition
    facts: dict[str, str] = {
        "request_id": f"{_PAUSE}/{row.run}",
        "tenant": row.tenant,
        "key": definition.job_key,
        "reason": f"{failures} failure{'' if failures == 1 else 's'} in a row, the last one run {row.run}; "
        f"pause_on_failure is {definition.pause_on_failure}",
    }
    return request_row(installation, "job.pause", facts, key=definition.job_key, shard=row.shard, at=row.ended_at)


def _trigger(installation: Installation, run: FinishedRun, on_failure: str) -> OutboxRow:
    row, end, traceparent = run.row, run.end, run.request.traceparent
    payload: dict[str, object] = {
        "run_id": row.run,
        "job_key": run.definition.job_key,
        "status": run.state,
        "reason": end.reason,
        "error": {"type": end.error_type, "message": end.error_message} if end.error_type else None,
        "attempt": row.attempt,
        "scheduled_at": format_timestamp(row.scheduled_at),
        "finished_at": format_timestamp(row.ended_at),
    }
    facts = {
        "request_id": f"{_ON_FAILURE}/{row.run}",
        "tenant": row.tenant,
        "key": on_failure,
        "payload": payload,
        "labels": {ON_FAILURE_OF: row.run},
        "traceparent": traceparent,
    }
    return request_row(installation, "job.trigger", facts, key=on_failure, shard=row.shard, at=row.ended_at)


@dataclass(frozen=True, slots=True)
class DeferredEffect:
    """The effects of one run's end that are left.

    Args:
        chain_at: Its scheduled time, if the job's next fire time counts from its end.
        inputs_at: Its creation, if its inputs move to the day of its end.
        key_id: The key of which it held a place, or in whose order it was.
    """

    run_id: UUID
    job_id: UUID
    tenant: str
    ended_at: datetime
    chain_at: datetime | None
    reset_failures: bool
    inputs_at: datetime | None
    release_job: bool
    key_id: int | None
    held_tenant: bool
    job_version: int | None  # null of a row that an earlier build has written
    next_in: timedelta | None


def add_deferred_effects(connection: Conn, finished: Sequence[FinishedRun]) -> None:
    """Store the effects that the scheduler has to apply, in the transaction that ends the runs."""
    deferred = [
        run
        for run in finished
        if run.sets_next_time or _succeeds(run) or run.moves_inputs or run.may_be_active or run.held_places
    ]
    if not deferred:
        return
    columns: dict[str, object] = {
        "run_ids": uuids(run.end.run_id for run in deferred),
        "job_ids": uuids(run.row.job_id for run in deferred),
        "tenants": [run.row.tenant for run in deferred],
        "ended_at": instants(run.row.ended_at for run in deferred),
        "chain_at": instants(run.row.scheduled_at if run.sets_next_time else None for run in deferred),
        "reset_failures": [_succeeds(run) for run in deferred],
        "inputs_at": instants(run.row.created_at if run.moves_inputs else None for run in deferred),
        "release_job": [run.may_be_active for run in deferred],
        "key_ids": [run.row.key_id if run.row.gates & (Gate.HOLDS_KEY | Gate.ORDER) else None for run in deferred],
        "held_tenant": [bool(run.row.gates & Gate.HOLDS_TENANT) for run in deferred],
        "versions": [run.row.job_version for run in deferred],
        "delays": [run.end.next_in for run in deferred],
    }
    connection.execute(_SQL["add_deferred_effects"], columns)


def _succeeds(run: FinishedRun) -> bool:
    return run.counts_failures and run.state is RunState.SUCCEEDED


def apply_deferred_effects(
    connection: Conn, installation: Installation, *, only: UUID | None = None, left: Collection[UUID] = ()
) -> int:
    """Apply the effects of up to `MAX_APPLIED` ends; return the number of ends.

    Args:
        only: The run whose effects alone are applied.
        left: Runs whose effects are left for later.
    """
    columns: dict[str, object] = {
        "limit": MAX_APPLIED, "left": uuids(left), "run_ids": None if only is None else uuids([only])
    }  # fmt: skip
    effects = read_rows(connection, class_row(DeferredEffect), _SQL["take_deferred_effects"], columns)
    # Timers, jobs, inputs, active runs, keys: with an active run locked, no statement may wait for the rest (ADR 0008).
    chained = [(end, end.chain_at) for end in effects if end.chain_at]
    schedule_after_end(connection, [(end.job_id, at, end.ended_at) for end, at in chained])
    schedule_next_in(connection, [(end.job_id, end.job_version, end.ended_at, end.next_in) for end, _ in chained])
    reset_failures(connection, (end.job_id for end in effects if end.reset_failures))
    keep_inputs(connection, [(end.run_id, end.inputs_at, end.ended_at) for end in effects if end.inputs_at])
    release_active_runs(connection, installation, [(end.job_id, end.run_id) for end in effects if end.release_job])
    # A client completes started runs only.
    keyed = [(end.key_id, end.run_id) for end in effects if end.key_id is not None]
    freed = [FreedPlace(key) for key, _ in keyed]
    # A key is one of places or one of an order; it has no row of the other kind.
    freed += [FreedPlace(key, ended=run_id, state=RunState.SUCCEEDED) for key, run_id in keyed]
    freed += [FreedPlace(tenant_key_id(end.tenant)) for end in effects if end.held_tenant]
    settle_keys(connection, installation, freed=freed)
    return len(effects)


def count_at_commit(connection: Conn, runs: Sequence[FinishedRun]) -> None:
    """Count runs that end in the connection's transaction; a rollback forgets them."""
    if runs:
        at_commit(connection, partial(_count, runs))


def _count(runs: Sequence[FinishedRun]) -> None:
    classes: defaultdict[tuple[datetime, str, str, str, str], list[ClosedRun]] = defaultdict(list)
    for row, _, state, _, _ in runs:
        classes[row.ended_at, row.tenant, row.queue, row.lane, state].append(row)
    with activity.lock:
        for (ended, *of), rows in classes.items():
            figures = activity.of(Class(begin_of(ended), *of))
            figures.runs += len(rows)
            by_timer = [row for row in rows if row.cause == Cause.TIMER]
            figures.late(Stage.WRITTEN, [(row.created_at - row.scheduled_at).total_seconds() for row in by_timer])
            begun = [(row, started) for row in rows if (started := row.started_at) is not None]
            figures.late(Stage.CLAIMED, [(started - row.publish_at).total_seconds() for row, started in begun])
            figures.late(Stage.ENDED, [(ended - row.publish_at).total_seconds() for row, _ in begun])
            figures.ran([((ended - started).total_seconds(), row.run) for row, started in begun])
