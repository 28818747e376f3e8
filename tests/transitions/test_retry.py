"""Retries and redrives: of this release, and of rows that an earlier one left."""

import math
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.control.client.test_dead_letters import fail, redriven, work_off
from tests.fixtures.database import Database
from tidewheel.control.client.client import Client
from tidewheel.errors import SettingsError
from tidewheel.jobs.retry import MAX_ATTEMPTS
from tidewheel.postgres.session import Session
from tidewheel.scheduler.work_loop import WorkLoop, do_batch
from tidewheel.schemas.generated.records import Backoff, Retry
from tidewheel.settings.connections import Connections
from tidewheel.transitions.finished import Failure, delay_before_next
from tidewheel.transitions.installation import read_installation, record_topic_prefix

ERROR = Failure("ValueError")
DAY_MS = 86_400_000


def policy(**fields: object) -> Retry:
    known: dict[str, object] = {
        "max_attempts": 4,
        "backoff": Backoff.EXPONENTIAL,
        "initial_ms": 2000,
        "factor": 2.0,
        "max_ms": 3_600_000,
        "jitter": 0.1,
        "intervals_ms": (),
        "non_retryable": (),
    }
    return Retry(**{**known, **fields})  # type: ignore[arg-type]


POLICIES = st.builds(
    policy,
    max_attempts=st.integers(1, MAX_ATTEMPTS),
    backoff=st.sampled_from([Backoff.EXPONENTIAL, Backoff.FIXED, Backoff.INTERVALS]),
    initial_ms=st.integers(1, 30 * DAY_MS),
    factor=st.floats(1, 1000),
    max_ms=st.integers(1, 30 * DAY_MS),
    jitter=st.floats(0, 1),
    intervals_ms=st.lists(st.integers(1, 30 * DAY_MS), min_size=1, max_size=5).map(tuple),
)
SPREADS = st.floats(-1, 1)


@given(POLICIES, st.integers(1, MAX_ATTEMPTS + 5))
def test_max_attempts_is_exact(retry: Retry, failed_attempts: int) -> None:
    assert (delay_before_next(retry, ERROR, failed_attempts) is None) == (failed_attempts >= retry.max_attempts)


@given(POLICIES, st.integers(1, MAX_ATTEMPTS), SPREADS)
def test_retry_delay_lies_within_its_bounds_and_jitter(retry: Retry, failed_attempts: int, spread: float) -> None:
    delay = delay_before_next(retry, ERROR, failed_attempts, spread=spread)
    if delay is None:
        return
    longest = {
        Backoff.INTERVALS: max(retry.intervals_ms),
        Backoff.FIXED: retry.initial_ms,
        Backoff.EXPONENTIAL: retry.max_ms,
    }[retry.backoff]
    assert timedelta(0) <= delay <= timedelta(milliseconds=longest * (1 + retry.jitter) + 1)
    middle = delay_before_next(retry, ERROR, failed_attempts, spread=0.0)
    assert middle is not None
    assert abs(delay - middle) <= middle * retry.jitter + timedelta(microseconds=2)


@given(POLICIES, st.integers(1, MAX_ATTEMPTS - 1))
def test_retry_delays_never_shrink(retry: Retry, failed_attempts: int) -> None:
    if retry.backoff is Backoff.INTERVALS:
        retry = policy(backoff=Backoff.INTERVALS, intervals_ms=tuple(sorted(retry.intervals_ms)), max_attempts=1000)
    first, second = (
        delay_before_next(retry, ERROR, number, spread=0.0) for number in (failed_attempts, failed_attempts + 1)
    )
    if first is not None and second is not None:
        assert first <= second


@given(POLICIES, st.integers(1, MAX_ATTEMPTS), st.timedeltas(timedelta(0), timedelta(days=1)), SPREADS)
def test_requested_retry_after_is_the_least_delay(
    retry: Retry, failed_attempts: int, after: timedelta, spread: float
) -> None:
    plain = delay_before_next(retry, ERROR, failed_attempts, spread=spread)
    delay = delay_before_next(retry, Failure("http_503", retry_after=after), failed_attempts, spread=spread)
    assert delay == (None if plain is None else max(plain, after))


