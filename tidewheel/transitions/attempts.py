"""The rows about attempts that are over: outcome in `attempts`, what may go sooner in `attempt_outputs`.

A flush may have made the second one while the attempt ran (`outputs.py`). Whoever knows that none has may say so, and
the row is copied, which is quicker.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tidewheel.arrays import integers, uuids
from tidewheel.db import Conn
from tidewheel.ids import run_instant
from tidewheel.metrics import metrics
from tidewheel.partitions import day_of, ensure_days
from tidewheel.runs import AttemptOutcome
from tidewheel.sql import Statements

_ADD_OUTPUTS = Statements("tidewheel.transitions")["add_outputs"]

_COPY_ATTEMPTS = (
    "COPY attempts (run_id, attempt, tenant, executor_id, started_at, finished_at, outcome, error_type, error_message, "
    "came_by) FROM STDIN (FORMAT BINARY)"
)
_ATTEMPT_TYPES = (
    "uuid", "int4", "text", "uuid", "timestamptz", "timestamptz", "text", "text", "text", "text"
)  # fmt: skip
_COPY_OUTPUTS = (
    "COPY attempt_outputs (run_id, attempt, tenant, result, trace, output, output_bytes) FROM STDIN (FORMAT BINARY)"
)
_OUTPUT_TYPES = ("uuid", "int4", "text", "bytea", "text", "bytea", "int8")


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
    came_by: str | None = None
    result: bytes | None = None
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
                    e.error_type, e.error_message, e.came_by,
                )
            )  # fmt: skip
    for outcome, count in Counter(e.outcome for e in ends).items():
        metrics.count("attempts", count, outcome)
    write_outputs(connection, [e for e in ends if e.result is not None or e.trace or e.output])


def write_outputs(connection: Conn, ends: Sequence[AttemptEnd]) -> None:
    """Write what attempts leave beside their outcome, in the same transaction."""
    _copy_outputs(connection, [e for e in ends if e.unflushed])
    _add_outputs(connection, [e for e in ends if not e.unflushed])


def _copy_outputs(connection: Conn, ends: Sequence[AttemptEnd]) -> None:
    if not ends:
        return
    with connection.cursor() as cursor, cursor.copy(_COPY_OUTPUTS) as copy:
        copy.set_types(_OUTPUT_TYPES)
        for e in ends:
            copy.write_row((e.run_id, e.attempt, e.tenant, e.result, e.trace, e.output, e.output_bytes))


def _add_outputs(connection: Conn, ends: Sequence[AttemptEnd]) -> None:
    if not ends:
        return
    columns: dict[str, object] = {
        "run_ids": uuids(e.run_id for e in ends),
        "attempts": integers(e.attempt for e in ends),
        "tenants": [e.tenant for e in ends],
        "results": [e.result for e in ends],
        "traces": [e.trace for e in ends],
        "outputs": [e.output for e in ends],
        "output_bytes": [e.output_bytes for e in ends],
    }
    connection.execute(_ADD_OUTPUTS, columns)
