"""The demo's checks pass a consistent history and detect every alteration of it."""

import runpy
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tidewheel.control.demo.checks import check_all, figures_of
from tidewheel.control.demo.expected import compute_due
from tidewheel.control.demo.observations import Answer, Call, History, Kill
from tidewheel.control.demo.occurrences import Occurrence, Window, due_instants
from tidewheel.control.demo.requests import Expected, Line, examples_folder, fill_in, read_expected, read_requests
from tidewheel.jobs.strict_json import as_object
from tidewheel.schemas.generated.records import (
    Cause,
    DeadLetter,
    Lane,
    LifecycleEvent,
    Reply,
    ReplyError,
    ReplyStatus,
    RequestType,
    RunCompleted,
    RunStatus,
)

START = datetime(2026, 11, 20, 8, 29, 50, tzinfo=UTC)
KILLED, SURVIVOR = 101, 102
KILL = Kill(KILLED, START + timedelta(seconds=15), open_calls=1)

Alteration = Callable[[History], History]


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def completion(
    run_id: str, key: str, second: float, status: RunStatus = RunStatus.SUCCEEDED, **rest: object
) -> RunCompleted:
    facts: dict[str, object] = {
        "event_id": f"event of {run_id}",
        "run_id": run_id,
        "job_id": f"id of {key}",
        "job_key": key,
        "job_version": 1,
        "tenant": "default",
        "lane": Lane.STANDARD,
        "cause": Cause.TIMER,
        "status": status,
        "scheduled_at": at(second),
        "started_at": at(second + 0.02),
        "finished_at": at(second + 0.1),
        "attempt": 1,
        "max_attempts": 4,
        "labels": {},
        "sequence": 1,
    }
    return RunCompleted(**(facts | rest))  # type: ignore[arg-type]  # names and types are this file's literals


def call(run: RunCompleted, attempt: int, second: float, *, pid: int = SURVIVOR, effective: bool = True) -> Call:
    return Call(
        run_id=run.run_id,
        attempt=attempt,
        idempotency_key=run.run_id,
        job_key=run.job_key,
        by_handler=False,
        scheduled_at=run.scheduled_at,
        arrived_at=at(second),
        effective=effective,
        pid=pid,
    )


def answer(number: int, key: str, errors: tuple[ReplyError, ...] = (), **rest: object) -> Answer:
    status = ReplyStatus.REJECTED if errors else ReplyStatus.ACCEPTED
    facts: dict[str, object] = {"type": RequestType.JOB_SUBMIT, "tenant": "default", "key": key, "unchanged": False}
    reply = Reply(**(facts | rest | {"status": status, "errors": errors}))  # type: ignore[arg-type]  # as above
    return Answer(number, reply, at(0.5))


PLAIN = completion("plain", "shop", 1)
RECOVERED = completion("recovered", "partner", 2, attempt=2)
HELD = completion("held", "camera", 14, attempt=2, finished_at=at(22))  # in the hands of the executor that was killed
SKIPPED = completion("skipped", "camera", 18, RunStatus.SKIPPED, attempt=0, reason="overlap", finished_at=at(18.1))
UNSEEN = completion("unseen", "image", 14.5, attempt=2, finished_at=at(22))  # killed before it reached the receiver
TRIGGERED = completion("triggered", "trial", 3, cause=Cause.TRIGGER)
DEAD = completion("dead", "ledger", 4, RunStatus.FAILED, attempt=3)

LETTER = DeadLetter(
    event_id="letter of dead",
    run_id="dead",
    job_id="id of ledger",
    job_key="ledger",
    job_version=1,
    tenant="default",
    lane=Lane.STANDARD,
    cause=Cause.TIMER,
    status=RunStatus.FAILED,
    scheduled_at=at(4),
    finished_at=at(6),
    attempt=3,
    max_attempts=3,
    labels={},
    sequence=2,
    attempts=(),
)

REFUSED = ReplyError(path="job.schedule.timezone", problem="no such zone", remedy="Europe/Athens is near")

