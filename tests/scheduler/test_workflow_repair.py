"""Occurrences that a manual change has stopped go on; no other is touched."""

import random
from collections.abc import Iterator
from uuid import UUID

import pytest

from tests.fixtures.database import Database
from tests.transitions.graphs import (
    DIAMOND,
    Chance,
    after,
    assert_nothing_left,
    changed,
    drain_some,
    end_and_drain,
    end_some,
    latest_states,
    never,
    play,
    put,
    workflow,
)
from tidewheel.ids import job_id
from tidewheel.postgres.session import Session
from tidewheel.runs import RunState
from tidewheel.scheduler.pending_cancels import PendingCancels
from tidewheel.scheduler.repair import mend_workflows
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    session = database.session()
    yield session
    session.close()


def mended(database: Database, session: Session) -> int:
    return sum(mend_workflows(session, database.installation, shard) for shard in range(64))


@pytest.mark.parametrize("failing", ["", "c"])
def test_an_occurrence_goes_on_after_a_release_was_lost(database: Database, session: Session, failing: str) -> None:
    graph = {**DIAMOND, "repair": [("c", "failure")], "e": after("d")}
    put(database, graph, overlap="skip")
    root = database.trigger("a")

    def decide(key: str) -> RunState:
        return RunState.FAILED if key == failing else RunState.SUCCEEDED

    end_and_drain(database)
    end_some(database, decide, never())
    database.execute("DELETE FROM releases WHERE job_id = %s", [job_id("default", "b")])
    drain_some(database, never())
    play(database, decide)
    assert workflow(database, root)[0] == "open"
    assert mended(database, session) == 1
    assert mended(database, session) == 0
    play(database, decide)
    found = latest_states(database, root)
    if failing:
        assert found == dict.fromkeys(("a", "b", "repair"), "succeeded") | {
            "c": "failed", "d": "skipped", "e": "skipped",
        }  # fmt: skip
    else:
        assert found == dict.fromkeys("abcde", "succeeded") | {"repair": "skipped"}
    assert workflow(database, root) == (("failed", 0, 1) if failing else ("succeeded", 0, 0))
    assert_nothing_left(database)


def test_an_occurrence_ends_after_its_count_was_wrong(database: Database, session: Session) -> None:
    put(database, DIAMOND, overlap="skip")
    root = database.trigger("a")
    end_and_drain(database)
    database.execute("UPDATE workflows SET pending = pending + 1")
    play(database)
    assert workflow(database, root) == ("open", 1, 0)
    assert database.active_run_of(job_id("default", "a")) == root
    assert mended(database, session) == 1
    assert workflow(database, root) == ("succeeded", 0, 0)
    assert_nothing_left(database)


def cancel_open(database: Database, state: str) -> None:
    ends = [
        RunEnd(run_id, 0, RunState.CANCELLED)
        for (run_id,) in database.rows("SELECT run_id FROM job_runs WHERE state = %s", [state])
    ]
    with database.transaction() as connection:
        finish_runs(connection, database.installation, ends)


def cancelled_while_blocked(database: Database) -> UUID:
    """Return a cancelled occurrence with pending cancels: all its runs but the blocked one have ended."""
    put(database, DIAMOND)
    root = database.trigger("a")
    end_and_drain(database)
    end_and_drain(database, limit=1)
    assert changed(database, "cancel", root)
    cancel_open(database, "queued")
    drain_some(database, never())
    assert [state for (state,) in database.rows("SELECT state FROM job_runs")] == ["blocked"]
    return root


def test_a_cancelled_occurrence_whose_cancels_are_pending_is_not_mended(database: Database, session: Session) -> None:
    root = cancelled_while_blocked(database)
    assert mended(database, session) == 0
    PendingCancels(session, database.installation).step()
    play(database)
    assert workflow(database, root) == ("cancelled", 0, 0)
    assert_nothing_left(database)


def test_a_release_of_an_ended_occurrence_counts_nothing(database: Database, session: Session) -> None:
    root = cancelled_while_blocked(database)
    database.execute("DELETE FROM pending_cancels")
    assert mended(database, session) == 1
    before = database.rows("SELECT * FROM workflows")
    cancel_open(database, "blocked")
    assert drain_some(database, never()) == 1
    assert database.rows("SELECT * FROM workflows") == before
    assert workflow(database, root) == ("cancelled", 0, 0)
    assert_nothing_left(database)


def test_a_place_that_no_occurrence_holds_is_released(database: Database, session: Session) -> None:
    put(database, DIAMOND, overlap="buffer_all")
    root = database.trigger("a")
    end_and_drain(database)
    database.execute("UPDATE workflows SET finished_at = tidewheel_now(), state = 'cancelled', pending = 0")
    assert database.active_run_of(job_id("default", "a")) == root
    assert mended(database, session) == 0
    assert database.active_run_of(job_id("default", "a")) is None


@pytest.mark.parametrize("seed", range(3))
def test_no_step_of_an_occurrence_looks_stopped(database: Database, session: Session, seed: int) -> None:
    draws = random.Random(seed)  # noqa: S311 - a test's draws
    put(database, {**DIAMOND, "e": after("d", "b"), "f": [("c", "always")]}, overlap="buffer_all")
    for _ in range(3):
        database.trigger("a")
    outcomes = [RunState.SUCCEEDED, RunState.SUCCEEDED, RunState.FAILED]
    chance = Chance(draws)
    while end_some(database, lambda _: draws.choice(outcomes), chance, 2) + drain_some(database, chance, 2):
        assert mended(database, session) == 0
    assert_nothing_left(database)
