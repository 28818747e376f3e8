"""One executor at its ordinary work; [n] is the rule of docs/wire-contract.md that a test is about."""

from datetime import timedelta
from uuid import UUID

import pytest

from tests.conformance.kit import Kit
from tests.fixtures.reader import TopicReader
from tests.scheduler.firing import fire_due
from tidewheel.runs import Lane

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def test_each_run_runs_once_and_its_result_is_recorded(kit: Kit) -> None:
    """[5] [8] [9]."""
    runs = {kit.trigger("conformance.echo", {"n": n, "text": "größer"}): n for n in range(40)}
    for run_id, n in runs.items():
        ended = kit.ended(run_id)
        assert (ended.state, ended.attempt) == ("succeeded", 1)
        assert ended.result == f'{{"n":{n},"text":"größer"}}'.encode()
        assert [each["attempt"] for each in kit.effects(run_id)] == [1]


def test_handler_and_completion_have_the_trace_of_the_request(kit: Kit) -> None:
    """[5]: the request's `traceparent` reaches the executor unchanged."""
    kit.run("conformance.echo")
    [(key,)] = kit.fleet.database.rows("SELECT key FROM jobs WHERE key LIKE 'conformance.echo %%' ORDER BY key LIMIT 1")
    traceparent = f"00-{'a' * 32}-{'b' * 16}-01"
    run_id = kit.fleet.database.trigger(key, traceparent=traceparent)
    assert kit.ended(run_id).state == "succeeded"
    assert [each["traceparent"] for each in kit.effects(run_id)] == [traceparent]
    reader = TopicReader(kit.fleet.kafka, [kit.fleet.topics.completions])

    def completed() -> list[dict[str, bytes]]:
        reader.read_to_end()
        return [
            headers for seen in reader.seen if (headers := dict(seen.headers))["ce_subject"] == str(run_id).encode()
        ]

    kit.until(completed, "the completion is in Kafka")
    assert completed()[0]["traceparent"].decode() == traceparent
    reader.close()


@pytest.mark.parametrize("lane", list(Lane))
def test_every_lane_is_served_by_its_topic(kit: Kit, lane: Lane) -> None:
    """[5]: and a claim names its message."""
    run_id = kit.trigger("conformance.echo", lane=lane.value)
    assert kit.ended(run_id).state == "succeeded"
    assert kit.claimed_from(run_id).startswith(f"{kit.topic(lane)}/")
    assert "@" in kit.claimed_from(run_id)


def test_redelivered_message_starts_nothing(kit: Kit) -> None:
    """[8] [9]."""
    first = kit.trigger("conformance.end", {"how": "fail", "times": 1}, retry={"initial": "1ms"})
    assert kit.ended(first).attempt == 2
    reader = TopicReader(kit.fleet.kafka, [kit.topic()])
    reader.read_to_end()
    mine = [seen for seen in reader.seen if seen.key == str(first).encode()]
    assert len(mine) == 2
    for seen in mine * 2:
        kit.fleet.produce(kit.topic(), seen.key, seen.value, seen.headers)
    kit.fleet.flush()
    passed_over(kit)
    assert [each["attempt"] for each in kit.effects(first)] == [1, 2]
    assert kit.attempts(first) == [(1, "failed"), (2, "succeeded")]


def test_unreadable_message_is_skipped(kit: Kit) -> None:
    """[6]."""
    for value in (b"", b"garbage", b"\xc3\x01" + bytes(8) + b"nobody knows its schema", None):
        for key in (b"a", b"b", b"c", b"d"):
            kit.fleet.produce(kit.topic(), key, value, kit.fleet.database.signed(kit.topic(), key, value))
    kit.fleet.flush()
    passed_over(kit)
    assert kit.run("conformance.echo").state == "succeeded"


def test_runs_without_a_handler_are_left(kit: Kit) -> None:
    """[7]: and blocks no other message."""
    others = [
        kit.trigger(each) for each in ("another.handler", "toString", {"type": "http", "url": "http://127.0.0.1:9/"})
    ]
    passed_over(kit)
    assert [(kit.facts(run_id).state, kit.facts(run_id).attempt) for run_id in others] == [("queued", 0)] * 3


