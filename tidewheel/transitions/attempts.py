"""Write the rows about attempts: outcomes, output, progress and checkpoints.

`attempts` holds the outcome; `attempt_outputs` holds what may be deleted sooner. A flush may have inserted the second
row while the attempt ran. If a caller knows that none has, the row is copied, which is faster.

The end of an attempt writes its output too and must never wait for a flush (ADR 0008). A flush locks the open run's
row, shared, for one statement, and skips rows that another transaction holds; an end that finds the row locked retries.
So no flush of an attempt is under way once its end holds the row, and none comes after it.

Progress and checkpoints are columns of `run_inputs`, which no other module writes. A report of an older attempt that
comes after a newer attempt's report changes nothing. A report locks the open run's row against its end, which may move
the inputs, and skips rows that another transaction holds. A caller that needs the run's state to stay the same locks
the run's row.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from uuid import UUID

from tidewheel.postgres.partitions import day_of, ensure_days
from tidewheel.postgres.pg_binary import copy_values, instants, integers, uuids
from tidewheel.postgres.session import Conn, at_commit, read_ids
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import count_errors, metrics
from tidewheel.runs import OWNED, AttemptOutcome, RunState
from tidewheel.transitions.finished import FinishedRun

_SQL = Statements("tidewheel.transitions")
_ADD_OUTPUTS = _SQL["add_outputs"]
_FLUSH_OUTPUTS = _SQL["flush_outputs"]
_SAVE_PROGRESS = _SQL["save_progress"]
_FIND_BUSY_ATTEMPTS = _SQL["find_busy_attempts"]

# Started and not ended: a run that is being cancelled may still report its progress.
REPORTING = [RunState.RUNNING, RunState.WAITING, RunState.CANCELLING]

_COPY_ATTEMPTS = (
    "COPY attempts (run_id, attempt, tenant, executor_id, started_at, finished_at, outcome, error_type, error_message, "
    "claimed_from) FROM STDIN (FORMAT BINARY)"
)
_ATTEMPT_TYPES = (
    "uuid", "int4", "text", "uuid", "timestamptz", "timestamptz", "text", "text", "text", "text"
)  # fmt: skip
_COPY_OUTPUTS = (
    "COPY attempt_outputs (run_id, attempt, started_at, tenant, result, trace, output, output_bytes) "
    "FROM STDIN (FORMAT BINARY)"
)
_OUTPUT_TYPES = ("uuid", "int4", "timestamptz", "text", "bytea", "text", "bytea", "int8")
_OutputRow = tuple[UUID, int, datetime, str, bytes | None, str | None, bytes | None, int | None]


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of an attempt that did not make its run succeed; the caller bounds the sizes."""

    run_id: UUID
    attempt: int
    tenant: str
    executor_id: UUID | None
    started_at: datetime
    finished_at: datetime
    outcome: AttemptOutcome
    error_type: str | None = None
    error_message: str | None = None
    claimed_from: str | None = None
    trace: str | None = None
    output: bytes | None = None
    output_bytes: int | None = None
    unflushed: bool = False


def write_attempts(connection: Conn, ends: Sequence[AttemptEnd]) -> None:
    """Write the outcomes and outputs of attempts, in the transaction that ended them."""
    if not ends:
        return
    # The day of an attempt that waited for weeks may be dropped.
    ensure_days(connection, {day_of(end.started_at) for end in ends})
    rows = [
        (
            e.run_id, e.attempt, e.tenant, e.executor_id, e.started_at, e.finished_at, e.outcome, e.error_type,
            e.error_message, e.claimed_from,
        )
        for e in ends
    ]  # fmt: skip
    copy_values(connection, _COPY_ATTEMPTS, _ATTEMPT_TYPES, rows)
    for outcome, count in Counter(e.outcome for e in ends).items():
        at_commit(connection, partial(metrics.count, "attempts", count, outcome))
    if types := [e.error_type for e in ends if e.error_type]:
        at_commit(connection, partial(count_errors, types))
    left = [e for e in ends if e.trace or e.output]
    _store_outputs(
        connection,
        [
            (e.unflushed, (e.run_id, e.attempt, e.started_at, e.tenant, None, e.trace, e.output, e.output_bytes))
            for e in left
        ],
    )


