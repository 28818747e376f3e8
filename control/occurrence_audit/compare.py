"""Compare the computed occurrences of one job with its records: pure functions.

An occurrence of a version in force is recorded once: by a run of the timer, or by a row of the ledger. From the
timer's position on it is not decided yet. Everything else is a finding.

A row of the ledger covers the computed occurrences of its span that have no record of their own. Calendars are not
needed for that: an excluded day has its row. By the days that held then the comparison also checks that no excluded
occurrence fired, and that each shifted one has its record.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from tidewheel.control.occurrence_audit.records import (
    AuditedJob,
    ChainLink,
    Finding,
    InForce,
    Instants,
    JobAudit,
    MissingChild,
    RecordedDay,
    Scope,
    Skipped,
    WrongAttempts,
    instant_of,
    instants_between,
    number_of,
    pack,
    unpack,
)
from tidewheel.runs import SkipReason
from tidewheel.schedules.calendars import is_occurrence
from tidewheel.schedules.decision import Override
from tidewheel.schedules.schedule import TICK, FixedDelay, Once

MAX_AT_ONCE = 100_000
"""Occurrences of a job that are compared at once; beyond it the audit goes day by day."""

_DAY = timedelta(days=1)
_OF_ITS_OWN = {SkipReason.MANUAL, SkipReason.EXCLUDED}
_OWN, _SPAN, _INEXACT = range(3)  # the order in which rows of the ledger cover occurrences


def compare(
    job: AuditedJob,
    days: Iterable[RecordedDay],
    *,
    skips: Sequence[Skipped],
    overrides: Mapping[datetime, Override],
    wrong_attempts: Iterable[WrongAttempts],
    links: Iterable[ChainLink],
    missing: Iterable[MissingChild],
    scope: Scope,
) -> JobAudit:
    """Compare a job's computed occurrences with its records."""
    comparison = _Comparison(job, skips, overrides, scope)
    comparison.run(days)
    comparison.follow(links)
    for child in missing:
        words = f"the occurrence of run {child.root_run_id} has ended, but no run of this job is recorded in it"
        comparison.miss(child.scheduled_at, words)
    for wrong in wrong_attempts:
        words = f"run {wrong.run_id} is in attempt {wrong.attempt}, but {wrong.recorded} attempts are recorded"
        comparison.find("attempts", [number_of(wrong.scheduled_at)], words)
    return comparison.audit


