"""The findings of a comparison are exactly what was removed, added or doubled, whatever the schedules."""

from array import array
from datetime import UTC, datetime, timedelta
from itertools import groupby
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedules.brute_force import occurrences, wall_clock
from tidewheel.control.occurrence_audit import compare as module
from tidewheel.control.occurrence_audit.compare import compare
from tidewheel.control.occurrence_audit.records import (
    AuditedJob,
    InForce,
    JobAudit,
    RecordedDay,
    Scope,
    Skipped,
    instant_of,
    number_of,
    pack,
)
from tidewheel.runs import SkipReason
from tidewheel.schedules.parse import parse_schedule
from tidewheel.schedules.schedule import Schedule

JOB = UUID(int=7)
FIRST, BEFORE = (
    datetime(2026, 10, 24, 20, tzinfo=UTC),
    datetime(2026, 10, 26, 2, tzinfo=UTC),
)  # Berlin's clock goes back
EDIT = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
TICK = timedelta(microseconds=1)
CRONS = ("30 2 * * *", "*/7 * * * *", "15,45 1-3 * * *", "0 */2 * * *")
READINGS = wall_clock("Europe/Berlin", FIRST, BEFORE, timedelta(minutes=1))


def computed(cron: str, *, after: datetime, until: datetime) -> list[datetime]:
    """Return the occurrences by an evaluator that shares no code with the product."""
    return [at for at in occurrences(READINGS, cron, "shift_forward", "first") if after < at <= until]


def parsed(cron: str) -> Schedule:
    return parse_schedule({"kind": "cron", "expressions": [cron], "timezone": "Europe/Berlin"})


def recorded(instants: list[datetime]) -> list[RecordedDay]:
    """Return runs as the database sends them."""
    days = groupby(sorted(instants), key=lambda at: at.replace(hour=0, minute=0, second=0, microsecond=0))
    found: list[RecordedDay] = []
    for day, group in days:
        numbers = array("q", [number_of(at) for at in group])
        size = len(numbers)
        found.append(RecordedDay(JOB, day, pack(numbers).packed, size, 0, 0, 0, 0, 0, size, size, 0))
    return found


def audited(versions: list[InForce], runs: list[datetime], skips: list[Skipped]) -> JobAudit:
    job = AuditedJob(JOB, "default", "job", versions)
    scope = Scope(FIRST, BEFORE)
    return compare(job, recorded(runs), skips=skips, overrides={}, wrong_attempts=(), links=(), missing=(), scope=scope)


@pytest.mark.parametrize("at_once", [module.MAX_AT_ONCE, 0], ids=["at once", "by days"])
@settings(max_examples=40, deadline=None)
@given(
    crons=st.tuples(st.sampled_from(CRONS), st.sampled_from(CRONS)),
    removed=st.sets(st.integers(0, 500), max_size=4),
    doubled=st.sets(st.integers(0, 500), max_size=2),
    added=st.sets(st.integers(1, 1799), max_size=2),
    skipped=st.tuples(st.integers(0, 60), st.integers(0, 60)),
)
def test_findings_are_what_was_changed(
    *,
    at_once: int,
    crons: tuple[str, str],
    removed: set[int],
    doubled: set[int],
    added: set[int],
    skipped: tuple[int, int],
) -> None:
    old, new = crons
    wanted = [*computed(old, after=FIRST - TICK, until=EDIT), *computed(new, after=EDIT, until=BEFORE - TICK)]
    low, high = sorted(each % len(wanted) for each in skipped)
    span, fired = wanted[low : high + 1], wanted[:low] + wanted[high + 1 :]
    gone = {fired[each % len(fired)] for each in removed} if fired else set[datetime]()
    left = [at for at in fired if at not in gone]
    twice = {left[each % len(left)] for each in doubled} if left else set[datetime]()
    extra = {FIRST + timedelta(seconds=each * 60 + 7) for each in added}
    versions = [InForce(1, FIRST - timedelta(days=1), EDIT, parsed(old)), InForce(2, EDIT, None, parsed(new))]
    skip = Skipped(JOB, SkipReason.MISFIRE, span[0], span[-1], len(span), is_exact=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_AT_ONCE", at_once)
        audit = audited(versions, [*left, *twice, *extra], [skip])
    problems: dict[str, set[datetime]] = {"missing": set(), "doubled": set(), "unexpected": set()}
    for each in audit.findings:
        if each.problem == "missing":
            problems["missing"] |= {at for at in wanted if each.first_at <= at <= each.last_at}
        else:
            problems[each.problem].add(each.first_at)
    inside = {at for at in extra if span[0] <= at <= span[-1]}
    assert problems == {"missing": gone, "doubled": twice | inside, "unexpected": extra}
    assert (audit.computed, audit.fired, audit.missing) == (len(wanted), len(left), len(gone))
    assert audit.skipped == {SkipReason.MISFIRE: len(span)}


def test_instants_are_those_of_the_database() -> None:
    noon = datetime(2026, 3, 29, 12, 0, 0, 250_000, tzinfo=UTC)
    assert instant_of(number_of(noon)) == noon
    assert pack(array("q", [number_of(datetime(2000, 1, 1, 0, 0, 1, tzinfo=UTC))])).packed == (1_000_000).to_bytes(8)
