"""Timers under a freeze: held at their cursor, once, and decided by `on_resume` after the thaw."""

from datetime import timedelta
from typing import Any, LiteralString, Self

import psycopg
import pytest

from tests.fixtures.acts import about, ending, submission
from tests.fixtures.database import ClockedDatabase
from tests.intake.test_freezes import claimable
from tests.scheduler.firing import fire_all, fire_due
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.ids import job_id
from tidewheel.intake.locks import RowLocked
from tidewheel.intake.timers import read_locked_timers
from tidewheel.intake.writing import Writing
from tidewheel.nouns.freezes.model import FrozenScope
from tidewheel.nouns.freezes.reads import preview_thaw
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState
from tidewheel.scheduler import freezing
from tidewheel.scheduler.deadlines import Deadlines
from tidewheel.scheduler.freezing import Thaws
from tidewheel.transitions.frozen_timers import hold_frozen

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
HELD: LiteralString = "SELECT key FROM timers JOIN jobs USING (job_id) WHERE hold_reason = 'freeze' ORDER BY key"
SQL = Statements("tidewheel.scheduler")
HOLDS: LiteralString = "SELECT hold_reason FROM timers"
MINUTELY = {"schedule": "@every 1m", "overlap": "allow_all"}


@pytest.fixture
def ticking(clocked: ClockedDatabase) -> ClockedDatabase:
    clocked.stop_clock()
    return clocked


def ask(database: ClockedDatabase, kind: str, **scope: object) -> None:
    [reply] = database.apply_batch({"type": kind} | (scope or {"scope": "tenant"}))
    assert reply.status == "accepted", reply.errors


def release(database: ClockedDatabase) -> None:
    """Release the timers of thawed freezes, as a scheduler that has just started does."""
    thaws = Thaws(database.session(), database.installation)
    while thaws.step():
        pass


def preview_counts(database: ClockedDatabase) -> tuple[int, int]:
    with database.transaction() as connection:
        found = preview_thaw(connection, FrozenScope("default", None, None, None))
    return found.fires, found.skips


def instants(database: ClockedDatabase) -> list[float]:
    [(accepted_at,)] = database.rows("SELECT min(created_at) FROM jobs")
    return [(run.scheduled_at - accepted_at) / MINUTE for run in database.job_runs()]


def skips(database: ClockedDatabase) -> list[tuple[str, int]]:
    return database.rows("SELECT reason, occurrences FROM skips ORDER BY first_at")


@pytest.mark.parametrize(
    ("policy", "made", "spans"),
    [("skip", [], [("frozen", 3)]), ("fire_once", [3.0], [("frozen", 2)]), ("fire_all", [1.0, 2.0, 3.0], [])],
)
def test_on_resume_decides_what_a_freeze_has_held(
    ticking: ClockedDatabase, policy: str, made: list[float], spans: list[tuple[str, int]]
) -> None:
    ticking.submit(**MINUTELY, on_resume=policy)
    ask(ticking, "freeze")
    ticking.advance(MINUTE)
    fire_all(ticking)
    assert [held for (held,) in ticking.rows(HELD)] == ["job"]
    ticking.advance(2 * MINUTE)
    assert fire_due(ticking) == 0
    ask(ticking, "thaw")
    release(ticking)
    fire_all(ticking)
    assert (instants(ticking), skips(ticking)) == (made, spans)
    ticking.advance(MINUTE)
    fire_all(ticking)
    assert instants(ticking) == [*made, 4.0]
    assert (ticking.count("freezes"), ticking.rows(HOLDS)) == (0, [(None,)])


