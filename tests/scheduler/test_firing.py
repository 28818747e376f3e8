"""Firing: decided by batches, each occurrence once."""

import logging
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from tests.fixtures.acts import submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.examples import examples
from tests.scheduler.firing import EACH_SECOND, HOUR, MINUTE, MISFIRE_AFTER, SECOND, fire_due, instants, look_at
from tests.transitions.stepping import in_background
from tidewheel.errors import Unavailable
from tidewheel.jobs.strict_json import canonical
from tidewheel.jobs.values import format_timestamp
from tidewheel.process.service import Shutdown
from tidewheel.scheduler.firing import fire
from tidewheel.scheduler.job_faults import BatchDecider, DecisionFailed
from tidewheel.scheduler.loop import Scheduler
from tidewheel.schedules.decide import decide, decide_on_time, with_jitter
from tidewheel.schedules.decision import CatchUp, DaySet, Decision, Override
from tidewheel.schedules.timer_state import timer_state
from tidewheel.settings.services import SchedulerSettings
from tidewheel.transitions.decision_inputs import DecisionInputs
from tidewheel.transitions.timers import LockedTimer


@contextmanager
def scheduler_of(database: Database, **settings: object) -> Generator[Scheduler]:
    """A scheduler to step: it has not joined, so it owns all shards."""
    stop = Shutdown()
    made = Scheduler(SchedulerSettings.load(**settings), database.url_of("scheduler"), database.installation, stop)
    try:
        yield made
    finally:
        stop.request()
        made.run()  # enters, sees that it is to end, and closes what it holds


def spans(database: ClockedDatabase) -> list[tuple[str, float, float, int, bool]]:
    [(accepted_at,)] = database.rows("SELECT min(created_at) FROM jobs")
    found = database.rows("SELECT reason, first_at, last_at, occurrences, is_exact FROM skips ORDER BY skip_id")
    return [
        (reason, (first - accepted_at).total_seconds(), (last - accepted_at).total_seconds(), count, exact)
        for reason, first, last, count, exact in found
    ]


def test_runs_are_created_ahead_and_published_at_their_instant(still: ClockedDatabase) -> None:
    still.submit(**EACH_SECOND)
    assert fire_due(still, lookahead=timedelta(seconds=3.5)) == 1
    assert instants(still) == [1, 2, 3]
    for run, message in zip(still.job_runs(), still.requests(), strict=True):
        assert run.publish_at == run.scheduled_at == message.publish_at == message.scheduled_at
    leaving = still.rows("SELECT publish_at FROM outbox WHERE topic LIKE '%.runs.%' ORDER BY 1")
    assert [at for (at,) in leaving] == [run.scheduled_at for run in still.job_runs()]
    assert fire_due(still, lookahead=timedelta(seconds=3.5)) == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3)), min_size=1, max_size=8))
