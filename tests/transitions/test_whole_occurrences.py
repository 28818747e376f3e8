"""The root's overlap policy sees whole occurrences, and an occurrence has a deadline."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.fixtures.acts import ending, refusal
from tests.fixtures.database import ClockedDatabase, Database
from tests.transitions.graphs import (
    Parents,
    after,
    assert_nothing_left,
    change,
    changed,
    drain_some,
    fails_at,
    latest_states,
    never,
    play,
    put,
    states,
    workflow,
)
from tests.transitions.stepping import batch_behind
from tidewheel.postgres.session import Session
from tidewheel.runs import RunState
from tidewheel.scheduler.cancels import PendingCancels
from tidewheel.scheduler.deadlines import WorkflowDeadlines
from tidewheel.scheduler.repair import ActiveRunRepair
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.after_end import apply_deferred_effects
from tidewheel.transitions.drain import drain
from tidewheel.transitions.finish import finish_runs

CHAIN: Parents = {"a": [], "b": after("a")}


def repaired(database: Database, session: Session) -> int:
    return ActiveRunRepair(session, database.installation).step()


def opened(database: Database, **root: object) -> UUID:
    """Open an occurrence of a chain: its root has ended, and its child is queued."""
    put(database, CHAIN, **root)
    if isinstance(database, ClockedDatabase):
        database.advance(timedelta(seconds=1))  # a version is in force after its instant
    root_run = database.trigger("a")
    database.succeed(database.begin(root_run))
    drain_some(database, never())
    return root_run


@pytest.mark.parametrize("drained", ["", "drained"])
@pytest.mark.parametrize("policy", ["skip", "buffer_one", "buffer_all"])
def test_a_root_waits_for_the_whole_occurrence(database: Database, session: Session, policy: str, drained: str) -> None:
    put(database, CHAIN, overlap=policy)
    first, second = database.trigger("a"), database.trigger("a")
    database.succeed(database.begin(first))
    if drained:
        drain_some(database, never())
    assert database.claim(second).started == []
    assert repaired(database, session) == 0
    if policy == "skip":
        assert database.final_state(second) == ("skipped", "overlap")
    else:
        assert database.open_run(second).state == RunState.BUFFERED
    play(database)
    expected = "skipped" if policy == "skip" else "succeeded"
    assert states(database, second)["a"] == expected
    assert states(database, first) == {"a": "succeeded", "b": "succeeded"}
    assert_nothing_left(database)
    if policy != "skip":
        ended, began = database.rows("SELECT started_at, finished_at FROM finished_runs ORDER BY started_at")[1:3]
        assert ended[1] <= began[0]


@pytest.mark.parametrize(
    ("root", "trigger"),
    [
        ({"overlap": "skip", "workflow": {"overlap": "root"}}, {}),
        ({"overlap": "allow_all"}, {}),
        ({"overlap": "skip"}, {"overlap": "allow_all"}),
    ],
)
def test_a_run_that_needs_no_place_starts_beside_an_occurrence(
    database: Database, root: dict[str, object], trigger: dict[str, object]
) -> None:
    first = opened(database, **root)
    beside = database.trigger("a", **trigger)
    database.succeed(database.begin(beside))
    play(database)
    assert [states(database, one)["b"] for one in (first, beside)] == ["succeeded"] * 2
    assert_nothing_left(database)


def cancels(database: Database) -> list[dict[str, Any]]:
    return [one for one in database.own_requests() if one["type"] == "workflow.cancel"]


def deliver(database: Database, session: Session) -> list[Reply]:
    """Apply the requests that claims have published, as intake does, and the cancels."""
    documents = [{name: one[name] for name in ("type", "request_id", "run_id", "reason")} for one in cancels(database)]
    replies = [database.accept(document) for document in documents]
    PendingCancels(session, database.installation).step()
    return replies


@pytest.mark.parametrize("began", ["", "began"])
@pytest.mark.parametrize("policy", ["cancel_other", "terminate_other"])
def test_a_replacing_root_cancels_the_occurrence(database: Database, session: Session, policy: str, began: str) -> None:
    put(database, {**CHAIN, "always": [("a", "always")]}, overlap=policy)
    first = database.trigger("a")
    started = database.begin(first)
    if began:
        database.succeed(started)
        drain_some(database, never())
    second = database.trigger("a")
    done = database.claim(second)
    at_once = policy == "terminate_other"
    assert [one.run_id for one in done.started] == ([second] if at_once else [])
    assert [reply.unchanged for reply in deliver(database, session)] == [False]
    if not began and not at_once:
        database.end(ending(started, RunState.SUCCEEDED))  # its attempt has seen the signal
    if at_once:
        database.succeed(done.started[0])
    play(database)
    assert workflow(database, first)[0] == "cancelled"
    assert "succeeded" not in {states(database, first).get(key) for key in ("b", "always")}
    assert set(states(database, second).values()) == {"succeeded"}
    assert_nothing_left(database)


def test_a_completion_in_a_clients_transaction_leaves_the_place(database: Database, session: Session) -> None:
    put(database, CHAIN, overlap="buffer_all")
    first, second = database.trigger("a"), database.trigger("a")
    started = database.begin(first)
    database.within(finish_runs, database.installation, [ending(started, RunState.SUCCEEDED)], lasting=True)
    assert database.claim(second).started == []
    assert repaired(database, session) == 0
    database.within(apply_deferred_effects, database.installation)
    assert database.open_run(second).state == RunState.BUFFERED
    play(database)
    assert states(database, second) == {"a": "succeeded", "b": "succeeded"}
    assert_nothing_left(database)


def test_an_occurrence_without_children_gives_its_place_back(database: Database) -> None:
    """The edges have gone by the time of its root's end."""
    put(database, CHAIN, overlap="buffer_all")
    first, second = database.trigger("a"), database.trigger("a")
    database.execute("DELETE FROM job_edges")
    database.succeed(database.begin(first))
    assert database.claim(second).started == []
    drain_some(database, never())
    assert database.open_run(second).state == RunState.QUEUED
    assert database.count("workflows") == 0
    play(database)
    assert_nothing_left(database)