@pytest.mark.parametrize(
    ("policy", "made", "spans"),
    [("skip", [], [("frozen", 3)]), ("fire_once", [3.0], [("frozen", 2)]), ("fire_all", [1.0, 2.0, 3.0], [])],
)
@pytest.mark.parametrize("seen", [True, False], ids=["a scheduler saw it", "no scheduler saw it"])
def test_freeze_retracts_the_runs_that_were_written_ahead(
    ticking: ClockedDatabase, policy: str, made: list[float], spans: list[tuple[str, int]], *, seen: bool
) -> None:
    """Issue 39, F1: such runs started at the thaw, whatever `on_resume` says."""
    ticking.submit(**MINUTELY, on_resume=policy)
    assert fire_due(ticking, lookahead=5 * MINUTE) == 1
    ahead = [run.run_id for run in ticking.job_runs()]
    ask(ticking, "freeze")
    if seen:
        release(ticking)
        assert instants(ticking) == []
    ticking.advance(3 * MINUTE)
    fire_all(ticking)
    if seen:
        assert preview_counts(ticking) == (len(made), sum(count for _, count in spans))
    ask(ticking, "thaw")
    if not seen:
        assert claimable(ticking, *ahead[:3]) == [False] * 3
    release(ticking)
    fire_all(ticking)
    assert ([at for at in instants(ticking) if at <= 3], skips(ticking)) == (made, spans)
    ticking.advance(2 * MINUTE)
    fire_all(ticking)
    assert instants(ticking) == [*made, 4.0, 5.0]
    assert (ticking.count("freezes"), ticking.rows(HOLDS)) == (0, [(None,)])


def test_run_written_ahead_that_started_before_the_freeze_stays(ticking: ClockedDatabase) -> None:
    ticking.submit(**MINUTELY, on_resume="fire_all")
    fire_due(ticking, lookahead=2 * MINUTE)
    ticking.advance(MINUTE)
    ticking.begin(ticking.job_runs()[0].run_id)
    ask(ticking, "freeze")
    release(ticking)
    assert [(run.state, at) for run, at in zip(ticking.job_runs(), instants(ticking), strict=True)] == [
        ("running", 1.0)
    ]
    ask(ticking, "thaw")
    release(ticking)
    ticking.advance(MINUTE)
    fire_all(ticking)
    assert instants(ticking) == [1.0, 2.0]


def test_once_written_ahead_of_a_freeze_fires_after_the_thaw(ticking: ClockedDatabase) -> None:
    """Its job has finished by then: the retraction opens it again."""
    ticking.submit(schedule={"once": (ticking.now() + SECOND).isoformat()})
    fire_due(ticking, lookahead=5 * SECOND)
    assert ticking.count("timers") == 0
    ask(ticking, "freeze")
    release(ticking)
    assert ticking.job_runs() == []
    assert ticking.value("SELECT finished_at FROM jobs") is None
    ticking.advance(MINUTE)
    ask(ticking, "thaw")
    release(ticking)
    fire_all(ticking)
    [run] = ticking.job_runs()
    assert claimable(ticking, run.run_id) == [True]
    assert (ticking.count("timers"), ticking.value("SELECT finished_at IS NOT NULL FROM jobs")) == (0, True)


def test_moved_occurrence_written_ahead_of_a_freeze_is_frozen(ticking: ClockedDatabase) -> None:
    ticking.submit(schedule="@every 1h", overlap="allow_all", on_resume="skip")
    first = ticking.now() + 60 * MINUTE
    to = ticking.now() + 2 * SECOND
    [reply] = ticking.apply_batch(about("job.move", at=first.isoformat(), to=to.isoformat()))
    assert reply.status == "accepted", reply.errors
    fire_due(ticking, lookahead=5 * SECOND)
    assert len(ticking.job_runs()) == 1
    ask(ticking, "freeze")
    ticking.advance(MINUTE)
    ask(ticking, "thaw")
    release(ticking)
    fire_all(ticking)
    assert (ticking.job_runs(), skips(ticking)) == ([], [("frozen", 1)])


@pytest.mark.parametrize("seen", ["the freeze", "the thaw", "neither"])
def test_rows_and_not_schedulers_decide_which_instants_were_frozen(ticking: ClockedDatabase, seen: str) -> None:
    """Issue 39, F2: a scheduler that is down for all of a freeze forgot it, and fired everything."""
    ticking.submit(**MINUTELY, on_resume="skip", catch_up="fire_all", window="1h")
    ticking.advance(2 * MINUTE)
    ask(ticking, "freeze")
    ticking.advance(3 * MINUTE)
    if seen == "the freeze":
        fire_all(ticking)
        release(ticking)
    ask(ticking, "thaw")
    if seen == "the thaw":
        release(ticking)
        fire_all(ticking)
        release(ticking)
    ticking.advance(2 * MINUTE)
    for _ in range(3):
        fire_all(ticking)
        release(ticking)
    assert (instants(ticking), skips(ticking)) == ([1.0, 2.0, 6.0, 7.0], [("frozen", 3)])
    assert (ticking.count("freezes"), ticking.rows(HOLDS)) == (0, [(None,)])


