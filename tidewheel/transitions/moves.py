"""Give runs a new time: with new inputs before they begin, or now between two attempts.

New inputs come by a later trigger with the run's dedupe key.

A run keeps its id, so every answer names the run that starts. Messages with its old inputs stay in Kafka. `MOVED` is
the fence against them: from then on only a claim with the row's `publish_at` matches (ADR 0060). So each move has a
later `publish_at` than the one before.

A retrying run whose next attempt is hastened keeps its state, its attempts and its retry policy. The message with the
later time stays too: the claim of that attempt makes it stale.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from json import dumps
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.outbox import append
from tidewheel.postgres.partitions import day_of, ensure_days
from tidewheel.postgres.pg_binary import instants, integers, texts, uuids, words
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Gate, Move, RunState, target
from tidewheel.transitions.create import NewRun, RunInputs, deadlines
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.run_messages import build_requests, request_rows

_SQL = Statements("tidewheel.transitions")
_LOCK_UNBEGUN_RUNS = _SQL["lock_unbegun_runs"]
_MOVE_RUNS = _SQL["move_runs"]
_HASTEN_RUN = _SQL["hasten_run"]
_REPLACE_INPUTS = _SQL["replace_inputs"]

_NO_INPUTS = RunInputs()
_STATES = words([RunState.QUEUED, RunState.BUFFERED])
NEXT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class _Moved:
    """The row of a moved run; `queued` is false if it waits for others."""

    run_id: UUID
    job_id: UUID
    shard: int
    queue: str
    lane: str
    cause: str
    job_version: int
    attempt: int
    scheduled_at: datetime
    publish_at: datetime
    created_at: datetime
    concurrency_key: str | None
    tenant: str
    priority: int | None
    queued: bool


def lock_unbegun(connection: Conn, run_ids: Sequence[UUID]) -> dict[UUID, datetime | None]:
    """Lock those of these runs that no attempt has begun and no cancel names; return their `publish_at`.

    Returns:
        Each run's `publish_at`; None for a run that waits for others.
    """
    columns: dict[str, object] = {"run_ids": uuids(run_ids), "states": _STATES}
    found = connection.execute(_LOCK_UNBEGUN_RUNS, columns, binary=True).fetchall()
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
    with connection.cursor(row_factory=class_row(_Moved), binary=True) as cursor:
        rows = cursor.execute(_MOVE_RUNS, columns).fetchall()
    ensure_days(connection, sorted({day_of(row.created_at) for row in rows}))
    connection.execute(_REPLACE_INPUTS, given)
    _append_requests(connection, installation, [row for row in rows if row.queued])


def hasten_run(connection: Conn, installation: Installation, run_id: UUID, attempt: int) -> bool:
    """Make the next attempt of a retrying run due now; return False if it is not its next one, or is due.

    Args:
        connection: Inside a transaction that has locked the run.
    """
    columns: dict[str, object] = {"run_id": run_id, "attempt": attempt, "state": target(Move.RETRY)}
    with connection.cursor(row_factory=class_row(_Moved), binary=True) as cursor:
        rows = cursor.execute(_HASTEN_RUN, columns).fetchall()
    _append_requests(connection, installation, rows)
    return bool(rows)


def _append_requests(connection: Conn, installation: Installation, rows: Sequence[_Moved]) -> None:
    requests = build_requests(connection, rows)
    append(connection, request_rows(rows, requests, installation), shards=installation.shards)