class _Comparison:
    def __init__(
        self, job: AuditedJob, skips: Sequence[Skipped], overrides: Mapping[datetime, Override], scope: Scope
    ) -> None:
        self.audit = JobAudit(job.job_id, job.tenant, job.key)
        self._job, self._skips, self._scope = job, skips, scope
        self._covered = [0] * len(skips)
        self._overrides = {number_of(at): override for at, override in overrides.items()}
        self._cursor = None if job.cursor_at is None else number_of(job.cursor_at)
        self._late, wanted = _late_once(job.versions, scope)
        # An occurrence that fired, or was skipped, away from its instant may not be one of the version in force there.
        single = {number_of(skip.first_at) for skip in skips if skip.first_at == skip.last_at}
        moved = {at for at, override in self._overrides.items() if override.moved_to is not None}
        self._late_wanted = wanted | (single & (self._late | moved))
        self._has_calendars = any(each.calendars != () for each in job.versions)
        self._unsure = any(
            each.schedule is None or (each.shifts and (each.calendars is None or len(each.calendars) > 1))
            for each in job.versions
        )

    def run(self, days: Iterable[RecordedDay]) -> None:
        """Compare window by window, then the counts of the ledger."""
        left = iter(days)
        following = next(left, None)
        for start, end in _windows(self._job.versions, self._scope):
            found: list[RecordedDay] = []
            while following is not None and following.day <= end:
                found.append(following)
                following = next(left, None)
            self._window(start, end, found)
        for each in self._job.versions:
            if each.schedule is None:
                at = max(each.after, self._scope.first)
                self.find("unreadable", [number_of(at)], "the schedule of this version cannot be read")
        for skip, covered in zip(self._skips, self._covered, strict=True):
            self._check_count(skip, covered)

    def follow(self, links: Iterable[ChainLink]) -> None:
        """Find successive runs of a fixed_delay whose distance is not that of the version in force at both."""
        for link in links:
            version = next((each for each in self._job.versions if each.holds(link.previous_at)), None)
            if version is None or not isinstance(version.schedule, FixedDelay) or not version.holds(link.scheduled_at):
                continue
            due = None
            if link.previous_end is not None:
                least, most = version.schedule.delays
                if least < most and least <= link.scheduled_at - link.previous_end <= most:
                    continue  # a run may have set it
                due = version.schedule.due(link.previous_at, link.previous_end)
            if due is not None and due < link.scheduled_at:
                self.miss(due, "due after the end of the previous run, but no run is recorded")
            elif due != link.scheduled_at:
                self.find("unexpected", [number_of(link.scheduled_at)], "the previous run had not ended in time")

    def _window(self, start: datetime, end: datetime, days: Sequence[RecordedDay]) -> None:
        audit = self.audit
        for day in days:
            audit.runs += Counter(
                succeeded=day.succeeded, failed=day.failed, timed_out=day.timed_out, cancelled=day.cancelled,
                skipped=day.skipped, open=day.open,
            )  # fmt: skip
            audit.attempts += day.attempts
            audit.by_message += day.by_message
            audit.by_sweep += day.by_sweep
        overlapped = sum(day.skipped for day in days)
        packed = days[0].instants if len(days) == 1 else b"".join(day.instants for day in days)
        computed = self._computed(start, end, packed)
        audit.fired -= overlapped
        if overlapped:
            audit.skipped["overlap"] += overlapped
        skips = [n for n, skip in enumerate(self._skips) if skip.first_at <= end and skip.last_at > start]
        plain = not (skips or self._overrides or self._late or self._has_calendars)
        if plain and computed.packed == packed:
            audit.computed += len(computed.numbers)
            audit.fired += len(computed.numbers)
            return
        self._differ(start, end, computed.numbers, unpack(packed), skips)

    def _computed(self, start: datetime, end: datetime, recorded: bytes) -> Instants:
        """Return the occurrences in ``(start, end]`` of the versions in force."""
        parts: list[Instants] = []
        for each in self._job.versions:
            low, high = each.within(start, end)
            if low >= high:
                continue
            if each.schedule is None or isinstance(each.schedule, FixedDelay):  # its occurrences are the recorded ones
                numbers = sorted(set(unpack(recorded)))
                parts.append(pack(array("q", numbers[_past(numbers, low) : _past(numbers, high)])))
                continue
            parts.append(instants_between(each.schedule, low, high))
            if each.shifts and each.calendars:
                shifted = self._always_shifted(each, each.known(low), high)
                parts[-1] = pack(array("q", sorted({*parts[-1].numbers, *shifted})))
        wanted = [at for at in self._late_wanted if number_of(start) < at <= number_of(end)]
        if len(parts) == 1 and not wanted:
            return parts[0]
        return pack(array("q", sorted({*wanted, *(at for part in parts for at in part.numbers)})))

    def _differ(
        self, start: datetime, end: datetime, computed: Sequence[int], recorded: Sequence[int], skips: Sequence[int]
    ) -> None:
        """Account for each computed occurrence of a window, and for each record."""
        audit = self.audit
        fired = sorted(recorded)
        doubled = [at for at, following in pairwise(fired) if at == following]
        self._find_each("doubled", sorted(set(doubled)), "more than one run of the timer is recorded")
        runs, wanted = set(fired), set(computed)
        extra = {at for at in runs - wanted if self._may_fire(at)}
        self._find_each(
            "unexpected",
            sorted(runs - wanted - extra),
            "a run of the timer is recorded, but no version computes this occurrence",
        )
        audit.computed += len(wanted) + len(extra)
        audit.fired += len(runs & wanted) + len(extra)
        self._check_excluded(start, end, runs & wanted)
        open_moves = {at for at, each in self._overrides.items() if each.moved_to is not None and not each.done}
        rest = sorted(wanted - runs)
        covered = self._cover(rest, fired, skips, start, end)
        missing: list[int] = []
        for place, at in enumerate(rest):
            if covered[place]:
                continue
            if at in open_moves:
                audit.undecided["move"] += 1
            elif self._cursor is not None and at >= self._cursor:
                audit.undecided[self._job.hold_reason or "due"] += 1
            else:
                missing.append(at)
        audit.missing += len(missing)
        for part in _neighbours(missing, computed):
            self.find("missing", part, "neither a run nor a skip is recorded")

    def _cover(
        self, rest: Sequence[int], fired: Sequence[int], skips: Sequence[int], start: datetime, end: datetime
    ) -> Sequence[bool]:
        """Return which occurrences without a run a row of the ledger covers.

        Rows of single occurrences and of exact excluded spans come first, and rows whose number is a lower bound last.
        Such a row may have occurrences with records of their own inside.
        """
        own, covered = [False] * len(rest), [False] * len(rest)
        for n in sorted(skips, key=self._turn):
            skip, turn = self._skips[n], self._turn(n)
            low, high = number_of(max(skip.first_at, start + TICK)), number_of(min(skip.last_at, end))
            inside = range(bisect_left(rest, low), bisect_right(rest, high))
            if turn == _INEXACT:
                places = [p for p in inside if not covered[p]]
            elif turn == _SPAN:
                places = [p for p in inside if not own[p] and rest[p] not in self._overrides]
            else:
                places = list(inside)
            words = f"two skips are recorded, one with the reason {skip.reason}"
            self._find_each("doubled", [rest[p] for p in places if covered[p]], words)
            self._covered[n] += len(places)
            self.audit.skipped[skip.reason] += sum(not covered[p] for p in places)
            for p in places:
                covered[p] = True
                own[p] |= turn == _OWN
            if turn != _INEXACT:
                both = {*fired[bisect_left(fired, low) : bisect_right(fired, high)]} - self._overrides.keys()
                words = f"a run is recorded, and a skip with the reason {skip.reason}"
                self._find_each("doubled", sorted(both), words)
        return covered

    def _turn(self, number: int) -> int:
        skip = self._skips[number]
        if not skip.is_exact:
            return _INEXACT
        single = skip.first_at == skip.last_at and number_of(skip.first_at) in self._overrides
        return _OWN if single or skip.reason in _OF_ITS_OWN else _SPAN

    def _check_excluded(self, start: datetime, end: datetime, fired: set[int]) -> None:
        """Find occurrences that fired on a day that their calendars exclude."""
        for each in self._job.versions:
            low, high = each.within(start, end)
            low = each.known(low)
            if each.calendars and low < high:
                allowed = set[int]().union(*each.opened(low, high))
                inside = {at for at in fired if number_of(low) < at <= number_of(high)}
                closed = sorted(inside - allowed - self._overrides.keys())
                self._find_each("excluded", closed, "it fired on a day that its calendars exclude")

    @staticmethod
    def _always_shifted(version: InForce, low: datetime, high: datetime) -> set[int]:
        """Return the occurrences that every set of days by which they may have been decided has."""
        states, found = version.calendars or (), [*version.opened(low, high)]
        always = found[-1]
        for state, opened in zip(states[:-1], found[:-1], strict=True):
            until = high if state.until is None else state.until
            always = {at for at in always if at in opened or at > number_of(until)}
        return always

    def _may_fire(self, at: int) -> bool:
        """Return True if an occurrence that no version in force has may have fired."""
        override = self._overrides.get(at)
        if (override is not None and override.moved_to is not None) or at in self._late:
            return True
        instant = instant_of(at)
        version = self._version_at(instant)
        if version is None or not version.shifts:
            return False
        return (
            version.calendars is None
            or instant <= version.known(instant - TICK)
            or any(
                (state.until is None or instant <= state.until) and is_occurrence(state.schedule, instant)
                for state in version.calendars
            )
        )

    def _check_count(self, skip: Skipped, covered: int) -> None:
        """Find a row of the ledger whose number of occurrences differs from the computed one."""
        inside = skip.first_at >= self._scope.first and skip.last_at < self._scope.before
        if not inside or self._unsure:
            return
        if skip.occurrences != covered if skip.is_exact else skip.occurrences > max(covered, 1):
            words = f"a skip with the reason {skip.reason} counts {skip.occurrences}, but {covered} are computed"
            last = max(skip.first_at, skip.last_at)
            self.find("miscounted", [number_of(skip.first_at), number_of(last)], words, skip.occurrences)

    def miss(self, at: datetime, words: str) -> None:
        """Add an occurrence without a record, which no schedule computes."""
        self.audit.computed += 1
        self.audit.missing += 1
        self.find("missing", [number_of(at)], words)

    def _find_each(self, problem: str, instants: Sequence[int], words: str) -> None:
        for at in instants:
            self.find(problem, [at], words)

    def find(self, problem: str, instants: Sequence[int], words: str, occurrences: int | None = None) -> None:
        """Add a finding about some ascending instants."""
        first, last = instant_of(instants[0]), instant_of(instants[-1])
        version = self._version_at(first)
        number = None if version is None else version.version
        self.audit.add(Finding(problem, first, last, occurrences or len(instants), words, number))

    def _version_at(self, at: datetime) -> InForce | None:
        in_force = (each for each in self._job.versions if each.after < at and (each.until is None or at <= each.until))
        return next(in_force, None)