def test_each_of_several_freezes_that_no_scheduler_saw_counts(ticking: ClockedDatabase) -> None:
    ticking.submit(**MINUTELY, on_resume="skip", catch_up="fire_all", window="1h", labels={"team": "billing"})
    for scope in ({"queue": "default"}, {"labels": {"team": "billing"}}):
        ticking.advance(MINUTE)
        ask(ticking, "freeze", **scope)
        ticking.advance(2 * MINUTE)
        ask(ticking, "thaw", **scope)
    ticking.advance(MINUTE)
    for _ in range(4):
        fire_all(ticking)
        release(ticking)
    assert (instants(ticking), skips(ticking)) == ([1.0, 4.0, 7.0], [("frozen", 2), ("frozen", 2)])


def test_paused_until_that_passes_under_a_freeze_that_no_scheduler_saw_is_frozen(ticking: ClockedDatabase) -> None:
    ticking.submit(**MINUTELY, on_resume="skip")
    ticking.apply_batch(about("job.pause", until=(ticking.now() + 2 * MINUTE).isoformat()))
    ask(ticking, "freeze")
    ticking.advance(3 * MINUTE)
    ask(ticking, "thaw")
    for _ in range(2):
        fire_all(ticking)
        release(ticking)
    assert (instants(ticking), skips(ticking)) == ([], [("frozen", 3)])


def test_once_fires_after_the_thaw(ticking: ClockedDatabase) -> None:
    ticking.submit(schedule={"once": (ticking.now() + MINUTE).isoformat()})
    ask(ticking, "freeze")
    ticking.advance(10 * MINUTE)
    fire_all(ticking)
    assert ticking.job_runs() == []
    ask(ticking, "thaw")
    release(ticking)
    fire_all(ticking)
    assert len(ticking.job_runs()) == 1


def test_timer_not_due_under_the_freeze_is_not_touched(ticking: ClockedDatabase) -> None:
    ticking.submit(**MINUTELY)
    ask(ticking, "freeze")
    ask(ticking, "thaw")
    ticking.advance(MINUTE)
    fire_all(ticking)
    assert (instants(ticking), skips(ticking)) == ([1.0], [])


def test_overlapping_freezes_hold_until_the_last_thaw(ticking: ClockedDatabase) -> None:
    ticking.submit(**MINUTELY, on_resume="fire_all", labels={"team": "billing"})
    ticking.submit("other", **MINUTELY, on_resume="fire_all")
    ask(ticking, "freeze", queue="default")
    ask(ticking, "freeze", labels={"team": "billing"})
    ticking.advance(MINUTE)
    fire_all(ticking)
    assert [key for (key,) in ticking.rows(HELD)] == ["job", "other"]
    ask(ticking, "thaw", queue="default")
    release(ticking)
    assert [key for (key,) in ticking.rows(HELD)] == ["job"]
    ask(ticking, "thaw", labels={"team": "billing"})
    release(ticking)
    fire_all(ticking)
    assert (ticking.rows(HELD), instants(ticking)) == ([], [1.0, 1.0])
    assert (ticking.count("freezes"), ticking.count("frozen_jobs")) == (0, 0)


def test_pause_and_freeze_end_each_by_itself(ticking: ClockedDatabase) -> None:
    ticking.submit(**MINUTELY, on_resume="fire_all")
    ticking.apply_batch(about("job.pause"))
    ask(ticking, "freeze")
    ticking.advance(MINUTE)
    fire_all(ticking)
    ask(ticking, "thaw")
    release(ticking)
    fire_all(ticking)
    assert (ticking.rows(HOLDS), ticking.job_runs()) == ([("pause",)], [])
    ticking.apply_batch(about("job.resume"))
    fire_all(ticking)
    assert instants(ticking) == [1.0]


