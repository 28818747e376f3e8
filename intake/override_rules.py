"""What may be said about the coming occurrences of a locked job: pure, on facts read under its lock.

An occurrence is still to come while its instant is ahead, or the time it was moved to: then no run of it has begun.

What becomes of moved occurrences when their job changes under them.

One whose own instant is ahead is an occurrence of the new version, or is forgotten. One whose own instant has passed is
owed: it fires where it was moved to by whatever version there is then; where nothing can, it is recorded as left out by
hand, so that no occurrence is without a record. Rows written: overrides, skips.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

from tidewheel.errors import FieldError, InvalidInput
from tidewheel.intake.locks import JobRow
from tidewheel.jobs.values import format_timestamp
from tidewheel.outbox import append
from tidewheel.postgres.pg_arrays import instants, integers, uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.schedules.calendars import is_occurrence
from tidewheel.schedules.decision import Override, SkipReason
from tidewheel.schedules.schedule import Schedule
from tidewheel.schedules.simple import FixedDelay, Manual, Once
from tidewheel.schedules.timer_state import TimerState
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation

MOST_OVERRIDES = 1_000  # of one job that are still to come: each is looked at whenever the job fires
FARTHEST_MOVE = timedelta(days=400)  # from the occurrence's own instant; as far as a trigger may be delayed

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Coming:
    """A job's occurrences that are still to come.

    Args:
        job: The job, locked.
        where: What its version in force says.
        overrides: What was said about those that are still to come, by instant.
        now: The database's clock.
    """

    job: JobRow
    where: TimerState
    overrides: Mapping[datetime, Override]
    now: datetime

    @property
    def computed(self) -> bool:
        """Whether it has instants that can be known ahead."""
        return not isinstance(self.where.schedule, FixedDelay | Manual)

    @property
    def next_run(self) -> datetime | None:
        """When the job is to run next, if nothing holds it."""
        following = self.where.live.after(self.now)
        moved = [to for to in self.where.moved.values() if to > self.now]
        return min([*moved, following] if following is not None else moved, default=None)

    def skipped(self, at: datetime) -> Override:
        """What is said when an occurrence is left out.

        Raises:
            InvalidInput: It cannot be.
        """
        self._ensure_to_come(at)
        return Override(at, None)

    def moved(self, at: datetime, to: datetime) -> Override:
        """What is said when an occurrence is moved.

        Raises:
            InvalidInput: It cannot be, or not to there.
        """
        self._ensure_to_come(at)
        if to == at:
            known = self.overrides.get(at)
            remedy = "send job.unskip to let it fire then" if known else "it fires then as it is"
            problem = f"{format_timestamp(to)} is the occurrence's own instant"
            raise _refused(problem, remedy, path="to")
        if to <= self.now:
            raise _refused(self._passed(to), "write a later instant", path="to")
        if abs(to - at) > FARTHEST_MOVE:
            problem = f"{format_timestamp(to)} is more than {FARTHEST_MOVE.days} days from the occurrence"
            raise _refused(problem, "skip it, and trigger the job then", path="to")
        return Override(at, to)

    def restored(self, at: datetime) -> Override | None:
        """What is still said when an override is taken back.

        One whose own instant has passed meanwhile is moved to now: it fires at once.

        Raises:
            InvalidInput: There is none.
        """
        known = self.overrides.get(at)
        if known is None:
            problem = f"{format_timestamp(at)} is neither skipped nor moved, or has passed"
            raise _refused(problem, self._those_there_are())
        self._ensure_not_fired(known)
        return None if at > self.now else Override(at, self.now)

    def _ensure_to_come(self, at: datetime) -> None:
        if not self.computed:
            kind = "manual" if isinstance(self.where.schedule, Manual) else "fixed_delay"
            problem = f"the schedule is {kind}: it has no occurrences that are known ahead"
            raise _refused(problem, "pause the job" if kind == "fixed_delay" else "cancel a run instead")
        known = self.overrides.get(at)
        if known is not None and known.moved_to is not None:
            self._ensure_not_fired(known)
        elif at <= self.now:
            following = self.where.effective.after(self.now)
            remedy = "none is to come" if following is None else f"the next is {format_timestamp(following)}"
            raise _refused(self._passed(at), remedy)
        if at > self.now and not is_occurrence(self.where.effective, at):
            raise _refused(self._no_occurrence(at), self._nearest(at))
        if known is None and len(self.overrides) >= MOST_OVERRIDES:
            problem = f"{len(self.overrides)} coming occurrences of this job are skipped or moved already"
            raise _refused(problem, "pause the job until then, or exclude a calendar")

    def _ensure_not_fired(self, known: Override) -> None:
        if known.moved_to is not None and known.moved_to <= self.now:
            moved = f"{format_timestamp(known.scheduled_at)} was moved to {format_timestamp(known.moved_to)}"
            problem = f"{moved}, which has passed"
            raise _refused(problem, "cancel its run, or name one that is still to come")

    def _passed(self, instant: datetime) -> str:
        return f"{format_timestamp(instant)} has passed: it is {format_timestamp(self.now)} by the database's clock"

    def _no_occurrence(self, at: datetime) -> str:
        problem = f"{format_timestamp(at)} is no occurrence"
        return f"{problem}: a calendar excludes its day" if is_occurrence(self.where.schedule, at) else problem

    def _nearest(self, at: datetime) -> str:
        earlier, later = self.where.effective.before(at), self.where.effective.after(at)
        if earlier is not None and later is not None:
            return f"the nearest are {format_timestamp(earlier)} and {format_timestamp(later)}"
        if later is not None:
            return f"the first is {format_timestamp(later)}"
        return "it has none" if earlier is None else f"the last is {format_timestamp(earlier)}"

    def _those_there_are(self) -> str:
        there = [each for each in self.overrides.values() if each.moved_to is None or each.moved_to > self.now]
        if not there:
            return "no coming occurrence of this job is"
        more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
        return f"those that are: {', '.join(map(_shown, there[:_SHOWN]))}{more}"


def _shown(override: Override) -> str:
    at = format_timestamp(override.scheduled_at)
    return f"{at} (skipped)" if override.moved_to is None else f"{at} (moved to {format_timestamp(override.moved_to)})"


def _refused(problem: str, remedy: str, *, path: str = "at") -> InvalidInput:
    return InvalidInput([FieldError(path, problem, remedy)])


_SQL = Statements("tidewheel.intake")
_READ_COMING_OVERRIDES = _SQL["read_coming_overrides"]
_FORGET_OVERRIDES = _SQL["forget_overrides"]
_DROP_MOVES = _SQL["drop_moves"]


def read_coming_overrides(
    connection: Conn, job_ids: Sequence[UUID], now: datetime
) -> dict[UUID, dict[datetime, Override]]:
    """What was said about occurrences of locked jobs that are still to come, by job and instant, in their order."""
    columns = {"job_ids": uuids(job_ids), "now": now}
    rows = connection.execute(_READ_COMING_OVERRIDES, columns, binary=True).fetchall()
    found: dict[UUID, dict[datetime, Override]] = {job: {} for job in job_ids}
    for job, at, moved_to, done in cast("list[tuple[UUID, datetime, datetime | None, bool]]", rows):
        found[job][at] = Override(at, moved_to, done)
    return found


def fit_moves(
    connection: Conn, installation: Installation, changed: Mapping[UUID, tuple[JobRow, Schedule]], now: datetime
) -> None:
    """Fit what was moved to the new versions of settled jobs.

    Args:
        connection: In the transaction that has locked and settled the jobs.
        installation: Shards and topics.
        changed: By id, each job as it was, with its new version's schedule under its calendars.
        now: The database's clock.
    """
    if not changed:
        return
    gone: list[tuple[UUID, datetime]] = []
    given_up: list[tuple[JobRow, datetime]] = []
    for job_id, overrides in read_coming_overrides(connection, list(changed), now).items():
        job, schedule = changed[job_id]
        for at in _waiting(overrides):
            if is_occurrence(schedule, at):
                continue
            if at > now:
                gone.append((job_id, at))
            elif isinstance(schedule, Once | FixedDelay | Manual):
                given_up.append((job, at))
    forget_overrides(connection, gone)
    drop_moves(connection, installation, given_up, now)


def forget_all(connection: Conn, installation: Installation, jobs: Sequence[JobRow], now: datetime) -> None:
    """Forget what was said about coming occurrences of settled jobs that are being deleted."""
    if not jobs:
        return
    found = read_coming_overrides(connection, [job.job_id for job in jobs], now)
    # What has fired ahead of its own instant stays: made again, the job must not fire it twice.
    ahead = [(job, at) for job, said in found.items() for at, each in said.items() if at > now and not each.done]
    forget_overrides(connection, ahead)
    passed = [(job, at) for job in jobs for at in _waiting(found[job.job_id]) if at <= now]
    drop_moves(connection, installation, passed, now)


def forget_overrides(connection: Conn, gone: Sequence[tuple[UUID, datetime]]) -> None:
    """Say nothing about these occurrences any more."""
    if gone:
        columns = {"job_ids": uuids(job for job, _ in gone), "instants": instants(at for _, at in gone)}
        connection.execute(_FORGET_OVERRIDES, columns)


def drop_moves(
    connection: Conn, installation: Installation, gone: Sequence[tuple[JobRow, datetime]], now: datetime
) -> None:
    """Record moved occurrences whose own instant has passed as left out by hand: they are not to fire any more."""
    if not gone:
        return
    columns: dict[str, object] = {
        "job_ids": uuids(job.job_id for job, _ in gone),
        "instants": instants(at for _, at in gone),
        "versions": integers(job.version for job, _ in gone),
        "reason": SkipReason.MANUAL,
        "now": now,
    }
    connection.execute(_DROP_MOVES, columns)
    metrics.count("occurrences", len(gone), SkipReason.MANUAL)
    events = [
        lifecycle_row(
            installation,
            kind="occurrence.skipped",
            tenant=job.tenant,
            job_id=job.job_id,
            job_key=job.key,
            job_version=job.version,
            shard=job.shard,
            now=now,
            reason=SkipReason.MANUAL,
            detail={
                "first_at": format_timestamp(at),
                "last_at": format_timestamp(at),
                "occurrences": "1",
                "exact": "true",
            },
        )
        for job, at in gone
    ]
    append(connection, events, shards=installation.shards)


def _waiting(overrides: Mapping[datetime, Override]) -> list[datetime]:
    """The moved ones that have not fired."""
    return [at for at, each in overrides.items() if each.moved_to is not None and not each.done]
