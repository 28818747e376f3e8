"""A request_id seen before gets the first answer; with another body it is rejected; in one batch, too."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.fixtures.acts import about, refusal, submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.transitions.stepping import batch_behind
from tidewheel.errors import Unavailable
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import parse_request
from tidewheel.postgres.statements import Statements
from tidewheel.schemas.generated.records import Reply, RequestOrigin

TRIGGER: dict[str, Any] = about("job.trigger", request_id="r-1")


def test_duplicate_trigger_is_one_run_and_gets_the_first_reply(with_job: Database) -> None:
    assert with_job.apply(TRIGGER) == with_job.apply(TRIGGER)
    assert len(with_job.job_runs()) == 1


def test_duplicate_trigger_in_one_batch_is_one_run(with_job: Database) -> None:
    others = TRIGGER | {"request_id": "r-2"}, TRIGGER | {"payload": 1}
    first, again, other, conflict = with_job.apply_batch(TRIGGER, TRIGGER, *others)
    assert again == first
    assert other.run_id != first.run_id
    assert (conflict.status, conflict.code) == ("rejected", "request_conflict")
    assert len(with_job.job_runs()) == 2


@pytest.mark.parametrize(
    "other", [{"payload": 1}, {"delay": "1s"}, {"key": "other"}, {"type": "job.pause"}, {"labels": {"a": "b"}}]
)
def test_known_request_id_with_another_body_is_rejected(with_job: Database, other: dict[str, object]) -> None:
    with_job.submit("other")
    with_job.apply_batch(TRIGGER)
    reply = with_job.apply(TRIGGER | other)
    assert (reply.code, refusal(reply).path) == ("request_conflict", "request_id")
    assert len(with_job.job_runs()) == 1


def test_duplicate_of_a_rejected_request_gets_the_first_reply(with_job: Database) -> None:
    """A repeated request gets its first reply, even if it would be accepted now."""
    asked = about("job.trigger", "later", request_id="r-1")
    first = with_job.apply(asked)
    assert first.code == "unknown_job"
    with_job.submit("later")
    assert with_job.apply(asked) == first


def test_request_ids_of_two_tenants_are_independent(with_job: Database) -> None:
    with_job.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    with_job.apply_batch(submission() | {"tenant": "acme"})
    ours, theirs = with_job.apply_batch(TRIGGER, TRIGGER | {"tenant": "acme"})
    assert (ours.status, theirs.status) == ("accepted", "accepted")
    assert len(with_job.job_runs()) == 2


def test_stored_reply_is_purged_after_its_retention(with_job: Database) -> None:
    with_job.apply_batch(TRIGGER)
    with_job.execute("UPDATE requests SET created_at = created_at - interval '8 days 1 s'")
    with_job.apply_batch(TRIGGER | {"request_id": "r-2"})
    with_job.execute(Statements("tidewheel.intake")["purge_replies"], {"kept": timedelta(days=8)})
    assert with_job.rows("SELECT request_id FROM requests") == [("r-2",)]


def test_purge_skips_replies_that_another_member_deletes(with_job: Database) -> None:
    """Members of all processes purge the same table: they neither wait for each other nor deadlock."""
    with_job.apply_batch(TRIGGER, TRIGGER | {"request_id": "r-2"})
    with_job.execute("UPDATE requests SET created_at = created_at - interval '9 days'")
    other = with_job.connection()
    other.execute("DELETE FROM requests WHERE request_id = 'r-1'")
    purge = Statements("tidewheel.intake")["purge_replies"]
    assert with_job.execute(purge, {"kept": timedelta(days=8)}) == 1
    other.rollback()
    assert with_job.rows("SELECT request_id FROM requests") == [("r-1",)]


def test_concurrent_duplicate_is_retried_and_gets_the_first_reply(with_job: Database) -> None:
    answers: list[Reply] = []
    with pytest.raises(Unavailable, match="replied to a request of this batch"):
        batch_behind(with_job, lambda first: answers.extend(with_job.apply_batch_within(first, TRIGGER)), TRIGGER)
    assert with_job.apply_batch(TRIGGER) == answers
    assert len(with_job.job_runs()) == 1


@pytest.mark.parametrize("ended", ["cancelled", "succeeded"])
def test_trigger_of_an_instant_repeated_after_the_end_makes_no_second_run(clocked: ClockedDatabase, ended: str) -> None:
    """Also once the first reply is purged: the run's id holds the instant and the request_id."""
    at = clocked.stop_clock() + timedelta(minutes=1)
    clocked.submit()
    asked = TRIGGER | {"run_at": at.isoformat(), "payload": 1}
    [first] = clocked.apply_batch(asked)
    run = UUID(first.run_id)
    if ended == "cancelled":
        clocked.apply_batch({"type": "run.cancel", "run_id": str(run)})
    else:
        clocked.stop_clock(at)
        clocked.succeed(clocked.begin(run))
    sent = len(clocked.requests())
    clocked.execute("DELETE FROM requests")
    [again, other] = clocked.apply_batch(asked, TRIGGER | {"request_id": "r-2", "run_at": at.isoformat()})
    assert (again.status, again.run_id) == ("accepted", str(run))
    assert [str(opened.run_id) for opened in clocked.job_runs()] == [other.run_id]
    assert clocked.rows("SELECT run_id, state FROM finished_runs") == [(run, ended)]
    assert (len(clocked.requests()), clocked.count("run_inputs")) == (sent + 1, 1)


def test_redelivered_trigger_without_a_request_id_is_one_run(with_job: Database) -> None:
    """Its coordinates name it: what was read again after a crash derives the same run."""
    place = RequestOrigin(topic="tidewheel.requests", partition=0, offset=7)
    trigger = about("job.trigger", run_at=(with_job.now() + timedelta(hours=1)).isoformat())
    runs: set[str | None] = set()
    for _ in range(2):
        [reply] = with_job.within(
            apply_requests, with_job.installation, [ReceivedRequest(parse_request(trigger), place)]
        )
        runs.add(reply.run_id)
    assert len(runs) == len(with_job.job_runs()) == 1


def test_batch_is_applied_in_order_across_kinds(database: Database) -> None:
    """Submit, trigger, delete, trigger, submit, pause, trigger: each sees what came before it."""
    kinds = ["job.trigger", "job.delete", "job.trigger"]
    documents = [submission(), *map(about, kinds), submission(), about("job.pause"), about("job.trigger")]
    replies = database.apply_batch(*documents)
    assert [reply.status for reply in replies] == ["accepted"] * 3 + ["rejected"] + ["accepted"] * 3
    assert [reply.job_version for reply in replies] == [1, 1, 1, None, 2, 2, 2]
    assert [run.job_version for run in database.job_runs()] == [2]
    assert database.rows("SELECT paused FROM jobs") == [(True,)]


@pytest.mark.parametrize(
    "asked", [TRIGGER | {"payload": {"a": 1}}, submission("other", payload=1) | {"request_id": "r-1"}]
)
def test_duplicate_of_an_earlier_releases_request_gets_its_reply(with_job: Database, asked: dict[str, Any]) -> None:
    """It remembered bodies in another way."""
    first = with_job.apply(asked)
    former = ReceivedRequest(parse_request(asked)).model_body_hash()
    with_job.execute("UPDATE requests SET body_hash = %s", [former])
    assert with_job.apply(asked) == first
    other = asked | {"tenant": "default", "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}
    assert with_job.apply(other).code == "request_conflict"
