"""The demo's checks pass a consistent history, and each detects its alteration."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from examples.demo.checks import History, Kill, check_all, figures
from examples.demo.consumer import Seen
from examples.demo.receiver import Call
from examples.demo.requests import DEAD_LETTERS, REJECTED, read_requests
from examples.demo.services import Counts
from tidewheel.schemas.generated.records import (
    Cause,
    DeadLetter,
    Lane,
    Reply,
    ReplyError,
    ReplyStatus,
    RequestType,
    RunCompleted,
    RunStatus,
)

START = datetime(2026, 11, 20, 8, 29, 50, tzinfo=UTC)
[NEVER] = DEAD_LETTERS


def event(run_id: str, key: str, status: RunStatus = RunStatus.SUCCEEDED, **rest: object) -> RunCompleted:
    fields: dict[str, object] = {
        "event_id": f"e-{run_id}", "run_id": run_id, "job_id": "j", "job_key": key, "job_version": 1,
        "tenant": "default", "lane": Lane.STANDARD, "cause": Cause.TIMER, "status": status, "scheduled_at": START,
        "finished_at": START, "attempt": 1, "max_attempts": 4, "labels": {}, "sequence": 1,
    }  # fmt: skip
    return RunCompleted(**fields | rest)  # type: ignore[arg-type]  # fields of the record, by name


def letter(run_id: str) -> DeadLetter:
    found = event(run_id, NEVER, RunStatus.FAILED)
    shared = {name: getattr(found, name) for name in DeadLetter.__slots__ if hasattr(found, name)}
    return DeadLetter(**shared | {"reason": "it failed", "attempts": []})  # type: ignore[arg-type]  # likewise


def reply(key: str, *paths: str) -> Reply:
    return Reply(
        type=RequestType.JOB_SUBMIT,
        tenant="default",
        key=key,
        unchanged=False,
        status=ReplyStatus.REJECTED if paths else ReplyStatus.ACCEPTED,
        errors=tuple(ReplyError(path=path, problem="wrong", remedy="mend it") for path in paths),
    )


def call(run_id: str, attempt: int = 1, *, effective: bool = True) -> Call:
    return Call(
        run_id=run_id, attempt=attempt, idempotency_key=run_id, job_key="job", by_handler=False, scheduled_at=START,
        arrived_at=START + timedelta(seconds=attempt), effective=effective,
    )  # fmt: skip


def history() -> History:
    """A run that succeeded, one that the kill ended after its effect, one that failed for good."""
    runs = [event("a", "job"), event("b", "job", attempt=2), event("c", NEVER, RunStatus.FAILED, attempt=2)]
    calls = [call("a"), call("b"), call("b", 2), call("c", effective=False), call("c", 2, effective=False)]
    answers = [reply("job"), reply(NEVER), *(reply(key, *paths) for key, paths in REJECTED.items())]
    replies = {(0, number): answer for number, answer in enumerate(answers)}
    return History(
        sent=len(answers),
        seen=Seen(replies, {run.run_id: run for run in runs}, {"e-c": letter("c")}),
        calls=calls,
        rows=Counts(runs=3, unfinished=0, outbox=0),
        kill=Kill(START + timedelta(seconds=1), frozenset({("b", 1)})),
        findings=[],
    )


def reseen(found: History, **changes: object) -> History:
    return replace(found, seen=replace(found.seen, **changes))  # type: ignore[arg-type]  # fields of Seen


def ended(found: History, *runs: RunCompleted) -> History:
    return reseen(found, ends=found.seen.ends | {run.run_id: run for run in runs})


def accept_all(found: History) -> History:
    return reseen(found, replies={place: reply(str(each.key)) for place, each in found.seen.replies.items()})


ALTERATIONS: Mapping[str, tuple[str, Callable[[History], History]]] = {
    "no answer": ("every request is answered", lambda found: replace(found, sent=5)),
    "accepted": ("every request is answered", accept_all),
    "audit": ("tidewheel admin audit", lambda found: replace(found, findings=["missing: job at 08:29:50"])),
    "open run": ("every run has ended", lambda found: replace(found, rows=Counts(3, 1, 0))),
    "message": ("every run has ended", lambda found: replace(found, rows=Counts(3, 0, 1))),
    "no event": ("each run has one completion event", lambda found: replace(found, rows=Counts(4, 0, 0))),
    "changed": ("each run has one completion event", lambda found: reseen(found, changed=["a"])),
    "end": ("each end is explained", lambda found: ended(found, event("a", "job", RunStatus.TIMED_OUT))),
    "dead letter": ("dead letters", lambda found: reseen(found, dead_letters={})),
    "twice": ("no attempt reached", lambda found: replace(found, calls=[*found.calls, call("a")])),
    "key": (
        "no attempt reached",
        lambda found: replace(found, calls=[replace(found.calls[0], idempotency_key="x"), *found.calls[1:]]),
    ),
    "no effect": ("runs with an effect", lambda found: replace(found, calls=found.calls[1:])),
    "lost event": ("runs with an effect", lambda found: replace(found, calls=[*found.calls, call("d")])),
    "attempt": ("each further attempt", lambda found: replace(found, kill=Kill(START, frozenset({("a", 1)})))),
    "no kill": ("an executor was killed", lambda found: replace(found, kill=None)),
}  # fmt: skip


def test_consistent_history_passes_every_check() -> None:
    assert [check for check in check_all(history()) if check.faults] == []
    assert {name: value for name, value, _ in figures(history())} == {
        "requests sent": "4", "runs": "3", "completion events": "3", "runs that had an effect": "2",
        "second effects": "1", "attempts that failed": "2", "attempts ended by the kill": "1",
        "median lateness": "1,000 ms",
    }  # fmt: skip


@pytest.mark.parametrize("name", ALTERATIONS)
def test_alteration_fails_its_check(name: str) -> None:
    promise, alter = ALTERATIONS[name]
    failed = [check.promise for check in check_all(alter(history())) if check.faults]
    assert any(each.startswith(promise) for each in failed), failed


def test_placeholders_become_instants_and_urls() -> None:
    lines = read_requests(START, "http://127.0.0.1:8000")
    assert not [line for line in lines if "@start" in str(line.document) or "@receiver" in str(line.document)]
    assert {str(line.document["type"]) for line in lines if not line.family} == {"job.trigger"}
    assert {line.family for line in lines if line.recurs} >= {"every second", "cron", "handler"}
