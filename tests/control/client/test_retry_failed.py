"""Retry by filter: new runs of failed and timed-out ones, each once, of the version now or then."""

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from uuid import UUID

import pytest

from tests.control.client.test_dead_letters import batch, fail, work_off
from tests.fixtures.acts import about, ending
from tests.fixtures.database import Database
from tidewheel.control.client.client import Client
from tidewheel.errors import InvalidInput, UnknownJob
from tidewheel.ids import instant_of
from tidewheel.nouns.runs import operations
from tidewheel.nouns.works import operations as works
from tidewheel.nouns.works.operations import Work
from tidewheel.postgres.session import RowsLocked, Session
from tidewheel.runs import RunState
from tidewheel.scheduler import work_loop
from tidewheel.scheduler.work_loop import do_batch
from tidewheel.transitions.works import lock_due_work


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    database.submit("job")
    database.submit("other", lane="batch", queue="reports")
    with Client(database.url) as made:
        yield made


def retried(database: Database) -> dict[UUID, UUID]:
    """The open retries, each by its old run."""
    found = database.rows("SELECT parent_run_id, run_id FROM job_runs WHERE cause = 'retry'")
    assert len(dict(found)) == len(found), "no run has two retries"
    return dict(found)


def done(client: Client, database: Database, work_id: UUID | None) -> Work:
    assert work_id is not None
    work_off(database)
    return client.works.wait(work_id, timeout=60)


def test_each_filter_retries_its_runs(client: Client, database: Database) -> None:
    plain = fail(database)
    late = fail(database, error="Late", state=RunState.TIMED_OUT)
    other = fail(database, "other")
    retry = client.runs.retry_failed
    assert [each.run_id for each in retry(dry_run=True).first] == [plain, late, other]
    for found, wanted in (
        (retry(key="job", dry_run=True), [plain, late]), (retry(status="timed_out", dry_run=True), [late]),
        (retry(error_type="Late", dry_run=True), [late]), (retry(queue="reports", dry_run=True), [other]),
        (retry(lane="batch", dry_run=True), [other]), (retry(since=instant_of(late), dry_run=True), [late, other]),
        (retry(until=instant_of(plain), dry_run=True), [plain]),
    ):  # fmt: skip
        assert (found.work_id, found.matched, [each.run_id for each in found.first]) == (None, len(wanted), wanted)
    work = done(client, database, retry(key="job", status="timed_out", rate=100, reason="mended").work_id)
    assert (work.kind, work.state, work.done_count, work.reason) == ("retry", "finished", 1, "mended")
    assert (work.filter["job"], work.filter["status"], set(retried(database))) == ("job", "timed_out", {late})
    [entry] = client.audit_log.list(action="runs.retry").entries
    assert (entry.objects, entry.reason) == (1, "mended")


def test_run_that_has_been_retried_is_left_out(client: Client, database: Database) -> None:
    first, second = fail(database), fail(database)
    client.runs.retry(first)
    work = done(client, database, client.runs.retry_failed(key="job").work_id)
    assert (work.done_count, work.rejected_count, work.matched_count) == (1, 0, 2)
    again = done(client, database, client.runs.retry_failed(everything=True).work_id)
    assert (again.done_count, set(retried(database))) == (0, {first, second})
    for run in database.job_runs():
        database.succeed(database.begin(run.run_id))
    assert done(client, database, client.runs.retry_failed(everything=True).work_id).done_count == 0


def test_run_whose_dead_letter_is_purged_is_retried(client: Client, database: Database) -> None:
    failed = fail(database)
    done(client, database, client.dead_letters.purge(everything=True).work_id)
    done(client, database, client.runs.retry_failed(key="job").work_id)
    assert set(retried(database)) == {failed}


def test_new_run_that_fails_again_is_not_retried_by_the_same_work(client: Client, database: Database) -> None:
    fail(database)
    still_open = database.trigger()
    work_id = client.runs.retry_failed(key="job").work_id
    assert batch(database, work_id) == 1
    for run in [*retried(database).values(), still_open]:
        database.end(ending(database.begin(run), RunState.FAILED, error_type="ValueError"))
    assert (done(client, database, work_id).done_count, database.job_runs()) == (1, [])