def test_a_paused_occurrence_keeps_its_place(database: Database, session: Session) -> None:
    put(database, CHAIN, overlap="buffer_one")
    first = database.trigger("a")
    started = database.begin(first)
    assert changed(database, "pause", first)
    database.succeed(started)
    second = database.trigger("a")
    assert database.claim(second).started == []
    drain_some(database, never())
    assert repaired(database, session) == 0
    assert changed(database, "resume", first)
    play(database)
    assert states(database, second) == {"a": "succeeded", "b": "succeeded"}
    assert_nothing_left(database)


@pytest.mark.landing
@pytest.mark.parametrize("failing", ["a", "b"])
def test_a_resumed_occurrence_holds_its_place_again(database: Database, failing: str) -> None:
    put(database, CHAIN, overlap="skip")
    first = database.trigger("a")
    play(database, fails_at(failing))
    started = database.begun("a")
    problem = refusal(change(database, "resume", first)).problem
    assert problem == "another occurrence or another run of the root is open"
    database.succeed(started)
    play(database)
    assert changed(database, "resume", first)
    third = database.trigger("a")
    assert database.claim(third).started == []
    assert database.final_state(third) == ("skipped", "overlap")
    play(database)
    assert latest_states(database, first) == {"a": "succeeded", "b": "succeeded"}
    assert_nothing_left(database)


def test_an_occurrence_ends_at_its_deadline(still: ClockedDatabase) -> None:
    session = still.session()
    first, deadlines = opened(still, overlap="skip", workflow={"timeout": "10m"}), WorkflowDeadlines(session)
    still.advance(timedelta(minutes=9))
    assert deadlines.step() == 0
    still.advance(timedelta(minutes=2))
    assert deadlines.step() == 1
    assert deadlines.step() == 0
    assert workflow(still, first)[0] == "timing_out"
    assert refusal(change(still, "resume", first)).problem == "the occurrence is being cancelled"
    PendingCancels(session, still.installation).step()
    play(still)
    assert workflow(still, first) == ("timed_out", 0, 0)
    assert states(still, first) == {"a": "succeeded", "b": "cancelled"}
    assert still.rows("SELECT reason FROM finished_runs WHERE state = 'cancelled'") == [("workflow_timeout",)]
    assert changed(still, "resume", first)
    [(left,)] = still.rows("SELECT deadline_at - tidewheel_now() FROM workflows")
    assert left == timedelta(minutes=10)
    play(still)
    assert workflow(still, first)[0] == "succeeded"
    assert_nothing_left(still)


def test_a_deadline_passes_during_a_pause(still: ClockedDatabase) -> None:
    put(still, CHAIN, workflow={"timeout": "10m"})
    still.advance(timedelta(seconds=1))
    first = still.trigger("a")
    started = still.begin(first)
    assert changed(still, "pause", first)
    still.succeed(started)
    drain_some(still, never())
    still.advance(timedelta(minutes=11))
    assert WorkflowDeadlines(still.session()).step() == 1
    play(still)
    assert workflow(still, first)[0] == "timed_out"
    assert states(still, first) == {"a": "succeeded"}
    assert_nothing_left(still)


def test_a_request_about_a_root_without_children_opens_nothing(database: Database) -> None:
    """The drain holds the release of a root whose children have gone; the request waits for it."""
    put(database, CHAIN)
    root = database.trigger("a")
    database.execute("DELETE FROM job_edges")
    database.succeed(database.begin(root))
    [reply] = batch_behind(
        database,
        lambda draining: drain(draining, database.installation, range(64)),
        {"type": "workflow.pause", "run_id": str(root)},
    )
    assert reply.code == "unknown_workflow"
    assert database.count("workflows") == 0