def _windows(versions: Sequence[InForce], scope: Scope) -> Iterator[tuple[datetime, datetime]]:
    """Yield the parts of the range that are compared at once, each as ``(start, end]``."""
    start, end = scope.first - TICK, scope.before - TICK
    if _count(versions, start, end) <= MAX_AT_ONCE:
        yield start, end
        return
    while start < end:
        midnight = (start + TICK).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + _DAY
        following = min(midnight - TICK, end)
        yield start, following
        start = following


def _count(versions: Sequence[InForce], start: datetime, end: datetime) -> int:
    found = 0
    for each in versions:
        low, high = each.within(start, end)
        if low < high and each.schedule is not None:
            if isinstance(each.schedule, FixedDelay):
                found += int((high - low) / timedelta(microseconds=each.schedule.interval_us)) + 1
            else:
                count, exact = each.schedule.count(low, high, MAX_AT_ONCE - found if found < MAX_AT_ONCE else 0)
                found += count if exact else MAX_AT_ONCE + 1
    return found


def _late_once(versions: Sequence[InForce], scope: Scope) -> tuple[frozenset[int], frozenset[int]]:
    """Return the instants of `once` schedules that were accepted after them, and those that need a record.

    One that another version has replaced may have fired before, and may not.
    """
    late = {
        each.version: number_of(each.schedule.at)
        for each in versions
        if isinstance(each.schedule, Once) and scope.first <= each.schedule.at < scope.before
        if each.schedule.at <= each.after
    }
    last = versions[-1].version if versions else None
    return frozenset(late.values()), frozenset(at for version, at in late.items() if version == last)


def _past(numbers: Sequence[int], at: datetime) -> int:
    return bisect_right(numbers, number_of(at))


def _neighbours(missing: Sequence[int], computed: Sequence[int]) -> Iterator[list[int]]:
    """Yield the missing occurrences in groups without a recorded one between them."""
    part: list[int] = []
    place = -2
    for at in missing:
        here = bisect_left(computed, at)
        if part and here != place + 1:
            yield part
            part = []
        part.append(at)
        place = here
    if part:
        yield part