@settings(examples(40, quick=5), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_runs_of_one_instant_leave_by_priority(still: ClockedDatabase, jobs: list[tuple[int, int]]) -> None:
    still.execute("TRUNCATE outbox, job_runs, timers")
    base = still.now()
    for nth, (priority, after) in enumerate(jobs):
        at = format_timestamp(base + after * SECOND)
        still.submit(f"{uuid4().hex}-{nth}", schedule={"once": at}, priority=priority)
    assert fire_due(still, lookahead=5 * SECOND) == len(jobs)
    left = still.rows(
        "SELECT publish_at, coalesce(priority, 5) FROM outbox WHERE topic LIKE '%.runs.%' ORDER BY publish_at, id"
    )
    assert left == sorted(((base + after * SECOND, priority) for priority, after in jobs), key=lambda e: (e[0], -e[1]))


def test_no_run_is_created_before_the_lookahead(still: ClockedDatabase) -> None:
    still.submit(**EACH_SECOND)
    assert fire_due(still, lookahead=SECOND - timedelta(microseconds=1)) == 0
    assert fire_due(still, lookahead=SECOND) == 1


def test_latest_missed_occurrence_fires_and_others_are_one_exact_span(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1h")
    still.advance(5.5 * HOUR)
    fire_due(still)
    assert instants(still) == [5 * 3600]
    assert spans(still) == [("misfire", 3600, 4 * 3600, 4, True)]
    [event] = [event for event in still.lifecycle() if event.type == "io.tidewheel.occurrence.skipped.v1"]
    assert (event.reason, event.detail["occurrences"], event.job_version) == ("misfire", "4", 1)
    [(first, last)] = still.rows("SELECT first_at, last_at FROM skips")
    assert (event.detail["first_at"], event.detail["last_at"]) == (format_timestamp(first), format_timestamp(last))
    still.advance(HOUR)
    fire_due(still)
    assert instants(still) == [5 * 3600, 6 * 3600]


def test_occurrence_is_missed_at_exactly_misfire_after(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1h")
    still.advance(2 * HOUR + timedelta(seconds=60) - timedelta(microseconds=1))
    fire_due(still)
    # The first hour was missed and is the latest that was; the second is young and fires by itself.
    assert (instants(still), spans(still)) == ([3600, 7200], [])
    still.advance(2 * HOUR + timedelta(microseconds=1))
    fire_due(still)
    assert (instants(still)[2:], spans(still)) == ([4 * 3600], [("misfire", 3 * 3600, 3 * 3600, 1, True)])


def test_uncountable_span_is_recorded_as_inexact(still: ClockedDatabase) -> None:
    still.submit(**EACH_SECOND)
    still.advance(timedelta(days=3))
    fire_due(still)
    [(reason, first, last, counted, exact)] = spans(still)
    assert (reason, first, last, counted, exact) == ("misfire", 1, 3 * 86400 - 61, 100_000, False)
    assert len(instants(still)) == 61


def test_backlog_of_one_job_does_not_delay_others(still: ClockedDatabase) -> None:
    """At most 100 occurrences of a job in one transaction; its timer stays due for the rest."""
    still.submit(**EACH_SECOND)
    still.advance(59 * SECOND)
    fire_due(still, lookahead=60 * SECOND)
    assert instants(still) == list(range(1, 101))
    fire_due(still, lookahead=60 * SECOND)
    assert instants(still) == list(range(1, 120))


def test_clock_set_back_creates_no_duplicate_run(still: ClockedDatabase) -> None:
    still.submit(**EACH_SECOND)
    still.advance(5 * SECOND)
    fire_due(still, lookahead=2 * SECOND)
    still.advance(-HOUR)
    assert fire_due(still, lookahead=2 * SECOND) == 0
    still.advance(HOUR + 2 * SECOND)
    fire_due(still, lookahead=2 * SECOND)
    assert instants(still) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert spans(still) == []


def test_backlog_of_one_shard_does_not_delay_others(still: ClockedDatabase) -> None:
    still.apply_batch(*(submission(f"job-{n}", **EACH_SECOND) for n in range(300)))
    still.advance(SECOND)
    fire_due(still, batch=128)
    fired = {shard for (shard,) in still.rows("SELECT DISTINCT shard FROM runs")}
    assert fired == {shard for (shard,) in still.rows("SELECT DISTINCT shard FROM jobs")}


def test_concurrent_schedulers_create_one_run_per_occurrence(
    still: ClockedDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    still.apply_batch(*(submission(f"job-{n}", **EACH_SECOND) for n in range(60)))
    over = threading.Event()

    def work(scheduler: Scheduler) -> None:
        while not over.is_set():
            scheduler.step()

    with (
        caplog.at_level(logging.WARNING),
        scheduler_of(still, fire_batch=100) as one,
        scheduler_of(still, fire_batch=100) as two,
    ):
        both = [in_background(lambda each=each: work(each)) for each in (one, two)]
        for _ in range(20):
            still.advance(SECOND / 2)
        deadline: datetime = still.now() + 3.75 * SECOND  # the lookahead, without what may still gather
        while still.value("SELECT EXISTS (SELECT FROM timers WHERE due_at <= %s)", [deadline]):
            assert not any(done.done() for done in both)
        over.set()
        for done in both:
            done.result(30)
    made = still.rows("SELECT job_id, count(*), count(DISTINCT scheduled_at), min(shard) FROM runs GROUP BY job_id")
    assert len(made) == 60
    assert all(count == distinct and 13 <= count <= 15 for _, count, distinct, _ in made)  # ten, and up to five ahead
    assert still.count("runs") == len(still.job_runs()) == len(still.requests())
    assert "fires job by job" not in caplog.text


def test_locked_timer_does_not_block_others(still: ClockedDatabase) -> None:
    still.apply_batch(submission("held", **EACH_SECOND), submission("free", **EACH_SECOND))
    still.advance(SECOND)
    holding = still.connection()
    holding.execute("SELECT FROM timers AS t JOIN jobs AS j USING (job_id) WHERE key = 'held' FOR UPDATE OF t")
    assert fire_due(still) == 1
    holding.rollback()
    assert fire_due(still) == 1
    assert instants(still) == [1, 1]


def test_lost_session_is_reported_and_next_poll_fires(still: ClockedDatabase) -> None:
    still.submit(**EACH_SECOND)
    still.advance(SECOND)
    session = still.session()
    still.execute("SELECT pg_terminate_backend(%s)", [session.connection().info.backend_pid])
    with pytest.raises(Unavailable):
        fire(session, still.installation, look_at(still))
    assert fire(session, still.installation, look_at(still)) == 1
    assert instants(still) == [1]


START = datetime(2026, 3, 2, 12, tzinfo=UTC)
TICK = timedelta(microseconds=1)
DAY_SETS = {("default", "weekend"): DaySet(weekdays=frozenset({0, 6})), ("default", "none"): DaySet()}
near = st.one_of(
    st.sampled_from([timedelta(0), TICK, -TICK, SECOND, MINUTE, -MINUTE]),
    st.integers(-300, 300).map(lambda seconds: seconds * SECOND),
    st.timedeltas(timedelta(days=-3), timedelta(days=3)),
).map(lambda distance: START + distance)
every = st.one_of(st.sampled_from([1, 5, 60, 3600]), st.integers(1, 10_000)).map(lambda seconds: seconds * 1_000_000)


@st.composite
def bounds(draw: st.DrawFn) -> dict[str, object]:
    start, end = sorted([draw(near), draw(near)])
    return {
        "start_at": draw(st.sampled_from([None, start.isoformat()])),
        "end_at": draw(st.sampled_from([None, end.isoformat()])),
    }


KINDS = (*["interval"] * 4, "once", "cron", "fixed_delay", "manual")


@st.composite
def texts(draw: st.DrawFn, kinds: Sequence[str] = KINDS) -> str:
    """A schedule as it is stored."""
    kind = draw(st.sampled_from(kinds))
    document: dict[str, object] = {"kind": kind}
    if kind in {"interval", "fixed_delay"}:
        document |= {"interval_us": draw(every), **draw(bounds())}
    if kind == "interval":
        anchor = draw(near).astimezone(draw(st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))])))
        document |= {"anchor": anchor.isoformat(), "anchor_fires": draw(st.booleans())}
    if kind == "once":
        document["at"] = draw(near).isoformat()
    if kind == "cron":
        document |= {"expressions": draw(st.sampled_from([["* * * * *"], ["H H * * *"]])), **draw(bounds())}
    return canonical(document).decode()


