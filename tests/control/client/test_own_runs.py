"""A cancel in the caller's transaction commits or rolls back with the caller's rows, and locks no run."""

import asyncio
from collections.abc import Iterator
from typing import TypeAlias
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import TupleRow

import tidewheel
from tests.fixtures.acts import ending
from tests.fixtures.database import Database
from tests.transitions.overlapping import signals
from tidewheel.errors import Refused, UnknownRun
from tidewheel.runs import RunState
from tidewheel.scheduler.cancels import PendingCancels

Own: TypeAlias = psycopg.Connection[TupleRow]


@pytest.fixture
def shop(database: Database) -> Database:
    database.submit()
    return database


@pytest.fixture
def own(shop: Database) -> Iterator[Own]:
    """The application's own connection."""
    with psycopg.connect(shop.url_of("application")) as connection:
        yield connection


def apply_cancels(shop: Database) -> None:
    PendingCancels(shop.session(), shop.installation).step()


def state(shop: Database, run_id: object) -> str:
    return str(shop.value("SELECT state FROM runs WHERE run_id = %s", [run_id]))


def test_a_cancel_rolls_back_with_the_callers_rows(shop: Database, own: Own) -> None:
    run = shop.trigger()
    assert tidewheel.cancel(own, run) is RunState.QUEUED
    own.rollback()
    apply_cancels(shop)
    assert (state(shop, run), shop.count("pending_cancels")) == ("queued", 0)


def test_a_cancel_commits_with_the_callers_rows(shop: Database, own: Own) -> None:
    queued, running = shop.trigger(), shop.begun()
    assert tidewheel.cancel(own, queued, reason="the order was withdrawn") is RunState.QUEUED
    assert tidewheel.cancel(own, running.run_id) is RunState.RUNNING
    own.commit()
    apply_cancels(shop)
    assert tidewheel.status(own, queued).reason == "the order was withdrawn"
    assert state(shop, queued) == "cancelled"
    assert shop.open_run(running.run_id).state == "cancelling"
    assert [signal[0] for signal in signals(shop)] == [running.run_id]


def test_an_open_cancel_locks_no_run(shop: Database, own: Own) -> None:
    run = shop.trigger()
    tidewheel.cancel(own, run)
    started = shop.begin(run)  # waits for no lock, and does not see the cancel
    shop.end(ending(started, RunState.SUCCEEDED))
    own.commit()
    apply_cancels(shop)
    assert (state(shop, run), shop.count("pending_cancels")) == ("succeeded", 0)


def test_a_run_enqueued_in_the_same_transaction_is_seen_and_cancelled(shop: Database, own: Own) -> None:
    run = tidewheel.enqueue(own, "job", delay="1h")
    assert tidewheel.status(own, run).state == "queued"
    tidewheel.cancel(own, run)
    own.commit()
    apply_cancels(shop)
    assert state(shop, run) == "cancelled"


def test_a_refused_cancel_leaves_the_callers_transaction_usable(shop: Database, own: Own) -> None:
    run = shop.trigger()
    for call in (lambda: tidewheel.cancel(own, uuid4()), lambda: tidewheel.cancel(own, run, tenant="acme")):
        with pytest.raises(UnknownRun):
            call()
    with pytest.raises(Refused, match="1001 characters"):
        tidewheel.cancel(own, run, reason="x" * 1001)
    with pytest.raises(UnknownRun):
        tidewheel.status(own, run, tenant="acme")
    tidewheel.cancel(own, run)
    assert shop.count("pending_cancels") == 0
    own.commit()
    assert shop.count("pending_cancels") == 1


def test_a_terminal_run_does_not_change(shop: Database, own: Own) -> None:
    started = shop.begun()
    shop.end(ending(started, RunState.SUCCEEDED))
    assert tidewheel.cancel(own, started.run_id) is RunState.SUCCEEDED
    own.commit()
    assert shop.count("pending_cancels") == 0


def test_sql_functions_cancel_and_read_a_run_from_any_language(shop: Database) -> None:
    run = shop.trigger()
    shop.execute("CREATE ROLE plain_user")
    try:
        with shop.transaction() as connection:
            connection.execute("GRANT USAGE ON SCHEMA public TO plain_user")
            connection.execute("GRANT EXECUTE ON FUNCTION tidewheel_cancel, tidewheel_status TO plain_user")
            connection.execute("SET LOCAL ROLE plain_user")
            assert connection.execute("SELECT tidewheel_cancel(%s)", [run]).fetchone() == ("queued",)
            assert connection.execute("SELECT state FROM tidewheel_status(%s)", [run]).fetchone() == ("queued",)
            assert connection.execute("SELECT state FROM tidewheel_status(%s)", [uuid4()]).fetchone() is None
    finally:
        shop.execute("DROP OWNED BY plain_user")
        shop.execute("DROP ROLE plain_user")
    apply_cancels(shop)
    assert state(shop, run) == "cancelled"
    with pytest.raises(psycopg.errors.NoDataFound, match="has no run") as caught:
        shop.rows("SELECT tidewheel_cancel(%s)", [uuid4()])
    assert caught.value.diag.message_hint is not None
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="reason: it has 1001 characters"):
        shop.rows("SELECT tidewheel_cancel(%s, reason => repeat('x', 1001))", [run])


def test_asynchronous_connections_cancel_and_read_too(shop: Database) -> None:
    run = shop.trigger()

    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(shop.url) as own:
            assert await tidewheel.cancel_async(own, run) is RunState.QUEUED
            assert (await tidewheel.status_async(own, run)).state == "queued"

    asyncio.run(work())
    apply_cancels(shop)
    assert state(shop, run) == "cancelled"
