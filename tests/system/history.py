"""A random history of jobs on a clock that the test moves, and what its occurrences must have been.

The expectation knows the requests, the clock and the rules of docs/time.md. It walks real time tick by tick and shares
no code with what decides: cron expressions are read by the daemon in slow motion, intervals second by second.
"""

import random
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import LiteralString, cast

from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tests.schedules.brute_force import Reading, matcher, occurrences, pinned_zone, wall_clock
from tests.transitions.acts import EXECUTOR, about, apply_batch, submission
from tests.transitions.acts import end as finish_runs
from tidewheel.ids import job_id
from tidewheel.intake.release import release_jobs
from tidewheel.runs import RunState
from tidewheel.schemas.generated.records import Reply, ReplyStatus
from tidewheel.transitions.claim import Claim, claim_runs
from tidewheel.transitions.finished import RunEnd

START = datetime(2026, 3, 28, 12, tzinfo=UTC)  # a Saturday; Berlin's clock goes forward on Sunday
END = START + timedelta(hours=56)
EARLIER = timedelta(days=4)  # a shifted occurrence's own day may lie before the history

_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_TICK = timedelta(microseconds=1)
_EVER = datetime(1900, 1, 1, tzinfo=UTC)

SCHEDULES: tuple[dict[str, object], ...] = (
    {"interval": "1s"},
    {"interval": "7s"},
    {"interval": "90s", "anchor": "2026-03-28T00:00:13Z"},
    {"interval": "11m"},
    {"cron": "*/20 * * * * *"},
    {"cron": "* * * * *", "timezone": "Europe/Berlin"},
    {"cron": "*/7 0-12 * * *"},
    {"cron": "30 * * * *", "timezone": "Europe/Berlin"},
    {"cron": "30 2 * * *", "timezone": "Europe/Berlin"},
    {"cron": "15,45 1-3 * * *", "timezone": "Europe/Berlin", "dst_gap": "skip"},
    {"cron": "0 9,21 * * *"},
)
_TO_CLAIM: LiteralString = """
SELECT run_id, attempt, job_version FROM job_runs
 WHERE state = ANY (%(states)s) AND publish_at <= %(now)s ORDER BY run_id DESC LIMIT 6
"""
_TO_END: LiteralString = "SELECT run_id, attempt FROM job_runs WHERE state = ANY (%(states)s) ORDER BY run_id"
_POISON: LiteralString = "UPDATE job_versions SET lane = 'nonsense' WHERE job_id = %s"
_HEAL: LiteralString = "UPDATE job_versions SET lane = 'standard' WHERE job_id = %s"
_QUARANTINED: LiteralString = "SELECT scheduled_at FROM timers WHERE job_id = %s AND hold_reason = 'quarantine'"
CALENDARS: tuple[tuple[dict[str, object], frozenset[date], frozenset[int]], ...] = (
    ({"weekdays": ["SUN"]}, frozenset(), frozenset({0})),
    ({"weekdays": ["SAT", "SUN"]}, frozenset(), frozenset({0, 6})),
    ({"days": ["2026-03-28"]}, frozenset({date(2026, 3, 28)}), frozenset()),
    ({"days": ["2026-03-30"], "weekdays": ["SUN"]}, frozenset({date(2026, 3, 30)}), frozenset({0})),
)


@dataclass(frozen=True)
class Version:
    """A version as it was accepted, with what it was accepted after."""

    spec: dict[str, object]
    since: datetime
    anchor: datetime
    first: datetime


@dataclass
class Pause:
    """A stretch of a pause that is decided in one go, by the calendars there are then.

    Args:
        since: It holds instants later than this.
        ends_at: When it ends by itself.
        until: The last instant it holds; None while it goes on.
        calendars: How many changes of the calendar there had been when it was decided.
        quarantine: True if firing failed by the job's own data, so that the timer keeps its position until a release.
    """

    since: datetime
    ends_at: datetime | None
    until: datetime | None = None
    calendars: int = 0
    quarantine: bool = False


