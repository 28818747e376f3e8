from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.schedules.policies import jittered

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
durations = st.timedeltas(timedelta(0), timedelta(days=2))


@given(st.uuids(), durations, st.floats(0, 100), st.none() | st.timedeltas(timedelta(seconds=1), timedelta(days=1)))
def test_a_delay_never_reaches_the_next_occurrence(
    job_id: UUID, longest: timedelta, percent: float, to_next: timedelta | None
) -> None:
    following = None if to_next is None else NOON + to_next
    found = jittered(NOON, following, job_id, longest=longest, percent=percent)
    assert found == jittered(NOON, following, job_id, longest=longest, percent=percent)
    assert found >= NOON
    assert following is None or found < following


def test_jobs_and_occurrences_are_spread() -> None:
    jobs = {jittered(NOON, NOON + HOUR, UUID(int=number), longest=MINUTE) for number in range(200)}
    later = {
        jittered(NOON + HOUR * n, NOON + HOUR * (n + 1), UUID(int=1), longest=MINUTE) - HOUR * n for n in range(200)
    }
    assert len(jobs) == len(later) == 200
    assert all(NOON <= at < NOON + MINUTE for at in jobs | later)
    late = sum(at - NOON > MINUTE / 2 for at in jobs)
    assert 60 < late < 140


def test_no_jitter_is_no_delay() -> None:
    assert jittered(NOON, NOON + HOUR, UUID(int=1)) == NOON
    assert jittered(NOON, None, UUID(int=1), percent=50) == NOON


def test_a_percentage_is_of_the_time_to_the_next() -> None:
    found = [jittered(NOON, NOON + HOUR, UUID(int=number), percent=10) - NOON for number in range(100)]
    assert max(found) < timedelta(minutes=6)
    assert max(found) > timedelta(minutes=5)


def test_a_delay_never_changes_with_a_release() -> None:
    assert jittered(NOON, NOON + HOUR, UUID(int=7), longest=MINUTE) == NOON + timedelta(seconds=11.501069)
