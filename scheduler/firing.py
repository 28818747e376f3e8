"""The firing transaction: due timers become runs, set-wise.

Exactly one run per occurrence: the timer rows are locked, and the runs, their outbox rows and the moved timers are
committed together. A batch that fails on its data is repeated job by job, so that one poisoned job is set aside and
all others fire.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg
from psycopg.rows import class_row

from tidewheel.db import Conn, Session
from tidewheel.errors import Unavailable
from tidewheel.failpoint import failpoint
from tidewheel.metrics import metrics
from tidewheel.occurrences import Decision
from tidewheel.outbox import append
from tidewheel.scheduler.recurrence.due import decide
from tidewheel.scheduler.recurrence.memo import schedule_from_text
from tidewheel.sql import Statements
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import LockedTimer, advance_timers

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_LOCK_DUE_TIMERS = _SQL["lock_due_timers"]
_LOCK_TIMER = _SQL["lock_timer"]
_PARK_TIMER = _SQL["park_timer"]
_SET_JOB_ASIDE = _SQL["set_job_aside"]
_READ_KEY = _SQL["read_key"]


@dataclass(frozen=True, slots=True)
class Round:
    """One look at the timers.

    Args:
        shards: The shards that have something due.
        now: The database's clock.
        horizon: Instants up to here are made runs.
        misfire_after: How late an occurrence may be before it is missed.
        batch: Timers at once, at most.
    """

    shards: Sequence[int]
    now: datetime
    horizon: datetime
    misfire_after: timedelta
    batch: int


class _ComputingFailed(Exception):
    """A job's next time cannot be computed; the cause says why."""


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
            decisions = advance_timers(connection, installation, locked, _Decider(look), now=look.now)
            failpoint("firing.before_commit")
    except Unavailable:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it concerns one job, and all the others must fire
        _LOG.warning(
            "a firing batch of %d timers failed (%s); firing job by job", len(locked), error.__cause__ or error
        )
        return sum(_fire_alone(session, installation, timer, look) for timer in locked)
    failpoint("firing.after_commit")
    for decision in decisions:
        _observe(decision, look.now)
    return len(locked)


def _lock_due(connection: Conn, look: Round) -> list[LockedTimer]:
    columns = {
        "shards": list(look.shards),
        "horizon": look.horizon,
        # Shared out, so that one shard's backlog is not in front of another's due timers.
        "per_shard": -(-look.batch // max(len(look.shards), 1)),
    }
    with connection.cursor(row_factory=class_row(LockedTimer), binary=True) as cursor:
        return cursor.execute(_LOCK_DUE_TIMERS, columns).fetchall()


class _Decider:
    """Decides each distinct (schedule, instant) once: jobs that share both share the answer."""

    def __init__(self, look: Round) -> None:
        self._look = look
        self._decided: dict[tuple[str, datetime], Decision] = {}

    def __call__(self, timer: LockedTimer) -> Decision:
        """What is to become of a timer.

        Raises:
            _ComputingFailed: It cannot be computed.
        """
        question = (timer.schedule, timer.scheduled_at)
        known = self._decided.get(question)
        if known is not None:
            return known
        try:
            schedule = schedule_from_text(timer.schedule, timer.job_id)
            decision = decide(
                schedule,
                timer.scheduled_at,
                now=self._look.now,
                horizon=self._look.horizon,
                misfire_after=self._look.misfire_after,
            )
        except Exception as error:
            # Whatever it is, it concerns one job, and all the others must fire.
            raise _ComputingFailed from error
        if not schedule.hashed:
            self._decided[question] = decision
        return decision


def _fire_alone(session: Session, installation: Installation, timer: LockedTimer, look: Round) -> int:
    try:
        with session.transaction() as connection:
            with connection.cursor(row_factory=class_row(LockedTimer), binary=True) as cursor:
                locked = cursor.execute(_LOCK_TIMER, {"job_id": timer.job_id, "horizon": look.horizon}).fetchall()
            advance_timers(connection, installation, locked, _Decider(look), now=look.now, repeats=True)
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
            kind="job.set_aside",
            tenant=str(tenant),
            job_id=job_id,
            job_key=str(key[0]) if key else "",
            job_version=version if isinstance(version, int) else None,
            shard=shard if isinstance(shard, int) else 0,
            now=now,
            reason=text[:1000],
        )
        append(connection, [event], shards=installation.shards)
    metrics.count("jobs_set_aside")


def _observe(decision: Decision, now: datetime) -> None:
    for at in decision.fires:
        metrics.observe("fire_lead_seconds", (now - at).total_seconds())
