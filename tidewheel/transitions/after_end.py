"""Apply the effects of a run's end: failure policies, the next time of a fixed_delay, its inputs.

`pause_on_failure` pauses a job after some consecutive failures. `on_failure` triggers another job. Both requests go
through the outbox, in the ending transaction, and come back by intake like every request. So one piece of code pauses
jobs and creates runs, under its own locks. The request_id contains the failed run's id, so that it is applied once.
Only jobs with such a policy cost anything here. A run that `on_failure` has triggered triggers none itself, whatever
its job's policy, so that failures cannot trigger each other in a circle.

The end of a fixed_delay's scheduled run sets the next fire time, in the ending transaction. The timer is held while
that run is open (`HoldReason.RUN`). A pause in between keeps it held. The time is set all the same, so that resuming
continues from there. Both writes are one transaction, so no crash leaves a timer held without an open run. The
scheduler repairs such a timer all the same (`tidewheel.scheduler.repair`).
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import cast
from uuid import UUID

from tidewheel.jobs.values import format_timestamp
from tidewheel.outbox import OutboxRow
from tidewheel.postgres.pg_binary import instants, uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import DEAD_LETTERED, RunState
from tidewheel.transitions.finished import FinishedRun
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.own_requests import request_row

_SQL = Statements("tidewheel.transitions")
_LOCK_COUNTED_JOBS = _SQL["lock_counted_jobs"]
_COUNT_FAILURES = _SQL["count_failures"]
_LOCK_CHAINED_TIMERS = _SQL["lock_chained_timers"]
_MOVE_CHAINED_TIMERS = _SQL["move_chained_timers"]
_KEEP_INPUTS = _SQL["keep_inputs"]

_PAUSE = "pause-on-failure"
_ON_FAILURE = "on-failure"
ON_FAILURE_OF = "tidewheel.on_failure_of"  # label of a run that on_failure triggers: the id of the failed run


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
        connection.execute(_KEEP_INPUTS, columns)


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
    connection.execute(_LOCK_CHAINED_TIMERS, columns)
    return connection.execute(_MOVE_CHAINED_TIMERS, columns).rowcount


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