@dataclass
class Job:
    """The test's model of one job."""

    key: str
    versions: list[Version] = field(default_factory=list[Version])
    ends: list[datetime] = field(default_factory=list[datetime])  # of versions that have ended, in their order
    exists: bool = False
    pauses: list[Pause] = field(default_factory=list["Pause"])
    skipped: set[datetime] = field(default_factory=set[datetime])
    moved: set[datetime] = field(default_factory=set[datetime])

    @property
    def pause(self) -> Pause | None:
        """The one that goes on."""
        return self.pauses[-1] if self.pauses and self.pauses[-1].until is None else None

    def spans(self) -> Iterator[tuple[Version, datetime, datetime]]:
        """Each version with the times between which it was in force."""
        for number, version in enumerate(self.versions):
            yield version, version.since, self.ends[number] if number < len(self.ends) else END + _DAY


@dataclass
class History:
    """A seeded history, as it goes on."""

    database: ClockedDatabase
    rng: random.Random
    jobs: list[Job]
    days: list[tuple[datetime, frozenset[date], frozenset[int]]] = field(
        default_factory=list[tuple[datetime, frozenset[date], frozenset[int]]]
    )
    counts: dict[str, int] = field(default_factory=dict[str, int])
    log: list[tuple[datetime, str]] = field(default_factory=list[tuple[datetime, str]])
    now: datetime = START

    def run(self) -> None:
        """Live through it, up to `END`, and let everything that is due then be fired."""
        self.now = self.database.stop_clock(START)
        self._calendar()
        while self.now < END:
            self._advance()
            if self.rng.random() < 0.2:
                self._quarantine(self.rng.choice(self.jobs))
            for _ in range(self.rng.choice((0, 1, 1, 2, 5))):
                self._fire()
            for _ in range(self.rng.choice((0, 1, 1, 3))):
                self._act(self.rng.choice(self.jobs))
            if self.rng.random() < 0.2:
                self._execute()
        for _ in range(200):
            self._fire()
            if not fire_due(self.database):
                return
        message = "there is always something due"
        raise AssertionError(message)

    def _advance(self) -> None:
        rng = self.rng
        step = rng.choice((1, 1, 2, 3, rng.randint(4, 90), rng.randint(60, 900), rng.randint(300, 2000)))
        if rng.random() < 0.02:
            step = rng.randint(7200, 30000)
        self.now = self.database.stop_clock(self.now + step * _SECOND)

    def _fire(self) -> None:
        lookahead = self.rng.choice((0, 5, 5, 60)) * _SECOND
        self._count("firings")
        self.log.append((self.now, f"fire {lookahead}"))
        for job in self.jobs:
            if job.pause is not None and job.pause.ends_at is not None and job.pause.ends_at <= self.now:
                self._decide_pause(job, job.pause.ends_at - _TICK)
        fire_due(self.database, lookahead=lookahead)

    def _act(self, job: Job) -> None:
        if not job.exists:
            self._submit(job)
            return
        if job.pause is not None and job.pause.quarantine:
            self._mend(job)
            return
        acts = (self._submit, self._pause, self._resume, self._resume, self._skip, self._move, self._unskip)
        if self.rng.random() < 0.04:
            self._delete(job)
        elif self.rng.random() < 0.04:
            self._calendar()
        else:
            self.rng.choice(acts)(job)

    def _submit(self, job: Job) -> None:
        spec = self._spec()
        if self._ask(submission(job.key, **spec)) is None:
            return
        if job.exists and spec == job.versions[-1].spec:
            return
        last = job.versions[-1] if job.exists else None
        every = _schedule(spec).get("interval")
        kept = last is not None and _schedule(last.spec).get("interval") == every
        anchor = last.anchor if kept and last is not None else self.now
        first = last.first if last is not None else self.now
        if job.exists:
            job.ends.append(self.now)
            pause = self._decide_pause(job, self.now)
            if pause is not None and not pause.quarantine:
                job.pauses.append(Pause(self.now, pause.ends_at))
        job.versions.append(Version(spec, self.now, anchor, first))
        job.exists = True

    def _spec(self) -> dict[str, object]:
        rng = self.rng
        spec: dict[str, object] = {
            "schedule": rng.choice(SCHEDULES),
            "catch_up": rng.choice(("fire_once", "fire_all", "skip")),
            "on_resume": rng.choice(("fire_once", "fire_all", "skip", "skip")),
            "window": rng.choice(("2m", "30m", "24h")),
            "overlap": rng.choice(("skip", "skip", "buffer_one", "buffer_all", "allow_all", "terminate_other")),
        }
        if rng.random() < 0.25:
            spec["jitter"] = rng.choice(("5s", "10%"))
        if rng.random() < 0.4:
            spec["exclude_calendars"] = ["closed"]
            if "timezone" not in _schedule(spec) and rng.random() < 0.4:
                spec["on_excluded"] = "next_business_day"
        if rng.random() < 0.2:
            spec["start_at"] = _text(self.now + rng.randint(0, 7200) * _SECOND)
        if rng.random() < 0.15:
            spec["end_at"] = _text(self.now + rng.randint(7300, 40000) * _SECOND)
        elif rng.random() < 0.1:
            spec["max_runs"] = rng.randint(1, 40)
        return spec

    def _decide_pause(self, job: Job, until: datetime) -> Pause | None:
        """Decide what a pause has held so far; return the pause, if there is one."""
        pause = job.pause
        if pause is not None:
            pause.until, pause.calendars = until, len(self.days)
        return pause

    def _pause(self, job: Job) -> None:
        ends_at = self.now + self.rng.randint(1, 4000) * _SECOND if self.rng.random() < 0.5 else None
        until = {"until": _text(ends_at)} if ends_at else {}
        if self._ask(about("job.pause", job.key, **until)) is None:
            return
        if job.pause is None:
            job.pauses.append(Pause(self.now, ends_at))
        else:
            job.pause.ends_at = ends_at

    def _resume(self, job: Job) -> None:
        self._ask(about("job.resume", job.key))
        self._decide_pause(job, self.now)

    def _delete(self, job: Job) -> None:
        self._ask(about("job.delete", job.key))
        self._decide_pause(job, self.now)
        job.exists = False
        job.ends.append(self.now)
        job.skipped = {at for at in job.skipped if at <= self.now}
        job.moved = {at for at in job.moved if at <= self.now}

    def _quarantine(self, job: Job) -> None:
        """Fire the job while its data cannot be written; then correct them: it waits to be released."""
        if not job.exists or job.pause is not None:
            return
        place = [job_id("default", job.key)]
        self.database.execute(_POISON, place)
        self._fire()
        self.database.execute(_HEAL, place)
        for (position,) in self.database.rows(_QUARANTINED, place):
            job.pauses.append(Pause(position - _TICK, None, quarantine=True))
            self._count("quarantined")
            self.log.append((self.now, f"quarantine {job.key!r}"))

    def _mend(self, job: Job) -> None:
        """Release a quarantined job in one of the ways there are, or leave it."""
        match self.rng.choice(("release", "release", "again", "edit", "delete", "wait", "wait")):
            case "release":
                with self.database.transaction() as connection:
                    [_] = release_jobs(connection, self.database.installation, [job_id("default", job.key)])
                self.log.append((self.now, f"release {job.key!r}"))
                self._decide_pause(job, self.now)
                self._count("released")
            case "again":
                if self._ask(submission(job.key, **job.versions[-1].spec)) is not None:
                    self._decide_pause(job, self.now)
            case "edit":
                self._submit(job)
            case "delete":
                self._delete(job)
            case _:
                pass

    def _skip(self, job: Job) -> None:
        at = self._coming(job)
        if at is not None and self._ask(about("job.skip", job.key, at=_text(at))) is not None:
            job.skipped.add(at)
            job.moved.discard(at)

    def _move(self, job: Job) -> None:
        at = self._coming(job)
        to = self.now + self.rng.randint(1, 3000) * _SECOND
        if at is not None and self._ask(about("job.move", job.key, at=_text(at), to=_text(to))) is not None:
            job.moved.add(at)
            job.skipped.discard(at)

    def _unskip(self, job: Job) -> None:
        ahead = sorted(at for at in job.skipped | job.moved if at > self.now)
        if ahead and self._ask(about("job.unskip", job.key, at=_text(ahead[0]))) is not None:
            job.skipped.discard(ahead[0])
            job.moved.discard(ahead[0])

    def _coming(self, job: Job) -> datetime | None:
        version = job.versions[-1]
        ahead = self.effective(job, version, self.now, self.now + timedelta(minutes=30))
        return self.rng.choice(sorted(ahead)[:6]) if ahead else None

    def _calendar(self) -> None:
        document, days, weekdays = self.rng.choice(CALENDARS)
        if self._ask({"type": "calendar.put", "name": "closed", **document}) is not None:
            self.days.append((self.now, days, weekdays))

    def _execute(self) -> None:
        """Let an executor take some runs, and end some of those under way."""
        rows = self.database.rows(_TO_CLAIM, {"states": [RunState.QUEUED], "now": self.now})
        wanted = [Claim(run, attempt + 1, version, "sweep") for run, attempt, version in rows]
        with self.database.transaction() as connection:
            claim_runs(connection, self.database.installation, wanted, executor_id=EXECUTOR)
        for run, attempt in self.database.rows(_TO_END, {"states": [RunState.RUNNING, RunState.CANCELLING]}):
            if self.rng.random() < 0.4:
                state = self.rng.choice((RunState.SUCCEEDED, RunState.FAILED))
                finish_runs(self.database, RunEnd(run, attempt, state, EXECUTOR))

    def _ask(self, document: dict[str, object]) -> Reply | None:
        """Ask; None when it is refused."""
        [reply] = apply_batch(self.database, document)
        taken = reply.status is ReplyStatus.ACCEPTED
        self._count(f"{document['type']}{'' if taken else ' refused'}")
        self.log.append((self.now, f"{document} {reply.status}"))
        return reply if taken else None

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def closed(self, job: Job, at: datetime, known: datetime, zone: str) -> bool:
        """Return True if an instant's day was closed by the calendars at another's decision."""
        _, days, weekdays = self.days[max(self._known(job, known) - 1, 0)]
        day = at.astimezone(pinned_zone(zone)).date()
        return day in days or day.isoweekday() % 7 in weekdays

    def effective(self, job: Job, version: Version, after: datetime, until: datetime) -> set[datetime]:
        """Return the scheduled instants in ``(after, until]`` under the calendars of each moment."""
        zone = _zone(version.spec)
        named = "exclude_calendars" in version.spec
        kept = {at for at in nominal(version, after, until) if not named or not self.closed(job, at, at, zone)}
        if version.spec.get("on_excluded") != "next_business_day":
            return kept
        return kept | {to for to in self._shifted(job, version, after, until) if after < to <= until}

    def excluded(self, job: Job, version: Version, after: datetime, until: datetime) -> set[datetime]:
        """Return the instants that calendars exclude in ``(after, until]``."""
        if "exclude_calendars" not in version.spec:
            return set()
        return {at for at in nominal(version, after, until) if self.closed(job, at, at, _zone(version.spec))}

    def _shifted(self, job: Job, version: Version, after: datetime, until: datetime) -> Iterator[datetime]:
        """Return the shifted occurrences of closed days: the same time on the next open day."""
        begun = _begun(job, version)
        for at in nominal(version, after - EARLIER, until):
            for ahead in range(1, 5):
                to = at + ahead * _DAY
                if at <= max(begun, _past_changed(tuple(self.days[: self._known(job, to)]))):
                    continue
                closed = [self.closed(job, at + days * _DAY, to, "UTC") for days in range(ahead + 1)]
                if all(closed[:-1]) and not closed[-1]:
                    yield to
                    break

    def _known(self, job: Job, known: datetime) -> int:
        """Return the number of calendar changes before an instant was decided."""
        place = bisect_left([at for at, _, _ in self.days], known)
        for pause in job.pauses:
            if pause.since < known and (pause.until is None or known <= pause.until):
                place = pause.calendars if pause.until is not None else len(self.days)
        return place


