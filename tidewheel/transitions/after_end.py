"""What failures ask for: a pause after some in a row (`pause_on_failure`), a run of another job (`on_failure`).

The request leaves through the outbox, in the ending transaction, and comes back by intake like anybody's: the pause or
the run is made by the one piece of code that makes those, under the locks that it takes. Its request_id is the failed
run's, so that it is asked for once. Only jobs that have such a policy cost anything here.

A run that `on_failure` has made asks for none itself, whatever its job's policy: what watches over failures does not go
round in circles.

A fixed_delay's next instant: set by the end of its timer-made run, in the ending transaction.

The timer is held while that run is open (`Held.RUN`). A pause in between keeps it held; the instant is set all the
same, so that resuming goes on from there. No crash leaves a timer held without an open run, since both are one
transaction; the scheduler looks for such a one all the same (`tidewheel.scheduler.repair`).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast
from uuid import UUID

from tidewheel.jobs.strict_json import compact
from tidewheel.jobs.values import format_timestamp
from tidewheel.outbox import OutboxClass, OutboxRow
from tidewheel.postgres.pg_arrays import instants, uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import DEAD_LETTERED, RunState
from tidewheel.schemas.codec import encode
from tidewheel.schemas.generated import records
from tidewheel.transitions.installation import Installation

_SQL = Statements("tidewheel.transitions")
_LOCK_COUNTED_JOBS = _SQL["lock_counted_jobs"]
_COUNT_FAILURES = _SQL["count_failures"]

_NAME = "pause-on-failure"
_ON_FAILURE = "on-failure"
ON_FAILURE_OF = "tidewheel.on_failure_of"  # label of a run that on_failure has made: the run that failed


@dataclass(frozen=True, slots=True)
class Ending:
    """A run of a job that is to be paused after so many failures in a row."""

    run_id: UUID
    job_id: UUID
    job_key: str
    tenant: str
    shard: int
    state: RunState
    most: int
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A run that failed for good, of a job that names another to run then."""

    run_id: UUID
    job_key: str
    tenant: str
    shard: int
    state: RunState
    reason: str | None
    error_type: str | None
    error_message: str | None
    attempt: int
    scheduled_at: datetime
    ended_at: datetime
    labels: Mapping[str, str]
    traceparent: str | None
    on_failure: str


def failure_triggers(installation: Installation, given_up: Iterable[GivenUp]) -> list[OutboxRow]:
    """The requests that trigger what jobs name as `on_failure`; none for runs that were made so themselves."""
    return [_trigger(installation, run) for run in given_up if ON_FAILURE_OF not in run.labels]


def count_failures(connection: Conn, installation: Installation, endings: Iterable[Ending]) -> list[OutboxRow]:
    """Count failures in a row, in the caller's transaction; returns the requests for pauses that they call for."""
    by_job: dict[UUID, list[Ending]] = {}
    for ending in endings:
        if ending.state in DEAD_LETTERED or ending.state is RunState.SUCCEEDED:
            by_job.setdefault(ending.job_id, []).append(ending)
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
    asked: list[OutboxRow] = []
    for job, before, after in rows:
        last = by_job[job][-1]
        if before < last.most <= after:
            asked.append(_pause(installation, last, after))
    return asked


def forget_failures(connection: Conn, job_ids: Iterable[UUID]) -> None:
    """Begin to count anew, in the caller's transaction: a run of each of these jobs has succeeded."""
    jobs = sorted(set(job_ids))
    if jobs:
        columns = {"job_ids": jobs, "failures": [0] * len(jobs), "broken": [True] * len(jobs)}
        connection.execute(_LOCK_COUNTED_JOBS, {"job_ids": jobs})
        connection.execute(_COUNT_FAILURES, columns)


def is_pause_on_failure(request_id: str | None) -> bool:
    """Whether a request is one of those that `count_failures` makes."""
    return request_id is not None and request_id.startswith(f"{_NAME}/")


def _streak(endings: Sequence[Ending]) -> tuple[int, bool]:
    """How many failures there are since the last success, and whether there was one."""
    failures = 0
    for ending in reversed(endings):
        if ending.state is RunState.SUCCEEDED:
            return failures, True
        failures += 1
    return failures, False


def _pause(installation: Installation, ending: Ending, failures: int) -> OutboxRow:
    facts: dict[str, str] = {
        "request_id": f"{_NAME}/{ending.run_id}",
        "tenant": ending.tenant,
        "key": ending.job_key,
        "reason": f"{failures} failures in a row, the last one run {ending.run_id}; pause_on_failure is {ending.most}",
    }
    return _request(installation, ending.shard, ending.job_key, _written(installation, facts), ending.ended_at)


def _trigger(installation: Installation, run: GivenUp) -> OutboxRow:
    error = {"type": run.error_type, "message": run.error_message} if run.error_type else None
    payload: dict[str, object] = {
        "run_id": str(run.run_id),
        "job_key": run.job_key,
        "status": run.state,
        "reason": run.reason,
        "error": error,
        "attempt": run.attempt,
        "scheduled_at": format_timestamp(run.scheduled_at),
        "finished_at": format_timestamp(run.ended_at),
    }
    request_id, labels = f"{_ON_FAILURE}/{run.run_id}", {ON_FAILURE_OF: str(run.run_id)}
    facts = {"request_id": request_id, "tenant": run.tenant, "key": run.on_failure, "labels": labels}
    if installation.content_type == "application/json":
        traced = {"traceparent": run.traceparent} if run.traceparent else {}
        value = compact({"type": "job.trigger", **facts, "payload": payload, **traced})
    else:
        value = encode(
            records.Request(
                type=records.RequestType.JOB_TRIGGER,
                request_id=request_id,
                tenant=run.tenant,
                key=run.on_failure,
                labels=labels,
                payload=compact(payload),
                traceparent=run.traceparent,
            )
        )
    return _request(installation, run.shard, run.on_failure, value, run.ended_at)


def _request(installation: Installation, shard: int, key: str, value: bytes, at: datetime) -> OutboxRow:
    return OutboxRow(
        shard=shard,
        outbox_class=OutboxClass.EVENTS,
        topic=installation.topics.requests,
        key=key.encode(),
        value=value,
        publish_at=at,
    )


def _written(installation: Installation, facts: dict[str, str]) -> bytes:
    """The request as this installation writes events: its reply is written likewise, for whoever reads replies."""
    if installation.content_type == "application/json":
        return json.dumps({"type": "job.pause", **facts}).encode()
    return encode(
        records.Request(
            type=records.RequestType.JOB_PAUSE,
            request_id=facts["request_id"],
            tenant=facts["tenant"],
            key=facts["key"],
            reason=facts["reason"],
        )
    )


_LOCK_CHAINED_TIMERS = _SQL["lock_chained_timers"]
_MOVE_CHAINED_TIMERS = _SQL["move_chained_timers"]


def advance_chains(connection: Conn, ended: Iterable[tuple[UUID, datetime, datetime]]) -> int:
    """Set the next instant of fixed_delay jobs whose timer-made run ends, in the caller's transaction.

    Args:
        connection: Inside the transaction that ends the runs; it must not hold their turns yet, since this waits.
        ended: Of each run: its job, its nominal instant, when it ended.

    Returns:
        How many timers were set.
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
