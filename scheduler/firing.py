"""The firing transaction: due timers become runs, set-wise.

Exactly one run per occurrence: the timer rows are locked, and the runs, their outbox rows and the moved timers are
committed together. A batch that fails on its data is repeated job by job, so that one poisoned job is set aside and
all others fire.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from tidewheel.errors import Unavailable
from tidewheel.outbox import append
from tidewheel.postgres.low_water import BEGINNING
from tidewheel.postgres.session import Conn, Session, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.process.metrics import metrics
from tidewheel.scheduler.decide_batch import Decider
from tidewheel.schedules.decision import Decision, HoldReason
from tidewheel.transitions.decision_inputs import read_decision_inputs
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import LockedTimer, advance_timers, find_open_fixed_delay_runs

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_LOCK_DUE_TIMERS = _SQL["lock_due_timers"]
_LOCK_TIMER = _SQL["lock_timer"]
_PARK_TIMER = _SQL["park_timer"]
_SET_JOB_ASIDE = _SQL["set_job_aside"]
_READ_KEY = _SQL["read_key"]
_RESUME_JOBS = _SQL["resume_jobs"]


@dataclass(frozen=True, slots=True)
class Round:
    """One look at the timers.

    Args:
        shards: The shards that have something due.
        now: The database's clock.
        horizon: Instants up to here are made runs.
        since: Timers that are due at this instant or before are left to another round: what is on time goes first.
        until: Timers that are due later are too; None: up to the horizon.
        marks: Up to where each shard is done with already; from the very start where it says nothing.
        misfire_after: How late an occurrence may be before it is missed.
        batch: Timers at once, at most.
    """

    shards: Sequence[int]
    now: datetime
    horizon: datetime
    misfire_after: timedelta
    batch: int
    since: datetime = BEGINNING
    until: datetime | None = None
    marks: Mapping[int, datetime] = field(default_factory=dict[int, datetime])


def fire(session: Session, installation: Installation, look: Round) -> int:
    """Fire one batch of due timers.

    Returns:
        How many timers were moved.

    Raises:
        Unavailable: The database was lost; what was under way happened wholly or not at all, and is due again if not.
    """
    locked: list[LockedTimer] = []
    try:
        with session.transaction() as connection:
            locked = _lock_due(connection, look)
            failpoint("firing.locked")
            decisions = _advance(connection, installation, locked, look)
            failpoint("firing.before_commit")
    except Unavailable:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it concerns one job, and all the others must fire
        _LOG.warning(
            "a firing batch of %d timers failed (%s); firing job by job", len(locked), error.__cause__ or error
        )
        return sum(_fire_alone(session, installation, timer, look) for timer in locked)
    failpoint("firing.after_commit")
    leads = Counter(fire.publish_at for decision in decisions for fire in decision.fires)
    metrics.observe("fire_lead_seconds", (((look.now - at).total_seconds(), times) for at, times in leads.items()))
    return len(locked)


def _lock_due(connection: Conn, look: Round) -> list[LockedTimer]:
    columns = {
        "shards": list(look.shards),
        "since": [max(look.since, look.marks.get(shard, BEGINNING)) for shard in look.shards],
        "until": look.until or look.horizon,
        "now": look.now,
        # Shared out, so that one shard's backlog is not in front of another's due timers.
        "per_shard": -(-look.batch // max(len(look.shards), 1)),
    }
    with connection.cursor(row_factory=rows_of(LockedTimer._make), binary=True) as cursor:
        locked = cursor.execute(_LOCK_DUE_TIMERS, columns).fetchall()
    # As they lie in the indexes that are written now.
    locked.sort(key=lambda timer: timer.job_id.int)
    return locked


def _advance(
    connection: Conn, installation: Installation, locked: list[LockedTimer], look: Round, *, repeats: bool = False
) -> list[Decision]:
    resuming = [timer for timer in locked if timer.hold_reason == HoldReason.PAUSE]
    decider = Decider(
        read_decision_inputs(connection, locked),
        find_open_fixed_delay_runs(connection, resuming),
        now=look.now,
        horizon=look.horizon,
        misfire_after=look.misfire_after,
    )
    decisions = advance_timers(connection, installation, locked, decider, now=look.now, repeats=repeats)
    _tell_resumed(connection, installation, [timer.job_id for timer in resuming], look.now)
    return decisions


def _tell_resumed(connection: Conn, installation: Installation, job_ids: Sequence[UUID], now: datetime) -> None:
    """The pauses that have come to their end by themselves."""
    if not job_ids:
        return
    rows = connection.execute(_RESUME_JOBS, {"job_ids": sorted(job_ids), "now": now}, binary=True).fetchall()
    events = [
        lifecycle_row(
            installation,
            kind="job.resumed",
            tenant=str(tenant),
            job_id=cast("UUID", job_id),
            job_key=str(key),
            job_version=cast("int", version),
            shard=cast("int", shard),
            now=now,
            reason="paused_until has passed",
        )
        for job_id, tenant, key, shard, version in rows
    ]
    append(connection, events, shards=installation.shards)


def _fire_alone(session: Session, installation: Installation, timer: LockedTimer, look: Round) -> int:
    try:
        with session.transaction() as connection:
            with connection.cursor(row_factory=class_row(LockedTimer), binary=True) as cursor:
                columns = {"job_id": timer.job_id, "horizon": look.horizon, "now": look.now}
                locked = cursor.execute(_LOCK_TIMER, columns).fetchall()
            _advance(connection, installation, locked, look, repeats=True)
        return len(locked)
    except Unavailable:
        raise
    except Exception as error:  # noqa: BLE001 - it is this job's, and is kept with it
        _set_aside(session, installation, timer, error.__cause__ or error, look.now)
        return 1


def _set_aside(
    session: Session, installation: Installation, timer: LockedTimer, error: BaseException, now: datetime
) -> None:
    job_id = timer.job_id
    # PostgreSQL's own words in one line, without the row that it would quote beside them.
    said = error.diag.message_primary if isinstance(error, psycopg.Error) else str(error)
    text = f"{type(error).__name__}: {said}"
    _LOG.error("job %s is set aside: %s", job_id, text, extra={"job_id": str(job_id)})
    with session.transaction() as connection:
        place = {"job_id": job_id, "version": timer.version, "scheduled_at": timer.scheduled_at}
        parked = connection.execute(_PARK_TIMER, place).fetchone()
        if parked is None:
            return
        tenant, shard, version = parked
        key = connection.execute(_READ_KEY, {"job_id": job_id}).fetchone()
        connection.execute(_SET_JOB_ASIDE, {"tenant": tenant, "job_id": job_id, "error": text})
        event = lifecycle_row(
            installation,
            kind="job.quarantined",
            tenant=str(tenant),
            job_id=job_id,
            job_key=str(key[0]) if key else "",
            job_version=version if isinstance(version, int) else None,
            shard=shard if isinstance(shard, int) else 0,
            now=now,
            reason=text[:1000],
        )
        append(connection, [event], shards=installation.shards)
    metrics.count("jobs_quarantined")