@given(POLICIES, st.integers(1, MAX_ATTEMPTS))
def test_permanent_and_non_retryable_failures_are_not_retried(retry: Retry, failed_attempts: int) -> None:
    assert delay_before_next(retry, Failure("ValueError", permanent=True), failed_attempts) is None
    named = policy(non_retryable=("ValueError",), max_attempts=1000)
    assert delay_before_next(named, ERROR, failed_attempts) is None
    assert (delay_before_next(named, Failure("KeyError"), failed_attempts) is None) == (failed_attempts >= 1000)


@pytest.mark.parametrize(
    ("retry", "delays"),
    [
        (policy(max_attempts=6, max_ms=10_000), [2, 4, 8, 10, 10, None]),
        (policy(max_attempts=4, backoff=Backoff.FIXED), [2, 2, 2, None]),
        (policy(max_attempts=3, backoff=Backoff.FIXED, initial_ms=7_200_000), [7200, 7200, None]),
        (policy(max_attempts=5, backoff=Backoff.INTERVALS, intervals_ms=(1000, 60_000)), [1, 60, 60, 60, None]),
        (policy(max_attempts=1), [None]),
        (policy(max_attempts=1000, factor=1000.0, max_ms=2000), [2] * 999 + [None]),
    ],
    ids=lambda each: each.backoff if isinstance(each, Retry) else str(each)[-30:],
)
def test_each_backoff_has_its_delays(retry: Retry, delays: list[int | None]) -> None:
    found = [delay_before_next(retry, ERROR, number, spread=0.0) for number, _ in enumerate(delays, 1)]
    assert found == [None if seconds is None else timedelta(seconds=seconds) for seconds in delays]


# As `add_redrive`, `advance_redrive` and `set_redrive_state` of 0.2.0.dev0 write them.
ADD = """
    INSERT INTO redrives (redrive_id, tenant, state, kind, ids, job_id, status, error_type, queue, lane, since_at,
                          until_at, rate, matched_count, rejections, after_at, after_id, next_at, reason, created_at,
                          finished_at)
    SELECT %s, 'default', 'running', 'run', NULL, job_id, NULL, 'ValueError', NULL, NULL, 'epoch', tidewheel_now(),
           1000, 3, '[]', 'epoch', 0, tidewheel_now(), 'old', tidewheel_now(), NULL
      FROM jobs
     WHERE key = 'job'
"""
ADVANCE = """
    UPDATE redrives
       SET redriven_count = redriven_count + 1, after_at = d.created_at, after_id = d.id
      FROM dead_letters AS d
     WHERE redrive_id = %s AND d.run_id = %s
"""
SET_STATE = """
    UPDATE redrives SET state = %s, finished_at = CASE WHEN %s THEN tidewheel_now() END WHERE redrive_id = %s
"""
SHOWN = "SELECT state, redriven_count, after_id > 0, finished_at IS NOT NULL FROM redrives WHERE redrive_id = %s"


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    database.submit("job")
    with Client(database.url) as made:
        yield made


def old_redrive(database: Database) -> UUID:
    redrive_id = uuid4()
    database.execute(ADD, [redrive_id])
    return redrive_id


def test_redrive_of_an_old_process_is_adopted_and_finished_for_both(client: Client, database: Database) -> None:
    failed = [fail(database) for _ in range(3)]
    fail(database, error="Other")
    redrive_id = old_redrive(database)
    work_off(database)
    assert set(redriven(database)) == set(failed), "its filter holds"
    done = client.works.get(redrive_id)
    assert (done.kind, done.state, done.done_count, done.filter["job"]) == ("redrive", "finished", 3, "job")
    assert database.rows(SHOWN, [redrive_id]) == [("finished", 3, True, True)]


def test_adopted_redrive_goes_on_after_the_letters_that_old_schedulers_redrove(
    client: Client, database: Database
) -> None:
    first, *rest = [fail(database) for _ in range(3)]
    redrive_id = old_redrive(database)
    with closing(Session(database.url, "scheduler")) as session:
        assert do_batch(session, database.installation, redrive_id, most=1) == 1
        client.runs.retry(rest[0])  # as an old scheduler does in the transaction of the next statement
        database.execute(ADVANCE, [redrive_id, rest[0]])
        assert do_batch(session, database.installation, redrive_id, most=1) == 1
    assert set(redriven(database)) == {first, *rest}
    work_off(database)
    assert client.works.get(redrive_id).done_count == 3, "it counts what both have done"
    assert len(database.job_runs()) == 3


