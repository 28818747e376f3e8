"""The firing transaction: due timers become runs, a batch at a time.

Exactly one run per occurrence: the transaction locks the timers, and commits runs, outbox rows and advanced timers
together. A batch that fails is fired again job by job. A job whose own data fail is quarantined, one that fails for
another cause is postponed, and all others fire. An error of the installation fails the whole batch, which is due again.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import Unavailable
from tidewheel.postgres.low_water import BEGINNING
from tidewheel.postgres.pg_binary import instants, integers
from tidewheel.postgres.session import Conn, Session, read_rows, readable_rows, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.process.fallbacks import Step, work
from tidewheel.process.metrics import metrics
from tidewheel.scheduler.job_faults import BatchDecider, Breaker, free, postpone, quarantine
from tidewheel.schedules.decision import Decision, HoldReason
from tidewheel.transitions.decision_inputs import read_decision_inputs
from tidewheel.transitions.events import ChangedJob, append_job_events
from tidewheel.transitions.frozen_timers import hold_frozen
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.messages import read_definitions
from tidewheel.transitions.timers import LockedTimer, advance_timers, find_open_fixed_delay_runs

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_LOCK_DUE_TIMERS = _SQL["lock_due_timers"]
_LOCK_TIMER = _SQL["lock_timer"]
_READ_PAUSE_ENDS = _SQL["read_pause_ends"]
_RESUME_JOBS = _SQL["resume_jobs"]

_MAX_LARGE = 64  # timers of a batch with definitions longer than 8 KiB: these hold payloads of up to 256 KiB


@dataclass(frozen=True, slots=True)
class FireBatch:
    """The limits of one firing transaction.

    Instants up to the horizon become runs. Only timers that are due after `since` and up to `until`, by default the
    horizon, are taken. A shard without a low-water mark is read from the very start.
    """

    shards: Sequence[int]
    now: datetime
    horizon: datetime
    misfire_after: timedelta
    limit: int
    since: datetime = BEGINNING
    until: datetime | None = None
    marks: Mapping[int, datetime] = field(default_factory=dict[int, datetime])


def fire(session: Session, installation: Installation, batch: FireBatch, breaker: Breaker | None = None) -> int:
    """Fire one batch of due timers; return the number of timers that were advanced.

    The breaker counts the jobs that failed before; None counts only those of this batch.

    Raises:
        Unavailable: The database was lost, or refuses (InstallationFault). The batch happened wholly, or not at all
            and is due again.
    """
    locked: list[LockedTimer] = []
    try:
        with session.transaction() as connection:
            locked = _lock_due(connection, batch)
            failpoint("firing.locked")
            firing = _hold_frozen(connection, installation, locked, batch)
            decisions = _advance(connection, installation, firing, batch)
            failpoint("firing.before_commit")
    except (Unavailable, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - any other error may concern one job, and all the others must fire
        _LOG.warning(
            "firing a batch of %d timers failed (%s); the scheduler fires job by job",
            len(locked),
            error.__cause__ or error,
        )
        alike = breaker or Breaker()
        work.count(Step.FIRE, len(locked), fallback=True)
        return sum(_fire_alone(session, installation, timer, batch, alike) for timer in locked)
    failpoint("firing.after_commit")
    work.count(Step.FIRE, len(locked))
    late: defaultdict[str, list[float]] = defaultdict(list)
    for timer, decision in zip(firing, decisions, strict=True):
        late[timer.lane] += [(batch.now - fire.publish_at).total_seconds() for fire in decision.fires]
    for lane, seconds in late.items():
        metrics.observe("lateness_seconds", seconds, "written", lane)
    return len(locked)


def _lock_due(connection: Conn, batch: FireBatch) -> list[LockedTimer]:
    columns = {
        "shards": integers(batch.shards),
        "since": instants(max(batch.since, batch.marks.get(shard, BEGINNING)) for shard in batch.shards),
        "until": batch.until or batch.horizon,
        "now": batch.now,
        # An equal share for each shard, so that one shard's backlog does not delay another's due timers.
        "per_shard": -(-batch.limit // max(len(batch.shards), 1)),
    }
    with connection.cursor(row_factory=rows_of(LockedTimer._make), binary=True) as cursor:
        locked = readable_rows(cursor.execute(_LOCK_DUE_TIMERS, columns))
    if not all(timer.definition for timer in locked):
        locked = _with_large(connection, locked)
    # In the order of the indexes that are written next.
    locked.sort(key=lambda timer: timer.job_id.int)
    return locked


def _with_large(connection: Conn, locked: Sequence[LockedTimer]) -> list[LockedTimer]:
    """Return the timers with their definitions, without the large ones beyond the bound.

    Those left out stay due; the earliest fire first.
    """
    large = sorted((timer for timer in locked if not timer.definition), key=lambda timer: timer.due_at or BEGINNING)
    read = read_definitions(connection, [(timer.job_id, timer.version) for timer in large[:_MAX_LARGE]])
    return [
        timer._replace(definition=definition)
        for timer in locked
        if (definition := timer.definition or read.get((timer.job_id, timer.version)))
    ]


def _hold_frozen(
    connection: Conn, installation: Installation, locked: list[LockedTimer], batch: FireBatch, *, repeats: bool = False
) -> list[LockedTimer]:
    """Hold the timers that come due under a freeze, and decide earlier instants; return the other timers."""
    concerned = [timer for timer in locked if timer.hold_reason == HoldReason.FREEZE]
    if not concerned:
        return locked
    frozen = hold_frozen(connection, concerned)
    # A pause that has ended is over: the freeze holds its timer from here on.
    _end_pauses(connection, installation, frozen.held, batch.now)
    for began, timers in frozen.earlier.items():
        _advance(connection, installation, timers, batch, before=began, repeats=repeats)
    return [timer for timer in locked if timer.hold_reason != HoldReason.FREEZE]


def _advance(
    connection: Conn,
    installation: Installation,
    locked: list[LockedTimer],
    batch: FireBatch,
    *,
    before: datetime | None = None,
    repeats: bool = False,
) -> list[Decision]:
    """Decide and write what is due; with `before`, only instants up to the begin of a freeze, as of then."""
    resuming = [timer for timer in locked if timer.hold_reason == HoldReason.PAUSE]
    decide = BatchDecider(
        read_decision_inputs(connection, locked),
        find_open_fixed_delay_runs(connection, resuming),
        _read_pause_ends(connection, resuming),
        now=batch.now if before is None else min(batch.now, before),
        horizon=batch.horizon if before is None else min(batch.horizon, before),
        misfire_after=batch.misfire_after,
    )
    decisions = advance_timers(connection, installation, locked, decide, now=batch.now, repeats=repeats)
    _end_pauses(connection, installation, [timer.job_id for timer in resuming], batch.now)
    return decisions


def _read_pause_ends(connection: Conn, resuming: Sequence[LockedTimer]) -> dict[UUID, datetime]:
    if not resuming:
        return {}
    columns = {"job_ids": [timer.job_id for timer in resuming]}
    return dict(
        cast("list[tuple[UUID, datetime]]", connection.execute(_READ_PAUSE_ENDS, columns, binary=True).fetchall())
    )


def _end_pauses(connection: Conn, installation: Installation, job_ids: Sequence[UUID], now: datetime) -> None:
    """End the pauses whose `paused_until` has passed, and publish `job.resumed` for each."""
    if not job_ids:
        return
    columns = {"job_ids": sorted(job_ids), "now": now}
    resumed = read_rows(connection, class_row(ChangedJob), _RESUME_JOBS, columns)
    reasons = dict.fromkeys(job_ids, "paused_until has passed")
    append_job_events(connection, installation, "job.resumed", resumed, now=now, reasons=reasons)


def _fire_alone(
    session: Session, installation: Installation, timer: LockedTimer, batch: FireBatch, breaker: Breaker
) -> int:
    try:
        with session.transaction() as connection:
            with connection.cursor(row_factory=class_row(LockedTimer), binary=True) as cursor:
                columns = {"job_id": timer.job_id, "horizon": batch.horizon, "now": batch.now}
                locked = cursor.execute(_LOCK_TIMER, columns).fetchall()
            firing = _hold_frozen(connection, installation, locked, batch, repeats=True)
            _advance(connection, installation, firing, batch, repeats=True)
        return len(locked)
    except (Unavailable, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - the breaker decides which errors are this job's
        if breaker.quarantines(error, timer.job_id):
            quarantine(session, installation, timer, error, batch.now)
            breaker.add_quarantined(error, timer)
        else:
            until = max(batch.horizon, batch.now) + breaker.pause(error)
            postpone(session, timer, until)
            if common := breaker.quarantined(error):
                free(session, installation, common, error, now=batch.now, until=until)
                breaker.forget_quarantined(error, common)
        return 1