@st.composite
def policies(draw: st.DrawFn) -> str:
    document: dict[str, object] = {"catch_up": draw(st.sampled_from(CatchUp))}
    more: list[dict[str, object]] = [
        {"exclude_calendars": ["weekend"], "on_excluded": draw(st.sampled_from(["skip", "next_business_day"]))},
        {"exclude_calendars": ["none"]},
        {"include_calendars": ["weekend"]},
        {"jitter_us": 30_000_000},
        {"jitter_percent": 50},
    ]
    document |= draw(st.sampled_from([{}, {}, {}, *more]))
    return canonical(document).decode()


def locked_timer(at: datetime, schedule: str, policy: str = "{}", *, number: int = 1) -> LockedTimer:
    return LockedTimer(
        job_id=UUID(int=number), tenant="default", shard=0, scheduled_at=at, version=1, schedule_json=schedule,
        handler="a", queue="default", lane="standard", overlap="skip", definition=b"", has_deadlines=False,
        concurrency_key=None, priority=5, ordering_key=None, passes=False,
        policy_json=policy, due_at=at,
    )  # fmt: skip


@st.composite
def timers(draw: st.DrawFn, number: int = 1) -> LockedTimer:
    timer = locked_timer(draw(near), draw(texts()), draw(policies()), number=number)
    at = timer_state(timer, DAY_SETS).schedule.after(timer.scheduled_at)
    if at is not None and draw(st.integers(0, 9)):
        timer = timer._replace(scheduled_at=at)
    return timer._replace(catch_up_end=draw(st.sampled_from([None, None, None, timer.scheduled_at])))