def test_pause_within_a_freeze_stays_after_the_thaw(ticking: ClockedDatabase) -> None:
    ticking.submit(**MINUTELY)
    ask(ticking, "freeze")
    ticking.advance(MINUTE)
    fire_all(ticking)
    ticking.apply_batch(about("job.pause"))
    ask(ticking, "thaw")
    release(ticking)
    assert ticking.rows(HOLDS) == [("pause",)]
    ticking.advance(MINUTE)
    ticking.apply_batch(about("job.resume"))
    assert skips(ticking) == [("frozen", 1), ("paused", 1)]


def test_pause_that_ends_under_a_freeze_is_over_and_the_freeze_holds(ticking: ClockedDatabase) -> None:
    ticking.submit(**MINUTELY)
    ticking.apply_batch(about("job.pause", until=(ticking.now() + 2 * MINUTE).isoformat()))
    ask(ticking, "freeze")
    ticking.advance(3 * MINUTE)
    fire_all(ticking)
    assert ticking.rows("SELECT paused, hold_reason FROM jobs JOIN timers USING (job_id)") == [(False, "freeze")]
    assert "io.tidewheel.job.resumed.v1" in {event.type for event in ticking.lifecycle()}
    ask(ticking, "thaw")
    release(ticking)
    assert skips(ticking) == [("frozen", 3)]


def test_edit_of_a_held_job_decides_by_the_version_that_was_in_force(ticking: ClockedDatabase) -> None:
    ticking.submit(**MINUTELY, on_resume="fire_all")
    ask(ticking, "freeze")
    ticking.advance(2 * MINUTE)
    fire_all(ticking)
    ticking.submit(schedule="@every 10m", overlap="allow_all")
    assert [(run.state, run.job_version) for run in ticking.job_runs()] == [("queued", 1)] * 2
    ticking.advance(10 * MINUTE)
    fire_all(ticking)
    assert [held for (held,) in ticking.rows(HELD)] == ["job"]


def test_deleted_job_of_a_freeze_leaves_no_timer(ticking: ClockedDatabase) -> None:
    ticking.submit(**MINUTELY)
    ask(ticking, "freeze")
    ticking.advance(2 * MINUTE)
    fire_all(ticking)
    ticking.apply_batch(about("job.delete"))
    ask(ticking, "thaw")
    release(ticking)
    assert (ticking.count("timers"), ticking.count("freezes"), skips(ticking)) == (0, 0, [("frozen", 2)])


def test_fixed_delay_goes_on_after_the_thaw(ticking: ClockedDatabase) -> None:
    ticking.submit(schedule={"fixed_delay": "1m"})
    ticking.advance(MINUTE)
    fire_all(ticking)
    [run] = ticking.job_runs()
    started = ticking.begin(run.run_id)
    ask(ticking, "freeze")
    ticking.end(ending(started, RunState.SUCCEEDED))
    ticking.advance(5 * MINUTE)
    fire_all(ticking)
    assert ticking.rows(HOLDS) == [("freeze",)]
    ask(ticking, "thaw")
    release(ticking)
    fire_all(ticking)
    assert (len(ticking.job_runs()), ticking.rows(HOLDS)) == (1, [("run",)])


def test_catch_up_that_was_decided_before_the_freeze_goes_on(ticking: ClockedDatabase) -> None:
    ticking.submit(schedule="@every 1s", overlap="allow_all", catch_up="fire_all", window="1h")
    ticking.advance(5 * MINUTE)
    assert fire_due(ticking) == 1
    ask(ticking, "freeze")
    fire_all(ticking)
    assert (len(ticking.job_runs()), skips(ticking)) == (300, [])