def test_new_redrive_is_continued_by_old_schedulers_and_again_by_new_ones(client: Client, database: Database) -> None:
    failed = [fail(database) for _ in range(3)]
    work_id = client.dead_letters.redrive(key="job", rate=1000).work_id
    assert work_id is not None
    with closing(Session(database.url, "scheduler")) as session:
        assert do_batch(session, database.installation, work_id, most=1) == 1
    assert database.rows(SHOWN, [work_id]) == [("running", 1, True, False)]
    client.runs.retry(failed[1])
    database.execute(ADVANCE, [work_id, failed[1]])
    work_off(database)
    assert client.works.get(work_id).done_count == 3
    assert database.rows(SHOWN, [work_id]) == [("finished", 3, True, True)]


@pytest.mark.parametrize(("state", "ended"), [("paused", False), ("cancelled", True)])
def test_change_of_state_by_an_old_process_is_followed(
    client: Client, database: Database, state: str, *, ended: bool
) -> None:
    fail(database)
    work_id = client.dead_letters.redrive(key="job").work_id
    assert work_id is not None
    database.execute(SET_STATE, [state, ended, work_id])
    work_off(database)
    assert (redriven(database), client.works.get(work_id).state) == ({}, state)
    if not ended:
        database.execute(SET_STATE, ["running", False, work_id])
        work_off(database)
        assert client.works.get(work_id).state == "finished"


@pytest.mark.parametrize(("state", "ended"), [("paused", False), ("finished", True)])
def test_redrive_that_an_old_process_pauses_or_ends_before_any_pass_is_listed(
    client: Client, database: Database, state: str, *, ended: bool
) -> None:
    redrive_id = old_redrive(database)
    database.execute(SET_STATE, [state, ended, redrive_id])
    work_off(database)  # by a scheduler that has just started
    assert [(each.work_id, each.state) for each in client.works.list()] == [(redrive_id, state)]


def test_pause_and_cancellation_are_written_for_old_schedulers(client: Client, database: Database) -> None:
    fail(database)
    work_id = old_redrive(database)
    assert client.works.pause(work_id).status == "paused", "before any scheduler has adopted it"
    assert database.rows(SHOWN, [work_id]) == [("paused", 0, False, False)]
    client.works.cancel(work_id)
    assert database.rows(SHOWN, [work_id]) == [("cancelled", 0, False, True)]
    with closing(Session(database.url, "scheduler")) as session:
        assert WorkLoop(session, database.installation).step() == (0, math.inf)


def test_repeated_request_finds_the_redrive_that_an_old_process_has_cancelled(
    client: Client, database: Database
) -> None:
    fail(database)
    first = client.dead_letters.redrive(everything=True, request_id="night").work_id
    assert first is not None
    database.execute("DELETE FROM works")  # an old process writes none
    database.execute(SET_STATE, ["cancelled", True, first])
    assert client.dead_letters.redrive(everything=True, request_id="night").work_id == first
    assert (client.works.get(first).state, redriven(database)) == ("cancelled", {})


def prefix(database: Database, **flags: object) -> str:
    return database.within(read_installation, Connections.load(**flags)).topics.prefix


def name(database: Database, **flags: object) -> None:
    database.within(record_topic_prefix, Connections.load(**flags))


def test_first_recorded_prefix_holds_and_another_is_refused_with_both_names(database: Database) -> None:
    assert (prefix(database), prefix(database, topic_prefix="shop")) == ("tidewheel", "shop"), "none is recorded"
    name(database, topic_prefix="shop")
    name(database, topic_prefix="store")
    assert (prefix(database), prefix(database, topic_prefix="shop")) == ("shop", "shop")
    with pytest.raises(SettingsError, match=r"TIDEWHEEL_TOPIC_PREFIX is 'store', but .* begin with 'shop'"):
        prefix(database, topic_prefix="store")


def test_prefix_of_the_environment_is_compared_too(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    name(database)
    monkeypatch.setenv("TIDEWHEEL_TOPIC_PREFIX", "store")
    with pytest.raises(SettingsError, match="'tidewheel'"):
        prefix(database)
