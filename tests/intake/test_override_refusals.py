"""An override that cannot apply is refused with a remedy; it excludes firing by the timer's lock."""

from datetime import datetime, timedelta

import pytest

from tests.fixtures.acts import EXECUTOR, about, refusal
from tests.fixtures.database import ClockedDatabase
from tests.intake.minutes import (
    MINUTE,
    MINUTELY,
    SECOND,
    fire_for,
    manual_skips,
    minute,
    missed,
    override,
    request_override,
    runs,
)
from tests.scheduler.firing import fire_due, look_at
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.jobs.values import format_timestamp
from tidewheel.scheduler.firing import fire
from tidewheel.transitions.claim import claim_runs

AHEAD = 5 * SECOND


def text(database: ClockedDatabase, number: float) -> str:
    return format_timestamp(minute(database, number))


@pytest.mark.parametrize("what", ["skip", "move"])
def test_instant_without_an_occurrence_is_refused_with_the_nearest_ones(minutely: ClockedDatabase, what: str) -> None:
    to = {"to": minute(minutely, 9).isoformat()} if what == "move" else {}
    assert refusal(request_override(minutely, what, 2.5, **to)) == (
        "at",
        f"{text(minutely, 2.5)} is not an occurrence",
        f"the nearest are {text(minutely, 2)} and {text(minutely, 3)}",
    )


def test_refusal_at_the_schedules_bounds_names_one_occurrence(still: ClockedDatabase) -> None:
    still.submit(**MINUTELY, max_runs=3)
    assert refusal(request_override(still, "skip", 4))[2] == f"the last is {text(still, 3)}"
    assert refusal(request_override(still, "skip", 0.5))[2] == f"the next is {text(still, 1)}"


def test_past_occurrence_is_refused_with_the_next_one(minutely: ClockedDatabase) -> None:
    minutely.advance(2 * MINUTE)
    path, problem, remedy = refusal(request_override(minutely, "skip", 2))
    assert (path, remedy) == ("at", f"the next is {text(minutely, 3)}")
    assert problem == f"{text(minutely, 2)} has passed; the database's clock is at {text(minutely, 2)}"
    assert refusal(request_override(minutely, "skip", 2.5)).remedy == remedy, "nor are others named that have passed"


def test_skip_on_an_excluded_day_is_refused(clocked: ClockedDatabase) -> None:
    now = clocked.stop_clock(datetime.fromisoformat("2026-12-04T12:00:00Z"))
    clocked.apply_batch({"type": "calendar.put", "name": "weekend", "weekdays": ["SAT", "SUN"]})
    clocked.submit(schedule={"cron": "0 9 * * *"}, exclude_calendars=["weekend"])
    saturday = now.replace(hour=9) + timedelta(days=1)
    path, problem, remedy = clocked.refuse(about("job.skip", at=saturday.isoformat()))
    assert (path, problem) == ("at", "2026-12-05T09:00:00.000000Z is not an occurrence: a calendar excludes its day")
    assert remedy == "the next is 2026-12-07T09:00:00.000000Z"


@pytest.mark.parametrize(
    ("to", "problem", "remedy"),
    [
        (2.0, "is already the occurrence's time", "leave the occurrence as it is"),
        (0.0, "has passed", "write a later time"),
        (401 * 1440.0, "is more than 400 days from the occurrence", "skip it, and trigger the job then"),
    ],
    ids=["its own", "passed", "too far"],
)
def test_invalid_target_of_a_move_is_refused(minutely: ClockedDatabase, to: float, problem: str, remedy: str) -> None:
    error = refusal(request_override(minutely, "move", 2, to=minute(minutely, to).isoformat()))
    assert (error.path, error.remedy) == ("to", remedy)
    assert problem in error.problem
    override(minutely, "skip", 2)
    again = refusal(request_override(minutely, "move", 2, to=minute(minutely, 2).isoformat()))
    assert again.remedy == "undo the skip or the move with unskip"


@pytest.mark.parametrize(("schedule", "kind"), [("manual", "manual"), ({"fixed_delay": "1m"}, "fixed_delay")])
def test_skip_for_a_job_without_computed_instants_is_refused(
    still: ClockedDatabase, schedule: object, kind: str
) -> None:
    still.submit(schedule=schedule)
    path, problem, _ = refusal(request_override(still, "skip", 1))
    assert (path, problem) == ("at", f"the schedule is {kind}, whose occurrences are not known in advance")


def test_unskip_without_an_override_is_refused_with_existing_ones(minutely: ClockedDatabase) -> None:
    path, problem, remedy = refusal(request_override(minutely, "unskip", 9))
    assert (path, problem) == ("at", f"{text(minutely, 9)} is not skipped or moved, or has passed")
    assert remedy == "no upcoming occurrence of this job is skipped or moved"
    for number in (1, 2, 3, 4):
        override(minutely, "skip", number)
    override(minutely, "move", 2, to=2.5)
    remedy = refusal(request_override(minutely, "unskip", 9)).remedy
    assert [text(minutely, number) in remedy for number in (1, 2, 2.5, 3, 4)] == [True] * 4 + [False]


