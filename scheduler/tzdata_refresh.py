"""Reschedule the timers of cron jobs whose next instants a new tzdata moves.

The settings row `tzdata` records the version by which the timers were computed, or the progress of a change to another
version; `tzdata_changes` records the changes that are complete. Each batch locks and writes it. So one scheduler works
at a time, and another one continues where it stopped.

Timers that are already due are left to firing, which uses the rules that it has. Occurrences recorded ahead of time and
retracted are recorded again, their past part at once.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.jobs.values import format_timestamp
from tidewheel.outbox import OutboxRow, append
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_binary import instants, uuids
from tidewheel.postgres.session import Conn, Session, list_ids, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.schedules.calendars import is_occurrence
from tidewheel.schedules.decide import MAX_CAUGHT_UP, decide, next_cursor, next_wakeup
from tidewheel.schedules.decision import Decision, HoldReason
from tidewheel.schedules.schedule import TICK
from tidewheel.schedules.timer_state import TimerState, timer_state
from tidewheel.schedules.zones import tzdata_version
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import JobDefinition
from tidewheel.transitions.decision_inputs import DecisionInputs, read_decision_inputs
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import LockedTimer, advance_timers, retract_runs

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")

_BATCH = 500  # timers checked in one transaction: tens of milliseconds if none moves
_AGAIN_SECONDS = 5.0  # while another scheduler works on it
_FAILED_SECONDS = 60.0

_LONGEST_AHEAD = timedelta(minutes=5)  # no retracted span reaches further behind now, so nothing in it was missed

_FIRST = UUID(int=0)


class TzdataRefresh:
    """Checks timers batch by batch, until the stored version is this process's version."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation
        self._done = False
        self._next = 0.0
        self._rescheduled_count = 0

    def step(self) -> bool:
        """Check one batch of timers if the stored version differs; return True if more are left to check now."""
        if self._done or monotonic_seconds() < self._next:
            return False
        try:
            return self._batch()
        except (Unavailable, MemoryError):
            raise
        except Exception:  # noqa: BLE001 - timers that are an hour off are better than none that fire
            _LOG.exception(
                "rescheduling the timers for tzdata %s failed; the scheduler tries again in %.0f s",
                tzdata_version(),
                _FAILED_SECONDS,
            )
            self._next = monotonic_seconds() + _FAILED_SECONDS
            return False

    def _batch(self) -> bool:
        version = tzdata_version()
        with self._session.transaction() as connection:
            found = connection.execute(_SQL["lock_tzdata"]).fetchone()
            if found is None:
                self._next = monotonic_seconds() + _AGAIN_SECONDS
                return False
            stored, now = cast("tuple[object, datetime]", found)
            if stored == version:
                self._done = True
                return False
            after = _resume_after(stored, version)
            scanned = list_ids(connection, _SQL["scan_timers"], {"after": after, "limit": _BATCH})
            rescheduled_count = _reschedule(connection, self._installation, scanned, now) if scanned else 0
            more = len(scanned) == _BATCH
            progress = {"from": _old_version(stored), "to": version, "after": str(scanned[-1])} if more else version
            connection.execute(_SQL["store_tzdata"], {"value": Jsonb(progress)})
            before = _old_version(stored)
            if before is not None and not more:
                change = {"from": before, "to": version, "at": format_timestamp(now)}
                connection.execute(_SQL["record_tzdata_change"], {"change": Jsonb(change)})
        self._report(stored, version, rescheduled_count, more=more)
        return more

    def _report(self, stored: object, version: str, rescheduled_count: int, *, more: bool) -> None:
        self._rescheduled_count += rescheduled_count
        metrics.count("timers_rescheduled", rescheduled_count)
        self._done = not more
        before = _old_version(stored)
        if self._done and (before is not None or self._rescheduled_count):
            _LOG.warning("tzdata is now %s (was %s): rescheduled %d timers", version, before, self._rescheduled_count)


def is_current(timer: LockedTimer, state: TimerState, ahead: frozenset[datetime], now: datetime) -> bool:
    """Return True if a timer and the runs ahead of now (`ahead`) agree with the current zone rules."""
    cursor = timer.scheduled_at
    if cursor <= now:
        return True
    missing = any(at not in ahead for at in state.live.between(now, cursor - TICK))
    outdated = any(not is_occurrence(state.effective, at) for at in ahead)
    return not missing and not outdated and not state.dropped and _following(state, cursor - TICK) == cursor


def rescheduled(timer: LockedTimer, state: TimerState, now: datetime) -> Decision:
    """Return the decision for a timer with nothing recorded ahead of now; a pause stays."""
    due_at, paused, until = next_wakeup(state, now), timer.hold_reason == HoldReason.PAUSE, state.overridden_until
    if due_at is None:
        return Decision()
    return Decision(
        next_at=_following(state, now),
        due_at=timer.due_at if paused else due_at,
        hold_reason=HoldReason.PAUSE if paused else None,
        overridden=bool(state.moved) or (until is not None and until > now),
    )


def _following(state: TimerState, after: datetime) -> datetime | None:
    return next_cursor(state, after) or next_wakeup(state, after)