def long_way(timer: LockedTimer, overrides: list[Override], now: datetime, horizon: datetime) -> Decision:
    where = timer_state(timer, DAY_SETS, overrides)
    decision = decide(where, now=now, horizon=horizon, misfire_after=MISFIRE_AFTER)
    return with_jitter(decision, where, timer.job_id)


@examples(400)
@given(st.data())
def test_batch_decisions_equal_single_decisions(data: st.DataObject) -> None:
    some = [data.draw(timers(number)) for number in range(1, data.draw(st.integers(1, 4)) + 1)]
    # Others with the same inputs, one of which has overrides and may be decided first.
    some += [timer._replace(job_id=UUID(int=100 + number)) for number, timer in enumerate(some)]
    said = {UUID(int=200): [Override(some[0].scheduled_at, data.draw(st.one_of(st.none(), near)))]}
    some = data.draw(st.permutations([*some, some[0]._replace(job_id=UUID(int=200), overridden=True)]))
    late = data.draw(st.one_of(st.timedeltas(timedelta(0), 2 * MINUTE), st.sampled_from([timedelta(0), MISFIRE_AFTER])))
    now = some[0].scheduled_at + late
    horizon = now + data.draw(st.sampled_from([timedelta(0), 5 * SECOND, -3 * SECOND]))
    decider = BatchDecider(
        DecisionInputs(DAY_SETS, said), (), {}, now=now, horizon=horizon, misfire_after=MISFIRE_AFTER
    )
    for timer in some:
        assert decider(timer) == long_way(timer, list(said.get(timer.job_id, ())), now, horizon)


@examples(200)
@given(texts(["interval", "once"]), near, st.timedeltas(timedelta(0), MISFIRE_AFTER - TICK))
def test_fast_path_decides_single_occurrence_on_time(schedule: str, since: datetime, late: timedelta) -> None:
    timer = locked_timer(since, schedule)
    occurrences = timer_state(timer, {}).schedule
    at = occurrences.after(since) or occurrences.after(START - timedelta(days=4000))
    if at is None:  # its bounds leave none
        reject()
    timer = timer._replace(scheduled_at=at)
    following = occurrences.after(timer.scheduled_at)
    now = timer.scheduled_at + late if following is None else min(timer.scheduled_at + late, following - TICK)
    short = decide_on_time(timer, now=now, horizon=now, misfire_after=MISFIRE_AFTER)
    assert short is not None
    assert short == long_way(timer, [], now, now)


@pytest.mark.parametrize(
    "schedule",
    [
        "{}",
        '{"anchor":"2026-03-02T12:00:00","anchor_fires":true,"interval_us":60000000,"kind":"interval"}',
        '{"anchor":"never","anchor_fires":true,"interval_us":60000000,"kind":"interval"}',
        '{"anchor":"2026-03-02T12:00:00Z","anchor_fires":true,"interval_us":1,"kind":"interval"}',
        '{"at":"never","kind":"once"}',
    ],
)
def test_fast_path_leaves_unreadable_schedule_to_general_path(schedule: str) -> None:
    timer = locked_timer(START, schedule)
    assert decide_on_time(timer, now=START, horizon=START, misfire_after=MISFIRE_AFTER) is None
    decider = BatchDecider(DecisionInputs(), (), {}, now=START, horizon=START, misfire_after=MISFIRE_AFTER)
    with pytest.raises(DecisionFailed):
        decider(timer)
