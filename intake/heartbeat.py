"""`run.heartbeat`: an attempt goes on, told from outside by who has its task token.

While the run waits, this moves the instant at which its heartbeat is missed; what it says of itself is kept in any
case. The answer holds the state the run was found in: `cancelling` means that it was asked to stop.
"""

from collections.abc import Sequence
from datetime import timedelta

from tidewheel.arrays import uuids
from tidewheel.db import Conn
from tidewheel.intake.by_token import Shown, answer_by_token, definitions_of
from tidewheel.intake.incoming import Incoming, accepted
from tidewheel.jobs.requests import RunHeartbeat
from tidewheel.runs import RunState
from tidewheel.schemas.records import Reply
from tidewheel.sql import Statements
from tidewheel.transitions.beats import Beat, save_beats
from tidewheel.transitions.installation import Installation

_PUT_OFF_DEADLINES = Statements("tidewheel.intake")["put_off_deadlines"]


def apply_heartbeats(connection: Conn, installation: Installation, batch: Sequence[Incoming]) -> list[Reply]:
    """Note that attempts go on, in the caller's transaction; an answer for each request, in their order."""
    return answer_by_token(connection, installation, batch, _beat)


def _beat(connection: Conn, installation: Installation, attempts: Sequence[Shown]) -> list[Reply]:
    del installation
    save_beats(connection, [_told(each) for each in attempts])
    _put_off(connection, [each for each in attempts if each.held.state == RunState.WAITING])
    return [_accepted(each) for each in attempts]


def _put_off(connection: Conn, waiting: Sequence[Shown]) -> None:
    if not waiting:
        return
    definitions = definitions_of(connection, waiting)
    spans = {
        run_id: timedelta(milliseconds=definition.heartbeat_ms)
        for run_id, definition in definitions.items()
        if definition.heartbeat_ms is not None
    }
    if spans:
        columns: dict[str, object] = {"run_ids": uuids(spans), "heartbeats": list(spans.values())}
        connection.execute(_PUT_OFF_DEADLINES, columns)


def _told(each: Shown) -> Beat:
    request = each.incoming.request
    assert isinstance(request, RunHeartbeat)  # noqa: S101 - by accept's table
    return Beat(each.held.run_id, each.held.attempt, progress=request.progress, checkpoint=request.checkpoint)


def _accepted(each: Shown) -> Reply:
    held = each.held
    return accepted(
        each.incoming,
        job_id=str(held.job_id),
        job_version=held.job_version,
        run_id=str(held.run_id),
        run_status=RunState(held.state).value,
    )
