"""Sets timers anew after a change of tzdata: those of cron jobs whose next instants the new rules move.

The settings row `tzdata` tells with which version the timers were computed, or how far the change to another has come;
it is locked and written with each batch, so that one scheduler works at a time, and another goes on where it stopped.
What has come due already is left to firing, which decides by the rules it has. What was recorded ahead of its time and
is taken back is recorded again: its past part at once.
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
from tidewheel.postgres.pg_arrays import instants, uuids
from tidewheel.postgres.session import Conn, Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.schedules.calendars import is_occurrence
from tidewheel.schedules.decide import MAX_CAUGHT_UP, decide, next_cursor, next_wakeup
from tidewheel.schedules.decision import Decision, HoldReason
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
_LOCK_TZDATA = _SQL["lock_tzdata"]
_STORE_TZDATA = _SQL["store_tzdata"]
_SCAN_TIMERS = _SQL["scan_timers"]
_READ_CRON_TIMERS = _SQL["read_cron_timers"]
_READ_WRITTEN_AHEAD = _SQL["read_written_ahead"]
_LOCK_RETIMED_TIMERS = _SQL["lock_retimed_timers"]
_LOCK_RETIMED_JOBS = _SQL["lock_retimed_jobs"]
_READ_LOCKED_AT = _SQL["read_locked_at"]
_FORGET_MOVES = _SQL["forget_moves"]

_BATCH = 500  # timers looked at in one transaction: some tens of milliseconds where nothing has moved
_AGAIN_SECONDS = 5.0  # while another scheduler is at it
_FAILED_SECONDS = 60.0

_LONGEST_AHEAD = timedelta(minutes=5)  # more than any span taken back reaches behind now: none of it was missed

_FIRST = UUID(int=0)
_TICK = timedelta(microseconds=1)


class ZonesChanged:
    """One scheduler's part in it: a batch at a time, until the version it has is the one that is stored."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation
        self._done = False
        self._next = 0.0
        self._retimed = 0

    def step(self) -> bool:
        """Look at some timers, where the stored version is another; returns whether more are to be looked at now.

        Raises:
            Unavailable: The database does not answer.
        """
        if self._done or monotonic_seconds() < self._next:
            return False
        try:
            return self._batch()
        except Unavailable:
            raise
        except Exception:  # noqa: BLE001 - see below
            # Timers that are an hour off are better than none that fire.
            _LOG.exception("timers could not be set anew for tzdata %s", tzdata_version())
            self._next = monotonic_seconds() + _FAILED_SECONDS
            return False

    def _batch(self) -> bool:
        version = tzdata_version()
        with self._session.transaction() as connection:
            found = connection.execute(_LOCK_TZDATA).fetchone()
            if found is None:
                self._next = monotonic_seconds() + _AGAIN_SECONDS
                return False
            stored, now = cast("tuple[object, datetime]", found)
            if stored == version:
                self._done = True
                return False
            after = _reached(stored, version)
            rows = connection.execute(_SCAN_TIMERS, {"after": after, "most": _BATCH}, binary=True).fetchall()
            walked = [cast("UUID", job) for (job,) in rows]
            retimed = _retime(connection, self._installation, walked, now) if walked else 0
            more = len(walked) == _BATCH
            progress = {"from": _from(stored), "to": version, "after": str(walked[-1])} if more else version
            connection.execute(_STORE_TZDATA, {"value": Jsonb(progress)})
        self._tell(stored, version, retimed, more=more)
        return more

    def _tell(self, stored: object, version: str, retimed: int, *, more: bool) -> None:
        self._retimed += retimed
        metrics.count("timers_rescheduled", retimed)
        self._done = not more
        before = _from(stored)
        if self._done and (before is not None or self._retimed):
            _LOG.warning("tzdata is %s and was %s: %d timers were set anew", version, before, self._retimed)


def stands_right(timer: LockedTimer, where: TimerState, ahead: frozenset[datetime], now: datetime) -> bool:
    """Whether a timer, and the runs written ahead of it, are what the rules of now say.

    Args:
        timer: Its row.
        where: Where it stands, by the rules of now.
        ahead: The instants later than now whose runs are written.
        now: The database's clock.
    """
    cursor = timer.scheduled_at
    if cursor <= now:
        return True
    missing = any(at not in ahead for at in where.live.between(now, cursor - _TICK))
    wrong = any(not is_occurrence(where.effective, at) for at in ahead)
    return not missing and not wrong and not where.dropped and _following(where, cursor - _TICK) == cursor


def set_anew(timer: LockedTimer, where: TimerState, now: datetime) -> Decision:
    """Where a timer must stand that has nothing recorded ahead of now; a pause stays."""
    look, paused, until = next_wakeup(where, now), timer.hold_reason == HoldReason.PAUSE, where.overridden_until
    if look is None:
        return Decision()
    return Decision(
        next_at=_following(where, now),
        due_at=timer.due_at if paused else look,
        hold_reason=HoldReason.PAUSE if paused else None,
        overridden=bool(where.moved) or (until is not None and until > now),
    )


