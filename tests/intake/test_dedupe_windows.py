"""`dedupe` of triggers: one run in a window, and the answer says what became of each trigger."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from tests.fixtures.acts import EXECUTOR, about
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.examples import FULL
from tests.transitions.stepping import in_background
from tidewheel.errors import FieldError, InvalidInput
from tidewheel.runs import Gate, RunState
from tidewheel.schemas.generated.records import Reply, ReplyError, RunRequest
from tidewheel.transitions.claim import Claim, claim_runs, claim_uniform, contest_runs

HOUR = timedelta(hours=1)


def dedupe(mode: str, window: object = "1h", key: object = "k", **more: object) -> dict[str, Any]:
    return {"dedupe": {"key": key, "window": window, "mode": mode, **more}}


def send(database: Database, mode: str, number: int = 0, **fields: object) -> Reply:
    return database.apply(about("job.trigger", payload=number, **dedupe(mode, **fields)))


def answers(*replies: Reply) -> list[str | None]:
    return [reply.dedupe for reply in replies]


def by_message(database: Database, request: RunRequest) -> bool:
    """Claim a run by a message, as an executor does; return True if it starts."""
    given = Claim(UUID(request.run_id), request.attempt, request.job_version, "t", publish_at=request.publish_at)
    with database.transaction() as connection:
        if claim_uniform(connection, [given], executor_id=EXECUTOR):
            return True
        claims = contest_runs(connection, [given])
    return bool(
        database.within(claim_runs, database.installation, claims, executor_id=EXECUTOR, contested=True).started
    )


@pytest.fixture
def still(clocked: ClockedDatabase) -> ClockedDatabase:
    clocked.stop_clock()
    clocked.submit()
    return clocked


def test_reject_makes_one_run_in_a_window(still: ClockedDatabase) -> None:
    first, second = send(still, "reject", 1), send(still, "reject", 2)
    assert answers(first, second) == ["accepted", "deduplicated"]
    assert (second.run_id, second.next_run_at, second.unchanged) == (first.run_id, still.now(), True)
    still.begin(UUID(first.run_id))
    assert send(still, "reject", 3).run_id == first.run_id  # a window has one run, whatever became of it
    still.advance(HOUR)
    third = send(still, "reject", 4)
    assert (third.dedupe, third.run_id != first.run_id) == ("accepted", True)
    assert [each.payload for each in still.requests()] == [b"1", b"4"]


def test_replace_gives_the_run_that_has_not_begun_the_new_payload(still: ClockedDatabase) -> None:
    first, second, third = send(still, "replace", 1), send(still, "replace", 2), send(still, "replace", 3)
    assert answers(first, second, third) == ["accepted", "replaced", "replaced"]
    assert {each.run_id for each in (first, second, third)} == {first.run_id}
    still.advance(timedelta(seconds=1))
    one, two, three = still.requests()
    assert [by_message(still, each) for each in (one, two)] == [False, False]
    assert by_message(still, three)
    assert (three.payload, three.run_id) == (b"3", first.run_id)
    after = send(still, "replace", 4)
    assert (after.dedupe, after.run_id != first.run_id) == ("accepted", True)


def test_replace_takes_the_version_and_the_queue_in_force(still: ClockedDatabase) -> None:
    first = send(still, "replace", 1)
    still.submit(queue="other", description="changed")
    second = send(still, "replace", 2)
    [message] = still.requests(queue="other")
    assert (message.run_id, message.job_version, message.payload) == (first.run_id, second.job_version, b"2")
    still.advance(timedelta(seconds=1))
    assert not by_message(still, still.requests()[0])
    assert by_message(still, message)


def test_debounce_starts_one_window_after_the_last_trigger(still: ClockedDatabase) -> None:
    begin_at = still.now()
    first = send(still, "debounce", 1, window="10s")
    assert (first.dedupe, first.next_run_at) == ("accepted", begin_at + timedelta(seconds=10))
    still.advance(timedelta(seconds=8))
    second = send(still, "debounce", 2, window="10s")
    assert (second.dedupe, second.run_id) == ("debounced", first.run_id)
    assert second.next_run_at == begin_at + timedelta(seconds=18)
    still.advance(timedelta(seconds=3))  # the first message leaves now
    stale, current = still.requests()
    assert not by_message(still, stale)
    still.advance(timedelta(seconds=7))
    assert not by_message(still, stale)  # an executor has held it
    assert by_message(still, current)
    assert current.payload == b"2"


def test_debounce_starts_at_the_longest_time_in_any_case(still: ClockedDatabase) -> None:
    begin_at = still.now()
    sent: list[Reply] = []
    for number in range(5):
        sent.append(send(still, "debounce", number, window="10s", longest="25s"))
        still.advance(timedelta(seconds=5))
    last = sent[-1]
    assert last.next_run_at is not None
    assert timedelta(0) <= last.next_run_at - begin_at - timedelta(seconds=25) < timedelta(milliseconds=1)
    still.advance(timedelta(seconds=1))
    messages = still.requests()
    assert len({each.publish_at for each in messages}) == 5  # each message has a time of its own
    assert [by_message(still, each) for each in messages] == [False, False, False, False, True]
    assert send(still, "debounce", 9, window="10s", longest="25s").dedupe == "accepted"


def test_triggers_of_one_batch_are_applied_in_order(still: ClockedDatabase) -> None:
    batch = [
        about("job.trigger", payload=number, **dedupe(mode, key=key))
        for number, (mode, key) in enumerate(
            [("replace", "a"), ("reject", "b"), ("replace", "a"), ("reject", "b"), ("debounce", "c"), ("debounce", "c")]
        )
    ]
    replies = still.apply_batch(*batch, about("job.trigger", payload=6))
    assert answers(*replies) == ["accepted", "accepted", "replaced", "deduplicated", "accepted", "debounced", None]
    assert sorted(each.payload or b"" for each in still.requests()) == [b"1", b"2", b"5", b"6"]


def test_key_takes_fields_of_the_payload(still: ClockedDatabase) -> None:
    shared = {"key": "{payload.customer}", "window": "1h"}
    customers = ({"customer": "a"}, {"customer": "b"}, {"customer": "a"})
    replies = still.apply_batch(*(about("job.trigger", payload=each, dedupe=shared) for each in customers))
    assert answers(*replies) == ["accepted", "accepted", "deduplicated"]
    assert still.refuse(about("job.trigger", payload={}, dedupe=shared)).path == "payload.customer"


def test_cancelled_run_is_not_replaced(still: ClockedDatabase) -> None:
    first = send(still, "replace", 1)
    still.apply_batch({"type": "run.cancel", "run_id": first.run_id})
    assert still.final_state(UUID(first.run_id))[0] == RunState.CANCELLED
    assert send(still, "replace", 2).dedupe == "accepted"


def test_run_that_waits_for_its_key_gets_the_payload_and_keeps_its_place(still: ClockedDatabase) -> None:
    still.submit(concurrency_key="acme")
    still.begin(UUID(still.apply_batch(about("job.trigger"))[0].run_id))
    first = send(still, "replace", 1)
    still.claim(UUID(first.run_id))
    assert still.open_run(UUID(first.run_id)).state == RunState.BUFFERED
    assert send(still, "replace", 2).dedupe == "replaced"
    assert still.rows("SELECT payload FROM run_inputs WHERE run_id = %s", [first.run_id]) == [(b"2",)]
    assert still.open_run(UUID(first.run_id)).state == RunState.BUFFERED


def test_sweep_claims_a_moved_run_by_its_row(still: ClockedDatabase) -> None:
    first = send(still, "replace", 1)
    send(still, "replace", 2)
    still.advance(timedelta(seconds=1))
    [(gates,)] = still.rows("SELECT gates FROM job_runs")
    assert gates == Gate.MOVED
    row = still.open_run(UUID(first.run_id))
    with still.transaction() as connection:
        found = Claim(row.run_id, 1, row.job_version, "sweep", publish_at=row.publish_at)
        assert claim_runs(connection, still.installation, [found], executor_id=EXECUTOR).started
    assert still.rows("SELECT gates FROM job_runs") == [(0,)]


def test_trigger_without_dedupe_costs_no_statement(still: ClockedDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidewheel.intake.trigger.open_windows", None)
    assert still.apply_batch(about("job.trigger"))[0].dedupe is None
    assert still.count("dedupes") == 0


def test_concurrent_first_triggers_make_one_run(with_job: Database) -> None:
    sent = [in_background(lambda: send(with_job, "reject")) for _ in range(8)]
    replies = [each.result(30) for each in sent]
    assert sorted(map(str, answers(*replies))) == ["accepted", *["deduplicated"] * 7]
    assert len(with_job.job_runs()) == 1


@pytest.mark.property
def test_what_is_answered_is_what_runs_however_claims_and_triggers_meet(with_job: Database) -> None:
    for number in range(60 if FULL else 20):
        key = f"k-{number}"
        first = send(with_job, "replace", number, key=key)
        [message] = [each for each in with_job.requests() if each.run_id == first.run_id]
        claimed = in_background(partial(by_message, with_job, message))
        second = send(with_job, "replace", -number - 1, key=key)
        if second.dedupe == "accepted":
            assert (second.run_id != first.run_id, claimed.result(30)) == (True, True)
        else:
            assert not claimed.result(30)
            last = [each for each in with_job.requests() if each.run_id == first.run_id][-1]
            assert last.payload == str(-number - 1).encode()
            assert by_message(with_job, last)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (dedupe("reject", 0), "dedupe.window"),
        (dedupe("reject", "30d1s"), "dedupe.window"),
        (dedupe("reject", key=""), "dedupe.key"),
        (dedupe("drop"), "dedupe.mode"),
        (dedupe("reject", longest="2h"), "dedupe.longest"),
        (dedupe("debounce", longest="59m"), "dedupe.longest"),
        (dedupe("debounce") | {"delay": "1m"}, "delay"),
    ],
)
def test_bad_dedupe_is_refused_by_its_path(still: ClockedDatabase, given: dict[str, Any], path: str) -> None:
    assert [error.path for error in refused(still, **given)] == [path]


def refused(database: Database, **fields: object) -> Sequence[FieldError | ReplyError]:
    """Return the errors of a trigger: of its shape, or of the reply."""
    try:
        return database.apply(about("job.trigger") | fields).errors
    except InvalidInput as error:
        return error.errors


def test_job_has_what_its_triggers_leave_out(still: ClockedDatabase) -> None:
    still.submit(dedupe={"key": "{payload.customer}", "window": "10s", "mode": "debounce", "longest": "1m"})

    def sent(**fields: object) -> Reply:
        return still.apply(about("job.trigger", payload={"customer": "a"}) | fields)

    first, second = sent(), sent()
    assert answers(first, second) == ["accepted", "debounced"]
    assert (second.run_id, second.next_run_at) == (first.run_id, still.now() + timedelta(seconds=10, microseconds=1))
    other = sent(dedupe={"key": "b"}), sent(dedupe={"key": "b", "mode": "reject"})
    assert answers(*other) == ["accepted", "deduplicated"]
    assert [error.path for error in refused(still, payload={})] == ["payload.customer"]
    assert [error.path for error in refused(still, payload={"customer": "a"}, delay="1m")] == ["delay"]
    still.submit(dedupe={"window": "1h"})
    assert answers(sent(), sent(dedupe={"key": "k"}), sent(dedupe={"key": "k"})) == [None, "accepted", "deduplicated"]
    still.submit()
    assert [error.path for error in refused(still, dedupe={"key": "k"})] == ["dedupe.window"]
    assert [error.path for error in refused(still, dedupe={"window": "1m"})] == ["dedupe.key"]
