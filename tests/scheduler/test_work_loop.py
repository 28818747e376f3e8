"""Bulk work: its rate, over all schedulers; a pause, a crash, a dead letter whose own data fail."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID

import pytest
from psycopg.sql import SQL, Identifier

from tests.control.client.test_dead_letters import fail, purge, redriven, work_off
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.services import until
from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.client import Client
from tidewheel.errors import InvalidInput
from tidewheel.nouns.dead_letters import operations as dead_letters
from tidewheel.nouns.works import operations as works
from tidewheel.postgres.session import Session
from tidewheel.scheduler import work_loop
from tidewheel.scheduler.work_loop import WorkLoop, do_batch

FIRING_SECONDS = 5.0  # in which firing may wait for a redrive on a busy machine; a session's lock_timeout is 10 s


@pytest.fixture
def client(clocked: ClockedDatabase) -> Iterator[Client]:
    clocked.stop_clock(datetime(2026, 3, 6, 9, tzinfo=UTC))
    clocked.submit()
    with Client(clocked.url) as made:
        yield made


def requested(client: Client, rate: float | None = None) -> UUID:
    redrive_id = client.dead_letters.redrive(everything=True, rate=rate).work_id
    assert redrive_id is not None
    return redrive_id


@pytest.mark.landing
def test_a_rate_holds_over_all_schedulers(client: Client, clocked: ClockedDatabase) -> None:
    for _ in range(30):
        fail(clocked)
    requested(client, rate=2.0)
    done: list[int] = []
    for _ in range(10):
        for _ in range(2):  # schedulers
            work_off(clocked)
        done.append(len(redriven(clocked)))
        clocked.advance(timedelta(seconds=1))
    assert all(later - earlier == 2 for earlier, later in pairwise(done)), done
    clocked.advance(timedelta(minutes=10))
    work_off(clocked)
    assert len(redriven(clocked)) <= done[-1] + 5, "time without a scheduler is not made up in a burst"


def test_a_paused_redrive_waits_and_a_cancelled_one_ends(client: Client, clocked: ClockedDatabase) -> None:
    for _ in range(3):
        fail(clocked)
    redrive_id = requested(client, rate=1.0)
    work_off(clocked)
    began = len(redriven(clocked))
    client.works.pause(redrive_id, reason="later")
    clocked.advance(timedelta(minutes=1))
    work_off(clocked)
    assert (began, len(redriven(clocked))) == (1, 1)
    client.works.resume(redrive_id)
    work_off(clocked)
    assert 1 < len(redriven(clocked)) <= 3
    client.works.cancel(redrive_id)
    assert client.works.get(redrive_id).finished_at is not None
    assert client.works.resume(redrive_id).unchanged


def test_a_batch_that_is_not_committed_is_done_again(
    client: Client, clocked: ClockedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(clocked)
    redrive_id = requested(client)
    with monkeypatch.context() as patch, closing(Session(clocked.url, "scheduler")) as session:
        patch.delattr("tidewheel.scheduler.work_loop.advance_work")  # an error after the runs are written
        with pytest.raises(NameError):
            do_batch(session, clocked.installation, redrive_id)
        assert not redriven(clocked)
    work_off(clocked)
    assert len(redriven(clocked)) == 1


def test_a_rare_error_is_found_by_batches_that_look_at_a_bounded_number(
    client: Client, clocked: ClockedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_loop, "_LOOKED_AT", 3)
    monkeypatch.setattr(dead_letters, "LOOKED_AT", 3)
    for _ in range(7):
        fail(clocked)
    rare = fail(clocked, error="Rare")
    fail(clocked)
    found = client.dead_letters.redrive(error_type="Rare", rate=1.0)
    assert (found.matched, found.work_id is None) == (1, False)
    assert found.work_id is not None
    with closing(Session(clocked.url, "scheduler")) as session:
        batches = [do_batch(session, clocked.installation, found.work_id) for _ in range(3)]
    assert batches == [0, 0, 1], "a batch without a match costs nothing of the rate"
    clocked.advance(timedelta(seconds=2))
    work_off(clocked)
    assert client.works.get(found.work_id).state == "finished"
    assert set(redriven(clocked)) == {rare}
    assert purge(client, clocked, error_type="Rare") == 1


def test_a_request_looks_at_a_bounded_number_and_the_redrive_at_all(
    client: Client, clocked: ClockedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "LOOKED_AT", 3)
    monkeypatch.setattr(works, "_SURVEYED", 1)
    for _ in range(4):
        fail(clocked)
    rare = fail(clocked, error="Rare")
    counted = client.dead_letters.redrive(error_type="Rare", dry_run=True)
    assert (counted.matched, counted.at_least, counted.first) == (0, True, ())
    assert client.dead_letters.redrive(error_type="Rare").work_id is not None
    work_off(clocked)
    assert set(redriven(clocked)) == {rare}
    assert purge(client, clocked, error_type="Rare") == 1


def test_a_dead_letter_whose_data_fail_stops_no_other(client: Client, clocked: ClockedDatabase) -> None:
    clocked.submit("poisoned", target="poison")
    fail(clocked)
    bad = fail(clocked, "poisoned")
    for _ in range(3):
        fail(clocked)
    spoil(clocked)
    redrive_id = requested(client)
    with closing(Session(clocked.url, "scheduler")) as session:
        loop = WorkLoop(session, clocked.installation)
        batches = [loop._batch(redrive_id) for _ in range(4)]  # pyright: ignore[reportPrivateUsage]  # of a step, which has as many as its time allows
    assert batches == [0, 1, 0, 3], "batches go on after the one that fails"
    found = client.works.get(redrive_id)
    assert (found.state, found.done_count, found.rejected_count) == ("finished", 4, 1)
    assert bad not in redriven(clocked)
    assert "purge this dead letter" in str(found.rejections)


def test_a_locked_job_delays_its_own_redrive_and_neither_firing_nor_others(
    client: Client, clocked: ClockedDatabase
) -> None:
    clocked.submit("held")
    held = fail(clocked, "held")
    waiting = client.dead_letters.redrive(key="held").work_id
    free = fail(clocked)
    client.dead_letters.redrive(key="job")
    with closing(Session(clocked.url, "scheduler")) as session, clocked.transaction() as deleting:
        deleting.execute("SELECT FROM jobs WHERE key = 'held' FOR UPDATE")
        loop = WorkLoop(session, clocked.installation)
        since = monotonic_seconds()
        loop.step()
        assert monotonic_seconds() - since < FIRING_SECONDS
        until(lambda: loop.step()[0] >= 0 and set(redriven(clocked)) == {free}, "the other one is done")
        assert waiting is not None
        assert client.works.get(waiting).state == "running"
    work_off(clocked)
    assert set(redriven(clocked)) == {free, held}
    assert client.works.get(waiting).state == "finished"


def spoil(database: Database) -> None:
    """Refuse the runs of one handler, as an error of their own data does."""
    database.execute("ALTER TABLE job_runs ADD CONSTRAINT spoilt CHECK (handler <> 'poison') NOT VALID")


def test_nothing_due_costs_a_statement_and_no_wake(clocked: ClockedDatabase) -> None:
    with closing(Session(clocked.url, "scheduler")) as session:
        loop = WorkLoop(session, clocked.installation)
        assert loop.step() == (0, float("inf"))


def test_work_of_a_kind_of_a_later_release_waits_and_stops_no_other(client: Client, clocked: ClockedDatabase) -> None:
    fail(clocked)
    later, known = requested(client, rate=1.0), requested(client)
    clocked.execute("DELETE FROM redrives WHERE redrive_id = %s", [later])
    clocked.execute("UPDATE works SET kind = 'unknown' WHERE work_id = %s", [later])
    work_off(clocked)
    assert [client.works.get(each).state for each in (later, known)] == ["running", "finished"]


def test_lowest_stored_rate_delays_its_own_work_alone(client: Client, clocked: ClockedDatabase) -> None:
    for _ in range(3):
        fail(clocked)
    slow = requested(client, rate=1.0)
    clocked.execute("UPDATE works SET rate = 5e-324 WHERE work_id = %s", [slow])
    clocked.advance(timedelta(seconds=1))
    other = requested(client)
    work_off(clocked)
    assert [client.works.get(each).state for each in (slow, other)] == ["running", "finished"]
    assert len(redriven(clocked)) == 3
    with pytest.raises(InvalidInput, match="rate"):
        requested(client, rate=1e-12)


def test_work_whose_code_fails_stops_no_other(
    client: Client, clocked: ClockedDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        message = "broken"
        raise RuntimeError(message)

    fail(clocked)
    assert client.dead_letters.purge(everything=True).work_id is not None
    clocked.advance(timedelta(seconds=1))
    redrive_id = requested(client)
    monkeypatch.setattr(work_loop.Purge, "apply", broken)
    monkeypatch.setattr(work_loop, "_SHARE_SECONDS", 60.0)  # a stalled machine leaves no time for a batch in 0.05 s
    with closing(Session(clocked.url, "scheduler")) as session:
        loop = WorkLoop(session, clocked.installation)
        until(lambda: loop.step()[0] >= 0 and client.works.get(redrive_id).state == "finished", "the redrive is done")
    assert caplog.text.count("cannot do a batch of work") == 1


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("filter", '{"ids": 7, "status": 7, "since": 7}'), ("filter", "7"), ("cursor", "{}"), ("rate", "NaN"),
        ("next_at", "-infinity"), ("created_at", "294000-01-01Z"),
    ],
)  # fmt: skip
def test_works_that_cannot_be_read_stop_no_other(
    client: Client, clocked: ClockedDatabase, column: str, value: str
) -> None:
    fail(clocked)
    damaged = [requested(client) for _ in range(3)]
    clocked.advance(timedelta(seconds=1))
    whole = requested(client)
    change = SQL("UPDATE works SET {} = %s WHERE work_id = ANY (%s)").format(Identifier(column))
    clocked.execute(change, [value, damaged])
    with closing(Session(clocked.url, "scheduler")) as session:
        loop = WorkLoop(session, clocked.installation)
        until(lambda: loop.step()[0] >= 0 and client.works.get(whole).state == "finished", "the other one is done")
