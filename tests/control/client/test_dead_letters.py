"""Dead letters: listed by any filter, shown whole, redriven once each, purged on request."""

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Unpack
from uuid import UUID

import pytest
from psycopg import Connection, OperationalError

from tests.fixtures.acts import about, ending
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tidewheel.control.client.client import Client
from tidewheel.errors import InvalidInput, UnknownDeadLetter, UnknownJob
from tidewheel.nouns.dead_letters import operations as module
from tidewheel.nouns.dead_letters.operations import DeadLetterFilter, DeadLettersPage
from tidewheel.nouns.works.operations import Work
from tidewheel.postgres.session import RowsLocked, Session
from tidewheel.runs import RunState
from tidewheel.scheduler.work_loop import Purge, Redrive, WorkLoop, do_batch
from tidewheel.transitions.dead_letters import DeadMessage, dead_letter_message


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    database.submit("job")
    database.submit("other", lane="batch", queue="reports")
    with Client(database.url) as made:
        yield made


def fail(database: Database, key: str = "job", *, error: str = "ValueError", state: RunState = RunState.FAILED) -> UUID:
    """A run that is given up."""
    started = database.begun(key)
    database.end(ending(started, state, error_type=error, error_message="no", trace="at line 1", output=b"hello"))
    return started.run_id


def garble(database: Database, offset: int = 0, value: bytes = b"\xff{") -> None:
    """A message that is no request."""
    topic = database.installation.topics.requests
    with database.transaction() as connection:
        dead = DeadMessage(topic, 3, offset, b"k", value, "it is neither JSON nor Avro")
        dead_letter_message(connection, database.installation, dead, database.now())


def runs(page: DeadLettersPage) -> list[UUID | None]:
    return [letter.run_id for letter in page.dead_letters]


def redriven(database: Database) -> dict[UUID, UUID]:
    return dict(database.rows("SELECT run_id, redriven_run_id FROM dead_letters WHERE redriven_run_id IS NOT NULL"))


def work_off(database: Database) -> None:
    """Work off every redrive, as a scheduler does."""
    with closing(Session(database.url, "scheduler")) as session:
        loop = WorkLoop(session, database.installation)
        until(lambda: loop.step()[1] == math.inf, "nothing is due")


def batch(database: Database, work_id: UUID | None, most: int | None = None) -> int | None:
    """Do the next batch of a work, as a scheduler does."""
    assert work_id is not None
    return do_batch(database.session("scheduler"), database.installation, work_id, most=most)


def redrive(client: Client, database: Database, **filters: Unpack[DeadLetterFilter]) -> Work:
    """Redrive dead letters and return the finished redrive."""
    requested = client.dead_letters.redrive(everything=not filters, **filters)
    assert requested.work_id is not None
    work_off(database)
    return client.works.wait(requested.work_id, timeout=60)


def purge(client: Client, database: Database, **filters: Unpack[DeadLetterFilter]) -> int:
    """Purge dead letters and return how many are gone."""
    requested = client.dead_letters.purge(everything=not filters, **filters)
    work_off(database)
    return 0 if requested.work_id is None else client.works.wait(requested.work_id, timeout=60).done_count


def test_every_filter_finds_its_dead_letters(client: Client, database: Database) -> None:
    plain = fail(database)
    late = fail(database, error="Late", state=RunState.TIMED_OUT)
    other = fail(database, "other")
    garble(database)
    page = client.dead_letters.list()
    assert (runs(page), page.total, page.at_least) == ([None, other, late, plain], 4, False)
    made = {letter.run_id: letter.created_at for letter in page.dead_letters}
    client.runs.retry(plain)
    wanted: list[tuple[DeadLetterFilter, list[UUID | None]]] = [
        ({"key": "other"}, [other]),
        ({"error_type": "Late"}, [late]),
        ({"status": "timed_out"}, [late]),
        ({"kind": "message"}, [None]),
        ({"kind": "run"}, [other, late, plain]),
        ({"queue": "reports"}, [other]),
        ({"lane": "batch"}, [other]),
        ({"since": made[other]}, [None, other]),
        ({"until": made[late]}, [late, plain]),
        ({"redriven": True}, [plain]),
        ({"redriven": False}, [None, other, late]),
        ({"key": "job", "status": "failed", "redriven": False}, []),
    ]
    for which, found in wanted:
        assert runs(client.dead_letters.list(**which)) == found, which


