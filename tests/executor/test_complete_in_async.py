"""Completions on asynchronous connections, and in processes that die at any statement."""

import asyncio
import multiprocessing
import signal
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import psycopg
import pytest
from psycopg.rows import TupleRow

from tests.executor.own_transactions import (
    EFFECT,
    MAKE_EFFECTS,
    completion,
    die_at,
    effects,
    one_or_none,
    wait_gone,
    work,
)
from tests.executor.running import hold_row
from tests.fixtures.database import Database, Template
from tests.fixtures.services import until
from tidewheel.control.client.enqueue import enqueue, enqueue_async
from tidewheel.errors import AttemptOver, InvalidInput, Refused
from tidewheel.postgres.session import Conn
from tidewheel.postgres.session_kinds import use_async_connection
from tidewheel.runs import AttemptOutcome
from tidewheel.transitions.after_end import apply_deferred_effects

Own = psycopg.AsyncConnection[TupleRow]


@pytest.fixture(scope="module")
def made(template: Template) -> Iterator[Database]:
    """A database that holds an application's rows beside Tidewheel's, and one job."""
    database = Database(template.copy(), template.installation)
    database.execute(MAKE_EFFECTS)
    database.submit(overlap="allow_all")
    yield database
    database.close()


@pytest.fixture
def shop(made: Database) -> Iterator[Database]:
    made.execute("TRUNCATE outbox")
    yield made
    made.close()
    made.execute("TRUNCATE effects, job_runs, finished_runs, run_inputs, outbox, attempts, attempt_outputs, requests")


@asynccontextmanager
async def connected(shop: Database, *, autocommit: bool = False) -> AsyncGenerator[Own]:
    async with await psycopg.AsyncConnection.connect(shop.url, autocommit=autocommit) as own:
        yield own


async def test_run_is_completed_with_its_effect(shop: Database) -> None:
    """Or not at all, once the attempt is over."""
    started, lost = shop.begun(), shop.begun()
    async with connected(shop) as own:
        for ends in (own.rollback, own.commit):
            await own.execute(EFFECT, [started.run_id, 1])
            await completion(shop, started).complete_in_async(own, {"sent": 1})
            assert not one_or_none(shop, started.run_id)
            await ends()
        assert one_or_none(shop, started.run_id)
        await own.execute(EFFECT, [lost.run_id, 1])
        shop.requeue(lost, AttemptOutcome.LOST)
        with pytest.raises(AttemptOver):
            await completion(shop, lost).complete_in_async(own, None)
        await own.commit()
    assert effects(shop, lost.run_id) == 0


async def test_run_is_completed_in_a_transaction_block_on_autocommit(shop: Database) -> None:
    started = shop.begun()
    async with connected(shop, autocommit=True) as own:
        done = completion(shop, started)
        with pytest.raises(InvalidInput, match="in autocommit mode, outside a transaction"):
            await done.complete_in_async(own, None)
        async with own.transaction():
            await own.execute(EFFECT, [started.run_id, 1])
            await done.complete_in_async(own, None)
    assert one_or_none(shop, started.run_id)


async def test_concurrent_use_of_one_connection_is_serialized(shop: Database) -> None:
    started = shop.begun()
    async with connected(shop) as own:

        async def busy() -> None:
            for _ in range(30):
                cursor = await own.execute("SELECT 7 FROM pg_sleep(0.001)")
                assert await cursor.fetchone() == (7,)

        others = [asyncio.create_task(busy()) for _ in range(3)]
        await own.execute(EFFECT, [started.run_id, 1])
        await completion(shop, started).complete_in_async(own, None)
        for number in range(5):
            await enqueue_async(own, "job", {"number": number})
        await asyncio.gather(*others)
        await own.commit()
    assert one_or_none(shop, started.run_id)
    assert len(shop.job_runs()) == 5


async def test_cancelled_completion_leaves_the_connection_usable(shop: Database) -> None:
    """A statement that waits for a lock is cancelled on the server, and the transaction can roll back."""
    started = shop.begun()
    other = hold_row(shop, started.run_id)
    async with connected(shop) as own:
        await own.execute(EFFECT, [started.run_id, 1])
        pid = own.info.backend_pid
        waiting = asyncio.create_task(completion(shop, started).complete_in_async(own, None))

        def blocked() -> bool:
            return shop.value("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid])

        await asyncio.to_thread(until, blocked, "it waits for the lock")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await own.rollback()
        other.rollback()
        await own.execute(EFFECT, [started.run_id, 1])
        await completion(shop, started).complete_in_async(own, None)
        await own.commit()
    assert one_or_none(shop, started.run_id)


async def test_trigger_commits_or_rolls_back_with_the_callers_rows(shop: Database) -> None:
    async with connected(shop) as own:
        await enqueue_async(own, "job")
        await own.rollback()
        run = await enqueue_async(own, "job", {"cents": 900}, request_id="order-1")
        with pytest.raises(Refused, match="has no job 'jbo'"):
            await enqueue_async(own, "jbo")
        assert await enqueue_async(own, "job", {"cents": 900}, request_id="order-1") == run
        await own.commit()
        assert [found.run_id for found in shop.job_runs()] == [run]


async def test_trigger_on_autocommit_commits_at_once(shop: Database) -> None:
    async with connected(shop, autocommit=True) as own:
        await enqueue_async(own, "job")
        assert len(shop.job_runs()) == 1


async def test_wrong_kind_of_connection_is_refused_with_the_right_call(shop: Database) -> None:
    def never(connection: Conn) -> None:
        raise AssertionError(connection)

    async with connected(shop) as own:
        with pytest.raises(InvalidInput, match="await the function that ends with _async"):
            enqueue(own, "job")  # type: ignore[arg-type]  # which is what is tested
        with psycopg.connect(shop.url) as sync, pytest.raises(InvalidInput, match="call the function without _async"):
            await use_async_connection(sync, None, never)  # type: ignore[arg-type]


_PROCESSES = multiprocessing.get_context("forkserver")
_MAX_STEPS = 100
_PATIENCE_SECONDS = 60


@pytest.mark.slow
def test_crash_between_any_two_statements_leaves_one_effect(fresh_database: Database) -> None:
    """The job may not overlap, so that the completion writes all there is to write."""
    shop = fresh_database
    shop.execute(MAKE_EFFECTS)
    shop.submit(schedule="@every 1h", overlap="buffer_all", pause_on_failure=5)
    ends: list[bool] = []
    for step in range(1, _MAX_STEPS):
        shop.execute("TRUNCATE outbox")
        started = shop.begun()
        doomed = _PROCESSES.Process(target=die_at, args=(step, shop.url, shop.installation, started))
        doomed.start()
        doomed.join(_PATIENCE_SECONDS)
        assert doomed.exitcode in {0, -signal.SIGKILL}
        wait_gone(shop)
        ends.append(one_or_none(shop, started.run_id))
        if not ends[-1]:
            # What the reaper does; the next attempt is the one that counts.
            shop.requeue(started, AttemptOutcome.LOST)
            with psycopg.connect(shop.url) as again:
                work(again, completion(shop, shop.begin(started.run_id)))
        assert effects(shop, started.run_id) == 1
        with shop.transaction() as connection:
            assert apply_deferred_effects(connection, shop.installation) == 1
        assert shop.count("active_runs") == shop.count("job_runs") == 0
        if doomed.exitcode == 0:
            break
    # Everything up to COMMIT leaves nothing, everything after it all.
    assert ends == sorted(ends)
    assert ends.count(True) >= 2
    assert ends.count(False) > 20
