"""Timers under a freeze: held at their cursor, once, and decided by `on_resume` after the thaw."""

from datetime import timedelta
from typing import Any, LiteralString, Self

import psycopg
import pytest
from psycopg import sql

from tests.fixtures.acts import about, ending, submission
from tests.fixtures.database import ClockedDatabase
from tests.intake.test_freezes import claimable
from tests.scheduler.firing import HOUR, MINUTE, SECOND, fire_all, fire_due, skips
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.ids import job_id
from tidewheel.intake.locks import RowLocked
from tidewheel.intake.timers import read_locked_timers
from tidewheel.intake.writing import Writing
from tidewheel.nouns.freezes.model import FrozenScope
from tidewheel.nouns.freezes.operations import preview_thaw
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState
from tidewheel.scheduler import releases
from tidewheel.scheduler.deadlines import Deadlines
from tidewheel.scheduler.releases import Thaws
from tidewheel.transitions.frozen_timers import hold_frozen

HELD: LiteralString = "SELECT key FROM timers JOIN jobs USING (job_id) WHERE hold_reason = 'freeze' ORDER BY key"
SQL = Statements("tidewheel.scheduler")
HOLDS: LiteralString = "SELECT hold_reason FROM timers"
MINUTELY = {"schedule": "@every 1m", "overlap": "allow_all"}
# Of a freeze over three instants.
EACH_POLICY = pytest.mark.parametrize(
    ("policy", "made", "spans"),
    [("skip", [], [("frozen", 3)]), ("fire_once", [3.0], [("frozen", 2)]), ("fire_all", [1.0, 2.0, 3.0], [])],
)


def ask(database: ClockedDatabase, kind: str, **scope: object) -> None:
    [reply] = database.apply_batch({"type": kind} | (scope or {"scope": "tenant"}))
    assert reply.status == "accepted", reply.errors


def release(database: ClockedDatabase) -> None:
    """Release the timers of thawed freezes, as a scheduler that has just started does."""
    thaws = Thaws(database.session(), database.installation)
    while thaws.step():
        pass


def thaw(database: ClockedDatabase) -> None:
    ask(database, "thaw")
    release(database)


def settle(database: ClockedDatabase, looks: int = 2) -> None:
    """Fire and release, as often as a scheduler may have to look."""
    for _ in range(looks):
        fire_all(database)
        release(database)


def move(database: ClockedDatabase, at: timedelta, to: timedelta) -> None:
    """Move an occurrence; both instants count from now."""
    now = database.now()
    [reply] = database.apply_batch(about("job.move", at=(now + at).isoformat(), to=(now + to).isoformat()))
    assert reply.status == "accepted", reply.errors


def preview_counts(database: ClockedDatabase) -> tuple[int, int]:
    found = database.within(preview_thaw, FrozenScope("default", None, None, None))
    return found.fires, found.skips


def instants(database: ClockedDatabase) -> list[float]:
    [(accepted_at,)] = database.rows("SELECT min(created_at) FROM jobs")
    return [(run.scheduled_at - accepted_at) / MINUTE for run in database.job_runs()]


@EACH_POLICY
def test_on_resume_decides_what_a_freeze_has_held(
    still: ClockedDatabase, policy: str, made: list[float], spans: list[tuple[str, int]]
) -> None:
    still.submit(**MINUTELY, on_resume=policy)
    ask(still, "freeze")
    still.advance(MINUTE)
    fire_all(still)
    assert [held for (held,) in still.rows(HELD)] == ["job"]
    still.advance(2 * MINUTE)
    assert fire_due(still) == 0
    thaw(still)
    fire_all(still)
    assert (instants(still), skips(still)) == (made, spans)
    still.advance(MINUTE)
    fire_all(still)
    assert instants(still) == [*made, 4.0]
    assert (still.count("freezes"), still.rows(HOLDS)) == (0, [(None,)])