CONSISTENT = History(
    sent=3,
    answers=[
        answer(0, "shop"),
        answer(1, "month-end", (REFUSED,)),
        answer(2, "trial", type=RequestType.JOB_TRIGGER, run_id="triggered"),
    ],
    expected=Expected({"month-end": frozenset({"job.schedule.timezone"})}, frozenset({"ledger"})),
    bad_instants=[],
    due=frozenset(
        Occurrence(run.job_key, run.cause, run.scheduled_at)
        for run in (PLAIN, RECOVERED, HELD, SKIPPED, UNSEEN, TRIGGERED, DEAD)
    ),
    rows=7,
    unfinished=0,
    completions=[PLAIN, RECOVERED, HELD, SKIPPED, UNSEEN, TRIGGERED, DEAD, PLAIN],  # the last one is a repeat
    dead_letters=[LETTER, LETTER],
    unreadable=[],
    calls=[
        call(PLAIN, 1, 1.03),
        call(RECOVERED, 1, 2.03, effective=False),
        call(RECOVERED, 2, 2.6),
        call(HELD, 1, 14.03, pid=KILLED),
        call(HELD, 2, 21),
        call(UNSEEN, 2, 21.1),
        call(TRIGGERED, 1, 3.03),
        *(call(DEAD, attempt, 4 + attempt, effective=False) for attempt in (1, 2, 3)),
    ],
    kill=KILL,
)


def faults(history: History) -> list[str]:
    return [str(check) for check in check_all(history) if not check.holds]


def without(run: RunCompleted) -> Alteration:
    return lambda history: replace(history, completions=[one for one in history.completions if one != run])


def with_event(run: RunCompleted) -> Alteration:
    return lambda history: replace(history, completions=[*history.completions, run])


def with_call(one: Call) -> Alteration:
    return lambda history: replace(history, calls=[*history.calls, one])


def without_calls_of(run: RunCompleted) -> Alteration:
    return lambda history: replace(history, calls=[one for one in history.calls if one.run_id != run.run_id])


def with_(**facts: object) -> Alteration:
    return lambda history: replace(history, **facts)  # type: ignore[arg-type]  # as above


ALTERED: dict[str, tuple[Alteration, str]] = {
    "a completion is dropped": (without(HELD), "has no completion event"),
    "a run has two events": (with_event(replace(PLAIN, event_id="another")), "has two events"),
    "an event is repeated with other contents": (with_event(replace(PLAIN, attempt=2)), "different contents"),
    "an event names two runs": (
        with_event(replace(PLAIN, run_id="other", scheduled_at=at(2))),
        "names 2 runs",
    ),
    "a run without an occurrence": (with_event(completion("extra", "shop", 9)), "which was not due"),
    "an occurrence became two runs": (with_event(completion("twin", "shop", 1)), "became 2 runs"),
    "an attempt takes effect twice": (with_call(call(PLAIN, 1, 1.05)), "reached the receiver 2 times"),
    "a second effect of an executor that lives": (
        lambda history: with_event(replace(PLAIN, attempt=2))(with_call(call(PLAIN, 2, 1.5))(without(PLAIN)(history))),
        "nothing to explain it",
    ),
    "a second effect long before the kill": (
        lambda history: with_call(call(HELD, 1, 3, pid=KILLED))(
            with_call(call(HELD, 2, 21))(without_calls_of(HELD)(history))
        ),
        "nothing to explain it",
    ),
    "an effect by a lower attempt": (with_call(call(HELD, 0, 23)), "after attempt"),
    "a success has no effect": (without_calls_of(PLAIN), "which had no effect"),
    "an effect has no end": (with_call(call(completion("ghost", "shop", 9), 1, 9)), "no completion event"),
    "a failure has an effect": (with_call(call(DEAD, 4, 9)), "and had an effect"),
    "an attempt after the end": (with_call(call(PLAIN, 2, 5, effective=False)), "attempt 2 was made"),
    "a further attempt for no reason": (
        lambda history: with_event(replace(TRIGGERED, attempt=2))(
            with_call(call(TRIGGERED, 2, 3.4))(without_calls_of(TRIGGERED)(without(TRIGGERED)(history)))
        ),
        "nothing explains why attempt 1",
    ),
    "a foreign idempotency key": (
        with_call(replace(call(RECOVERED, 3, 2.9, effective=False), idempotency_key="stray")),
        "idempotency key 'stray'",
    ),
    "a skip without an overlap": (
        lambda history: with_event(replace(SKIPPED, finished_at=at(29)))(without(SKIPPED)(history)),
        "ended skipped",
    ),
    "a failure that the file does not script": (
        lambda history: with_event(replace(PLAIN, status=RunStatus.FAILED))(without(PLAIN)(history)),
        "ended failed",
    ),
    "a run is cancelled": (
        lambda history: with_event(replace(PLAIN, status=RunStatus.CANCELLED))(without(PLAIN)(history)),
        "ended cancelled",
    ),
    "a row too many": (with_(rows=8), "8 rows in runs for 7"),
    "a run is left open": (with_(unfinished=1), "had not ended"),
    "no dead letter": (with_(dead_letters=[]), "dead letters of ledger: none"),
    "a dead letter too many": (
        with_(dead_letters=[LETTER, replace(LETTER, event_id="more", job_key="shop", run_id="plain")]),
        "dead letters of shop: 1, not none",
    ),
    "a rejection is missing": (
        with_(answers=[CONSISTENT.answers[0], CONSISTENT.answers[2]]),
        "rejected of month-end: none",
    ),
    "a rejection for another field": (
        with_(
            answers=[
                CONSISTENT.answers[0],
                answer(1, "month-end", (replace(REFUSED, path="job"),)),
                CONSISTENT.answers[2],
            ]
        ),
        "rejected of month-end: job, not",
    ),
    "a rejection without a remedy": (
        with_(
            answers=[
                CONSISTENT.answers[0],
                answer(1, "month-end", (replace(REFUSED, remedy=""),)),
                CONSISTENT.answers[2],
            ]
        ),
        "no remedy",
    ),
    "a good request is refused": (
        with_(answers=[answer(0, "shop", (REFUSED,)), *CONSISTENT.answers[1:]]),
        "rejected of shop",
    ),
    "a request has no answer": (with_(answers=CONSISTENT.answers[1:]), "request 1 has 0"),
    "a request has two answers": (with_(answers=[*CONSISTENT.answers, answer(0, "other")]), "request 1 has 2"),
    "a trigger's run never came": (
        with_(answers=[*CONSISTENT.answers[:2], answer(2, "trial", type=RequestType.JOB_TRIGGER, run_id="lost")]),
        "without a completion event",
    ),
    "no executor was killed": (with_(kill=None), "no executor was killed"),
    "the killed executor had no open calls": (with_(kill=replace(KILL, open_calls=0)), "no open calls"),
    "an unreadable message": (with_(unreadable=["completions: no schema"]), "no schema"),
    "an impossible acceptance": (with_(bad_instants=["accepted before it was sent"]), "before it was sent"),
}


