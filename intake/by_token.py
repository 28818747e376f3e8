"""Requests that come with a task token: what an attempt says from outside.

The token is all the right it takes, whoever sends it. The runs are locked before anything is decided, in run_id order;
an attempt that is over, or was never, changes nothing: its request is rejected with `attempt_over`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.arrays import uuids
from tidewheel.db import Conn
from tidewheel.errors import FieldError, InvalidInput, StaleToken
from tidewheel.ids import RunId
from tidewheel.intake.incoming import Incoming, rejected
from tidewheel.jobs.requests import RunComplete, RunHeartbeat
from tidewheel.runs import RunState
from tidewheel.schemas.records import JobDefinition, Reply
from tidewheel.sql import Statements
from tidewheel.task_tokens import read_task_token
from tidewheel.transitions.beats import BEATING
from tidewheel.transitions.dispatch import Definitions, read_definitions
from tidewheel.transitions.installation import Installation

_SQL = Statements("tidewheel.intake")
_LOCK_ATTEMPTS = _SQL["lock_attempts"]
_READ_ENDED = _SQL["read_ended"]

_DEFINITIONS = Definitions(4 * 1024 * 1024)  # of jobs whose ends are told from outside: few


@dataclass(frozen=True, slots=True)
class Held:
    """An open run's row, locked."""

    run_id: UUID
    job_id: UUID
    job_version: int
    state: str
    attempt: int
    charged: int
    executor_id: UUID | None


@dataclass(frozen=True, slots=True)
class Shown:
    """A request whose token is that of an attempt under way."""

    incoming: Incoming
    held: Held


Act = Callable[[Conn, Installation, Sequence[Shown]], list[Reply]]


def answer_by_token(connection: Conn, installation: Installation, batch: Sequence[Incoming], act: Act) -> list[Reply]:
    """Answer requests that come with a token, in the caller's transaction.

    Args:
        connection: Inside a transaction.
        installation: Holds the key that tokens are checked with.
        batch: The requests, of one kind.
        act: Answers those whose attempt is under way, at most one of a run at a time, in their order.
    """
    replies: dict[int, Reply] = {}
    left: list[tuple[int, RunId, int]] = []
    for place, incoming in enumerate(batch):
        named = read_task_token(installation.task_token_key, _token(incoming))
        if named is None:
            replies[place] = rejected(incoming, _forged())
        else:
            left.append((place, *named))
    while left:
        first: dict[RunId, tuple[int, int]] = {}
        later: list[tuple[int, RunId, int]] = []
        for place, run_id, attempt in left:
            if run_id in first:
                later.append((place, run_id, attempt))
            else:
                first[run_id] = place, attempt
        locked = _lock(connection, list(first))
        ended = _read_ended(connection, [run_id for run_id in first if run_id not in locked])
        shown: dict[int, Shown] = {}
        for run_id, (place, attempt) in first.items():
            held = locked.get(run_id)
            if held is not None and held.attempt == attempt and held.state in BEATING:
                shown[place] = Shown(batch[place], held)
            else:
                replies[place] = _over(batch[place], run_id, attempt, held.state if held else ended.get(run_id))
        replies |= zip(shown, act(connection, installation, list(shown.values())) if shown else (), strict=True)
        left = later
    return [replies[place] for place in range(len(batch))]


def definitions_of(connection: Conn, attempts: Sequence[Shown]) -> dict[UUID, JobDefinition]:
    """The definitions that these attempts were made from, by run."""
    versions = {each.held.run_id: (each.held.job_id, each.held.job_version) for each in attempts}
    stored = read_definitions(connection, list(versions.values()))
    return {run_id: _DEFINITIONS.of(stored[version]) for run_id, version in versions.items()}


def _token(incoming: Incoming) -> str:
    request = incoming.request
    assert isinstance(request, RunComplete | RunHeartbeat)  # noqa: S101 - by accept's table
    return request.token


def _lock(connection: Conn, run_ids: Sequence[RunId]) -> dict[UUID, Held]:
    with connection.cursor(row_factory=class_row(Held), binary=True) as cursor:
        return {row.run_id: row for row in cursor.execute(_LOCK_ATTEMPTS, {"run_ids": uuids(run_ids)})}


def _read_ended(connection: Conn, run_ids: Sequence[RunId]) -> dict[UUID, str]:
    if not run_ids:
        return {}
    rows = connection.execute(_READ_ENDED, {"run_ids": uuids(run_ids)}, binary=True).fetchall()
    return dict(cast("list[tuple[UUID, str]]", rows))


def _forged() -> InvalidInput:
    problem = "it is no task token of this installation"
    return InvalidInput([FieldError("token", problem, "send back the token that came with the attempt, unchanged")])


def _over(incoming: Incoming, run_id: RunId, attempt: int, state: str | None) -> Reply:
    """The answer about an attempt that is over; `state` is its run's, None where nothing is kept of that any more."""
    reply = rejected(incoming, StaleToken(str(run_id), state, attempt))
    return replace(reply, run_id=str(run_id), run_status=RunState(state).value if state else None)
