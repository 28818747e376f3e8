"""The rows about attempts that are over: outcome in `attempts`, what may go sooner in `attempt_outputs`.

A flush may have made the second one while the attempt ran (`outputs.py`). Whoever knows that none has may say so, and
the row is copied, which is quicker.

`flush_outputs`: what attempts have written so far, while they run.

The end of an attempt writes its output too, and must never wait for a flush (ADR 0008): a flush holds the open run's
row, shared, for the length of one statement, and passes over what somebody else has; an end that finds the row taken
comes again. So there is no flush of an attempt under way once its end holds the row, and none after it.

`save_progress`: what attempts under way tell of themselves: progress, and the checkpoint for the next attempt.

The rows are `run_inputs`; nobody else writes these columns. What an older attempt says after a newer one has spoken
changes nothing, so that no lock is needed for that; who has to know that the run stands still meanwhile locks it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tidewheel.ids import run_instant
from tidewheel.postgres.partitions import day_of, ensure_days
from tidewheel.postgres.pg_arrays import integers, uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.runs import OWNED, AttemptOutcome, RunState
from tidewheel.transitions.finished import FinishedRun

_ADD_OUTPUTS = Statements("tidewheel.transitions")["add_outputs"]

_COPY_ATTEMPTS = (
    "COPY attempts (run_id, attempt, tenant, executor_id, started_at, finished_at, outcome, error_type, error_message, "
    "claimed_from) FROM STDIN (FORMAT BINARY)"
)
_ATTEMPT_TYPES = (
    "uuid", "int4", "text", "uuid", "timestamptz", "timestamptz", "text", "text", "text", "text"
)  # fmt: skip
_COPY_OUTPUTS = (
    "COPY attempt_outputs (run_id, attempt, tenant, result, trace, output, output_bytes) FROM STDIN (FORMAT BINARY)"
)
_OUTPUT_TYPES = ("uuid", "int4", "text", "bytea", "text", "bytea", "int8")
_OutputRow = tuple[UUID, int, str, bytes | None, str | None, bytes | None, int | None]


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How one attempt ended; sizes are bounded by whoever made it."""

    run_id: UUID
    attempt: int
    tenant: str
    executor_id: UUID | None
    started_at: datetime | None
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
    """Write the rows, in the transaction that ended the attempts."""
    if not ends:
        return
    # Made with the run already, unless somebody dropped it while the run was open for weeks.
    ensure_days(connection, {day_of(run_instant(end.run_id)) for end in ends})
    with connection.cursor() as cursor, cursor.copy(_COPY_ATTEMPTS) as copy:
        copy.set_types(_ATTEMPT_TYPES)
        for e in ends:
            copy.write_row(
                (
                    e.run_id, e.attempt, e.tenant, e.executor_id, e.started_at, e.finished_at, e.outcome,
                    e.error_type, e.error_message, e.claimed_from,
                )
            )  # fmt: skip
    for outcome, count in Counter(e.outcome for e in ends).items():
        metrics.count("attempts", count, outcome)
    left = [e for e in ends if e.trace or e.output]
    _store_outputs(
        connection,
        [(e.unflushed, (e.run_id, e.attempt, e.tenant, None, e.trace, e.output, e.output_bytes)) for e in left],
    )


def write_outputs(connection: Conn, finished: Sequence[FinishedRun]) -> None:
    """Write what the last attempts of runs leave, in the transaction that ends them."""
    rows = [
        (run.end.unflushed, (
            run.end.run_id, run.row.attempt, run.row.tenant, run.end.result, run.end.trace, run.end.output,
            run.end.output_bytes,
        ))
        for run in finished
    ]  # fmt: skip
    _store_outputs(connection, rows)


def _store_outputs(connection: Conn, rows: Sequence[tuple[bool, _OutputRow]]) -> None:
    """Store rows, each with True if no flush can have stored one before: these are copied, which is faster."""
    new = [row for unflushed, row in rows if unflushed]
    if new:
        with connection.cursor() as cursor, cursor.copy(_COPY_OUTPUTS) as copy:
            copy.set_types(_OUTPUT_TYPES)
            for row in new:
                copy.write_row(row)
    flushed = [row for unflushed, row in rows if not unflushed]
    if flushed:
        run_ids, attempts, tenants, results, traces, outputs, output_bytes = zip(*flushed, strict=True)
        columns: dict[str, object] = {
            "run_ids": uuids(run_ids),
            "attempts": integers(attempts),
            "tenants": list(tenants),
            "results": list(results),
            "traces": list(traces),
            "outputs": list(outputs),
            "output_bytes": list(output_bytes),
        }
        connection.execute(_ADD_OUTPUTS, columns)


_FLUSH_OUTPUTS = Statements("tidewheel.transitions")["flush_outputs"]


@dataclass(frozen=True, slots=True)
class AttemptOutput:
    """What an attempt has written so far.

    Args:
        run_id: The run.
        attempt: The fence.
        output: The last of it, at most 64 KiB.
        output_bytes: How much it ever wrote.
    """

    run_id: UUID
    attempt: int
    output: bytes
    output_bytes: int


def flush_outputs(connection: Conn, executor_id: UUID, outputs: Sequence[AttemptOutput]) -> set[tuple[UUID, int]]:
    """Store what an executor's attempts have written so far, in a transaction that does nothing else.

    Returns:
        The attempts whose output is stored. The others are over, another executor's, or in somebody's hands just now.
    """
    if not outputs:
        return set()
    # Made with the run already, unless somebody dropped it while the run was open for weeks.
    ensure_days(connection, {day_of(run_instant(output.run_id)) for output in outputs})
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


_SAVE_PROGRESS = Statements("tidewheel.transitions")["save_progress"]

# What has begun and is not over: a run that is being cancelled may still say how far it came.
REPORTING = [RunState.RUNNING, RunState.WAITING, RunState.CANCELLING]


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """A sign of life.

    Args:
        run_id: The run.
        attempt: The fence.
        executor_id: In whose hands it is; None where the attempt's task token speaks for it.
        progress: JSON text; None leaves what this attempt said before.
        checkpoint: What the next attempt receives; None leaves what is there.
    """

    run_id: UUID
    attempt: int
    executor_id: UUID | None = None
    progress: bytes | None = None
    checkpoint: bytes | None = None


def save_progress(connection: Conn, beats: Sequence[ProgressReport]) -> set[UUID]:
    """Store what attempts say of themselves, in the caller's transaction.

    Args:
        connection: Inside a transaction.
        beats: At most one per run: the newest, with the last progress and the last checkpoint.

    Returns:
        The runs of which it was stored. The others are over, or another attempt's.
    """
    if not beats:
        return set()
    # Made with the run already, unless somebody dropped it while the run was open for weeks.
    ensure_days(connection, {day_of(run_instant(beat.run_id)) for beat in beats})
    columns: dict[str, object] = {
        "run_ids": uuids(beat.run_id for beat in beats),
        "attempts": integers(beat.attempt for beat in beats),
        "executor_ids": uuids(beat.executor_id for beat in beats),
        "progress": [beat.progress for beat in beats],
        "checkpoints": [beat.checkpoint for beat in beats],
        "states": REPORTING,
    }
    rows = connection.execute(_SAVE_PROGRESS, columns, binary=True).fetchall()
    return {run_id for (run_id,) in rows if isinstance(run_id, UUID)}