def test_consistent_history_passes() -> None:
    assert faults(CONSISTENT) == []


@pytest.mark.parametrize("name", ALTERED)
def test_altered_history_fails(name: str) -> None:
    alter, complaint = ALTERED[name]
    assert any(complaint in fault for fault in faults(alter(CONSISTENT))), faults(alter(CONSISTENT))


def test_figures_of_a_consistent_history() -> None:
    figures = figures_of(CONSISTENT)
    assert (figures.due, figures.runs, figures.events, figures.repeated_events) == (7, 7, 7, 1)
    assert (figures.effective_runs, figures.second_effects, figures.failures, figures.lost) == (5, 1, 4, 2)
    assert figures.undisturbed.runs == 5  # `held` and `unseen` were due in the second before the kill, or just then
    assert figures.overall.max_ms == pytest.approx(6600)


@pytest.mark.parametrize(
    ("schedule", "seconds"),
    [
        ({"interval": "2s"}, [2.25, 4.25, 6.25]),  # from the acceptance, which is no occurrence
        ({"interval": "4s", "anchor": at(1).isoformat()}, [1, 5]),
        ({"interval": "4s", "anchor": at(0.25).isoformat()}, [4.25]),  # an anchor at the acceptance is not after it
        ({"cron": "*/5 * * * * *", "timezone": "Asia/Kolkata"}, [5]),
        ({"cron": "1-59/3 * * * * *", "timezone": "UTC"}, [2, 5]),
        ({"cron": "52,53 29 * * * *", "timezone": "America/New_York"}, [2, 3]),
        ({"cron": "0 8 * * MON-FRI", "timezone": "Europe/Berlin"}, []),
        ({"once": at(3).isoformat()}, [3]),
        ("manual", []),
    ],
)
def test_due_instants_follow_the_schedule(schedule: object, seconds: list[float]) -> None:
    found = due_instants({"schedule": schedule}, Window(at(0.25), at(6.5)))
    assert found == [at(second) for second in seconds]


def test_start_and_end_bounds_are_inclusive() -> None:
    job: dict[str, object] = {"schedule": {"interval": "1s", "anchor": at(0).isoformat()}}
    job |= {"start_at": at(3).isoformat(), "end_at": at(5).isoformat()}
    assert due_instants(job, Window(at(0.25), at(9))) == [at(3), at(4), at(5)]