@pytest.mark.parametrize(("versions", "expected"), [("current", (2, "now")), ("as_of", (1, "default"))])
def test_new_runs_have_the_version_now_or_then(
    client: Client, database: Database, versions: str, expected: tuple[int, str]
) -> None:
    fail(database)
    database.submit("job", queue="now")
    fail(database)
    asked = operations.FailedRunFilter(key="job")
    done(client, database, client.runs.retry_failed(versions=versions, **asked).work_id)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - of the cases above
    found = database.rows("SELECT job_version, queue FROM job_runs")
    assert set(found) == {expected, (2, "now")}


def test_run_of_a_deleted_job_is_rejected_and_the_others_are_retried(client: Client, database: Database) -> None:
    kept, gone = fail(database), fail(database, "other")
    database.apply_batch(about("job.delete", "other"))
    work = done(client, database, client.runs.retry_failed(everything=True, versions="as_of").work_id)
    assert (work.done_count, work.rejected_count, set(retried(database))) == (1, 1, {kept})
    [rejection] = work.rejections
    assert (rejection["id"], "'path': 'key'" in str(rejection["errors"])) == (str(gone), True)


def test_run_of_a_dropped_day_is_rejected(client: Client, database: Database) -> None:
    gone = fail(database)
    database.execute("DELETE FROM finished_runs")
    work = done(client, database, client.runs.retry_failed(key="job").work_id)
    assert (work.done_count, work.rejected_count) == (0, 1)
    assert f"there is no run {gone}" in str(work.rejections)


def test_walk_looks_at_a_bounded_number(client: Client, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_loop, "_LOOKED_AT", 3)
    monkeypatch.setattr(operations, "_LOOKED_AT", 3)
    for _ in range(7):
        fail(database)
    rare = fail(database, error="Rare")
    assert client.runs.retry_failed(error_type="Rare", dry_run=True).matched == 1
    monkeypatch.setattr(works, "_SURVEYED", 1)
    found = client.runs.retry_failed(error_type="Rare")
    assert (found.matched, found.at_least) == (0, True)
    assert (done(client, database, found.work_id).done_count, set(retried(database))) == (1, {rare})


def test_repeated_request_starts_one_work(client: Client, database: Database) -> None:
    fail(database)
    first, second = (client.runs.retry_failed(key="job", request_id="night") for _ in range(2))
    assert first == second
    work_off(database)
    again = client.runs.retry_failed(key="job", request_id="night")
    assert (again.work_id, len(retried(database))) == (first.work_id, 1)


def test_what_does_not_fit_is_refused(client: Client, database: Database) -> None:
    fail(database)
    with pytest.raises(InvalidInput, match="no failed run is selected"):
        client.runs.retry_failed()
    with pytest.raises(UnknownJob):
        client.runs.retry_failed(key="unknown")
    assert client.runs.retry_failed(since=database.now() + timedelta(days=1)).work_id is None
    assert client.works.list() == []


@pytest.mark.parametrize("first", ["retry", "redrive"])
def test_retry_beside_another_work_makes_no_second_run(client: Client, database: Database, first: str) -> None:
    old = fail(database)
    begun = client.runs.retry_failed(key="job") if first == "retry" else client.dead_letters.redrive(key="job")
    second = client.runs.retry_failed(everything=True).work_id
    assert begun.work_id is not None
    assert second is not None
    with closing(Session(database.url, "scheduler")) as session:
        with database.transaction() as connection:  # another scheduler, before its commit
            work = lock_due_work(connection, begun.work_id, database.now())
            assert work is not None
            kind = work_loop.KINDS[first]
            batch = kind.next(connection, work, 1)
            assert batch is not None
            assert kind.apply(connection, database.installation, work, batch) == (1, {})
            with pytest.raises(RowsLocked):
                do_batch(session, database.installation, second)
        do_batch(session, database.installation, second)
    assert (set(retried(database)), client.works.get(second).done_count) == ({old}, 0)
