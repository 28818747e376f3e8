"""Turns: which run of a job is under way, and who is next.

A run whose policy is not `allow_all` starts only with its job's turn and keeps it until it is terminal. A buffered run
waits for it. Buffering and handing on happen under the lock of the turn's row alone, so that nobody waits behind a turn
which is not marked as waited for: whoever gives it up sees the mark, and hands it to the oldest. No other module writes
turns, but for the claim itself (`claim_runs`), which takes those that are free in the statement that locks its runs.
The order of locks is in ADR 0008: open runs first, then turns; with a turn in hand nobody waits for an open run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.outbox import append
from tidewheel.postgres.pg_arrays import texts, uuids
from tidewheel.postgres.session import Conn, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.runs import Move, RunState, sources, target
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.run_messages import build_requests, request_rows

_SQL = Statements("tidewheel.transitions")
_TAKE_TURNS = _SQL["take_turns"]
_FIND_GONE_TURNS = _SQL["find_gone_turns"]
_GIVE_UP_TURNS = _SQL["give_up_turns"]
_RELEASE_NEXT = _SQL["release_next"]
_HAND_ON_TURNS = _SQL["hand_on_turns"]
_PASS_TURNS = _SQL["pass_turns"]
_BUFFER_RUNS = _SQL["buffer_runs"]
_WAIT_FOR_TURNS = _SQL["wait_for_turns"]

NOBODY = UUID(int=0)  # holds the turn of a job that had none, until it is handed on


class Seeker(NamedTuple):
    """A run that wants its job's turn."""

    job_id: UUID
    tenant: str
    run_id: UUID


class Turn(NamedTuple):
    """A job's turn: who has it, and whether somebody may be waiting behind; take_turns returns it in this order."""

    job_id: UUID
    run_id: UUID
    waiting: bool


@dataclass(frozen=True, slots=True)
class _Given:
    """A turn that was given up and is waited for."""

    job_id: UUID
    tenant: str
    run_id: UUID


@dataclass(frozen=True, slots=True)
class _Released:
    """An open run's row after it got its turn."""

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


def take_turns(connection: Conn, installation: Installation, seekers: Sequence[Seeker]) -> dict[UUID, Turn]:
    """Take the turns that are to be had, in the caller's transaction; one seeker a job.

    A turn whose holder is no longer open is free, but goes to whoever waits for it first.

    Returns:
        Every job's turn, locked until the transaction ends.
    """
    turns = _take(connection, seekers)
    unlucky = [seeker.job_id for seeker in seekers if turns[seeker.job_id].run_id != seeker.run_id]
    freed = hand_on_gone(connection, installation, unlucky)
    if freed:
        turns |= _take(connection, [seeker for seeker in seekers if seeker.job_id in freed])
    return turns


def give_up_turns(connection: Conn, installation: Installation, held: Sequence[tuple[UUID, UUID]]) -> None:
    """Give up the turns that runs hold, each to the oldest run that waits for it, in the caller's transaction.

    Args:
        connection: Inside a transaction that waits for no timer, job or open run from here on.
        installation: For the messages of those who are next.
        held: (job_id, run_id) of runs that may hold their job's turn; those that do not are passed over.
    """
    if not held:
        return
    columns: dict[str, object] = {"job_ids": uuids(job for job, _ in held), "run_ids": uuids(run for _, run in held)}
    with connection.cursor(row_factory=class_row(_Given), binary=True) as cursor:
        waited_for = cursor.execute(_GIVE_UP_TURNS, columns).fetchall()
    if waited_for:
        _hand_on(connection, installation, waited_for)


def hand_on_gone(connection: Conn, installation: Installation, job_ids: Sequence[UUID]) -> set[UUID]:
    """Free the turns among these whose holder is no longer open; who calls has locked them.

    Returns:
        The jobs whose turn was freed, or handed on to whoever waited.
    """
    if not job_ids:
        return set()
    # A later statement than the lock, so that it sees what the lock waited for.
    rows = connection.execute(_FIND_GONE_TURNS, {"job_ids": uuids(job_ids)}, binary=True).fetchall()
    gone = [(job, run) for job, run in rows if isinstance(job, UUID) and isinstance(run, UUID)]
    give_up_turns(connection, installation, gone)
    return {job for job, _ in gone}


def pass_turns(connection: Conn, passed: Sequence[tuple[UUID, UUID]]) -> None:
    """Let runs have the turns of those they replace, as (job_id, run_id); who calls has locked them."""
    if passed:
        columns = {"job_ids": uuids(job for job, _ in passed), "run_ids": uuids(run for _, run in passed)}
        connection.execute(_PASS_TURNS, columns)


def buffer_runs(connection: Conn, seekers: Sequence[Seeker]) -> set[UUID]:
    """Let queued runs wait for turns that others have; who calls has locked both.

    Returns:
        The runs that wait now.
    """
    if not seekers:
        return set()
    columns = {
        "run_ids": uuids(seeker.run_id for seeker in seekers),
        "sources": sources(Move.BUFFER),
        "target": target(Move.BUFFER),
    }
    buffered = {row[0] for row in connection.execute(_BUFFER_RUNS, columns, binary=True) if isinstance(row[0], UUID)}
    wait_for_turns(connection, {(seeker.job_id, seeker.tenant) for seeker in seekers})
    metrics.count("runs_buffered", len(buffered))
    return buffered


def wait_for_turns(connection: Conn, jobs: Iterable[tuple[UUID, str]]) -> None:
    """Mark the turns of these (job_id, tenant) as waited for, and lock them; one that is not there is nobody's."""
    listed = sorted(jobs)
    columns = {
        "job_ids": uuids(job for job, _ in listed),
        "tenants": [tenant for _, tenant in listed],
        "nobody": NOBODY,
    }
    connection.execute(_WAIT_FOR_TURNS, columns)


def _take(connection: Conn, seekers: Sequence[Seeker]) -> dict[UUID, Turn]:
    columns = {
        "job_ids": uuids(seeker.job_id for seeker in seekers),
        "tenants": texts([seeker.tenant for seeker in seekers]),
        "run_ids": uuids(seeker.run_id for seeker in seekers),
    }
    with connection.cursor(row_factory=rows_of(Turn._make), binary=True) as cursor:
        return {turn.job_id: turn for turn in cursor.execute(_TAKE_TURNS, columns)}


def _hand_on(connection: Conn, installation: Installation, given: Sequence[_Given]) -> None:
    """Let the next of each job have the turn that was given up just now."""
    released = {run.job_id: run for run in _release(connection, [turn.job_id for turn in given])}
    columns = {
        "job_ids": uuids(turn.job_id for turn in given),
        "tenants": [turn.tenant for turn in given],
        # Where all that wait are in somebody's hands the turn stays with a run that is over, for the next look.
        "run_ids": uuids(released[turn.job_id].run_id if turn.job_id in released else turn.run_id for turn in given),
        "released": [turn.job_id in released for turn in given],
        "buffered": RunState.BUFFERED,
    }
    connection.execute(_HAND_ON_TURNS, columns)
    rows = list(released.values())
    append(connection, request_rows(rows, build_requests(connection, rows), installation), shards=installation.shards)


def _release(connection: Conn, job_ids: Sequence[UUID]) -> list[_Released]:
    columns = {"job_ids": uuids(job_ids), "buffered": RunState.BUFFERED, "target": target(Move.RELEASE)}
    with connection.cursor(row_factory=class_row(_Released), binary=True) as cursor:
        return cursor.execute(_RELEASE_NEXT, columns).fetchall()
