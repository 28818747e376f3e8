"""Runs in the transactions of asyncpg connections and SQLAlchemy sessions."""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# asyncpg has no types.

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any, cast
from uuid import UUID, uuid4

import asyncpg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import tidewheel
from tests.fixtures.database import Database
from tidewheel.errors import InvalidInput, Refused, TenantDeleted, UnknownJob, UnknownRun
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.request import ReceivedRequest, read_request
from tidewheel.postgres.session_kinds import AsyncpgConnection
from tidewheel.runs import RunState
from tidewheel.settings.connections import Connections
from tidewheel.transitions.installation import record_topic_prefix

ORDER = "INSERT INTO orders (name) VALUES ('socks')"


@pytest.fixture
def shop(fresh_database: Database) -> Database:
    """A database that holds an application's rows beside Tidewheel's, and one job."""
    fresh_database.execute("CREATE TABLE orders (name text)")
    fresh_database.within(record_topic_prefix, Connections.load(topic_prefix="shop"))
    fresh_database.submit("charge")
    fresh_database.execute("TRUNCATE outbox")
    return fresh_database


def url(shop: Database, scheme: str = "postgresql") -> str:
    """Return the database's address as a URL; asyncpg and SQLAlchemy read no libpq settings."""
    parts = conninfo_to_dict(shop.url)
    return f"{scheme}://{parts['user']}:{parts['password']}@{parts['host']}:{parts['port']}/{parts['dbname']}"


def requests(shop: Database) -> list[bytes]:
    return [value for (value,) in shop.rows("SELECT value FROM outbox WHERE topic = 'shop.requests'")]


def take_in(shop: Database) -> str:
    """Apply the one request in the outbox, as intake does; return the run's id."""
    [value] = requests(shop)
    [reply] = shop.within(apply_requests, shop.installation, [ReceivedRequest(read_request(value)[0])])
    assert reply.run_id is not None
    return reply.run_id


def over_asyncpg(shop: Database, work: Callable[[Any], Awaitable[None]]) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(url(shop))
        try:
            await work(connection)
        finally:
            await connection.close()

    asyncio.run(run())


def over_session(shop: Database, driver: str, work: Callable[[AsyncSession], Awaitable[None]]) -> None:
    async def run() -> None:
        engine = create_async_engine(url(shop, f"postgresql+{driver}"))
        try:
            async with AsyncSession(engine) as session:
                await work(session)
        finally:
            await engine.dispose()

    asyncio.run(run())


def test_a_run_enqueued_over_asyncpg_commits_or_rolls_back_with_the_callers_rows(shop: Database) -> None:
    async def work(connection: Any) -> None:  # noqa: ANN401 - asyncpg has no types
        for name in ("rolled back", "committed"):
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(ORDER)
            found = await tidewheel.enqueue_async(
                connection, "charge", {"cents": 9, "ä": [1]}, delay="5m", labels={"a": "b"}, request_id="order-1"
            )
            assert found == "order-1"
            assert requests(shop) == []
            await (transaction.rollback() if name == "rolled back" else transaction.commit())
            assert (len(requests(shop)), shop.count("orders")) == ((0, 0) if name == "rolled back" else (1, 1))

    over_asyncpg(shop, work)
    run = take_in(shop)
    assert shop.rows("SELECT payload::text IS NOT NULL, labels FROM run_inputs WHERE run_id = %s", [run]) == [
        (True, {"a": "b"})
    ]


def test_a_run_is_cancelled_and_read_over_asyncpg(shop: Database) -> None:
    run = shop.trigger("charge")

    async def work(connection: Any) -> None:  # noqa: ANN401 - as above
        async with connection.transaction():
            assert await tidewheel.cancel_async(connection, run, reason="withdrawn") is RunState.QUEUED
            found = await tidewheel.status_async(connection, run)
            assert (found.run_id, found.state, found.attempt) == (run, "queued", 0)

    over_asyncpg(shop, work)
    assert shop.rows("SELECT run_id, reason FROM pending_cancels") == [(run, "withdrawn")]


def test_a_pools_connection_is_accepted(shop: Database) -> None:
    async def run() -> None:
        async with asyncpg.create_pool(url(shop), min_size=1, max_size=1) as pool, pool.acquire() as connection:
            await tidewheel.enqueue_async(cast("AsyncpgConnection", connection), "charge")

    asyncio.run(run())
    assert len(requests(shop)) == 1