def test_thaw_waits_for_a_firing_that_holds_timers(ticking: ClockedDatabase) -> None:
    """Else that firing would hold its timers for a freeze that is gone, and nothing would release them."""
    ticking.submit(**MINUTELY)
    ask(ticking, "freeze")
    firing, thawing = ticking.connection(), ticking.connection()
    writing = Writing(firing, ticking.installation)
    timers = [*read_locked_timers(writing, [job_id("default", "job")]).values()]
    hold_frozen(firing, timers)
    with pytest.raises(RowLocked, match="the freeze"):
        ticking.apply_batch_within(thawing, {"type": "thaw", "scope": "tenant"})
    thawing.rollback()
    firing.rollback()
    ticking.apply_batch_within(thawing, {"type": "thaw", "scope": "tenant"})
    late = in_background(lambda: hold_frozen(firing, timers))
    until_blocked(ticking, firing)
    thawing.commit()
    assert late.result(30).held == []


def test_timer_that_another_transaction_holds_keeps_the_thaw_open(ticking: ClockedDatabase) -> None:
    ticking.submit(**MINUTELY)
    ask(ticking, "freeze")
    ticking.advance(MINUTE)
    fire_all(ticking)
    ask(ticking, "thaw")
    holder = ticking.connection()
    holder.execute("SELECT FROM timers FOR UPDATE")
    thaws = Thaws(ticking.session(), ticking.installation)
    thaws.step()
    assert (ticking.count("freezes"), ticking.rows(HOLDS)) == (1, [("freeze",)])
    holder.rollback()
    release(ticking)
    assert (ticking.count("freezes"), ticking.rows(HOLDS)) == (0, [(None,)])


def test_run_whose_deadline_passes_under_a_freeze_says_frozen(ticking: ClockedDatabase) -> None:
    for key, queue in (("job", "default"), ("other", "reports")):
        ticking.submit(key, queue=queue, schedule_to_start="1m")
    frozen, other = ticking.trigger(), ticking.trigger("other")
    ask(ticking, "freeze", queue="default")
    ticking.advance(2 * MINUTE)
    assert Deadlines(ticking.session(), ticking.installation).step()[0] == 2
    assert ticking.final_state(frozen) == ("timed_out", "frozen")
    assert ticking.final_state(other) == ("timed_out", "schedule_to_start")


def test_freeze_over_an_edit_that_did_not_see_it_ends(ticking: ClockedDatabase) -> None:
    """A job without a timer keeps its runs of before: the scheduler spun, and the freeze stayed for ever."""
    ticking.submit(**MINUTELY, on_resume="skip")
    fire_due(ticking, lookahead=5 * MINUTE)
    freezing = ticking.connection()
    ticking.apply_batch_within(freezing, {"type": "freeze", "scope": "tenant"})
    ticking.advance(2 * MINUTE)
    ticking.submit(schedule="manual")
    freezing.commit()
    runs = [run.run_id for run in ticking.job_runs()]
    assert instants(ticking) == [1.0, 2.0]
    thaws = Thaws(ticking.session(), ticking.installation)
    steps = 0
    while thaws.step():
        steps += 1
        assert steps < 10, "the scheduler spins"
    assert [ticking.final_state(run) for run in runs] == [("skipped", "frozen")] * 2
    ask(ticking, "thaw")
    release(ticking)
    assert ticking.count("freezes") == 0
    run = ticking.trigger()
    assert claimable(ticking, run) == [True]


@pytest.mark.parametrize(
    ("policy", "made", "spans"),
    [("skip", [], [("frozen", 3)]), ("fire_once", [3.0], [("frozen", 2)]), ("fire_all", [1.0, 2.0, 3.0], [])],
)
@pytest.mark.parametrize("thawed", [False, True])
@pytest.mark.parametrize("ahead", [False, True], ids=["not fired", "written ahead"])
def test_edit_under_a_freeze_that_no_scheduler_saw_leaves_its_instants_to_the_version_in_force(
    ticking: ClockedDatabase, policy: str, made: list[float], spans: list[tuple[str, int]], *, ahead: bool, thawed: bool
) -> None:
    """Issue 39: the new version decided what was written ahead; an edit after the thaw fired all."""
    ticking.submit(**MINUTELY, on_resume=policy)
    if ahead:
        fire_due(ticking, lookahead=7 * MINUTE)
    ask(ticking, "freeze")
    ticking.advance(3 * MINUTE + 30 * SECOND)
    if thawed:
        ask(ticking, "thaw")
        ticking.advance(MINUTE)
    ticking.submit(schedule="@every 10m", overlap="allow_all", catch_up="fire_all", on_resume="fire_all")
    made_after = [4.0] if thawed else []
    assert [(run.job_version, at) for run, at in zip(ticking.job_runs(), instants(ticking), strict=True)] == [
        (1, at) for at in made + made_after
    ]
    if not thawed:
        ask(ticking, "thaw")
    for _ in range(2):
        release(ticking)
        fire_all(ticking)
    assert (instants(ticking), skips(ticking)) == (made + made_after, spans)
    assert (ticking.count("freezes"), ticking.rows(HOLDS)) == (0, [(None,)])