# What a handler does, the job's retry policy, the state of the run and its attempts.
ENDS: dict[str, tuple[dict[str, object], dict[str, object], str, int]] = {
    "failures are retried": (
        {"how": "fail", "type": "NoLuck", "message": "no"}, {"max_attempts": 3, "initial": "1ms"}, "failed", 3,
    ),
    "permanent failures are not": ({"how": "permanent"}, {"max_attempts": 3, "initial": "1ms"}, "failed", 1),
    "nor are named ones": ({"how": "fail", "type": "NoAccount"}, {"non_retryable": ["NoAccount"]}, "failed", 1),
    "snoozes are not counted": ({"how": "snooze", "times": 2, "seconds": 0.001}, {"max_attempts": 1}, "succeeded", 3),
    "handlers cancel": ({"how": "cancel"}, {"max_attempts": 1}, "cancelled", 1),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDS)
def test_run_ends_as_its_handler_and_its_retry_policy_say(kit: Kit, case: str) -> None:
    """[14]."""
    payload, retry, state, attempts = ENDS[case]
    run = kit.run("conformance.end", payload, retry=retry)
    assert (run.state, run.attempt) == (state, attempts)
    told = {"type": run.error_type, "message": run.error_message}
    assert [name for name, text in told.items() if payload.get(name, text) != text] == []


def test_retry_after_is_respected(kit: Kit) -> None:
    """[14]."""
    run_id = kit.trigger(
        "conformance.end", {"how": "retry_after", "seconds": 3600}, retry={"max_attempts": 3, "initial": "1ms"}
    )
    kit.until(lambda: kit.facts(run_id).state == "retrying", "it is to be tried again")
    assert kit.facts(run_id).failed_attempts == 1
    ahead = kit.fleet.database.value("SELECT publish_at - tidewheel_now() FROM job_runs WHERE run_id = %s", [run_id])
    assert ahead > timedelta(minutes=50)
    kit.client.runs.cancel(run_id)


def test_handler_sets_the_next_interval_of_its_job(kit: Kit) -> None:
    """[14]: the last value, of the attempt that ends the run."""
    database = kit.fleet.database
    schedule = {"fixed_delay": "1h", "min": "10s", "max": "2h"}
    kit.client.submit({"key": "next", "schedule": schedule, "target": "conformance.next", "payload": "45s"})
    fire_due(database)
    [(run_id,)] = database.rows("SELECT run_id FROM job_runs JOIN jobs USING (job_id) WHERE key = 'next'")
    assert kit.ended(run_id).state == "failed"
    waits = database.value(
        "SELECT t.scheduled_at - f.finished_at FROM timers AS t JOIN finished_runs AS f USING (job_id)"
        " WHERE f.run_id = %s", [run_id]
    )  # fmt: skip
    assert waits == timedelta(seconds=45)


def test_too_large_result_is_a_failure(kit: Kit) -> None:
    """[16]."""
    run = kit.run("conformance.large", {"bytes": 70_000})
    assert (run.state, run.attempt, run.error_type) == ("failed", 1, "ResultTooLarge")
    assert kit.run("conformance.large", {"bytes": 60_000}).state == "succeeded"


def test_tail_of_the_output_is_kept(kit: Kit) -> None:
    """[16]."""
    run_id = kit.trigger("conformance.print", {"line": "a line of output", "times": 10_000})
    assert kit.ended(run_id).state == "succeeded"
    output = bytes(kit.fleet.database.value("SELECT output FROM attempt_outputs WHERE run_id = %s", [run_id]))
    assert 60_000 < len(output) <= 64 * 1024
    assert output.endswith(b"a line of output\n")


def test_next_attempt_gets_the_checkpoint(kit: Kit) -> None:
    """[18]."""
    run = kit.run("conformance.checkpoint", {"row": 17}, retry={"initial": "1ms"})
    assert (run.state, run.attempt, run.result) == ("succeeded", 2, b'{"row":17}')


def test_attempt_may_wait_for_an_external_end(kit: Kit) -> None:
    """[14]."""
    run_id = kit.trigger("conformance.end", {"how": "wait"})
    kit.until(lambda: kit.facts(run_id).state == "waiting", "it waits")
    [token] = [each["token"] for each in kit.effects(run_id) if each["what"] == "token"]
    assert kit.fleet.database.installation.task_tokens.read(token) == (run_id, 1)
    assert kit.facts(run_id).failed_attempts == 0
    kit.client.runs.cancel(run_id)


