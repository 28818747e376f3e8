"""Defer the effects of a run's end that was written in a client's own transaction.

Such a transaction may stay open for long, so it must lock no timer, job, inputs or active run. A completion there
(`lasting`) inserts rows with the effects that are left, which commit or roll back with it. The scheduler applies them
within about a second: the next fire time of a fixed_delay, the reset of consecutive failures, the move of the inputs,
the release of the active run, the place of its key. After a crash in between the row is still there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.ids import tenant_key_id
from tidewheel.postgres.pg_binary import instants, uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Gate, RunState
from tidewheel.transitions.active_runs import release_active_runs
from tidewheel.transitions.after_end import keep_inputs, reset_failures, schedule_after_end
from tidewheel.transitions.finished import FinishedRun
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.places import FreedPlace
from tidewheel.transitions.run_keys import settle_keys

_SQL = Statements("tidewheel.transitions")
_ADD_DEFERRED_EFFECTS = _SQL["add_deferred_effects"]
_TAKE_DEFERRED_EFFECTS = _SQL["take_deferred_effects"]

MAX_APPLIED = 1000
"""Runs per transaction: about ten milliseconds of work."""


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
    }
    connection.execute(_ADD_DEFERRED_EFFECTS, columns)


def _succeeds(run: FinishedRun) -> bool:
    """Return True if the run's success sets the job's consecutive failures to zero."""
    return run.counts_failures and run.state is RunState.SUCCEEDED


def apply_deferred_effects(connection: Conn, installation: Installation) -> int:
    """Apply the effects of up to `MAX_APPLIED` ends; return the number of ends."""
    with connection.cursor(row_factory=class_row(DeferredEffect), binary=True) as cursor:
        effects = cursor.execute(_TAKE_DEFERRED_EFFECTS, {"limit": MAX_APPLIED}).fetchall()
    # Timers, jobs, inputs, active runs, keys: with an active run locked, no statement may wait for the rest (ADR 0008).
    schedule_after_end(connection, [(end.job_id, end.chain_at, end.ended_at) for end in effects if end.chain_at])
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
