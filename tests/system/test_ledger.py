"""Every occurrence has exactly one recorded outcome: fired, or skipped with a reason."""

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from tests.fixtures.acts import about
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tests.system.history import History
from tests.system.history_model import START, Job
from tidewheel.control.occurrence_audit.result import run_audit
from tidewheel.ids import job_id
from tidewheel.runs import RunState, SkipReason

JOBS = 10


@dataclass(frozen=True)
class SkipRow:
    reason: str
    first_at: datetime
    last_at: datetime
    occurrences: int
    exact: bool

    def __str__(self) -> str:
        return f"{self.reason} of {self.occurrences} from {self.first_at} to {self.last_at}"


@dataclass
class Expected:
    """Return the expected occurrences of a job up to its timer's position."""

    live: set[datetime]
    moved: set[datetime]
    excluded: set[datetime]
    by_hand: set[datetime]

    @property
    def all(self) -> set[datetime]:
        return self.live | self.moved | self.excluded | self.by_hand

    def of(self, skip: SkipRow) -> list[datetime]:
        """The occurrences that a row of the ledger accounts for."""
        if skip.first_at == skip.last_at and skip.first_at in self.moved:
            return [skip.first_at]
        kind = {SkipReason.EXCLUDED: self.excluded, SkipReason.MANUAL: self.by_hand}.get(
            SkipReason(skip.reason), self.live
        )
        return sorted(at for at in kind if skip.first_at <= at <= skip.last_at)


def expected(history: History, job: Job, cursor: datetime | None) -> Expected:
    found = Expected(set(), set(), set(), set())
    for version, since, until in job.spans():
        effective = history.model.effective(job, version, since, until)
        found.live |= effective - job.skipped - job.moved
        found.moved |= effective & job.moved
        found.by_hand |= effective & job.skipped
        found.excluded |= history.model.excluded(job, version, since, until)
    for kind in (found.live, found.moved, found.excluded, found.by_hand):
        kind -= {at for at in kind if cursor is not None and at >= cursor}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_occurrence_of_a_random_history_is_fired_or_skipped_once(clocked: ClockedDatabase, seed: int) -> None:
    # Seeded, so that a history that finds something is found again.
    history = History(clocked, random.Random(seed), [Job(f"job-{number}") for number in range(JOBS)])  # noqa: S311
    history.run()
    tally: Counter[str] = Counter()
    for job in history.jobs:
        tally += audited(clocked, history, job)
    print(f"seed {seed}: {dict(sorted(history.counts.items()))}; {dict(sorted(tally.items()))}")  # noqa: T201
    assert tally["occurrences"] == tally["fired"] + sum(tally[reason] for reason in SkipReason)
    assert tally["rows"] < tally["occurrences"] / 4, "long spans are ranges"
    assert history.counts["quarantined"] > history.counts["released"] > 0
    result = run_audit(clocked.url, START)
    assert not result.findings, result.findings[:6]
    # What is recorded ahead of now, or moved beyond it, is outside the range.
    assert abs(result.totals.computed - tally["occurrences"]) <= 60 * JOBS


def audited(database: ClockedDatabase, history: History, job: Job) -> Counter[str]:
    """Return the state of each occurrence of a job; fail if one has two."""
    runs, skips, cursor, held = recorded(database, job)
    wanted = expected(history, job, cursor)
    faults = [f"{at}: a run of it, which is none" for at in set(runs) - wanted.live - job.moved]
    if job.exists and held is None and cursor is not None:
        coming = expected(history, job, None).live
        faults += [f"{at} is due, and the timer stands at it" for at in coming if cursor <= at <= history.now]
    covered = Counter(runs.keys())
    for skip in skips:
        accounted = wanted.of(skip)
        covered.update(accounted)
        if not accounted or (accounted[0], accounted[-1]) != (skip.first_at, skip.last_at):
            faults.append(f"{skip} names no occurrence of its kind")
        elif skip.occurrences != len(accounted) if skip.exact else skip.occurrences > len(accounted):
            faults.append(f"{skip} accounts for {len(accounted)}")
    faults += [f"{at}: nothing is recorded" for at in sorted(wanted.all - covered.keys())]
    faults += [f"{at}: recorded {times} times" for at, times in sorted(covered.items()) if times > 1]
    assert not faults, "\n".join([job.key, *faults[:6], *described(history, job)])
    states = Counter(runs.values())
    counts = Counter({"occurrences": len(wanted.all), "rows": len(skips)})
    counts["fired"] = len(runs) - states[RunState.SKIPPED]
    counts[str(SkipReason.OVERLAP)] = states[RunState.SKIPPED]
    for skip in skips:
        counts[skip.reason] += len(wanted.of(skip))
    return counts


