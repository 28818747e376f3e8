"""Changes of runs that clients request: new runs of ended ones, new times of waiting ones.

The new run of an ended one has its payload, and names it as its parent, and the root of the retry chain. The same
transaction stores the new run's id in a dead letter of the old one.

A later trigger with the dedupe key of a waiting run brings new inputs. The run keeps its id, and messages with its old
inputs stay in Kafka. `MOVED` is the fence against them: from then on only a claim with the row's `publish_at` matches
(ADR 0060). So each move has a later `publish_at` than the one before.

A retrying run whose next attempt is hastened keeps its state, its attempts and its retry policy. The message with the
later time stays too: the claim of that attempt makes it stale.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from json import dumps
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import Refused, UnknownJob, UnknownRun, refuse
from tidewheel.ids import JobId, RunId, first_run_id, run_id
from tidewheel.jobs.payload import Payload
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.partitions import day_of, ensure_days
from tidewheel.postgres.pg_binary import instants, integers, texts, uuids, words
from tidewheel.postgres.session import Conn, read_ids, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.runs import FINAL, Cause, Gate, Move, Overlap, RunState, target
from tidewheel.transitions.active_runs import PromotedRun
from tidewheel.transitions.batch_writer import SharedJob, lock_jobs_for_share, payload_of, read_versions
from tidewheel.transitions.create import create_runs, deadlines
from tidewheel.transitions.dead_letters import mark_redriven
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.messages import append_requests, read_definitions
from tidewheel.transitions.new_runs import NewRun, RunInputs

_SQL = Statements("tidewheel.transitions")

_FILTERED = ("job_id", "status", "error_type", "queue", "lane")
_MILLISECOND = timedelta(milliseconds=1)
_NO_INPUTS = RunInputs()
_STATES = words([RunState.QUEUED, RunState.BUFFERED])
NEXT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class OldRun:
    """A run to repeat, with the inputs that it had beyond its version."""

    run_id: UUID
    tenant: str
    job_id: UUID
    job_version: int
    state: str
    attempt: int
    scheduled_at: datetime
    root_run_id: UUID | None
    concurrency_key: str | None
    payload: bytes | None
    payload_content_type: str | None
    labels: dict[str, str] | None
    traceparent: str | None
    blocks_key: str | None


@dataclass(frozen=True, slots=True)
class RetryRequest:
    """A run to retry.

    Args:
        seed: Makes the new run's id, so that a repeated request finds it; None if it is not repeated.
        traceparent: In place of the old run's.
    """

    tenant: str
    run_id: UUID
    seed: bytes | None = None
    delay: timedelta | None = None
    traceparent: str | None = None
    request_id: str | None = None
    requested_from: str | None = None


def retry_runs(
    connection: Conn, installation: Installation, batch: Sequence[RetryRequest], *, as_of: bool = False
) -> list[NewRun | Refused]:
    """Retry runs in the caller's transaction; return the new run or the refusal of each, in their order.

    The new runs have the current version of their job, or with `as_of` that of the old run.
    """
    with connection.cursor(row_factory=class_row(OldRun), binary=True) as cursor:
        found = cursor.execute(_SQL["read_retried_runs"], {"run_ids": sorted({request.run_id for request in batch})})
        old = {row.run_id: row for row in found}
    locked = lock_jobs_for_share(connection, {run.job_id for run in old.values()})
    kept = [run for run in old.values() if run.job_id in locked]
    versions = read_versions(connection, {(run.job_id, run.job_version) for run in kept}) if as_of else {}
    jobs = {run.run_id: versions[run.job_id, run.job_version] if as_of else locked[run.job_id] for run in kept}
    payloads = OldPayloads(connection, old, jobs)
    now = read_now(connection)
    done: list[NewRun | Refused] = []
    runs: dict[UUID, NewRun] = {}
    redriven: dict[UUID, UUID] = {}
    for request in batch:
        try:
            run = _finished_run(connection, request, old, jobs)
            new = _new_run(request, run, jobs[run.run_id], payloads.of(run), now=now)
        except Refused as refused:
            done.append(refused)
            continue
        runs[new.run_id] = new
        redriven[run.run_id] = new.run_id
        done.append(new)
    create_runs(connection, installation, list(runs.values()), now=now)
    mark_redriven(connection, redriven, now)
    return done


def scan_failed_runs(
    connection: Conn, tenant: str, filters: Mapping[str, object], *, until: datetime, ended_until: datetime,
    after: UUID, limit: int, look: int,
) -> tuple[Sequence[UUID], UUID | None]:  # fmt: skip
    """Look at the next `look` failed runs after one of them, the oldest first.

    Args:
        until: The latest instant of their ids.
        ended_until: The latest end: new runs of a retry fail later.

    Returns:
        The first `limit` that match, and the last one looked at; None at the end.
    """
    columns = {name: filters.get(name) for name in _FILTERED} | {
        "tenant": tenant, "after_id": after, "before_id": first_run_id(until + _MILLISECOND),
        "ended_until": ended_until, "limit": limit, "look": look,
    }  # fmt: skip
    rows = cast(
        "list[tuple[UUID, bool]]", connection.execute(_SQL["scan_failed_runs"], columns, binary=True).fetchall()
    )
    found = [run for run, matches in rows if matches]
    if len(found) == limit:
        return found, found[-1]
    return found, next((run for run, matches in rows if not matches), None)


def find_retried(connection: Conn, run_ids: Collection[UUID]) -> set[UUID]:
    """Return those of these failed runs that have a retry."""
    return read_ids(connection, _SQL["find_retried_runs"], {"run_ids": uuids(run_ids)})


class OldPayloads:
    """The payloads of old runs, where the version that each gets, by its id, has another one."""

    def __init__(self, connection: Conn, old: Mapping[UUID, OldRun], jobs: Mapping[UUID, SharedJob]) -> None:
        self._jobs = jobs
        edited = [
            (run.job_id, run.job_version)
            for run in old.values()
            if run.run_id in jobs and run.job_version != jobs[run.run_id].version
        ]
        self._definitions = read_definitions(connection, edited) if edited else {}

    def of(self, run: OldRun) -> Payload | None:
        """Return the payload that the new run needs; None if its version has the same."""
        current = self._jobs[run.run_id].definition
        definition = self._definitions.get((run.job_id, run.job_version), current)
        if run.payload is not None:
            return Payload(run.payload, run.payload_content_type or payload_of(definition).content_type)
        payload = payload_of(definition)
        return None if payload == payload_of(current) else payload


def _finished_run(
    connection: Conn, request: RetryRequest, old: Mapping[UUID, OldRun], jobs: Mapping[UUID, SharedJob]
) -> OldRun:
    run = old.get(request.run_id)
    if run is None or run.tenant != request.tenant:
        raise UnknownRun(str(request.run_id))
    if RunState(run.state) not in FINAL:
        remedy = "wait until it ends, or cancel it first"
        if run.state == RunState.RETRYING:
            remedy = f"send `attempt: {run.attempt + 1}` to start its next attempt now, or cancel it first"
        refuse("run_id", f"run {run.run_id} is {run.state} and has not ended", remedy)
    if run.run_id not in jobs:
        row = connection.execute(_SQL["read_job_key"], {"job_id": run.job_id}, binary=True).fetchone()
        raise UnknownJob(run.tenant, str(row[0]) if row else "")
    return run


def _new_run(request: RetryRequest, old: OldRun, job: SharedJob, payload: Payload | None, *, now: datetime) -> NewRun:
    origin = old.run_id.bytes + (request.seed or os.urandom(16))
    inputs = RunInputs(
        payload=payload.content if payload else None,
        payload_content_type=payload.content_type if payload else None,
        labels=old.labels,
        traceparent=request.traceparent or old.traceparent,
    )
    # A retry of a run that blocks its key, or will, takes its place in the order. By its job's key it is the last.
    order, gates = (old.blocks_key, Gate.ORDER) if old.blocks_key else job.order_of(payload)
    return NewRun(
        run_id=run_id(job.job_id, old.scheduled_at, Cause.RETRY, origin, at=now),
        job_id=JobId(job.job_id),
        tenant=old.tenant,
        job_version=job.version,
        shard=job.shard,
        cause=Cause.RETRY,
        queue=job.queue,
        lane=job.lane,
        handler=job.handler,
        overlap=Overlap.ALLOW_ALL if old.blocks_key else job.overlap,  # as every run with a place in an order
        scheduled_at=old.scheduled_at,
        publish_at=now + (request.delay or timedelta(0)),
        definition=job.definition,
        inputs=None if inputs == RunInputs() else inputs,
        parent_run_id=RunId(old.run_id),
        root_run_id=RunId(old.root_run_id or old.run_id),
        concurrency_key=None if order else old.concurrency_key or job.key_of(payload),
        ordering_key=order,
        repeats_blocker=old.run_id if old.blocks_key else None,
        gates=gates,
        priority=job.priority,
        request_id=request.request_id,
        requested_from=request.requested_from,
    )


@dataclass(frozen=True, slots=True)
class _Moved(PromotedRun):
    """The row of a moved run; `queued` is false if it waits for others."""

    queued: bool


def lock_unbegun(connection: Conn, run_ids: Sequence[UUID]) -> dict[UUID, datetime | None]:
    """Lock those of these runs that no attempt has begun and no cancel names; return their `publish_at`.

    Returns:
        Each run's `publish_at`; None for a run that waits for others.
    """
    columns: dict[str, object] = {"run_ids": uuids(run_ids), "states": _STATES}
    found = connection.execute(_SQL["lock_unbegun_runs"], columns, binary=True).fetchall()
    return dict(cast("list[tuple[UUID, datetime | None]]", found))


def move_runs(connection: Conn, installation: Installation, runs: Sequence[NewRun]) -> None:
    """Replace inputs, version and time of runs that `lock_unbegun` has locked; key and policy stay."""
    if not runs:
        return
    limits = [deadlines(run) for run in runs]
    inputs = [run.inputs or _NO_INPUTS for run in runs]
    given = {
        "run_ids": uuids(run.run_id for run in runs),
        "payloads": [each.payload for each in inputs],
        "content_types": [each.payload_content_type for each in inputs],
        "labels": [None if each.labels is None else dumps(each.labels) for each in inputs],
        "traceparents": [each.traceparent for each in inputs],
    }
    columns = {
        "run_ids": given["run_ids"],
        "versions": integers(run.job_version for run in runs),
        "handlers": texts([run.handler for run in runs]),
        "queues": texts([run.queue for run in runs]),
        "lanes": words(run.lane for run in runs),
        "publish_at": instants(run.publish_at for run in runs),
        "deadline_at": instants(earliest for earliest, _ in limits),
        "close_at": instants(closes for _, closes in limits),
        "moved": Gate.MOVED,
    }
    rows = read_rows(connection, class_row(_Moved), _SQL["move_runs"], columns)
    ensure_days(connection, sorted({day_of(row.created_at) for row in rows}))
    connection.execute(_SQL["replace_inputs"], given)
    append_requests(connection, installation, [row for row in rows if row.queued])


def hasten_run(connection: Conn, installation: Installation, run_id: UUID, attempt: int) -> bool:
    """Make the next attempt of a retrying run due now; return False if it is not its next one, or is due.

    Args:
        connection: Inside a transaction that has locked the run.
    """
    columns: dict[str, object] = {"run_id": run_id, "attempt": attempt, "state": target(Move.RETRY)}
    rows = read_rows(connection, class_row(_Moved), _SQL["hasten_run"], columns)
    append_requests(connection, installation, rows)
    return bool(rows)
