"""`AsyncClient` has every method of `Client`, with the same arguments."""

import asyncio
import inspect
from collections.abc import Callable

import pytest

from tests.fixtures.acts import ending
from tests.fixtures.database import Database
from tidewheel.control.client.async_client import AsyncClient
from tidewheel.control.client.client import Client
from tidewheel.errors import UnknownJob
from tidewheel.runs import RunState

PARTS = (
    "runs", "dead_letters", "works", "task_tokens", "calendars", "freezes", "api_keys", "audit_log",
    "workflows", "batches", "limits", "ordering_keys", "tenants", "jobs",
)  # fmt: skip


def methods(given: object) -> dict[str, Callable[..., object]]:
    return {
        name: function
        for name, function in inspect.getmembers(type(given), inspect.isfunction)
        if not name.startswith("_")
    }


def arguments(function: Callable[..., object]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())[1:]


def public_attributes(given: object) -> set[str]:
    return {name for name in vars(given) if not name.startswith("_")}


def test_asynchronous_client_has_every_method_with_the_same_arguments(database: Database) -> None:
    async def compare() -> None:
        with Client(database.url) as client:
            async with AsyncClient(database.url) as other:
                assert public_attributes(client) == public_attributes(other) == set(PARTS)
                for one, two in [(client, other), *((getattr(client, p), getattr(other, p)) for p in PARTS)]:
                    expected, found = methods(one), methods(two)
                    missing = f"add them to {type(two).__name__} in control/client/async_client.py"
                    assert expected.keys() == found.keys(), missing
                    for name, function in expected.items():
                        assert arguments(function) == arguments(found[name]), name
                        awaited = inspect.iscoroutinefunction(found[name]) or inspect.isasyncgenfunction(found[name])
                        assert awaited, name

    asyncio.run(compare())


def test_parts_of_the_asynchronous_client_work(database: Database) -> None:
    async def work() -> None:
        async with AsyncClient(database.url) as client:
            await client.calendars.put("holidays", days=["2026-12-25"])
            assert [each.name for each in await client.calendars.list()] == ["holidays"]
            job = await client.submit({"key": "job", "schedule": "@every 1h", "target": "send-email"})
            assert (await client.pause("job")).version == job.version
            assert len((await client.next("job", n=3)).occurrences) == 3
            assert (await client.dead_letters.list()).dead_letters == ()
            with pytest.raises(UnknownJob):
                await client.versions("none")

    asyncio.run(work())


def test_following_output_leaves_the_client_to_other_calls(database: Database) -> None:
    database.submit()
    started = database.begun()

    async def work() -> None:
        async with AsyncClient(database.url) as client:
            following = asyncio.create_task(_all(client, started.run_id))
            assert (await client.runs.get(started.run_id)).state == "running"
            assert not following.done()
            database.end(ending(started, RunState.SUCCEEDED))
            assert await asyncio.wait_for(following, 60) == []

    async def _all(client: AsyncClient, run_id: object) -> list[object]:
        return [piece async for piece in client.runs.follow_logs(run_id)]  # type: ignore[arg-type]

    asyncio.run(work())
