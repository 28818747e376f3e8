"""Instants that are due, by arithmetic of this file alone, and the targets of a history.

Intervals are `anchor + n * every`. Cron expressions with seconds are compared second by second on the wall clock of a
zone without a change of its clock in the history. A target is *certain* if its definition was in force for sure at its
instant: between two replies. It is *possible* between a request and its reply, or for ever without one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from tests.faults.outside.records import SECOND, Operation

_FIELDS = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7))  # of a cron expression, with the seconds first


@dataclass(frozen=True, slots=True)
class Target:
    """An instant at which a job's schedule is due."""

    job_key: str
    at: int
    due: int  # when it could fire at the earliest: later than `at` for a `once` that was accepted after its instant
    certain: bool  # False if it may fire, and need not
    spec: Mapping[str, Any] = field(repr=False)
    recalled: bool = False  # True if a later deletion may have cancelled its run, while that waited for a slot


@dataclass(frozen=True, slots=True)
class _State:
    """A job's definition after an operation."""

    spec: Mapping[str, Any] | None = None
    paused: bool = False

    @property
    def schedule(self) -> object:
        return self.spec["schedule"] if self.spec is not None and not self.paused else "manual"


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which one definition is in force, for sure or perhaps. Both ends belong to it."""

    spec: Mapping[str, Any] | None
    schedule: object
    since: int
    until: int
    certain: bool
    accepted: int  # when the definition was accepted, at the latest


def micros(text: str) -> int:
    """Parse an instant of RFC 3339."""
    at = datetime.fromisoformat(text)
    whole = int(at.replace(microsecond=0).timestamp())
    return whole * SECOND + at.microsecond


def text(at: int) -> str:
    """Format an instant."""
    return datetime.fromtimestamp(at // SECOND, UTC).replace(microsecond=at % SECOND).isoformat()


def instants(schedule: object, since: int, until: int) -> Iterator[int]:
    """Yield the instants of a schedule in [since, until]."""
    match schedule:
        case {"interval": str(every), "anchor": str(anchor)}:
            step, first = int(every.removesuffix("s")) * SECOND, micros(anchor)
            number = -((first - since) // step)
            while (at := first + number * step) <= until:
                if at >= since:
                    yield at
                number += 1
        case {"cron": str(expression), "timezone": str(zone)}:
            for second in range(-(-since // SECOND), until // SECOND + 1):
                if _matches(expression, zone, second):
                    yield second * SECOND
        case {"once": str(at)}:
            if since <= micros(at) <= until:
                yield micros(at)
        case _:
            return


def stretches(operations: Sequence[Operation], begun: int, ended: int) -> Iterator[Stretch]:
    """Yield the stretches of one job, from its requests in their order."""
    state, since = _State(), begun
    for operation in operations:
        if operation.answered is not None and not operation.accepted:
            continue
        after = _apply(state, operation)
        yield _stretch(state, since, operation.invoked, since, certain=True)
        until = ended if operation.answered is None else operation.answered
        for possible in (state, after):
            yield _stretch(possible, operation.invoked, until, until, certain=False)
        if operation.answered is None:
            return
        state, since = after, operation.answered
    yield _stretch(state, since, ended, since, certain=True)


def targets(operations: Iterable[Operation], begun: int, ended: int) -> dict[str, list[Target]]:
    """Return every target of each job, in the order of their instants; a certain one is not also possible."""
    by_job: dict[str, list[Operation]] = {}
    for operation in operations:
        if operation.type in ("job.submit", "job.pause", "job.resume", "job.delete"):
            by_job.setdefault(operation.key, []).append(operation)
    return {key: _of_job(key, mine, begun, ended) for key, mine in by_job.items()}


def _of_job(key: str, operations: Sequence[Operation], begun: int, ended: int) -> list[Target]:
    found: dict[int, Target] = {}
    deletions = [op.answered or ended for op in operations if op.type == "job.delete" and op.accepted]
    last = max(deletions, default=begun)
    for stretch in stretches(operations, begun, ended):
        if stretch.spec is None:
            continue
        if _is_once(stretch.schedule):
            made = [_once(key, stretch)]
        else:
            made = [
                Target(key, at, at, stretch.certain, stretch.spec, recalled=at <= last)
                for at in instants(stretch.schedule, stretch.since, stretch.until)
                if not stretch.certain or stretch.since < at < stretch.until
            ]
        for target in made:
            known = found.get(target.at)
            if known is None or (target.certain and not known.certain):
                found[target.at] = target
    return [found[at] for at in sorted(found)]


def _is_once(schedule: object) -> bool:
    return isinstance(schedule, dict) and "once" in schedule


def _once(key: str, stretch: Stretch) -> Target:
    """A `once` fires whatever its instant, if it was accepted for sure and is not edited."""
    assert stretch.spec is not None
    at = next(instants(stretch.schedule, 0, 1 << 62))
    return Target(key, at, max(at, stretch.accepted), stretch.certain, stretch.spec)


def _stretch(state: _State, since: int, until: int, accepted: int, *, certain: bool) -> Stretch:
    return Stretch(state.spec, state.schedule, since, until, certain, accepted)


def _apply(state: _State, operation: Operation) -> _State:
    match operation.type:
        case "job.submit":
            return _State(operation.request["job"], state.paused if state.spec is not None else False)
        case "job.pause":
            return _State(state.spec, paused=True)
        case "job.resume":
            return _State(state.spec)
        case _:
            return _State()


def _matches(expression: str, zone: str, second: int) -> bool:
    at = datetime.fromtimestamp(second, _zone(zone))
    read = (at.second, at.minute, at.hour, at.day, at.month, at.isoweekday() % 7)
    return all(value in allowed for value, allowed in zip(read, _allowed(expression), strict=True))


@lru_cache
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


@lru_cache
def _allowed(expression: str) -> tuple[frozenset[int], ...]:
    fields = expression.split()
    assert len(fields) == len(_FIELDS), expression
    assert "*" in (fields[3], fields[5]), "with both day fields restricted either suffices, which this does not read"
    return tuple(frozenset(_values(part, *bounds)) for part, bounds in zip(fields, _FIELDS, strict=True))


def _values(field: str, low: int, high: int) -> Iterator[int]:
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        start = low if first == "*" else int(first)
        stop = high if first == "*" else int(last or first)
        yield from range(start, stop + 1, int(step or 1))
