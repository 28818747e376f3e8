"""`tidewheel job release`, on a real database."""

import asyncio
from datetime import datetime, timedelta

import pytest

from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tests.transitions.acts import apply_batch, submission
from tidewheel.control.client.async_client import AsyncClient
from tidewheel.postgres.faults import MAX_ALIKE


@pytest.fixture
def held(clocked: ClockedDatabase) -> ClockedDatabase:
    """Two quarantined jobs."""
    clocked.stop_clock()
    apply_batch(clocked, *(submission(key, schedule="@every 10s") for key in ("one", "two")))
    clocked.execute("UPDATE job_versions SET lane = 'nonsense'")
    clocked.advance(timedelta(seconds=10))
    fire_due(clocked)
    return clocked


def test_jobs_are_released_by_key_by_error_or_all(held: ClockedDatabase) -> None:
    [refusal] = tidewheel(held, "job", "release").refusals
    assert refusal.startswith("KEY: no job is selected")
    found = json_output(held, "job", "release", "--error", "CheckViolation", "--dry-run")
    assert (found["matched"], found["released"], [job["key"] for job in found["first"]]) == (2, 0, ["one", "two"])
    lines = tidewheel(held, "job", "release", "--all", "--dry-run").lines
    assert lines[0] == "jobs that would be released: 2"
    assert lines[2].split()[0] == "one"
    assert tidewheel(held, "job", "release", "one").lines[0] == "jobs released: 1"
    assert tidewheel(held, "job", "release", "--error", "CheckViolation").lines[0] == "jobs released: 1"
    assert json_output(held, "job", "release", "--all")["released"] == 0


def test_coroutines_release_jobs(held: ClockedDatabase) -> None:
    async def release() -> int:
        async with AsyncClient(held.url) as client:
            return (await client.release("one", "two")).released

    assert asyncio.run(release()) == 2


def test_quarantined_job_is_found_with_its_error(held: ClockedDatabase) -> None:
    apply_batch(held, submission("sound", schedule="@every 10s"))
    found = json_output(held, "job", "list", "--quarantined")["jobs"]
    assert [(job["key"], job["hold_reason"]) for job in found] == [("one", "quarantine"), ("two", "quarantine")]
    assert "CheckViolation" in json_output(held, "job", "show", "one")["error"]
    text = tidewheel(held, "job", "show", "one").out
    assert "CheckViolation" in text
    assert "tidewheel job release one" in text
    assert json_output(held, "job", "show", "sound")["error"] is None
    tidewheel(held, "job", "release", "one")
    assert [job["key"] for job in json_output(held, "job", "list", "--quarantined")["jobs"]] == ["two"]
    assert json_output(held, "job", "show", "one")["error"] is None


def test_remedy_of_a_quarantined_job_names_its_tenant(clocked: ClockedDatabase) -> None:
    clocked.stop_clock()
    clocked.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    tidewheel(clocked, "job", "create", "one", "--every", "10s", "--handler", "note", "--tenant", "acme")
    clocked.execute("UPDATE job_versions SET lane = 'nonsense'")
    clocked.advance(timedelta(seconds=10))
    fire_due(clocked)
    text = tidewheel(clocked, "job", "show", "one", "--tenant", "acme").out
    assert "`tidewheel job release one --tenant acme`" in text
    released = tidewheel(clocked, "job", "release", "one", "--tenant", "acme")
    assert released.lines[0] == "jobs released: 1"
    assert "`tidewheel job list --quarantined --tenant acme`" in released.lines[1]


def test_postponed_job_is_shown_with_its_next_try_and_remedy(clocked: ClockedDatabase) -> None:
    clocked.stop_clock()
    keys = [f"job-{number}" for number in range(MAX_ALIKE + 1)]
    apply_batch(clocked, *(submission(key, schedule="@every 10s") for key in keys))
    assert json_output(clocked, "job", "show", keys[0])["postponed_until"] is None
    clocked.execute("UPDATE job_versions SET lane = 'nonsense'")
    clocked.advance(timedelta(seconds=10))
    fire_due(clocked)
    for key in keys:
        shown = json_output(clocked, "job", "show", key)
        assert (
            datetime.fromisoformat(shown["postponed_until"]) > clocked.now() == datetime.fromisoformat(shown["next_at"])
        )
        text = tidewheel(clocked, "job", "show", key).out
        assert f"postponed until {shown['postponed_until']}" in text
        assert "correct the cause" in text
    rows = [line for line in tidewheel(clocked, "job", "list").lines if line.startswith("job-")]
    assert len(rows) == len(keys)
    assert all("postponed until" in row for row in rows)
