"""What the end of a run sets off elsewhere, where it was written in a user's own transaction.

Such a transaction may last: it must hold no timer, job or turn. So a completion made there (`lasting`) writes down what
is left to do, which commits or falls with it, and the scheduler does it a moment later: the next instant of a
fixed_delay, failures in a row that are forgotten, the turn that is given up. A crash in between leaves the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.postgres.pg_arrays import instants, uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.transitions.active_runs import give_up_turns
from tidewheel.transitions.after_end import advance_chains, forget_failures
from tidewheel.transitions.installation import Installation

_SQL = Statements("tidewheel.transitions")
_NOTE_LOOSE_ENDS = _SQL["note_loose_ends"]
_TAKE_LOOSE_ENDS = _SQL["take_loose_ends"]

MOST_SETTLED = 1000
"""Ends in one transaction: about ten milliseconds."""


@dataclass(frozen=True, slots=True)
class LooseEnd:
    """What is left to do after a run's end.

    Args:
        run_id: The run.
        job_id: Its job.
        tenant: The job's tenant.
        ended_at: When it ended.
        chain_at: Its nominal instant, where the job's next one is counted from its end.
        counted: Whether the job's failures in a row are to be forgotten.
        turn: Whether it may hold its job's turn.
    """

    run_id: UUID
    job_id: UUID
    tenant: str
    ended_at: datetime
    chain_at: datetime | None
    counted: bool
    turn: bool


def note_loose_ends(connection: Conn, ends: Sequence[LooseEnd]) -> None:
    """Write down what is left to do, in the transaction that ends the runs; nothing where there is nothing to do."""
    loose = [end for end in ends if end.chain_at or end.counted or end.turn]
    if not loose:
        return
    columns: dict[str, object] = {
        "run_ids": uuids(end.run_id for end in loose),
        "job_ids": uuids(end.job_id for end in loose),
        "tenants": [end.tenant for end in loose],
        "ended_at": instants(end.ended_at for end in loose),
        "chain_at": instants(end.chain_at for end in loose),
        "counted": [end.counted for end in loose],
        "turns": [end.turn for end in loose],
    }
    connection.execute(_NOTE_LOOSE_ENDS, columns)


def settle_loose_ends(connection: Conn, installation: Installation) -> int:
    """Do some of what is left to do, in the caller's transaction; returns how many runs' ends it was of."""
    with connection.cursor(row_factory=class_row(LooseEnd), binary=True) as cursor:
        loose = cursor.execute(_TAKE_LOOSE_ENDS, {"most": MOST_SETTLED}).fetchall()
    # Timers, then jobs, then turns: with a turn in hand nobody waits for the others (ADR 0008).
    advance_chains(connection, [(end.job_id, end.chain_at, end.ended_at) for end in loose if end.chain_at])
    forget_failures(connection, (end.job_id for end in loose if end.counted))
    give_up_turns(connection, installation, [(end.job_id, end.run_id) for end in loose if end.turn])
    return len(loose)