@pytest.mark.parametrize(
    ("job", "timeout"),
    [
        ({"start_to_close": "1s"}, "start_to_close"),
        ({"schedule_to_close": "15s"}, "schedule_to_close"),
        ({"heartbeat": "1s"}, "heartbeat"),
    ],
)
def test_expired_timeout_is_named(kit: Kit, job: dict[str, str], timeout: str) -> None:
    """[13]."""
    held = kit.hold("conformance.stubborn", retry={"max_attempts": 1}, **job)
    run = kit.ended(held.run_id)
    held.let_go()
    assert (run.state, reason_of(kit, held.run_id)) == ("timed_out", timeout)


def test_cancelled_attempt_is_signalled(kit: Kit) -> None:
    """[15]."""
    held = kit.hold()
    kit.client.runs.cancel(held.run_id)
    assert kit.ended(held.run_id).state == "cancelled"
    kit.until(lambda: [each["what"] for each in kit.effects(held.run_id)] == ["hold", "stopped"], "its handler stops")


def test_unresponsive_attempt_is_fenced_off_after_its_grace(kit: Kit) -> None:
    """[15]."""
    held = kit.hold("conformance.stubborn")
    kit.client.runs.cancel(held.run_id)
    assert kit.ended(held.run_id).state == "cancelled"
    held.let_go()


def test_attempt_of_an_ended_run_is_signalled(kit: Kit) -> None:
    """[15]: terminate."""
    first = kit.hold(overlap="terminate_other")
    second = kit.hold(overlap="terminate_other")
    kit.until(lambda: len(kit.effects(first.run_id)) == 2, "the first is stopped")
    kit.until(lambda: kit.fleet.database.count("signals") == 0, "the signal is answered")
    second.let_go()
    assert [kit.ended(each.run_id).state for each in (first, second)] == ["cancelled", "succeeded"]


def test_executor_claims_no_more_than_its_slots(kit: Kit) -> None:
    """[11]: and goes on as soon as one is free."""
    held = [kit.hold() for _ in range(4)]
    waiting = kit.trigger("conformance.echo")
    passed_over(kit, all_but=1)
    assert not kit.effects(waiting)
    held[0].let_go()
    assert kit.ended(waiting).state == "succeeded"
    for each in held[1:]:
        each.let_go()
        assert kit.ended(each.run_id).state == "succeeded"


def test_offsets_are_committed_after_the_claim_and_never_wait_for_the_work(kit: Kit) -> None:
    """[10]."""
    kit.until(lambda: kit.fleet.database.count("executors"), "the executor is registered: its row is what holds it up")
    passed_over(kit)
    before = kit.committed()
    with kit.fleet.database.transaction() as held_up:
        held_up.execute("SELECT FROM executors FOR UPDATE")
        gate = kit.fleet.folder / "gate-of-commits"
        run_id = kit.trigger("conformance.hold", {"until": str(gate)})
        kit.until(lambda: waiters(kit), "the claim waits")
        assert kit.committed() == before
    kit.until(lambda: kit.committed() == before + 1, "the offset is committed")
    assert kit.facts(run_id).state == "running"
    gate.touch()
    assert kit.ended(run_id).attempt == 1


def passed_over(kit: Kit, *, all_but: int = 0) -> None:
    """Wait until the group has gone past every message there is."""

    def all_gone() -> bool:
        reader = TopicReader(kit.fleet.kafka, [kit.topic()])
        reader.read_to_end()
        reader.close()
        left = kit.fleet.database.value("SELECT count(*) FROM outbox WHERE publish_at <= tidewheel_now()")
        return left == 0 and kit.committed() >= len(reader.seen) - all_but

    kit.until(all_gone, "every message is passed over")


def waiters(kit: Kit) -> int:
    """Return the number of claims that wait for a lock."""
    return kit.fleet.database.value(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND query LIKE '%%NO KEY UPDATE%%'"
    )


def reason_of(kit: Kit, run_id: UUID) -> str:
    return str(kit.fleet.database.value("SELECT reason FROM runs WHERE run_id = %s", [run_id]))