@EACH_POLICY
@pytest.mark.parametrize("seen", [True, False], ids=["a scheduler saw it", "no scheduler saw it"])
def test_freeze_retracts_the_runs_that_were_written_ahead(
    still: ClockedDatabase, policy: str, made: list[float], spans: list[tuple[str, int]], *, seen: bool
) -> None:
    """Issue 39, F1: such runs started at the thaw, whatever `on_resume` says."""
    still.submit(**MINUTELY, on_resume=policy)
    assert fire_due(still, lookahead=5 * MINUTE) == 1
    ahead = [run.run_id for run in still.job_runs()]
    ask(still, "freeze")
    if seen:
        release(still)
        assert instants(still) == []
    still.advance(3 * MINUTE)
    fire_all(still)
    if seen:
        assert preview_counts(still) == (len(made), sum(count for _, count in spans))
    ask(still, "thaw")
    if not seen:
        assert claimable(still, *ahead[:3]) == [False] * 3
    release(still)
    fire_all(still)
    assert ([at for at in instants(still) if at <= 3], skips(still)) == (made, spans)
    still.advance(2 * MINUTE)
    fire_all(still)
    assert instants(still) == [*made, 4.0, 5.0]
    assert (still.count("freezes"), still.rows(HOLDS)) == (0, [(None,)])


def test_run_written_ahead_that_started_before_the_freeze_stays(still: ClockedDatabase) -> None:
    still.submit(**MINUTELY, on_resume="fire_all")
    fire_due(still, lookahead=2 * MINUTE)
    still.advance(MINUTE)
    still.begin(still.job_runs()[0].run_id)
    ask(still, "freeze")
    release(still)
    assert [(run.state, at) for run, at in zip(still.job_runs(), instants(still), strict=True)] == [("running", 1.0)]
    thaw(still)
    still.advance(MINUTE)
    fire_all(still)
    assert instants(still) == [1.0, 2.0]


def test_once_written_ahead_of_a_freeze_fires_after_the_thaw(still: ClockedDatabase) -> None:
    """Its job has finished by then: the retraction opens it again."""
    still.submit(schedule={"once": (still.now() + SECOND).isoformat()})
    fire_due(still, lookahead=5 * SECOND)
    assert still.count("timers") == 0
    ask(still, "freeze")
    release(still)
    assert still.job_runs() == []
    assert still.value("SELECT finished_at FROM jobs") is None
    still.advance(MINUTE)
    thaw(still)
    fire_all(still)
    [run] = still.job_runs()
    assert claimable(still, run.run_id) == [True]
    assert (still.count("timers"), still.value("SELECT finished_at IS NOT NULL FROM jobs")) == (0, True)