def test_edit_to_manual_under_a_freeze_decides_what_was_written_ahead(ticking: ClockedDatabase) -> None:
    ticking.submit(**MINUTELY, on_resume="fire_once")
    fire_due(ticking, lookahead=5 * MINUTE)
    ask(ticking, "freeze")
    ticking.advance(3 * MINUTE)
    ticking.submit(schedule="manual")
    assert (instants(ticking), skips(ticking)) == ([3.0], [("frozen", 2)])


def test_edit_that_did_not_see_a_freeze_leaves_no_run_to_the_new_version(ticking: ClockedDatabase) -> None:
    ticking.submit(**MINUTELY, on_resume="fire_all")
    fire_due(ticking, lookahead=5 * MINUTE)
    freezing = ticking.connection()
    ticking.apply_batch_within(freezing, {"type": "freeze", "scope": "tenant"})
    ticking.advance(2 * MINUTE)
    ticking.submit(schedule="@every 1s", overlap="allow_all", on_resume="fire_all")
    freezing.commit()
    runs = [run.run_id for run in ticking.job_runs()]
    release(ticking)
    assert [ticking.final_state(run) for run in runs] == [("skipped", "frozen")] * 2
    ask(ticking, "thaw")
    for _ in range(2):
        release(ticking)
        fire_all(ticking)
    assert (ticking.job_runs(), ticking.count("freezes")) == ([], 0)


def test_jobs_that_another_transaction_holds_keep_no_other_from_a_freeze(ticking: ClockedDatabase) -> None:
    """Issue 39: each look read the first 500 jobs, which could be locked for hours."""
    page = 500
    keys = [f"job-{number}" for number in range(page + 20)]
    ticking.apply_batch(*(submission(key, **MINUTELY) for key in keys))
    fire_due(ticking, lookahead=MINUTE)
    assert len(ticking.job_runs()) == len(keys)
    ask(ticking, "freeze")
    holder = ticking.connection()
    first = holder.execute("SELECT job_id FROM timers ORDER BY job_id LIMIT %s FOR UPDATE", [page]).fetchall()
    release(ticking)
    assert {run.job_id for run in ticking.job_runs()} == {job for (job,) in first}
    ticking.advance(MINUTE)
    ask(ticking, "thaw")
    holder.rollback()
    release(ticking)
    assert (ticking.job_runs(), ticking.count("freezes")) == ([], 0)


def test_scheduler_rests_while_another_transaction_holds_a_job_that_a_freeze_concerns(ticking: ClockedDatabase) -> None:
    ticking.submit(**MINUTELY)
    fire_due(ticking, lookahead=5 * MINUTE)
    ask(ticking, "freeze")
    ticking.advance(MINUTE)
    ask(ticking, "thaw")
    holder = ticking.connection()
    holder.execute("SELECT FROM timers FOR UPDATE")
    thaws = Thaws(ticking.session(), ticking.installation)
    assert not thaws.step()
    assert ticking.count("freezes") == 1
    holder.rollback()
    release(ticking)
    assert (ticking.count("freezes"), ticking.rows(HOLDS)) == (0, [(None,)])