def test_pages_are_consecutive_and_the_count_is_bounded(
    client: Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COUNTED", 3)
    failed = [fail(database) for _ in range(5)]
    first = client.dead_letters.list(limit=2)
    assert first.next_cursor is not None
    client.dead_letters.purge(ids=[first.next_cursor[1]])  # the next page needs only its place
    second = client.dead_letters.list(limit=2, after=first.next_cursor)
    third = client.dead_letters.list(limit=2, after=second.next_cursor)
    assert runs(first) + runs(second) + runs(third) == list(reversed(failed))
    assert (first.total, first.at_least, third.next_cursor) == (3, True, None)


def test_page_that_looked_at_its_share_has_a_cursor_and_goes_on(
    client: Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOKED_AT", 3)
    rare = fail(database, error="Rare")
    for _ in range(7):
        fail(database)
    pages = [client.dead_letters.list(error_type="Rare")]
    while (cursor := pages[-1].next_cursor) is not None:
        pages.append(client.dead_letters.list(error_type="Rare", after=cursor))
    assert [runs(page) for page in pages] == [[], [], [rare]]
    assert {(page.total, page.at_least) for page in pages} == {(0, True)}
    assert client.dead_letters.redrive(error_type="Rare", dry_run=True).matched == 1


def test_invalid_filter_is_refused(client: Client) -> None:
    for path, value in {"kind": "letter", "status": "succeeded", "lane": "fast"}.items():
        with pytest.raises(InvalidInput) as refused:
            client.dead_letters.list(**{path: value})  # type: ignore[arg-type]  # one of each
        assert [error.path for error in refused.value.errors] == [path]
    with pytest.raises(UnknownJob):
        client.dead_letters.list(key="nope")
    with pytest.raises(UnknownDeadLetter):
        client.dead_letters.get(404)
    with pytest.raises(UnknownDeadLetter):
        client.dead_letters.redrive(ids=[404])


def test_each_dead_letter_is_redriven_once(client: Client, database: Database) -> None:
    failed = [fail(database) for _ in range(3)]
    done = redrive(client, database, key="job")
    assert (done.matched_count, done.done_count, done.rejected_count) == (3, 3, 0)
    made = redriven(database)
    assert set(made) == set(failed)
    assert {run.run_id for run in database.job_runs()} == set(made.values())
    again = client.dead_letters.redrive(key="job")
    assert (again.work_id, again.matched, redriven(database)) == (None, 0, made)


def test_interrupted_redrive_goes_on(client: Client, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Redrive, "batch", 2)
    failed = [fail(database) for _ in range(5)]
    work_id = client.dead_letters.redrive(everything=True).work_id
    assert [batch(database, work_id) for _ in range(2)] == [2, 2]
    assert work_id is not None
    assert set(redriven(database)) == set(failed[:4])
    assert client.works.get(work_id).processed == 4
    work_off(database)
    assert client.works.get(work_id).state == "finished"
    assert len(database.job_runs()) == len(redriven(database)) == 5


@pytest.mark.landing
def test_concurrent_redrives_create_one_run_of_each_and_wait_for_no_lock(client: Client, database: Database) -> None:
    failed = [fail(database) for _ in range(3)]
    redrives = [client.dead_letters.redrive(key="job").work_id for _ in range(2)]
    with database.transaction() as connection:
        database.apply_batch_within(connection, {"type": "run.retry", "run_id": str(failed[1])})
        batches = [batch(database, each) for each in redrives * 2]
    assert batches == [1, None, None, None], "a batch ends before the letter that the retry holds"
    work_off(database)
    assert {open_run.run_id for open_run in database.job_runs()} == set(redriven(database).values())
    found = {each.work_id: (each.state, each.done_count) for each in client.works.list()}
    assert sorted(found.values()) == [("finished", 0), ("finished", 2)]


def test_dead_letter_of_a_retry_that_rolls_back_is_redriven(client: Client, database: Database) -> None:
    failed = [fail(database) for _ in range(2)]
    assert client.dead_letters.redrive(everything=True).matched == 2
    with database.session().transaction() as connection:
        database.apply_batch_within(connection, {"type": "run.retry", "run_id": str(failed[0])})
        WorkLoop(database.session("scheduler"), database.installation).step()
        connection.rollback()
    assert redriven(database) == {}
    work_off(database)
    assert set(redriven(database)) == set(failed)


def test_purge_of_dead_letters_not_redriven_leaves_those_redriven_meanwhile(client: Client, database: Database) -> None:
    kept, gone = fail(database), fail(database)
    work_id = client.dead_letters.purge(redriven=False).work_id
    with database.transaction() as connection:
        database.apply_batch_within(connection, {"type": "run.retry", "run_id": str(kept)})
        with pytest.raises(RowsLocked):
            batch(database, work_id)
    work_off(database)
    assert work_id is not None
    assert (client.works.get(work_id).done_count, runs(client.dead_letters.list())) == (1, [kept])
    assert client.runs.get(gone).state == RunState.FAILED


def test_each_change_of_a_redrive_has_one_entry_in_the_audit_log(client: Client, database: Database) -> None:
    fail(database)
    redrive_id = client.dead_letters.redrive(everything=True, rate=1).work_id
    assert redrive_id is not None
    for _ in range(2):  # the second one changes nothing
        client.works.pause(redrive_id)
    client.works.resume(redrive_id)
    client.works.cancel(redrive_id)
    found = client.audit_log.list(object=f"redrive/{redrive_id}").entries
    assert [each.action for each in found] == ["redrive.cancel", "redrive.resume", "redrive.pause", "dlq.redrive"]


def test_lost_commit_reply_creates_no_second_redrive(
    client: Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(database)
    lost: list[bool] = []
    commit = Connection.commit

    def committing(self: Connection) -> None:
        commit(self)
        if not lost and database.count("works"):
            lost.append(True)
            raise OperationalError

    monkeypatch.setattr(Connection, "commit", committing)
    client.dead_letters.redrive(key="job")
    work_off(database)
    assert (lost, database.count("works"), len(database.job_runs())) == ([True], 1, 1)
    assert len(client.audit_log.list(action="dlq.redrive").entries) == 1


def test_run_that_fails_again_is_not_redriven_by_the_same_redrive(client: Client, database: Database) -> None:
    fail(database)
    work_id = client.dead_letters.redrive(key="job").work_id
    assert batch(database, work_id) == 1
    for run in database.job_runs():
        database.end(ending(database.begin(run.run_id), RunState.FAILED, error_type="ValueError"))
    work_off(database)
    assert client.works.get(work_id or UUID(int=0)).done_count == 1
    assert client.dead_letters.list(redriven=False).total == 1


def test_a_dry_run_counts_and_shows_the_oldest_ten(client: Client, database: Database) -> None:
    failed = [fail(database) for _ in range(12)]
    counted = client.dead_letters.redrive(key="job", dry_run=True)
    assert (counted.matched, counted.work_id) == (12, None)
    assert [letter.run_id for letter in counted.first] == failed[:10]
    assert redriven(database) == {}


def test_rejected_dead_letter_stops_no_other_and_is_redriven_once_corrected(client: Client, database: Database) -> None:
    kept, gone = fail(database), fail(database, "other")
    database.apply_batch(about("job.delete", "other"))
    done = redrive(client, database)
    assert (done.done_count, done.rejected_count) == (1, 1)
    [refusal] = done.rejections
    assert "'path': 'key'" in str(refusal["errors"])
    assert set(redriven(database)) == {kept}
    assert runs(client.dead_letters.list(redriven=False)) == [gone]
    assert redrive(client, database).rejected_count == 1
    database.submit("other")
    done = redrive(client, database)
    assert (done.done_count, done.rejected_count, set(redriven(database))) == (1, 0, {kept, gone})


def test_purge_deletes_letters_and_no_run(client: Client, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Purge, "batch", 2)
    failed = [fail(database) for _ in range(5)]
    other = fail(database, "other")
    counted = client.dead_letters.purge(key="job", dry_run=True)
    assert (counted.matched, len(counted.first), counted.work_id) == (5, 5, None)
    assert purge(client, database, key="job") == 5
    assert [each.objects for each in client.audit_log.list(action="dlq.purge").entries] == [5]
    assert runs(client.dead_letters.list()) == [other]
    assert purge(client, database, key="other") == 1
    assert [each.objects for each in client.audit_log.list(action="dlq.purge").entries] == [1, 5]
    assert client.runs.get(failed[0]).state == RunState.FAILED
    assert purge(client, database, until=database.now() - timedelta(days=1)) == 0


def test_reason_that_no_request_may_have_is_refused(client: Client, database: Database) -> None:
    fail(database)
    fail(database)
    letters, redrives = client.dead_letters, client.works
    redrive_id = letters.redrive(everything=True, rate=0.1).work_id
    assert redrive_id is not None
    changes: tuple[Callable[[str], object], ...] = (
        lambda reason: letters.redrive(everything=True, reason=reason),
        lambda reason: letters.purge(everything=True, reason=reason),
        lambda reason: redrives.pause(redrive_id, reason=reason),
        lambda reason: redrives.cancel(redrive_id, reason=reason),
    )
    for bad, problem in (("a\0b", "which is not text"), ("a" * 1001, "has 1001 characters")):
        for change in changes:
            with pytest.raises(InvalidInput, match=f"^reason: .*{problem}"):
                change(bad)
    assert letters.list().total == len(redrives.list()) * 2 == 2
    assert redrives.get(redrive_id).state == "running"