@lru_cache(maxsize=1024)
def _past_changed(calendars: tuple[tuple[datetime, frozenset[date], frozenset[int]], ...]) -> datetime:
    """The last of these changes of the calendar that concerned days which had come."""
    for (_, *before), (at, *after) in reversed(list(pairwise(calendars))):
        days = [at.date() + number * _DAY for number in range(-366, 2)]
        were, are = ([day in some or day.isoweekday() % 7 in week for day in days] for some, week in (before, after))
        if were != are:
            return at
    return _EVER


def _begun(job: Job, version: Version) -> datetime:
    """Return the start of the first of successive versions with the same day rules."""
    number = job.versions.index(version)
    while number and _of_days(job.versions[number - 1]) == _of_days(version):
        number -= 1
    return job.versions[number].since if number else _EVER


def _of_days(version: Version) -> tuple[object, ...]:
    names = ("schedule", "start_at", "end_at", "max_runs", "exclude_calendars", "on_excluded")
    return version.anchor, version.first, *(version.spec.get(name) for name in names)


def nominal(version: Version, after: datetime, until: datetime) -> list[datetime]:
    """The instants of a version's schedule in ``(after, until]``, within its bounds."""
    spec = version.spec
    found = _unbounded(version)
    start, end = spec.get("start_at"), spec.get("end_at")
    if start is not None:
        found = [at for at in found if at >= datetime.fromisoformat(str(start))]
    if end is not None:
        found = [at for at in found if at <= datetime.fromisoformat(str(end))]
    most = spec.get("max_runs")
    if isinstance(most, int):
        counted = [at for at in found if at > version.first][:most]
        found = [at for at in found if len(counted) < most or at <= counted[-1]]
    return [at for at in found if after < at <= until]


