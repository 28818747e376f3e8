"""Requests that come with a task token: what an attempt says from outside.

The token is all the right it takes, whoever sends it. The runs are locked before anything is decided, in run_id order;
an attempt that is over, or was never, changes nothing: its request is rejected with `attempt_over`. A run that somebody
has in hand for longer than a moment: a heartbeat that came by Kafka is rejected with `busy`, for another one follows
it; anything else has to be tried again, for an end that is told must not be lost.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.arrays import uuids
from tidewheel.db import Conn
from tidewheel.errors import FieldError, InvalidInput, RunBusy, StaleToken
from tidewheel.ids import RunId
from tidewheel.intake.busy import Busy, still_open, wait_for_runs
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

    Raises:
        Busy: Somebody has one of the runs in hand: roll back and try again.
    """
    replies: dict[int, Reply] = {}
    left: list[tuple[int, RunId, int]] = []
    busy: dict[UUID, str] = {}
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
        locked, kept = _lock_patiently(connection, [run_id for run_id in first if run_id not in busy])
        busy |= kept
        _refuse_to_lose(batch[place] for run_id, (place, _) in first.items() if run_id in busy)
        ended = _read_ended(connection, [run_id for run_id in first if run_id not in locked and run_id not in busy])
        shown: dict[int, Shown] = {}
        for run_id, (place, attempt) in first.items():
            held = locked.get(run_id)
            if run_id in busy:
                replies[place] = _busy(batch[place], run_id, busy[run_id])
            elif held is not None and held.attempt == attempt and held.state in BEATING:
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


def _lock_patiently(connection: Conn, run_ids: Sequence[UUID]) -> tuple[dict[UUID, Held], dict[UUID, str]]:
    """Lock those that are open; also returns the states of those that somebody has in hand, a moment later still."""
    locked = _lock(connection, run_ids)
    busy = still_open(connection, [run_id for run_id in run_ids if run_id not in locked])
    if busy:
        wait_for_runs(connection, busy)
        locked |= _lock(connection, list(busy))
        busy = still_open(connection, [run_id for run_id in busy if run_id not in locked])
    return locked, busy


def _refuse_to_lose(busy: Iterable[Incoming]) -> None:
    # Who asks directly is told to ask again; of Kafka's messages only heartbeats can be done without.
    needed = [each for each in busy if each.origin is None or isinstance(each.request, RunComplete)]
    if needed:
        what = "the run"
        raise Busy(what, needed)


def _lock(connection: Conn, run_ids: Sequence[UUID]) -> dict[UUID, Held]:
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


def _busy(incoming: Incoming, run_id: RunId, state: str) -> Reply:
    return replace(rejected(incoming, RunBusy(str(run_id))), run_id=str(run_id), run_status=RunState(state).value)


def _over(incoming: Incoming, run_id: RunId, attempt: int, state: str | None) -> Reply:
    """The answer about an attempt that is over; `state` is its run's, None where nothing is kept of that any more."""
    reply = rejected(incoming, StaleToken(str(run_id), state, attempt))
    return replace(reply, run_id=str(run_id), run_status=RunState(state).value if state else None)