def test_a_refused_call_over_asyncpg_leaves_the_transaction_usable(shop: Database) -> None:
    shop.execute("INSERT INTO tenant_deletions (tenant, created_at) VALUES ('gone', now())")

    async def work(connection: Any) -> None:  # noqa: ANN401 - as above
        async with connection.transaction():
            await connection.execute(ORDER)
            with pytest.raises(UnknownJob):
                await tidewheel.enqueue_async(connection, "chrage")
            with pytest.raises(TenantDeleted):
                await tidewheel.enqueue_async(connection, "charge", tenant="gone")
            with pytest.raises(UnknownRun):
                await tidewheel.cancel_async(connection, uuid4())
            with pytest.raises(Refused, match="delay"):
                await tidewheel.enqueue_async(connection, "charge", delay=-1)
            with pytest.raises(InvalidInput, match="use a psycopg connection"):
                await tidewheel.enqueue_async(connection, "charge", b"\x00")
            await connection.execute(ORDER)

    over_asyncpg(shop, work)
    assert (shop.count("orders"), requests(shop)) == (2, [])


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_an_asynchronous_session_enqueues_with_its_own_rows(shop: Database, driver: str) -> None:
    async def work(session: AsyncSession) -> None:
        first = await tidewheel.enqueue_async(session, "charge", delay="1h")  # as its first statement
        await session.execute(text(ORDER))
        await session.rollback()
        assert (shop.count("orders"), len(requests(shop)), shop.count("job_runs")) == (0, 0, 0)
        await session.execute(text(ORDER))
        second = await tidewheel.enqueue_async(await session.connection(), "charge", {"cents": 9})
        assert first != second
        await session.commit()
        with pytest.raises(UnknownRun):
            await tidewheel.cancel_async(session, uuid4())
        run = second if isinstance(second, UUID) else UUID(take_in(shop))
        assert await tidewheel.cancel_async(session, run) is RunState.QUEUED
        assert (await tidewheel.status_async(session, run)).run_id == run
        await session.commit()

    over_session(shop, driver, work)
    assert (shop.count("orders"), shop.count("job_runs"), shop.count("pending_cancels")) == (1, 1, 1)


def test_a_session_over_another_driver_enqueues_by_the_topic(shop: Database) -> None:
    """Here asyncpg, driven synchronously as SQLAlchemy does it."""

    def inside(session: Session) -> None:
        with pytest.raises(UnknownJob):
            tidewheel.enqueue(session, "chrage")
        assert tidewheel.enqueue(session, "charge", request_id="order-1") == "order-1"
        with pytest.raises(UnknownRun):
            tidewheel.status(session, uuid4())

    async def work(session: AsyncSession) -> None:
        await session.run_sync(inside)
        await session.commit()

    over_session(shop, "asyncpg", work)
    assert len(requests(shop)) == 1


def test_a_session_over_psycopg_enqueues_with_its_own_rows(shop: Database) -> None:
    engine = create_engine(url(shop, "postgresql+psycopg"))
    try:
        with Session(engine) as session:
            session.execute(text(ORDER))
            tidewheel.enqueue(session, "charge")
            session.rollback()
            run = tidewheel.enqueue(session.connection(), "charge")
            session.execute(text(ORDER))
            assert isinstance(run, UUID)
            assert tidewheel.status(session, run).state == "queued"
            assert tidewheel.cancel(session, run) is RunState.QUEUED
            session.commit()
    finally:
        engine.dispose()
    assert shop.rows("SELECT run_id FROM job_runs") == [(run,)]
    assert (shop.count("orders"), shop.count("pending_cancels")) == (1, 1)


def test_connection_of_the_other_kind_is_refused_with_the_remedy(shop: Database) -> None:
    async def work(session: AsyncSession) -> None:
        connection: AsyncConnection = await session.connection()
        for given in (session, connection):
            with pytest.raises(InvalidInput, match="was given"):
                tidewheel.enqueue(given, "charge")  # type: ignore[call-overload]  # which is what is tested

    over_session(shop, "asyncpg", work)


@pytest.mark.landing
@pytest.mark.process
def test_no_library_is_imported_without_its_connection() -> None:
    check = "import sys, tidewheel; tidewheel.enqueue; print({'asyncpg', 'sqlalchemy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