def test_override_of_a_distant_instant_is_refused_at_once(minutely: ClockedDatabase) -> None:
    minutely.submit(schedule={"cron": "0 0 29 2 *"})
    for at in ("9999-12-31T23:59:59.999999Z", "2999-02-28T00:00:00Z", "1970-01-01T00:00:00Z"):
        assert minutely.refuse(about("job.skip", at=at)).path == "at"


def test_a_job_has_at_most_a_thousand_overrides_ahead(minutely: ClockedDatabase) -> None:
    replies = minutely.apply_batch(*(about("job.skip", at=minute(minutely, n).isoformat()) for n in (1, 2)))
    assert {reply.status for reply in replies} == {"accepted"}
    minutely.execute(
        "INSERT INTO overrides (job_id, scheduled_at, tenant, kind, created_at) "
        "SELECT job_id, created_at + n * interval '1 min', tenant, 'skip', created_at "
        "FROM jobs, generate_series(3, 1000) AS n"
    )
    path, problem, _ = refusal(request_override(minutely, "skip", 1001))
    assert (path, problem) == ("at", "1000 upcoming occurrences of this job are already skipped or moved")
    assert override(minutely, "move", 1000, to=1000.5).unchanged is False, "in place of another"
    fire_for(minutely, 2)
    assert override(minutely, "skip", 1001).unchanged is False, "those that have passed do not count"


def test_override_for_an_unreadable_schedule_is_refused(minutely: ClockedDatabase) -> None:
    minutely.execute("UPDATE job_versions SET schedule_json = '{}'")
    path, problem, remedy = refusal(request_override(minutely, "skip", 1))
    assert (path, remedy) == ("key", "submit the job again")
    assert problem.startswith("the schedule of its version 1 cannot be read")


def test_concurrent_overrides_and_firings_leave_one_outcome_per_occurrence(minutely: ClockedDatabase) -> None:
    """Without stepping: accepted overrides hold, and all other occurrences fire at their instant."""
    session, changing = minutely.session(), minutely.session()
    held: dict[int, float | None] = {}

    def fires() -> None:
        for _ in range(40):
            minutely.advance(20 * SECOND)
            fire(session, minutely.installation, look_at(minutely, lookahead=MINUTE))

    def changes() -> None:
        for number in range(1, 14):
            at = minute(minutely, number)
            to = number + 0.4
            move = about("job.move", at=at.isoformat(), to=minute(minutely, to).isoformat())
            document = about("job.skip", at=at.isoformat()) if number % 2 else move
            with changing.transaction() as connection:
                [reply] = minutely.apply_batch_within(connection, document)
            if reply.status == "accepted":
                held[number] = None if number % 2 else to

    for done in (in_background(fires), in_background(changes)):
        done.result(60)
    fire_for(minutely, 1)
    last = int((minutely.now() - minute(minutely, 0)) / MINUTE)
    # While a change had the timer the clock went on: what came to be too late by that is on record, and fires no more.
    wanted = {n: held.get(n, float(n)) for n in range(1, last) if n not in missed(minutely)}
    found = {nominal: at for nominal, at in runs(minutely) if nominal < last}
    assert sorted(found) == [n for n, at in wanted.items() if at is not None]
    assert all(found[n] >= at for n, at in wanted.items() if at is not None)
    assert manual_skips(minutely) == [n for n, at in wanted.items() if at is None]
    assert len(runs(minutely)) == len({nominal for nominal, _ in runs(minutely)})


@pytest.mark.parametrize("what", ["skip", "move"])
def test_occurrence_that_fires_while_its_override_waits_is_refused(minutely: ClockedDatabase, what: str) -> None:
    """Its instant comes after the request has read the clock; the other retracted runs still fire."""
    minutely.advance(59 * SECOND)
    fire_due(minutely, lookahead=65 * SECOND)
    first = minutely.job_runs()[0]
    to = {"to": minute(minutely, 9).isoformat()} if what == "move" else {}
    claiming, changing = minutely.connection(), minutely.connection()
    claiming.execute("SELECT FROM job_runs WHERE run_id = %s FOR UPDATE", [first.run_id])
    request = about(f"job.{what}", at=minute(minutely, 1).isoformat(), **to)
    waiting = in_background(lambda: minutely.apply_batch_within(changing, request))
    until_blocked(minutely, changing)
    minutely.advance(SECOND)
    claim_runs(claiming, minutely.installation, [minutely.requested_claim(first.run_id)], executor_id=EXECUTOR)
    claiming.commit()
    [reply] = waiting.result(30)
    changing.commit()
    assert refusal(reply) == ("at", f"{text(minutely, 1)} already became a run (now running)", "cancel its run")
    assert minutely.count("overrides") == 0
    fire_for(minutely, 2)
    assert runs(minutely)[1:] == [(2, 2), (3, 3)]
    assert manual_skips(minutely) == []


def test_occurrence_with_a_cancelled_run_is_refused(minutely: ClockedDatabase) -> None:
    minutely.advance(57 * SECOND)
    fire_due(minutely, lookahead=AHEAD)
    [run] = minutely.job_runs()
    minutely.apply_batch({"type": "run.cancel", "run_id": str(run.run_id)})
    _, problem, remedy = refusal(request_override(minutely, "skip", 1))
    assert (problem, remedy) == (
        f"{text(minutely, 1)} already became a run (now cancelled)",
        "trigger the job to run it again",
    )
    fire_for(minutely, 1)
    assert runs(minutely) == [(2, 2)]
