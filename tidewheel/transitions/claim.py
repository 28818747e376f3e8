"""Claim runs for an executor, set-wise, in the caller's transaction.

A claim is a compare-and-set on (run_id, attempt, job_version, state, publish_at, deadline_at). A claim that does not
match is lost, which is a return value and not an error: a repeated or stale message, or a run that was retracted.

Nearly all claims pass every gate of `claim_uniform`, one statement for a batch. `claim_runs` decides about the rest:
runs that meet another run of their job, runs that an open cancellation may name, and rows that another transaction
holds. Unless its policy is `allow_all`, a run that meets another one starts only as its job's active run (ADR 0008).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, cast
from uuid import UUID

import psycopg

from tidewheel.ids import tenant_key_id
from tidewheel.postgres.pg_binary import instants, integers, texts, uuids, words
from tidewheel.postgres.session import Conn, list_ids, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.runs import BARRED, Gate, Move, Overlap, RunState, sources, target
from tidewheel.transitions.finish import allow_waits
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.overlap_rows import LockedRun, OverlapResult, resolve_overlaps
from tidewheel.transitions.places import Arrival
from tidewheel.transitions.run_keys import settle_keys

_SQL = Statements("tidewheel.transitions")
_CLAIM_UNIFORM = _SQL["claim_uniform"]
_LOCK_KEYED = _SQL["lock_keyed"]
_SHARE_OLD_CLAIMS = _SQL["share_old_claims"]
_SET_WAITS = _SQL["set_waits"]
_CONTEST_RUNS = _SQL["contest_runs"]
_CONTEST_FREE_RUNS = _SQL["contest_free_runs"]
_LOCK_CLAIMS = _SQL["lock_claims"]
_START_ATTEMPTS = _SQL["start_attempts"]
_WAIT_FOR_CLAIMS = _SQL["wait_for_claims"]
_READ_CLAIMS = _SQL["read_claims"]

_CLAIM_SOURCES = words(sources(Move.CLAIM))
_CLAIM_TARGET = target(Move.CLAIM)


class Claim(NamedTuple):
    """A request to run one attempt.

    Args:
        attempt: The requested attempt: the row's plus one.
        claimed_from: Coordinates of the message, or `sweep`.
        keyed: True if the run is known to have a concurrency key: its claim goes straight to `claim_keyed`.
        publish_at: That of the message or the row; a run with `MOVED` needs that of its row.
    """

    run_id: UUID
    attempt: int
    job_version: int
    claimed_from: str
    keyed: bool = False
    publish_at: datetime | None = None
    tenant: str | None = None

    def needs_place(self, limited: Collection[str]) -> bool:
        """Return True if the run may need a place of its key, or of its tenant if that is limited."""
        return self.keyed or bool(limited and (self.tenant is None or self.tenant in limited))


class Started(NamedTuple):
    """A claimed attempt; the statements that claim return its columns in this order.

    Args:
        attempt: The fence of everything this attempt writes.
        failed_attempts: Earlier attempts that count against `max_attempts`.
        publish_at: Its due time.
        started_at: The time of the claim, by the database's clock.
        schedule_to_close_at: When `schedule_to_close` expires, by the same clock.
        claimed_from: The message of the claim, if its row does not hold it.
    """

    run_id: UUID
    attempt: int
    failed_attempts: int
    lost_attempts: int
    publish_at: datetime
    started_at: datetime
    schedule_to_close_at: datetime | None = None
    claimed_from: str | None = None


_KeyedRow = tuple[UUID, int | None, int, datetime, bool, str]
_UniformRow = tuple[UUID, int, int, datetime, datetime, datetime | None]


@dataclass(slots=True)
class Claimed:
    """The result of a batch of claims; a claim that is in neither part was lost."""

    started: list[Started] = field(default_factory=list[Started])
    overlaps: OverlapResult = field(default_factory=OverlapResult)
    waiting: set[UUID] = field(default_factory=set[UUID])
    promoted: int = 0

    @property
    def signalled(self) -> bool:
        """True if executors have new signals: notify them after the commit."""
        return bool(self.overlaps.cancel_requested or self.overlaps.replaced)


def split_by_places(claims: Sequence[Claim], limited: Collection[str]) -> tuple[Sequence[Claim], Sequence[Claim]]:
    """Return the claims that need no place, and those that may need one."""
    if not limited and not any(claim.keyed for claim in claims):
        return claims, ()
    free: list[Claim] = []
    keyed: list[Claim] = []
    for claim in claims:
        (keyed if claim.needs_place(limited) else free).append(claim)
    return free, keyed


def claim_uniform(connection: Conn, claims: Sequence[Claim], *, executor_id: UUID) -> list[Started]:
    """Claim the runs that pass every gate, in the caller's transaction.

    Args:
        connection: Inside a transaction of a session with the options `KEPT_PLANS`: its plans lock rows in run_id
            order. The executor owns the attempts once the caller has committed it.
        claims: The requests, at most one per run.

    Returns:
        The started attempts. The rest is lost, or `claim_runs` decides about it.

    Raises:
        psycopg.errors.LockNotAvailable: Another transaction holds a row for longer than the session's lock_timeout.
    """
    started: list[Started] = []
    for (attempt, version), chosen in _alike(claims).items():
        columns = {
            "run_ids": uuids(claim.run_id for claim in chosen),
            "attempt": attempt - 1,
            "job_version": version,
            "executor_id": executor_id,
            "sources": _CLAIM_SOURCES,
            "target": _CLAIM_TARGET,
            "free": Overlap.ALLOW_ALL,
            "barred": BARRED,
        }
        sources_of = {claim.run_id.int: claim.claimed_from for claim in chosen}
        found = connection.execute(_CLAIM_UNIFORM, columns, binary=True).fetchall()
        for run_id, failed, lost, publish_at, started_at, closes_at in cast("list[_UniformRow]", found):
            # By position, in the order of the fields: keyword arguments cost half a microsecond.
            started.append(
                Started(run_id, attempt, failed, lost, publish_at, started_at, closes_at, sources_of[run_id.int])
            )
    return started


def claim_keyed(
    connection: Conn,
    installation: Installation,
    claims: Sequence[Claim],
    *,
    executor_id: UUID,
    limited: Collection[str] = (),
) -> Claimed:
    """Claim runs that need places and pass every other gate, in the caller's transaction.

    Args:
        connection: As for `claim_uniform`; it locks keys last and waits for nothing after that.
        claims: The requests, at most one per run.

    Returns:
        The started attempts, and the runs that wait for a place. The rest is lost, or `claim_runs` decides about it.

    Raises:
        psycopg.errors.LockNotAvailable: Another transaction holds a row for longer than the session's lock_timeout.
    """
    arrivals: list[Arrival] = []
    for (attempt, version), chosen in _alike(claims).items():
        columns = {
            "run_ids": uuids(claim.run_id for claim in chosen),
            "attempt": attempt - 1,
            "job_version": version,
            "sources": _CLAIM_SOURCES,
            "free": Overlap.ALLOW_ALL,
            "barred": BARRED & ~Gate.KEY,
        }
        found = cast("list[_KeyedRow]", connection.execute(_LOCK_KEYED, columns, binary=True).fetchall())
        for run_id, key, gates, scheduled_at, may_wait, tenant in found:
            # Another run of the job would start unseen, or wait for this one, if it waited before it is the active run.
            of_tenant = tenant_key_id(tenant) if tenant in limited else None
            holds, holds_tenant = bool(gates & Gate.HOLDS_KEY), bool(gates & Gate.HOLDS_TENANT)
            own = key if gates & Gate.KEY else None  # of an ordered run the id is that of its order
            arrivals.append(Arrival(run_id, own, holds, scheduled_at, may_wait, of_tenant, holds_tenant))
    if not arrivals:
        return Claimed()
    settled = settle_keys(connection, installation, arrivals=arrivals)
    left = settled.waiting | settled.undecided
    requested = {claim.run_id: claim for claim in claims}
    winners = [arrival.run_id for arrival in arrivals if arrival.run_id not in left]
    # They meet no other run, so none becomes its job's active run.
    started = _start(connection, requested, winners, executor_id, met=Gate(0), limited=limited)
    return Claimed(started, waiting=settled.waiting, promoted=settled.promoted)


def share_old_claims(connection: Conn) -> None:
    """Wait for a cancellation of a process of 0.1; for a claim that did not get the advisory lock at once.

    Raises:
        psycopg.errors.LockNotAvailable: It takes longer than 200 ms.
    """
    connection.execute(_SET_WAITS, {"lock_timeout": "200ms"})
    connection.execute(_SHARE_OLD_CLAIMS)
    connection.execute(_SET_WAITS, {"lock_timeout": "50ms"})


def contest_runs(connection: Conn, claims: Iterable[Claim], *, waits: bool = True) -> list[Claim]:
    """Set `MET` of the runs that these may meet, but of none that another transaction holds for long.

    Without `waits`, of none that it holds at all. Best in a transaction of its own: it may lock runs that it leaves as
    they are, such as one that was just buffered.

    Returns:
        The claims whose runs match them and are not frozen. The others start nothing now, and are not contested.
    """
    requested = {claim.run_id: claim for claim in claims}
    columns = _fences(requested) | {"free": Overlap.ALLOW_ALL, "met": Gate.MET}
    connection.execute(_SET_WAITS, {"lock_timeout": "50ms"})
    try:
        with connection.transaction():
            found = list_ids(connection, _CONTEST_RUNS if waits else _CONTEST_FREE_RUNS, columns)
    except psycopg.errors.LockNotAvailable:
        found = list_ids(connection, _CONTEST_FREE_RUNS, columns)
    return [requested[run_id] for run_id in found]


def claim_runs(
    connection: Conn,
    installation: Installation,
    claims: Sequence[Claim],
    *,
    executor_id: UUID,
    contested: bool = False,
    limited: Collection[str] = (),
) -> Claimed:
    """Claim runs whatever they meet, in the caller's transaction; locked rows are left.

    Args:
        connection: Inside a transaction; the executor owns the attempts once the caller has committed it.
        claims: The requests; several for one run count as one.
        contested: True if `contest_runs` has returned these claims, and the caller has committed it.
    """
    if claims and not contested:
        claims = contest_runs(connection, claims)
    requested = {claim.run_id: claim for claim in claims}
    if not requested:
        return Claimed()
    allow_waits(connection)
    candidates = _lock(connection, requested)
    meeting = [candidate for candidate in candidates if candidate.overlap != Overlap.ALLOW_ALL]
    overlaps = resolve_overlaps(connection, installation, meeting) if meeting else OverlapResult()
    winners = [candidate.run_id for candidate in candidates if candidate.run_id not in overlaps.not_started]
    arrivals = [
        one.arrival(limited)
        for one in candidates
        if (one.gates & Gate.KEY or one.tenant in limited) and one.run_id not in overlaps.not_started
    ]
    settled = settle_keys(connection, installation, arrivals=arrivals, freed=overlaps.freed_keys)
    left = settled.waiting | settled.undecided
    overlaps.undecided |= settled.undecided
    winners = [run for run in winners if run not in left]
    started = _start(connection, requested, winners, executor_id, met=Gate.MET, limited=limited)
    return Claimed(started, overlaps, settled.waiting, settled.promoted)


def read_claims(connection: Conn, claims: Sequence[Claim], *, executor_id: UUID) -> list[Started]:
    """Return the claims that were committed, after the connection was lost during COMMIT.

    Raises:
        Unavailable: The database does not respond. Retry until it does: the executor must run what was committed.
    """
    columns = {
        "run_ids": [claim.run_id for claim in claims],
        "attempts": [claim.attempt for claim in claims],
        "executor_id": executor_id,
        "states": [RunState.RUNNING, RunState.CANCELLING],
    }
    connection.execute(_WAIT_FOR_CLAIMS, columns)
    with connection.cursor(row_factory=rows_of(Started._make), binary=True) as cursor:
        return cursor.execute(_READ_CLAIMS, columns).fetchall()


def _lock(connection: Conn, requested: Mapping[UUID, Claim]) -> list[LockedRun]:
    columns = _fences(requested)
    with connection.cursor(row_factory=rows_of(LockedRun._make), binary=True) as cursor:
        return cursor.execute(_LOCK_CLAIMS, columns).fetchall()


def _start(
    connection: Conn,
    requested: Mapping[UUID, Claim],
    winners: Sequence[UUID],
    executor_id: UUID,
    *,
    met: Gate,
    limited: Collection[str],
) -> list[Started]:
    if not winners:
        return []
    columns = {
        "run_ids": uuids(winners),
        "claimed_from": texts([requested[run_id].claimed_from for run_id in winners]),
        "executor_id": executor_id,
        "target": _CLAIM_TARGET,
        "free": Overlap.ALLOW_ALL,
        "met": met,
        "key": Gate.KEY,
        "holds": Gate.HOLDS_KEY,
        "moved": Gate.MOVED,
        "limited": list(limited),
        "holds_tenant": Gate.HOLDS_TENANT,
    }
    with connection.cursor(row_factory=rows_of(Started._make), binary=True) as cursor:
        return cursor.execute(_START_ATTEMPTS, columns).fetchall()


def _alike(claims: Sequence[Claim]) -> dict[tuple[int, int], list[Claim]]:
    alike: defaultdict[tuple[int, int], list[Claim]] = defaultdict(list)
    for claim in claims:
        alike[claim.attempt, claim.job_version].append(claim)
    return alike


def _fences(requested: Mapping[UUID, Claim]) -> dict[str, object]:
    return {
        "run_ids": uuids(requested),
        "attempts": integers(claim.attempt for claim in requested.values()),
        "versions": integers(claim.job_version for claim in requested.values()),
        "publish_at": instants(claim.publish_at for claim in requested.values()),
        "moved": Gate.MOVED,
        "sources": _CLAIM_SOURCES,
    }