def write_outputs(connection: Conn, finished: Sequence[FinishedRun]) -> None:
    """Write what the last attempts of runs leave, in the transaction that ends them."""
    rows = [
        (run.end.unflushed, (
            run.end.run_id, run.row.attempt, run.row.started_at, run.row.tenant, run.end.result, run.end.trace,
            run.end.output, run.end.output_bytes,
        ))
        for run in finished
        if run.row.started_at is not None
    ]  # fmt: skip
    ensure_days(connection, {day_of(row[2]) for _, row in rows})
    _store_outputs(connection, rows)


def _store_outputs(connection: Conn, rows: Sequence[tuple[bool, _OutputRow]]) -> None:
    """Store rows; those with True have no flushed row before them and are copied, which is faster."""
    new = [row for unflushed, row in rows if unflushed]
    if new:
        copy_values(connection, _COPY_OUTPUTS, _OUTPUT_TYPES, new)
    flushed = [row for unflushed, row in rows if not unflushed]
    if flushed:
        run_ids, attempts, started_at, tenants, results, traces, outputs, output_bytes = zip(*flushed, strict=True)
        columns: dict[str, object] = {
            "run_ids": uuids(run_ids),
            "attempts": integers(attempts),
            "started_at": instants(started_at),
            "tenants": list(tenants),
            "results": list(results),
            "traces": list(traces),
            "outputs": list(outputs),
            "output_bytes": list(output_bytes),
        }
        connection.execute(_ADD_OUTPUTS, columns)


@dataclass(frozen=True, slots=True)
class AttemptOutput:
    """The output of a running attempt so far: its last part, at most 64 KiB."""

    run_id: UUID
    attempt: int
    output: bytes
    output_bytes: int


def flush_outputs(connection: Conn, executor_id: UUID, outputs: Sequence[AttemptOutput]) -> set[tuple[UUID, int]]:
    """Store the output of an executor's running attempts, in a transaction that does nothing else.

    Returns:
        The attempts whose output is stored. The rest is over, owned by another executor, or locked at the moment.
    """
    if not outputs:
        return set()
    columns: dict[str, object] = {
        "run_ids": uuids(output.run_id for output in outputs),
        "attempts": integers(output.attempt for output in outputs),
        "outputs": [output.output for output in outputs],
        "output_bytes": [output.output_bytes for output in outputs],
        "executor_id": executor_id,
        "states": OWNED,
    }
    stored: set[tuple[UUID, int]] = set()
    for run_id, attempt in connection.execute(_FLUSH_OUTPUTS, columns, binary=True):
        assert isinstance(run_id, UUID)  # noqa: S101 - the column's type
        assert isinstance(attempt, int)  # noqa: S101 - the column's type
        stored.add((run_id, attempt))
    return stored


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """A progress report of an attempt.

    Args:
        executor_id: The executor that owns the attempt; None if its task token authorises the report.
        progress: JSON text; None keeps this attempt's last progress.
        checkpoint: The checkpoint for the next attempt; None keeps the last one.
    """

    run_id: UUID
    attempt: int
    executor_id: UUID | None = None
    progress: bytes | None = None
    checkpoint: bytes | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """The result of storing progress; a run in neither part has ended or started another attempt.

    Args:
        busy: Runs whose row another transaction holds; repeat their reports.
    """

    stored: set[UUID] = field(default_factory=set[UUID])
    busy: set[UUID] = field(default_factory=set[UUID])


def save_progress(connection: Conn, reports: Sequence[ProgressReport]) -> Saved:
    """Store the progress and checkpoints of attempts, in the caller's transaction; one report per run."""
    if not reports:
        return Saved()
    columns: dict[str, object] = {
        "run_ids": uuids(report.run_id for report in reports),
        "attempts": integers(report.attempt for report in reports),
        "executor_ids": uuids(report.executor_id for report in reports),
        "progress": [report.progress for report in reports],
        "checkpoints": [report.checkpoint for report in reports],
        "states": REPORTING,
        "sources": REPORTING,
    }
    stored = read_ids(connection, _SAVE_PROGRESS, columns)
    if len(stored) == len(reports):
        return Saved(stored)
    return Saved(stored, read_ids(connection, _FIND_BUSY_ATTEMPTS, columns) - stored)
