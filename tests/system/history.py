"""A random history of jobs on a clock that the test moves; `history_model.py` has the expectation."""

import random
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import LiteralString

from tests.fixtures.acts import EXECUTOR, about, submission
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tests.system.history_model import END, START, Job, Model, Pause, Version, schedule_of
from tidewheel.ids import job_id
from tidewheel.intake.lifecycle import release_jobs
from tidewheel.runs import RunState
from tidewheel.schemas.generated.records import Reply, ReplyStatus
from tidewheel.transitions.claim import Claim, claim_runs
from tidewheel.transitions.finished import RunEnd

_SECOND = timedelta(seconds=1)
_TICK = timedelta(microseconds=1)

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


@dataclass
class History:
    """A seeded history, as it goes on."""

    database: ClockedDatabase
    rng: random.Random
    jobs: list[Job]
    model: Model = field(default_factory=Model)
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
        every = schedule_of(spec).get("interval")
        kept = last is not None and schedule_of(last.spec).get("interval") == every
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
            if "timezone" not in schedule_of(spec) and rng.random() < 0.4:
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
            pause.until, pause.calendars = until, len(self.model.days)
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
                [_] = self.database.within(release_jobs, self.database.installation, [job_id("default", job.key)])
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
        ahead = self.model.effective(job, version, self.now, self.now + timedelta(minutes=30))
        return self.rng.choice(sorted(ahead)[:6]) if ahead else None

    def _calendar(self) -> None:
        document, days, weekdays = self.rng.choice(CALENDARS)
        if self._ask({"type": "calendar.put", "name": "closed", **document}) is not None:
            self.model.days.append((self.now, days, weekdays))

    def _execute(self) -> None:
        """Let an executor take some runs, and end some of those under way."""
        rows = self.database.rows(_TO_CLAIM, {"states": [RunState.QUEUED], "now": self.now})
        wanted = [Claim(run, attempt + 1, version, "sweep") for run, attempt, version in rows]
        self.database.within(claim_runs, self.database.installation, wanted, executor_id=EXECUTOR)
        for run, attempt in self.database.rows(_TO_END, {"states": [RunState.RUNNING, RunState.CANCELLING]}):
            if self.rng.random() < 0.4:
                state = self.rng.choice((RunState.SUCCEEDED, RunState.FAILED))
                self.database.end(RunEnd(run, attempt, state, EXECUTOR))

    def _ask(self, document: dict[str, object]) -> Reply | None:
        """Ask; None when it is refused."""
        [reply] = self.database.apply_batch(document)
        taken = reply.status is ReplyStatus.ACCEPTED
        self._count(f"{document['type']}{'' if taken else ' refused'}")
        self.log.append((self.now, f"{document} {reply.status}"))
        return reply if taken else None

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def _text(at: datetime) -> str:
    return at.isoformat()