def _following(where: TimerState, after: datetime) -> datetime | None:
    return next_cursor(where, after) or next_wakeup(where, after)


def _retime(connection: Conn, installation: Installation, walked: Sequence[UUID], now: datetime) -> int:
    """Set those of these timers anew that do not stand right; returns how many."""
    wrong = _find_wrong(connection, walked, now)
    if wrong:
        # Timers, then jobs, as everybody does; then all of it again, as it is under the locks.
        columns = {"job_ids": sorted(wrong)}
        connection.execute(_LOCK_RETIMED_TIMERS, columns)
        connection.execute(_LOCK_RETIMED_JOBS, columns)
        now = cast("tuple[datetime]", connection.execute(_READ_LOCKED_AT, binary=True).fetchone())[0]
        wrong = _find_wrong(connection, columns["job_ids"], now)
    if not wrong:
        return 0
    opened = retract_runs(connection, sorted(wrong), now=now)
    begun = {job: at for job, at in opened.items() if at <= now}
    _record_again(connection, installation, [timer for timer, _ in wrong.values()], begun, now)
    timers = [_opened(timer, now) for timer, _ in wrong.values()]
    circumstances = read_decision_inputs(connection, timers)
    places = {timer.job_id: _where(timer, circumstances) for timer in timers}
    _forget_moves(connection, places)
    decisions = advance_timers(
        connection, installation, timers, lambda timer: set_anew(timer, places[timer.job_id], now), now=now
    )
    told = zip(wrong.values(), decisions, strict=True)
    events = [_event(installation, timer, first, decision, now) for (timer, first), decision in told]
    append(connection, events, shards=installation.shards)
    return len(events)


def _record_again(
    connection: Conn,
    installation: Installation,
    timers: Sequence[LockedTimer],
    begun: Mapping[UUID, datetime],
    now: datetime,
) -> None:
    """Record what lies between the start of what was taken back and now; what has a run keeps it."""
    again = [_opened(timer, begun[timer.job_id] - _TICK) for timer in timers if timer.job_id in begun]
    if not again:
        return
    circumstances = read_decision_inputs(connection, again)
    advance_timers(
        connection,
        installation,
        again,
        lambda timer: decide(
            _where(timer, circumstances), now=now, horizon=now, misfire_after=_LONGEST_AHEAD, limit=MAX_CAUGHT_UP
        ),
        now=now,
        repeats=True,
    )


def _forget_moves(connection: Conn, places: Mapping[UUID, TimerState]) -> None:
    """Forget what was moved and is still ahead, where the rules of now have no such occurrence; as an edit does."""
    gone = [(job, at) for job, where in places.items() for at in where.dropped]
    if gone:
        columns = {"job_ids": uuids(job for job, _ in gone), "instants": instants(at for _, at in gone)}
        connection.execute(_FORGET_MOVES, columns)


def _find_wrong(connection: Conn, job_ids: Sequence[UUID], now: datetime) -> dict[UUID, tuple[LockedTimer, datetime]]:
    """The timers among these that do not stand right, each with the next instant that it stands for."""
    columns = {"job_ids": list(job_ids), "now": now}
    with connection.cursor(row_factory=class_row(LockedTimer), binary=True) as cursor:
        timers = cursor.execute(_READ_CRON_TIMERS, columns).fetchall()
    if not timers:
        return {}
    ahead: defaultdict[UUID, set[datetime]] = defaultdict(set)
    for job_id, at in connection.execute(_READ_WRITTEN_AHEAD, columns, binary=True):
        ahead[cast("UUID", job_id)].add(cast("datetime", at))
    circumstances = read_decision_inputs(connection, [_opened(timer, now) for timer in timers])
    wrong: dict[UUID, tuple[LockedTimer, datetime]] = {}
    for timer in timers:
        written = frozenset(ahead[timer.job_id])
        try:
            where = _where(_opened(timer, now), circumstances)
        except Exception as error:  # noqa: BLE001 - it is this job's alone, and firing sets it aside
            _LOG.warning("job %s cannot be computed: %s", timer.job_id, error, extra={"job_id": str(timer.job_id)})
            continue
        if not stands_right(timer, where, written, now):
            wrong[timer.job_id] = timer, min({timer.scheduled_at, *written})
    return wrong


def _opened(timer: LockedTimer, now: datetime) -> LockedTimer:
    """A timer as if nothing were recorded ahead of now: with all that people have said of what lies there."""
    return timer._replace(scheduled_at=now + _TICK, overridden=True)


def _where(timer: LockedTimer, circumstances: DecisionInputs) -> TimerState:
    return timer_state(timer, circumstances.day_sets, circumstances.of(timer))


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


def _reached(stored: object, version: str) -> UUID:
    """After which job to go on: where a change to this very version stopped, else from the beginning."""
    if isinstance(stored, dict):
        progress = cast("Mapping[str, str]", stored)
        if progress["to"] == version:
            return UUID(progress["after"])
    return _FIRST


def _from(stored: object) -> str | None:
    """The version that the timers were computed with before."""
    return cast("Mapping[str, str | None]", stored)["from"] if isinstance(stored, dict) else cast("str | None", stored)
