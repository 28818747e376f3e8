"""Properties of every schedule."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.examples import examples
from tests.schedules.expressions import any_expression
from tidewheel.schedules.parse import parse_schedule
from tidewheel.schedules.schedule import Schedule
from tidewheel.schedules.zones import zone_names

MICROSECOND = timedelta(microseconds=1)
instants = st.datetimes(datetime(1970, 1, 2), datetime(2090, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001  # strategy bounds


@st.composite
def bounds(draw: st.DrawFn) -> dict[str, object]:
    start, end = sorted([draw(instants), draw(instants)])
    chosen: dict[str, object] = {}
    if draw(st.booleans()):
        chosen["start_at"] = start.isoformat()
    if draw(st.booleans()):
        chosen["end_at"] = end.isoformat()
    return chosen


@st.composite
def crons(draw: st.DrawFn) -> Schedule:
    random = Random(draw(st.integers(0, 10**9)))  # noqa: S311  # reproducible from the seed that was drawn
    near = draw(instants).replace(tzinfo=None)
    expressions = [any_expression(random, near, seconds=draw(st.booleans())) for _ in range(draw(st.integers(1, 3)))]
    return parse_schedule(
        {
            "kind": "cron",
            "expressions": expressions,
            "timezone": draw(st.sampled_from(sorted(zone_names()))),
            "dst_gap": draw(st.sampled_from(["shift_forward", "skip"])),
            "dst_overlap": draw(st.sampled_from(["first", "second", "both"])),
            **draw(bounds()),
        }
    )


@st.composite
def intervals(draw: st.DrawFn) -> Schedule:
    return parse_schedule(
        {
            "kind": "interval",
            "interval_us": draw(st.integers(1_000_000, 10**15)),
            "anchor": draw(instants).isoformat(),
            "anchor_fires": draw(st.booleans()),
            **draw(bounds()),
        }
    )


@st.composite
def onces(draw: st.DrawFn) -> Schedule:
    return parse_schedule({"kind": "once", "at": draw(instants).isoformat()})


schedules = st.one_of(crons(), intervals(), onces(), st.just(parse_schedule({"kind": "manual"})))


@given(schedules, instants)
def test_after_is_strictly_later_and_repeatable(schedule: Schedule, instant: datetime) -> None:
    found = schedule.after(instant)
    assert schedule.after(instant) == found
    if found is not None:
        assert found > instant
        assert found.utcoffset() == timedelta(0)


@given(schedules, instants)
def test_occurrences_ascend_strictly(schedule: Schedule, instant: datetime) -> None:
    found = _walk(schedule, instant, 12)
    assert all(earlier < later for earlier, later in pairwise(found))


@given(schedules, instants)
def test_no_occurrence_lies_between_an_instant_and_its_successor(schedule: Schedule, instant: datetime) -> None:
    found = schedule.after(instant)
    if found is None:
        return
    assert schedule.after(found - MICROSECOND) == found
    assert schedule.after(instant + (found - instant) / 2) == found


@given(schedules, instants)
def test_before_is_the_inverse_of_after(schedule: Schedule, instant: datetime) -> None:
    found = _walk(schedule, instant, 6)
    for earlier, later in pairwise(found):
        assert schedule.before(later) == earlier
    if found:
        assert schedule.before(found[0] + MICROSECOND) == found[0]
        earlier = schedule.before(found[0])
        assert earlier is None or earlier <= instant
        assert earlier is None or schedule.after(earlier) == found[0]


@given(schedules, instants, st.integers(0, 40))
def test_between_and_count_agree_with_after(schedule: Schedule, start: datetime, limit: int) -> None:
    walked = _walk(schedule, start, 40)
    end = walked[-1] if walked else start + timedelta(days=400)
    assert list(schedule.between(start, end)) == walked
    expected = (len(walked), True) if len(walked) <= limit else (limit, False)
    assert schedule.count(start, end, limit) == expected


@given(schedules, schedules)
def test_schedules_are_values(one: Schedule, other: Schedule) -> None:
    assert len({one, one}) == 1
    assert (one == other) == (other == one)
    assert one != other or hash(one) == hash(other)


@given(crons(), instants)
@examples(60)
def test_nothing_fires_outside_the_bounds(schedule: Schedule, instant: datetime) -> None:
    limits = getattr(schedule, "bounds")  # noqa: B009  # the protocol has no bounds, every cron schedule does
    assert all(limits.holds(at) for at in _walk(schedule, instant, 12))


def _walk(schedule: Schedule, instant: datetime, most: int) -> list[datetime]:
    found: list[datetime] = []
    at = schedule.after(instant)
    while at is not None and len(found) < most:
        found.append(at)
        at = schedule.after(at)
    return found