def test_freeze_retracts_at_once_beside_an_older_one_that_waits_for_a_transaction(
    ticking: ClockedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [0.0]
    monkeypatch.setattr(freezing, "monotonic_seconds", lambda: seconds[0])
    ticking.submit(**MINUTELY)
    fire_due(ticking, lookahead=5 * MINUTE)
    before = ticking.connection()
    before.execute("SELECT pg_current_xact_id()")
    thaws = Thaws(ticking.session(), ticking.installation)

    def pass_second() -> None:
        seconds[0] += 1.0
        while thaws.step():
            pass

    ask(ticking, "freeze", queue="other")
    for _ in range(100):
        pass_second()
    assert ticking.value("SELECT settled FROM freezes") is False
    ask(ticking, "freeze", queue="default")
    pass_second()
    assert ticking.job_runs() == []


def test_thaw_looks_once_a_pass_for_runs_that_were_written_ahead(
    ticking: ClockedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look reads the runs of the whole backlog."""
    monkeypatch.setattr(freezing, "_RELEASED", 2)
    for number in range(9):
        ticking.submit(f"job-{number}", **MINUTELY)
    ask(ticking, "freeze", queue="default")
    ticking.advance(MINUTE)
    fire_all(ticking)
    ask(ticking, "thaw", queue="default")
    statements = list[str]()

    class Counting(psycopg.Cursor[Any]):
        def execute(self, query: Any, *given: Any, **named: Any) -> Self:  # noqa: ANN401 - passed on
            statements.append(str(query))
            return super().execute(query, *given, **named)

    session = ticking.session()
    session.connection().cursor_factory = Counting
    thaws = Thaws(session, ticking.installation)
    while thaws.step():
        pass
    assert (ticking.count("freezes"), ticking.rows(HELD)) == (0, [])
    looks, pages = (statements.count(str(SQL[name])) for name in ("find_written_ahead", "find_held_timers"))
    assert looks == 2 < pages, "a pass that releases timers, and one that finds none"


@pytest.mark.parametrize("is_once", [True, False])
def test_request_that_changes_nothing_leaves_a_held_job_to_the_thaw(ticking: ClockedDatabase, *, is_once: bool) -> None:
    once = {"schedule": {"once": (ticking.now() + 10 * MINUTE).isoformat()}}
    spec: dict[str, Any] = once if is_once else {**MINUTELY, "on_resume": "fire_once"}
    ticking.submit(**spec)
    ask(ticking, "freeze")
    ticking.advance(15 * MINUTE)
    fire_all(ticking)
    ticking.submit(**spec)
    for _ in range(2):
        ticking.advance(MINUTE)
        fire_all(ticking)
    assert (ticking.job_runs(), ticking.rows(HOLDS)) == ([], [("freeze",)])
    ask(ticking, "thaw")
    release(ticking)
    fire_all(ticking)
    assert (len(ticking.job_runs()), ticking.count("freezes")) == (1, 0)


def test_edit_fires_no_paused_instant_of_a_pause_that_ended_under_a_freeze(ticking: ClockedDatabase) -> None:
    ticking.submit(**MINUTELY)
    ticking.apply_batch(about("job.pause", until=(ticking.now() + 4 * MINUTE).isoformat()))
    ticking.advance(2 * MINUTE)
    ask(ticking, "freeze")
    ticking.advance(3 * MINUTE)
    fire_all(ticking)
    assert ticking.rows(HOLDS) == [("freeze",)]
    ticking.submit(**MINUTELY, labels={"team": "billing"})
    assert ticking.job_runs() == []
    ask(ticking, "thaw")
    release(ticking)
    fire_all(ticking)
    assert ticking.job_runs() == []


def test_moved_occurrence_under_a_freeze_fires_after_the_thaw(ticking: ClockedDatabase) -> None:
    ticking.submit(schedule="@every 1h", overlap="allow_all", on_resume="fire_once")
    first = ticking.now() + 60 * MINUTE
    [reply] = ticking.apply_batch(about("job.move", at=first.isoformat(), to=(ticking.now() + 10 * MINUTE).isoformat()))
    assert reply.status == "accepted", reply.errors
    ask(ticking, "freeze")
    ticking.advance(20 * MINUTE)
    fire_all(ticking)
    ask(ticking, "thaw")
    for _ in range(3):
        release(ticking)
        fire_all(ticking)
    assert (len(ticking.job_runs()), ticking.count("freezes"), ticking.rows(HOLDS)) == (1, 0, [(None,)])