@pytest.mark.parametrize("schedule", [{"cron": "0 0 1 * MON", "timezone": "UTC"}, {"fixed_delay": "1s"}, 7])
def test_unknown_schedule_form_is_rejected(schedule: object) -> None:
    with pytest.raises(ValueError, match="does not know"):
        due_instants({"schedule": schedule}, Window(at(0), at(9)))


def event(kind: str, key: str, second: float) -> LifecycleEvent:
    return LifecycleEvent(
        event_id=f"{kind} {key}",
        type=f"io.tidewheel.{kind}.v1",
        occurred_at=at(second),
        tenant="default",
        job_id=key,
        job_key=key,
        detail={},
    )


SUBMIT = Line(0, "shop", "", {"type": "job.submit", "job": {"key": "shop", "schedule": {"interval": "1s"}}})
PAUSE = Line(1, "shop", "", {"type": "job.pause", "key": "shop"})
TRIGGER = Line(2, "shop", "", {"type": "job.trigger", "key": "shop", "delay": "2s"})
ANSWERS = [
    Answer(0, answer(0, "shop").reply, at(0.5)),
    Answer(1, answer(1, "shop").reply, at(3.5)),
    Answer(2, answer(2, "shop", next_run_at=at(6.2)).reply, at(4.5)),
]
SENT = [at(0), at(3), at(4)]
EVENTS = [event("job.created", "shop", 0.3), event("job.paused", "shop", 3.3)]


def test_job_is_due_between_acceptance_and_pause_and_trigger_after_its_delay() -> None:
    due = compute_due([SUBMIT, PAUSE, TRIGGER], SENT, ANSWERS, EVENTS, at(60))
    timers = {Occurrence("shop", "timer", at(second)) for second in (1.3, 2.3, 3.3)}
    assert due.occurrences == timers | {Occurrence("shop", "trigger", at(6.2))}
    assert due.bad_instants == ()


@pytest.mark.parametrize(
    ("events", "sent", "complaint"),
    [
        ([event("job.created", "shop", 2), EVENTS[1]], SENT, "job.submit of shop"),  # later than its reply was read
        ([EVENTS[0], event("job.paused", "shop", 2)], SENT, "job.pause of shop"),  # earlier than its request
        (EVENTS, [at(0), at(3), at(4.4)], "job.trigger of shop"),
        ([EVENTS[0]], SENT, "no event reports that shop was stopped"),
        ([EVENTS[1]], SENT, "no event reports that shop was created"),
    ],
)
def test_impossible_instant_is_reported(events: list[LifecycleEvent], sent: list[datetime], complaint: str) -> None:
    due = compute_due([SUBMIT, PAUSE, TRIGGER], sent, ANSWERS, events, at(60))
    assert any(complaint in stray for stray in due.bad_instants)


def test_only_placeholders_are_replaced() -> None:
    job = {"key": "mail", "schedule": {"once": "@start+1.5s"}, "target": {"url": "@receiver/mails"}, "payload": ["@x"]}
    submit = {"type": "job.submit", "job": job | {"labels": {"family": "one-off"}}}
    [line, trigger] = fill_in([submit, {"type": "job.trigger", "key": "mail"}], START, "http://127.0.0.1:1")
    assert line.job is not None
    assert line.job["schedule"] == {"once": "2026-11-20T08:29:51.500000Z"}
    assert line.job["target"] == {"url": "http://127.0.0.1:1/mails"}
    assert line.job["payload"] == ["@x"]
    assert (trigger.key, trigger.family) == ("mail", "one-off")


def test_files_match_their_script() -> None:
    script = runpy.run_path(str(examples_folder() / "make_requests.py"))
    assert read_requests(examples_folder()) == script["requests"]()
    wanted = script["expected"]()
    found = read_expected(examples_folder())
    assert {key: sorted(paths) for key, paths in found.rejected.items()} == wanted["rejected"]
    assert sorted(found.dead_letters) == wanted["dead_letters"]


def test_file_covers_the_promised_cases() -> None:
    lines = fill_in(read_requests(examples_folder()), START, "http://127.0.0.1:1")
    jobs = {line.key: line.job for line in lines if line.job is not None and line.family != "malformed"}
    assert len(jobs) >= 300
    schedules = [as_object(job["schedule"]) or {} for job in jobs.values()]
    zones = {str(schedule["timezone"]) for schedule in schedules if "cron" in schedule}
    assert len(zones) == 3
    assert sum(line.family == "malformed" for line in lines) == 2
    for job in jobs.values():
        due_instants(job, Window(START, at(60)))  # each is of a form the demo can compute
