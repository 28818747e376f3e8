"""The decision about one timer: its policies, what fires, what is skipped, when it is due next.

`tidewheel.schedules.decide` makes decisions, `tidewheel.transitions.timers` writes them.

Jitter spreads jobs that share a nominal instant. Its delay is the same each time it is computed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple, cast
from uuid import UUID

from tidewheel.runs import SkipReason
from tidewheel.schedules.schedule import microseconds


class HoldReason(StrEnum):
    """The reason for which a timer's `due_at` is not its next instant.

    A pause ends by a request or at `paused_until`. A quarantined job waits for an edit. A fixed_delay job waits for the
    end of its run. A timer that came due under a freeze waits for its thaw.
    """

    PAUSE = "pause"
    QUARANTINED = "quarantine"
    RUN = "run"
    FREEZE = "freeze"


class BackfillState(StrEnum):
    """The state of a backfill; a test compares it with the CHECK constraint of `backfills`."""

    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Skip:
    """A span of occurrences that did not fire; not exact if counting stopped before its end."""

    reason: SkipReason
    first_at: datetime
    last_at: datetime
    occurrences: int
    exact: bool = True


class Fire(NamedTuple):
    """An occurrence that becomes a run.

    Args:
        at: Its nominal instant, which is the run's identity.
        publish_at: The earliest instant for its message: later than `at` by jitter, or the instant it was moved to.
        late: The lateness of a missed occurrence that is caught up; None if it was not missed.
        buffered: True if several are late at once. Their runs then start one after another.
    """

    at: datetime
    publish_at: datetime
    late: timedelta | None = None
    buffered: bool = False


class Decision(NamedTuple):
    """The decision about one timer.

    Args:
        fires: The occurrences that become runs now, oldest first.
        next_at: The first instant that is not recorded yet; None when the job has nothing left to fire.
        due_at: The instant at which the timer is due next; None: `next_at`.
        catch_up_end: The end of the catch-up. Occurrences up to here fire without another decision.
        hold_reason: The reason for which `due_at` is not an instant of the schedule.
        moved: Nominal instants of moved occurrences that need no further decision.
        overridden: True if overrides remain for the next decision.
    """

    fires: tuple[Fire, ...] = ()
    skips: tuple[Skip, ...] = ()
    next_at: datetime | None = None
    due_at: datetime | None = None
    catch_up_end: datetime | None = None
    hold_reason: HoldReason | None = None
    moved: tuple[datetime, ...] = ()
    overridden: bool = False


@dataclass(frozen=True, slots=True)
class DaySet:
    """The days of a calendar.

    Args:
        weekdays: Days of every week; 0 is Sunday, as in cron.
        since: The last change of days that had come. Occurrences before it are no longer shifted.
    """

    days: frozenset[date] = frozenset()
    weekdays: frozenset[int] = frozenset()
    since: datetime | None = None

    @property
    def weight(self) -> int:
        """Its bytes in memory, about."""
        return 1000 + 85 * len(self.days)

    def __contains__(self, day: date) -> bool:
        return day in self.days or day.isoweekday() % 7 in self.weekdays


@dataclass(frozen=True, slots=True)
class Override:
    """A user's change of one occurrence.

    Args:
        moved_to: The instant at which it fires instead; None if it is skipped.
        done: True if it has fired there.
    """

    scheduled_at: datetime
    moved_to: datetime | None
    done: bool = False


class CatchUp(StrEnum):
    """The policy for missed occurrences."""

    FIRE_ONCE = "fire_once"
    FIRE_ALL = "fire_all"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of one version.

    Args:
        window: The span before now within which `fire_all` fires.
        jitter: The longest delay of a run.
        jitter_percent: The longest delay, in percent of the time to the next occurrence.
        exclude: Names of calendars on whose days nothing fires.
        include: Names of calendars on whose days only it fires; none: it fires on every day.
        shift: True if an excluded occurrence fires on the next open day.
        since: The last edit of schedule or calendars. Occurrences before it are no longer shifted.
    """

    catch_up: CatchUp = CatchUp.FIRE_ONCE
    on_resume: CatchUp = CatchUp.SKIP
    window: timedelta = timedelta(hours=24)
    jitter: timedelta = timedelta(0)
    jitter_percent: float = 0.0
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    shift: bool = False
    since: datetime | None = None

    @property
    def jitters(self) -> bool:
        """True if runs start later than their instant."""
        return bool(self.jitter or self.jitter_percent)

    @property
    def calendars(self) -> tuple[str, ...]:
        """The names of all its calendars."""
        return (*self.exclude, *self.include)


@lru_cache(maxsize=4096)  # distinct policies in use: a handful
def policies_from_text(text: str) -> Policies:
    """Parse the policies of a canonical JSON document of `tidewheel.jobs.spec.policy_document`.

    A missing policy has its default.
    """
    document = cast("Mapping[str, object]", json.loads(text))
    return Policies(
        catch_up=CatchUp(str(document.get("catch_up", CatchUp.FIRE_ONCE))),
        on_resume=CatchUp(str(document.get("on_resume", CatchUp.SKIP))),
        window=timedelta(microseconds=cast("int", document.get("window_us", 86_400_000_000))),
        jitter=timedelta(microseconds=cast("int", document.get("jitter_us", 0))),
        jitter_percent=float(cast("float", document.get("jitter_percent", 0.0))),
        exclude=_names(document.get("exclude_calendars")),
        include=_names(document.get("include_calendars")),
        shift=document.get("on_excluded") == "next_business_day",
        since=datetime.fromisoformat(str(document["since"])) if "since" in document else None,
    )


def _names(given: object) -> tuple[str, ...]:
    return tuple(str(name) for name in cast("list[object]", given)) if isinstance(given, list) else ()


def jittered(
    occurrence: datetime,
    following: datetime | None,
    job_id: UUID,
    *,
    longest: timedelta = timedelta(0),
    percent: float = 0.0,
) -> datetime:
    """Add jitter to an occurrence: the run's start, at the occurrence or later and before the next one.

    Args:
        job_id: Two jobs get different delays. One job gets the same delay for one occurrence each time.
        longest: The delay is shorter than this.
        percent: The delay is shorter than this percentage of the time to `following`, 0 to 100; ignored without one.

    >>> from datetime import UTC
    >>> noon, job = datetime(2026, 1, 1, 12, tzinfo=UTC), UUID(int=7)
    >>> later = jittered(noon, noon + timedelta(hours=1), job, longest=timedelta(minutes=5))
    >>> noon <= later < noon + timedelta(minutes=5)
    True
    """
    if following is not None:
        to_next = following - occurrence
        longest = min(to_next, max(longest, to_next * percent / 100))
    width = longest // timedelta(microseconds=1)
    if width <= 0:
        return occurrence
    digest = sha256(job_id.bytes + microseconds(occurrence).to_bytes(8, "big", signed=True)).digest()
    return occurrence + timedelta(microseconds=int.from_bytes(digest[:8], "big") % width)