def _reschedule(connection: Conn, installation: Installation, scanned: Sequence[UUID], now: datetime) -> int:
    outdated = _find_outdated(connection, scanned, now)
    if outdated:
        # Lock order: timers, then jobs, as everywhere. Then check again under the locks.
        columns = {"job_ids": sorted(outdated)}
        connection.execute(_SQL["lock_rescheduled_timers"], columns)
        connection.execute(_SQL["lock_rescheduled_jobs"], columns)
        now = read_now(connection)
        outdated = _find_outdated(connection, columns["job_ids"], now)
    if not outdated:
        return 0
    retracted = retract_runs(connection, sorted(outdated), now=now)
    overdue = {job: at for job, at in retracted.items() if at <= now}
    _record_retracted(connection, installation, [timer for timer, _ in outdated.values()], overdue, now)
    timers = [_rewound(timer, now) for timer, _ in outdated.values()]
    inputs = read_decision_inputs(connection, timers)
    states = {timer.job_id: _state_of(timer, inputs) for timer in timers}
    _delete_moves(connection, states)
    decisions = advance_timers(
        connection, installation, timers, lambda timer: rescheduled(timer, states[timer.job_id], now), now=now
    )
    changed = zip(outdated.values(), decisions, strict=True)
    events = [_event(installation, timer, first, decision, now) for (timer, first), decision in changed]
    append(connection, events, shards=installation.shards)
    return len(events)


def _record_retracted(
    connection: Conn,
    installation: Installation,
    timers: Sequence[LockedTimer],
    overdue: Mapping[UUID, datetime],
    now: datetime,
) -> None:
    """Record the retracted occurrences up to now again; one that has a run keeps it."""
    again = [_rewound(timer, overdue[timer.job_id] - TICK) for timer in timers if timer.job_id in overdue]
    if not again:
        return
    inputs = read_decision_inputs(connection, again)
    advance_timers(
        connection,
        installation,
        again,
        lambda timer: decide(
            _state_of(timer, inputs), now=now, horizon=now, misfire_after=_LONGEST_AHEAD, limit=MAX_CAUGHT_UP
        ),
        now=now,
        repeats=True,
    )


def _delete_moves(connection: Conn, states: Mapping[UUID, TimerState]) -> None:
    """Delete moves of future occurrences that the current rules do not have, as an edit does."""
    gone = [(job, at) for job, state in states.items() for at in state.dropped]
    if gone:
        columns = {"job_ids": uuids(job for job, _ in gone), "instants": instants(at for _, at in gone)}
        connection.execute(_SQL["delete_moves"], columns)


def _find_outdated(
    connection: Conn, job_ids: Sequence[UUID], now: datetime
) -> dict[UUID, tuple[LockedTimer, datetime]]:
    columns = {"job_ids": list(job_ids), "now": now}
    timers = read_rows(connection, class_row(LockedTimer), _SQL["read_cron_timers"], columns)
    if not timers:
        return {}
    ahead: defaultdict[UUID, set[datetime]] = defaultdict(set)
    for job_id, at in connection.execute(_SQL["read_written_ahead"], columns, binary=True):
        ahead[cast("UUID", job_id)].add(cast("datetime", at))
    inputs = read_decision_inputs(connection, [_rewound(timer, now) for timer in timers])
    outdated: dict[UUID, tuple[LockedTimer, datetime]] = {}
    for timer in timers:
        written = frozenset(ahead[timer.job_id])
        try:
            state = _state_of(_rewound(timer, now), inputs)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - the error is this job's, and firing quarantines it
            text = "the next time of job %s cannot be computed: %s; the scheduler quarantines the job when it is due"
            _LOG.warning(text, timer.job_id, error, extra={"job_id": str(timer.job_id)})
            continue
        if not is_current(timer, state, written, now):
            outdated[timer.job_id] = timer, min({timer.scheduled_at, *written})
    return outdated


def _rewound(timer: LockedTimer, now: datetime) -> LockedTimer:
    """Return a timer as if nothing were recorded ahead of now, with the overrides of that time."""
    return timer._replace(scheduled_at=now + TICK, overridden=True)


def _state_of(timer: LockedTimer, inputs: DecisionInputs) -> TimerState:
    return timer_state(timer, inputs.day_sets, inputs.of(timer))


def _event(
    installation: Installation, timer: LockedTimer, first: datetime, decision: Decision, now: datetime
) -> OutboxRow:
    return lifecycle_row(
        installation,
        kind="job.rescheduled",
        tenant=timer.tenant,
        job_id=timer.job_id,
        job_key=decode(timer.definition, JobDefinition).job_key,
        job_version=timer.version,
        shard=timer.shard,
        now=now,
        reason=f"tzdata is {tzdata_version()}",
        detail={
            "from": format_timestamp(first),
            "to": "never" if decision.next_at is None else format_timestamp(decision.next_at),
        },
    )


def _resume_after(stored: object, version: str) -> UUID:
    """Return the last job checked by a change to this version, else the first id."""
    if isinstance(stored, dict):
        progress = cast("Mapping[str, str]", stored)
        if progress["to"] == version:
            return UUID(progress["after"])
    return _FIRST


def _old_version(stored: object) -> str | None:
    return cast("Mapping[str, str | None]", stored)["from"] if isinstance(stored, dict) else cast("str | None", stored)