def _unbounded(version: Version) -> Iterable[datetime]:
    schedule = _schedule(version.spec)
    if "cron" in schedule:
        return _cron(str(schedule["cron"]), _zone(version.spec), str(schedule.get("dst_gap", "shift_forward")))
    text = str(schedule["interval"])
    every = int(text[:-1]) * (60 if text.endswith("m") else 1)
    given = schedule.get("anchor")
    return _interval(every, datetime.fromisoformat(str(given)) if given else version.anchor, given is not None)


@lru_cache(maxsize=512)
def _interval(every: int, anchor: datetime, fires: bool) -> list[datetime]:  # noqa: FBT001 - a memo's key
    seconds = int((END + _DAY - anchor) / _SECOND)
    return [anchor + n * _SECOND for n in range(seconds + 1) if n % every == 0 and (n or fires)]


@lru_cache(maxsize=64)
def _cron(expression: str, zone: str, gap: str) -> list[datetime]:
    fields = expression.split()
    if len(fields) == 5:
        return occurrences(_readings(zone), expression, gap, "first")
    assert zone == "UTC", "second by second, where no clock jumps"
    seconds = (START - _DAY + n * _SECOND for n in range(int((END - START) / _SECOND) + 2 * 86_400))
    matches = matcher(fields)
    return [at for at in seconds if matches(at)]


@lru_cache(maxsize=8)
def _readings(zone: str) -> list[Reading]:
    return wall_clock(zone, START - EARLIER, END + _DAY, timedelta(minutes=1))


def _schedule(spec: dict[str, object]) -> dict[str, object]:
    return cast("dict[str, object]", spec["schedule"])


def _zone(spec: dict[str, object]) -> str:
    return str(_schedule(spec).get("timezone", "UTC"))


def _text(at: datetime) -> str:
    return at.isoformat()