def test_moved_occurrence_written_ahead_of_a_freeze_is_frozen(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1h", overlap="allow_all", on_resume="skip")
    move(still, HOUR, 2 * SECOND)
    fire_due(still, lookahead=5 * SECOND)
    assert len(still.job_runs()) == 1
    ask(still, "freeze")
    still.advance(MINUTE)
    thaw(still)
    fire_all(still)
    assert (still.job_runs(), skips(still)) == ([], [("frozen", 1)])


@pytest.mark.parametrize("seen", ["the freeze", "the thaw", "neither"])
def test_rows_and_not_schedulers_decide_which_instants_were_frozen(still: ClockedDatabase, seen: str) -> None:
    """Issue 39, F2: a scheduler that is down for all of a freeze forgot it, and fired everything."""
    still.submit(**MINUTELY, on_resume="skip", catch_up="fire_all", window="1h")
    still.advance(2 * MINUTE)
    ask(still, "freeze")
    still.advance(3 * MINUTE)
    if seen == "the freeze":
        fire_all(still)
        release(still)
    ask(still, "thaw")
    if seen == "the thaw":
        release(still)
        fire_all(still)
        release(still)
    still.advance(2 * MINUTE)
    settle(still, 3)
    assert (instants(still), skips(still)) == ([1.0, 2.0, 6.0, 7.0], [("frozen", 3)])
    assert (still.count("freezes"), still.rows(HOLDS)) == (0, [(None,)])


def test_each_of_several_freezes_that_no_scheduler_saw_counts(still: ClockedDatabase) -> None:
    still.submit(**MINUTELY, on_resume="skip", catch_up="fire_all", window="1h", labels={"team": "billing"})
    for scope in ({"queue": "default"}, {"labels": {"team": "billing"}}):
        still.advance(MINUTE)
        ask(still, "freeze", **scope)
        still.advance(2 * MINUTE)
        ask(still, "thaw", **scope)
    still.advance(MINUTE)
    settle(still, 4)
    assert (instants(still), skips(still)) == ([1.0, 4.0, 7.0], [("frozen", 2), ("frozen", 2)])


def test_paused_until_that_passes_under_a_freeze_that_no_scheduler_saw_is_frozen(still: ClockedDatabase) -> None:
    still.submit(**MINUTELY, on_resume="skip")
    still.apply_batch(about("job.pause", until=(still.now() + 2 * MINUTE).isoformat()))
    ask(still, "freeze")
    still.advance(3 * MINUTE)
    ask(still, "thaw")
    settle(still)
    assert (instants(still), skips(still)) == ([], [("frozen", 3)])


def test_timer_not_due_under_the_freeze_is_not_touched(still: ClockedDatabase) -> None:
    still.submit(**MINUTELY)
    ask(still, "freeze")
    ask(still, "thaw")
    still.advance(MINUTE)
    fire_all(still)
    assert (instants(still), skips(still)) == ([1.0], [])


def test_overlapping_freezes_hold_until_the_last_thaw(still: ClockedDatabase) -> None:
    still.submit(**MINUTELY, on_resume="fire_all", labels={"team": "billing"})
    still.submit("other", **MINUTELY, on_resume="fire_all")
    ask(still, "freeze", queue="default")
    ask(still, "freeze", labels={"team": "billing"})
    still.advance(MINUTE)
    fire_all(still)
    assert [key for (key,) in still.rows(HELD)] == ["job", "other"]
    ask(still, "thaw", queue="default")
    release(still)
    assert [key for (key,) in still.rows(HELD)] == ["job"]
    ask(still, "thaw", labels={"team": "billing"})
    release(still)
    fire_all(still)
    assert (still.rows(HELD), instants(still)) == ([], [1.0, 1.0])
    assert (still.count("freezes"), still.count("frozen_jobs")) == (0, 0)


def test_pause_and_freeze_end_each_by_itself(still: ClockedDatabase) -> None:
    still.submit(**MINUTELY, on_resume="fire_all")
    still.apply_batch(about("job.pause"))
    ask(still, "freeze")
    still.advance(MINUTE)
    fire_all(still)
    thaw(still)
    fire_all(still)
    assert (still.rows(HOLDS), still.job_runs()) == ([("pause",)], [])
    still.apply_batch(about("job.resume"))
    fire_all(still)
    assert instants(still) == [1.0]


def test_pause_within_a_freeze_stays_after_the_thaw(still: ClockedDatabase) -> None:
    still.submit(**MINUTELY)
    ask(still, "freeze")
    still.advance(MINUTE)
    fire_all(still)
    still.apply_batch(about("job.pause"))
    thaw(still)
    assert still.rows(HOLDS) == [("pause",)]
    still.advance(MINUTE)
    still.apply_batch(about("job.resume"))
    assert skips(still) == [("frozen", 1), ("paused", 1)]


def test_pause_that_ends_under_a_freeze_is_over_and_the_freeze_holds(still: ClockedDatabase) -> None:
    still.submit(**MINUTELY)
    still.apply_batch(about("job.pause", until=(still.now() + 2 * MINUTE).isoformat()))
    ask(still, "freeze")
    still.advance(3 * MINUTE)
    fire_all(still)
    assert still.rows("SELECT paused, hold_reason FROM jobs JOIN timers USING (job_id)") == [(False, "freeze")]
    assert "io.tidewheel.job.resumed.v1" in {event.type for event in still.lifecycle()}
    thaw(still)
    assert skips(still) == [("frozen", 3)]


def test_edit_of_a_held_job_decides_by_the_version_that_was_in_force(still: ClockedDatabase) -> None:
    still.submit(**MINUTELY, on_resume="fire_all")
    ask(still, "freeze")
    still.advance(2 * MINUTE)
    fire_all(still)
    still.submit(schedule="@every 10m", overlap="allow_all")
    assert [(run.state, run.job_version) for run in still.job_runs()] == [("queued", 1)] * 2
    still.advance(10 * MINUTE)
    fire_all(still)
    assert [held for (held,) in still.rows(HELD)] == ["job"]


def test_deleted_job_of_a_freeze_leaves_no_timer(still: ClockedDatabase) -> None:
    still.submit(**MINUTELY)
    ask(still, "freeze")
    still.advance(2 * MINUTE)
    fire_all(still)
    still.apply_batch(about("job.delete"))
    thaw(still)
    assert (still.count("timers"), still.count("freezes"), skips(still)) == (0, 0, [("frozen", 2)])


def test_fixed_delay_goes_on_after_the_thaw(still: ClockedDatabase) -> None:
    still.submit(schedule={"fixed_delay": "1m"})
    still.advance(MINUTE)
    fire_all(still)
    [run] = still.job_runs()
    started = still.begin(run.run_id)
    ask(still, "freeze")
    still.end(ending(started, RunState.SUCCEEDED))
    still.advance(5 * MINUTE)
    fire_all(still)
    assert still.rows(HOLDS) == [("freeze",)]
    thaw(still)
    fire_all(still)
    assert (len(still.job_runs()), still.rows(HOLDS)) == (1, [("run",)])


def test_catch_up_that_was_decided_before_the_freeze_goes_on(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1s", overlap="allow_all", catch_up="fire_all", window="1h")
    still.advance(5 * MINUTE)
    assert fire_due(still) == 1
    ask(still, "freeze")
    fire_all(still)
    assert (len(still.job_runs()), skips(still)) == (300, [])


def test_thaw_waits_for_a_firing_that_holds_timers(still: ClockedDatabase) -> None:
    """Else that firing would hold its timers for a freeze that is gone, and nothing would release them."""
    still.submit(**MINUTELY)
    ask(still, "freeze")
    firing, thawing = still.connection(), still.connection()
    writing = Writing(firing, still.installation)
    timers = [*read_locked_timers(writing, [job_id("default", "job")]).values()]
    hold_frozen(firing, timers)
    with pytest.raises(RowLocked, match="the freeze"):
        still.apply_batch_within(thawing, {"type": "thaw", "scope": "tenant"})
    thawing.rollback()
    firing.rollback()
    still.apply_batch_within(thawing, {"type": "thaw", "scope": "tenant"})
    late = in_background(lambda: hold_frozen(firing, timers))
    until_blocked(still, firing)
    thawing.commit()
    assert late.result(30).held == []


def test_run_whose_deadline_passes_under_a_freeze_says_frozen(still: ClockedDatabase) -> None:
    for key, queue in (("job", "default"), ("other", "reports")):
        still.submit(key, queue=queue, schedule_to_start="1m")
    frozen, other = still.trigger(), still.trigger("other")
    ask(still, "freeze", queue="default")
    still.advance(2 * MINUTE)
    assert Deadlines(still.session(), still.installation).step()[0] == 2
    assert still.final_state(frozen) == ("timed_out", "frozen")
    assert still.final_state(other) == ("timed_out", "schedule_to_start")


def test_freeze_over_an_edit_that_did_not_see_it_ends(still: ClockedDatabase) -> None:
    """A job without a timer keeps its runs of before: the scheduler spun, and the freeze stayed for ever."""
    still.submit(**MINUTELY, on_resume="skip")
    fire_due(still, lookahead=5 * MINUTE)
    connection = still.connection()
    still.apply_batch_within(connection, {"type": "freeze", "scope": "tenant"})
    still.advance(2 * MINUTE)
    still.submit(schedule="manual")
    connection.commit()
    runs = [run.run_id for run in still.job_runs()]
    assert instants(still) == [1.0, 2.0]
    thaws = Thaws(still.session(), still.installation)
    steps = 0
    while thaws.step():
        steps += 1
        assert steps < 10, "the scheduler spins"
    assert [still.final_state(run) for run in runs] == [("skipped", "frozen")] * 2
    thaw(still)
    assert still.count("freezes") == 0
    run = still.trigger()
    assert claimable(still, run) == [True]


@EACH_POLICY
@pytest.mark.parametrize("thawed", [False, True])
@pytest.mark.parametrize("ahead", [False, True], ids=["not fired", "written ahead"])
def test_edit_under_a_freeze_that_no_scheduler_saw_leaves_its_instants_to_the_version_in_force(
    still: ClockedDatabase, policy: str, made: list[float], spans: list[tuple[str, int]], *, ahead: bool, thawed: bool
) -> None:
    """Issue 39: the new version decided what was written ahead; an edit after the thaw fired all."""
    still.submit(**MINUTELY, on_resume=policy)
    if ahead:
        fire_due(still, lookahead=7 * MINUTE)
    ask(still, "freeze")
    still.advance(3 * MINUTE + 30 * SECOND)
    if thawed:
        ask(still, "thaw")
        still.advance(MINUTE)
    still.submit(schedule="@every 10m", overlap="allow_all", catch_up="fire_all", on_resume="fire_all")
    made_after = [4.0] if thawed else []
    assert [(run.job_version, at) for run, at in zip(still.job_runs(), instants(still), strict=True)] == [
        (1, at) for at in made + made_after
    ]
    if not thawed:
        ask(still, "thaw")
    settle(still)
    assert (instants(still), skips(still)) == (made + made_after, spans)
    assert (still.count("freezes"), still.rows(HOLDS)) == (0, [(None,)])


def test_edit_to_manual_under_a_freeze_decides_what_was_written_ahead(still: ClockedDatabase) -> None:
    still.submit(**MINUTELY, on_resume="fire_once")
    fire_due(still, lookahead=5 * MINUTE)
    ask(still, "freeze")
    still.advance(3 * MINUTE)
    still.submit(schedule="manual")
    assert (instants(still), skips(still)) == ([3.0], [("frozen", 2)])


def test_edit_that_did_not_see_a_freeze_leaves_no_run_to_the_new_version(still: ClockedDatabase) -> None:
    still.submit(**MINUTELY, on_resume="fire_all")
    fire_due(still, lookahead=5 * MINUTE)
    connection = still.connection()
    still.apply_batch_within(connection, {"type": "freeze", "scope": "tenant"})
    still.advance(2 * MINUTE)
    still.submit(schedule="@every 1s", overlap="allow_all", on_resume="fire_all")
    connection.commit()
    runs = [run.run_id for run in still.job_runs()]
    release(still)
    assert [still.final_state(run) for run in runs] == [("skipped", "frozen")] * 2
    ask(still, "thaw")
    settle(still)
    assert (still.job_runs(), still.count("freezes")) == ([], 0)


def test_jobs_that_another_transaction_holds_keep_no_other_from_a_freeze(still: ClockedDatabase) -> None:
    """Issue 39: each look read the first 500 jobs, which could be locked for hours."""
    page = 500
    keys = [f"job-{number}" for number in range(page + 20)]
    still.apply_batch(*(submission(key, **MINUTELY) for key in keys))
    fire_due(still, lookahead=MINUTE)
    assert len(still.job_runs()) == len(keys)
    ask(still, "freeze")
    holder = still.connection()
    first = holder.execute("SELECT job_id FROM timers ORDER BY job_id LIMIT %s FOR UPDATE", [page]).fetchall()
    release(still)
    assert {run.job_id for run in still.job_runs()} == {job for (job,) in first}
    still.advance(MINUTE)
    ask(still, "thaw")
    holder.rollback()
    release(still)
    assert (still.job_runs(), still.count("freezes")) == ([], 0)


@pytest.mark.parametrize("ahead", [False, True], ids=["held", "written ahead"])
def test_scheduler_rests_while_another_transaction_holds_a_job_that_a_freeze_concerns(
    still: ClockedDatabase, *, ahead: bool
) -> None:
    still.submit(**MINUTELY)
    if ahead:
        fire_due(still, lookahead=5 * MINUTE)
    ask(still, "freeze")
    still.advance(MINUTE)
    if not ahead:
        fire_all(still)
    ask(still, "thaw")
    holder = still.connection()
    holder.execute("SELECT FROM timers FOR UPDATE")
    thaws = Thaws(still.session(), still.installation)
    assert not thaws.step()
    assert still.count("freezes") == 1
    holder.rollback()
    release(still)
    assert (still.count("freezes"), still.rows(HOLDS)) == (0, [(None,)])


def test_freeze_retracts_at_once_beside_an_older_one_that_waits_for_a_transaction(
    still: ClockedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [0.0]
    monkeypatch.setattr(releases, "monotonic_seconds", lambda: seconds[0])
    still.submit(**MINUTELY)
    fire_due(still, lookahead=5 * MINUTE)
    before = still.connection()
    before.execute("SELECT pg_current_xact_id()")
    thaws = Thaws(still.session(), still.installation)

    def pass_second() -> None:
        seconds[0] += 1.0
        while thaws.step():
            pass

    ask(still, "freeze", queue="other")
    for _ in range(100):
        pass_second()
    assert still.value("SELECT settled FROM freezes") is False
    ask(still, "freeze", queue="default")
    pass_second()
    assert still.job_runs() == []


def test_thaw_looks_once_a_pass_for_runs_that_were_written_ahead(
    still: ClockedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look reads the runs of the whole backlog."""
    monkeypatch.setattr(releases, "_RELEASED", 2)
    for number in range(9):
        still.submit(f"job-{number}", **MINUTELY)
    ask(still, "freeze", queue="default")
    still.advance(MINUTE)
    fire_all(still)
    ask(still, "thaw", queue="default")
    statements = list[str]()

    class Counting(psycopg.Cursor[Any]):
        def execute(self, query: Any, *given: Any, **named: Any) -> Self:  # noqa: ANN401 - passed on
            statements.append(str(query))
            return super().execute(query, *given, **named)

    session = still.session()
    session.connection().cursor_factory = Counting
    thaws = Thaws(session, still.installation)
    while thaws.step():
        pass
    assert (still.count("freezes"), still.rows(HELD)) == (0, [])
    looks, pages = (statements.count(str(SQL[name])) for name in ("find_written_ahead", "find_held_timers"))
    assert looks == 2 < pages, "a pass that releases timers, and one that finds none"


@pytest.mark.parametrize("is_once", [True, False])
def test_request_that_changes_nothing_leaves_a_held_job_to_the_thaw(still: ClockedDatabase, *, is_once: bool) -> None:
    once = {"schedule": {"once": (still.now() + 10 * MINUTE).isoformat()}}
    spec: dict[str, Any] = once if is_once else {**MINUTELY, "on_resume": "fire_once"}
    still.submit(**spec)
    ask(still, "freeze")
    still.advance(15 * MINUTE)
    fire_all(still)
    still.submit(**spec)
    for _ in range(2):
        still.advance(MINUTE)
        fire_all(still)
    assert (still.job_runs(), still.rows(HOLDS)) == ([], [("freeze",)])
    thaw(still)
    fire_all(still)
    assert (len(still.job_runs()), still.count("freezes")) == (1, 0)


def test_edit_fires_no_paused_instant_of_a_pause_that_ended_under_a_freeze(still: ClockedDatabase) -> None:
    still.submit(**MINUTELY)
    still.apply_batch(about("job.pause", until=(still.now() + 4 * MINUTE).isoformat()))
    still.advance(2 * MINUTE)
    ask(still, "freeze")
    still.advance(3 * MINUTE)
    fire_all(still)
    assert still.rows(HOLDS) == [("freeze",)]
    still.submit(**MINUTELY, labels={"team": "billing"})
    assert still.job_runs() == []
    thaw(still)
    fire_all(still)
    assert still.job_runs() == []


def test_moved_occurrence_under_a_freeze_fires_after_the_thaw(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1h", overlap="allow_all", on_resume="fire_once")
    move(still, HOUR, 10 * MINUTE)
    ask(still, "freeze")
    still.advance(20 * MINUTE)
    fire_all(still)
    ask(still, "thaw")
    settle(still, 3)
    assert (len(still.job_runs()), still.count("freezes"), still.rows(HOLDS)) == (1, 0, [(None,)])


@pytest.mark.parametrize("held", [True, False], ids=["held before", "held never"])
@pytest.mark.parametrize(
    ("column", "value"),
    [("due_at", "-infinity"), ("scheduled_at", "-infinity"), ("catch_up_end", "294000-01-01Z"), ("version", "-1")],
)
def test_timer_that_cannot_be_read_keeps_no_freeze_from_ending(
    still: ClockedDatabase, column: str, value: str, *, held: bool
) -> None:
    still.submit("damaged", **MINUTELY)
    still.submit("whole", **MINUTELY)
    ask(still, "freeze")
    still.advance(MINUTE)
    if held:
        fire_all(still)
    change = sql.SQL("UPDATE timers SET {} = %s WHERE job_id = %s").format(sql.Identifier(column))
    assert still.execute(change, [value, job_id("default", "damaged")]) == 1
    fire_all(still)
    assert ("whole",) in still.rows(HELD)
    thaw(still)
    assert (still.count("freezes"), ("whole",) in still.rows(HELD)) == (0, False)


def test_run_that_cannot_be_retracted_keeps_no_other(still: ClockedDatabase) -> None:
    still.submit("damaged", **MINUTELY)
    still.submit("whole", **MINUTELY)
    fire_due(still, lookahead=5 * MINUTE)
    still.execute(
        "UPDATE job_runs SET scheduled_at = '294000-01-01Z' WHERE job_id = %s", [job_id("default", "damaged")]
    )
    ask(still, "freeze")
    release(still)
    assert still.rows("SELECT DISTINCT key FROM job_runs JOIN jobs USING (job_id)") == [("damaged",)]
    thaw(still)
    assert still.count("freezes") == 0
