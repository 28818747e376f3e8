"""Bounds of requests: every value within them is applied or refused under its path."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.fixtures.acts import about, submission
from tests.fixtures.bounds import BOUNDS
from tests.fixtures.database import ClockedDatabase, Database
from tests.scheduler.firing import fire_due
from tests.tidewheel.jobs.test_bounds import PLACES, outcome
from tidewheel.errors import FieldError
from tidewheel.intake.recovery import RequestBreaker
from tidewheel.intake.request import reply_row
from tidewheel.jobs.parsing import RequestRefused
from tidewheel.postgres.faults import MAX_ALIKE
from tidewheel.schemas.codec import encode, encode_json
from tidewheel.schemas.generated.records import Reply, ReplyError, ReplyStatus, RequestOrigin, RequestType

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


def refused(database: ClockedDatabase, **job: object) -> list[tuple[str, str]]:
    try:
        errors: Sequence[FieldError | ReplyError] = database.apply(submission("job", **job)).errors
    except RequestRefused as error:
        errors = error.errors
    return [(each.path, each.problem) for each in errors]


def instants(database: ClockedDatabase) -> list[datetime]:
    return [at for (at,) in database.rows("SELECT scheduled_at FROM runs ORDER BY scheduled_at")]


def run_for(database: ClockedDatabase, hours: int) -> None:
    for _ in range(hours):
        database.advance(HOUR)
        fire_due(database)


def test_max_runs_counts_skipped_occurrences_and_no_triggers(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1h", max_runs=4, overlap="allow_all")
    still.apply_batch({"type": "job.trigger", "key": "job"})
    still.advance(2 * HOUR + 30 * 60 * SECOND)
    run_for(still, 4)
    timers = still.rows("SELECT count(*) FROM runs WHERE cause = 'timer'")
    assert timers == [(2,)]
    assert still.rows("SELECT reason, occurrences FROM skips") == [("misfire", 2)]


def test_edited_max_runs_counts_from_the_first_acceptance(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1h", max_runs=5, overlap="allow_all")
    run_for(still, 2)
    still.submit(schedule="@every 1h", max_runs=3, overlap="allow_all")
    run_for(still, 4)
    assert len(instants(still)) == 3


def test_edit_to_fewer_max_runs_than_fired_is_refused(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1h", max_runs=5, overlap="allow_all")
    run_for(still, 3)
    [(path, problem)] = refused(still, schedule="@every 1h", max_runs=2)
    assert path == "job.end_at"
    assert "has passed" in problem


def test_recreated_job_counts_max_runs_from_zero(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1h", max_runs=2, overlap="allow_all")
    run_for(still, 2)
    still.apply_batch(about("job.delete"))
    still.submit(schedule="@every 1h", max_runs=2, overlap="allow_all")
    run_for(still, 4)
    assert len(instants(still)) == 4


def test_identical_submit_of_a_finished_job_changes_nothing(still: ClockedDatabase) -> None:
    end_at = (still.now() + 90 * 60 * SECOND).isoformat()
    still.submit(schedule="@every 1h", end_at=end_at)
    run_for(still, 3)
    again: Reply = still.submit(schedule="@every 1h", end_at=end_at)
    assert (again.unchanged, again.next_run_at) == (True, None)


def test_jitter_delays_publish_at_and_not_the_instant(still: ClockedDatabase) -> None:
    still.stop_clock(datetime.fromisoformat("2031-01-01T00:00:00Z"))
    for number in range(20):
        still.submit(f"job-{number}", schedule={"cron": "0 * * * *"}, jitter="10m")
    still.advance(HOUR - SECOND)
    fire_due(still, lookahead=5 * SECOND)
    runs = still.job_runs()
    assert {run.scheduled_at for run in runs} == {datetime.fromisoformat("2031-01-01T01:00:00Z")}
    delays = {run.publish_at - run.scheduled_at for run in runs}
    assert len(delays) == 20
    assert all(timedelta(0) <= delay < timedelta(minutes=10) for delay in delays)


def test_if_version_guards_an_edit(still: ClockedDatabase) -> None:
    def code(if_version: int, schedule: str) -> str | None:
        return still.apply(submission("job", schedule=schedule) | {"if_version": if_version}).code

    assert code(3, "@every 1h") == "version_conflict"
    assert still.count("jobs") == 0
    assert code(0, "@every 1h") is None
    assert code(0, "@every 2h") == "version_conflict"
    assert code(1, "@every 2h") is None
    assert code(1, "@every 3h") == "version_conflict"


_BATCH = 200


def accepted(root: str) -> Iterator[dict[str, Any]]:
    for place in PLACES:
        for value in BOUNDS if place.root == root else ():
            document = place.holding(value)
            if not isinstance(outcome(document), tuple):
                yield document


def test_job_whose_runs_wait_in_an_ordering_key_gets_a_concurrency_key(with_job: Database) -> None:
    """Found by the values below: the edit failed its whole batch in the database."""
    for _ in range(2):
        with_job.trigger(ordering_key="customer")
    assert with_job.submit(concurrency_key={"key": "acme", "at_once": 2}).job_version == 2


@pytest.mark.slow
@pytest.mark.parametrize("root", sorted({place.root for place in PLACES}))
def test_accepted_value_at_any_bound_is_applied_or_rejected_under_its_path(database: Database, root: str) -> None:
    for key in ("parent", "job"):
        database.submit(key)
    documents = list(accepted(root))
    for start in range(0, len(documents), _BATCH):
        verify(database, documents[start : start + _BATCH])


def verify(database: Database, batch: Sequence[dict[str, Any]]) -> None:
    for document, reply in zip(batch, database.apply_batch(*batch), strict=True):
        if reply.status is not ReplyStatus.ACCEPTED:
            assert all(error.problem and error.remedy for error in reply.errors), (document, reply)
            assert reply.errors, document


NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
ACCEPTED: dict[str, Any] = {"type": RequestType.JOB_SUBMIT, "tenant": "default", "status": ReplyStatus.ACCEPTED}


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"request_id": 'r-"1"\\é\u2028', "key": "a\tb", "job_id": "j", "job_version": 3, "next_run_at": NOW},
        {"type": RequestType.RUN_CANCEL, "run_id": "r", "run_status": "running", "unchanged": True},
        {"backfill_id": "b", "backfill_status": "paused", "occurrences": 0, "cancellation_id": 1 << 40},
        {"origin": RequestOrigin(topic="t", partition=3, offset=1 << 50)},
        {"status": ReplyStatus.REJECTED, "code": "invalid", "errors": (ReplyError(path="a", problem="b", remedy="c"),)},
    ],
)
def test_reply_is_encoded_like_its_schemas_writer(database: Database, facts: dict[str, Any]) -> None:
    known: dict[str, Any] = {"unchanged": False, "errors": (), **ACCEPTED, **facts}
    reply = Reply(**known)
    for encoding, wanted in (("json", encode_json(reply)), ("avro", encode(reply))):
        row = reply_row(database.installation, reply, b"k", encoding, NOW, topic="r")  # type: ignore[arg-type]  # as above
        assert (row.topic, row.value, row.key, row.publish_at) == ("r", wanted, b"k", NOW)


SUBMIT, TRIGGER, PAUSE = RequestType.JOB_SUBMIT, RequestType.JOB_TRIGGER, RequestType.JOB_PAUSE


def rejects(breaker: RequestBreaker, error: Exception, offset: int, kind: RequestType) -> bool:
    return breaker.rejects(error, (("requests", 0), offset), kind, allowed=MAX_ALIKE)


@pytest.mark.unit
def test_types_that_fail_alike_share_one_count_that_either_restarts() -> None:
    """A count that kept the other type's failures would repeat the request for ever."""
    breaker = RequestBreaker()
    assert all(rejects(breaker, KeyError(), offset, TRIGGER) for offset in range(MAX_ALIKE))
    assert not rejects(breaker, KeyError(), 10, SUBMIT)
    assert rejects(breaker, ValueError(), 11, SUBMIT)
    breaker.restart({PAUSE})
    assert not rejects(breaker, KeyError(), 10, SUBMIT)
    breaker.restart({SUBMIT})
    assert rejects(breaker, KeyError(), 10, SUBMIT)