def described(history: History, job: Job) -> list[str]:
    versions = [f"{since} to {until}: {version.spec}" for version, since, until in job.spans()]
    concerned = ("fire", repr(job.key), "calendar.put")
    return [*versions, *(f"{at}: {text}" for at, text in history.log if any(each in text for each in concerned))]


def recorded(
    database: ClockedDatabase, job: Job
) -> tuple[Mapping[datetime, str], Sequence[SkipRow], datetime | None, str | None]:
    """A job's scheduled runs by instant, its rows of the ledger, and its timer's position."""
    place: Sequence[UUID] = [job_id("default", job.key)]
    runs = database.rows("SELECT scheduled_at, state FROM runs WHERE job_id = %s AND cause = 'timer'", place)
    skips = database.rows(
        "SELECT reason, first_at, last_at, occurrences, is_exact FROM skips WHERE job_id = %s ORDER BY first_at", place
    )
    timers = database.rows("SELECT scheduled_at, hold_reason FROM timers WHERE job_id = %s", place)
    cursor, held = timers[0] if timers else (None, None)
    by_instant: defaultdict[datetime, list[str]] = defaultdict(list)
    for at, state in runs:
        by_instant[at].append(state)
    assert all(len(states) == 1 for states in by_instant.values())
    return {at: states[0] for at, states in by_instant.items()}, [SkipRow(*row) for row in skips], cursor, held


def instant(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-03-{text}+00:00")


def test_change_during_a_catch_up_leaves_no_gap_in_the_ledger(clocked: ClockedDatabase) -> None:
    """A second backlog behind an unfinished catch-up is more than the change settles in one go."""
    clocked.stop_clock(instant("29T00:00"))
    clocked.submit(schedule={"interval": "1s"}, catch_up="fire_all", window="1h")
    clocked.stop_clock(instant("29T00:30"))
    fire_due(clocked)
    clocked.stop_clock(instant("29T01:00"))
    clocked.submit(schedule="manual")
    assert clocked.value("SELECT count(*) FROM runs") + clocked.value("SELECT sum(occurrences) FROM skips") == 3600


@pytest.mark.parametrize("seen", [True, False])
def test_excluded_days_after_the_last_occurrence_are_recorded(clocked: ClockedDatabase, seen: bool) -> None:  # noqa: FBT001
    """No occurrence is left that fires, and yet some are to come that a calendar leaves out."""
    clocked.stop_clock(instant("28T23:50"))
    clocked.apply_batch({"type": "calendar.put", "name": "closed", "weekdays": ["SUN"]})
    clocked.submit(schedule={"cron": "* * * * *"}, exclude_calendars=["closed"], end_at="2026-03-29T00:20:00Z")
    for minute in range(51, 60):
        clocked.stop_clock(instant(f"28T23:{minute}"))
        fire_due(clocked)
    if seen:
        clocked.stop_clock(instant("29T01:00"))
        fire_due(clocked)
    clocked.stop_clock(instant("29T02:00"))
    clocked.apply_batch(about("job.delete"))
    assert clocked.value("SELECT sum(occurrences) FROM skips WHERE reason = 'excluded'") == 21


def test_exclusions_recorded_ahead_are_retracted_with_the_runs(clocked: ClockedDatabase) -> None:
    """A span written within the lookahead may have begun when an edit comes."""
    clocked.stop_clock(instant("29T23:59:50"))
    clocked.apply_batch({"type": "calendar.put", "name": "closed", "weekdays": ["SUN"]})
    clocked.submit(schedule={"interval": "1s"}, exclude_calendars=["closed"])
    clocked.stop_clock(instant("29T23:59:56"))
    fire_due(clocked, lookahead=timedelta(seconds=6))
    clocked.stop_clock(instant("29T23:59:58"))
    clocked.submit(schedule={"interval": "1s"})
    clocked.stop_clock(instant("30T00:00:05"))
    fire_due(clocked)
    excluded = clocked.rows("SELECT last_at FROM skips WHERE reason = 'excluded' ORDER BY last_at DESC")
    assert excluded[0][0] == instant("29T23:59:58")
