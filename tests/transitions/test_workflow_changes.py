"""Occurrences are paused, resumed and cancelled, at any moment."""

from collections import Counter

import pytest

from tests.fixtures.acts import refusal
from tests.fixtures.database import Database
from tests.transitions.graphs import (
    DIAMOND,
    after,
    assert_nothing_left,
    change,
    changed,
    drain_some,
    end_some,
    fails_at,
    latest_states,
    model,
    never,
    play,
    put,
    states,
    workflow,
)
from tests.transitions.stepping import in_background, until_one_is_blocked
from tidewheel.ids import job_id
from tidewheel.runs import RunState
from tidewheel.scheduler.cancels import PendingCancels


@pytest.mark.parametrize("began", [False, True], ids=["while the root runs", "after its end"])
def test_a_paused_occurrence_releases_nothing_until_it_is_resumed(database: Database, *, began: bool) -> None:
    put(database, DIAMOND)
    root = database.trigger("a")
    chance = never()
    [started] = database.claim(root).started
    if not began:
        assert changed(database, "pause", root)
    database.succeed(started)
    if began:
        drain_some(database, chance)
        assert changed(database, "pause", root)
    assert not changed(database, "pause", root)
    play(database)
    assert set(states(database, root)) == (set("abc") if began else {"a"})
    assert changed(database, "resume", root)
    assert not changed(database, "resume", root)
    play(database)
    assert states(database, root) == dict.fromkeys("abcd", "succeeded")
    assert_nothing_left(database)


def test_a_cancelled_occurrence_ends_its_runs_and_reaches_no_other(database: Database) -> None:
    put(database, {**DIAMOND, "e": [("d", "always")]})
    root = database.trigger("a")
    chance = never()
    end_some(database, lambda _: RunState.SUCCEEDED, chance)
    drain_some(database, chance)
    end_some(database, lambda _: RunState.SUCCEEDED, chance, limit=1)
    drain_some(database, chance)
    assert changed(database, "cancel", root)
    assert claim_all(database) == 0  # at once, before the scheduler has ended them
    PendingCancels(database.session(), database.installation).step()
    play(database)
    assert Counter(states(database, root).values()) == {"succeeded": 2, "cancelled": 2}
    assert workflow(database, root) == ("cancelled", 0, 0)
    assert_nothing_left(database)
    assert not changed(database, "cancel", root)
    assert changed(database, "resume", root)
    play(database)
    assert latest_states(database, root) == dict.fromkeys("abcde", "succeeded")
    assert workflow(database, root) == ("succeeded", 0, 0)
    assert_nothing_left(database)


def claim_all(database: Database) -> int:
    return end_some(database, lambda _: RunState.SUCCEEDED, never(), 1000)


def test_resume_runs_the_failed_part_again(database: Database) -> None:
    """A `failure` branch that has succeeded stays; the rest runs in its current version."""
    graph = {**DIAMOND, "e": after("d"), "repair": [("b", "failure")]}
    put(database, graph)
    root = database.trigger("a")
    play(database, fails_at("b"))
    assert states(database, root) == model(graph, fails_at("b"))
    assert workflow(database, root) == ("failed", 0, 1)
    database.submit("b", schedule={"after": ["a"]}, payload="corrected")
    assert changed(database, "resume", root)
    assert not changed(database, "resume", root), "it is open"
    redriven = "SELECT redriven_run_id = o.run_id FROM dead_letters CROSS JOIN job_runs o WHERE o.state = 'queued'"
    assert database.value(redriven), "its dead letter waits no more"
    play(database)
    assert latest_states(database, root) == dict.fromkeys(graph, "succeeded")
    again = database.rows("SELECT j.key, r.job_version FROM runs r JOIN jobs j USING (job_id) WHERE generation = 1")
    assert dict(again) == {"b": 2, "d": 1, "e": 1}
    assert workflow(database, root) == ("succeeded", 0, 0)
    assert_nothing_left(database)
    assert refusal(change(database, "resume", root)).path == "run_id"


def test_resume_holds_no_place_while_it_waits_for_a_job(database: Database) -> None:
    put(database, DIAMOND, overlap="skip")
    root = database.trigger("a")
    play(database, fails_at("b"))
    with database.transaction() as editing:
        editing.execute("SELECT FROM jobs WHERE key = 'b' FOR UPDATE")
        resumed = in_background(lambda: change(database, "resume", root))
        until_one_is_blocked(database, "the resume waits for the job")
        assert database.claim(database.trigger("a")).started
    assert resumed.result(30.0).errors[0].problem.startswith("another occurrence")


def test_resume_of_a_failed_root_and_then_again(database: Database) -> None:
    put(database, DIAMOND)
    root = database.trigger("a")
    play(database, fails_at("a"))
    assert states(database, root) == model(DIAMOND, fails_at("a"))
    for failing in ("c", ""):
        assert changed(database, "resume", root)
        play(database, fails_at(failing))
        assert latest_states(database, root) == model(DIAMOND, fails_at(failing))
    assert_nothing_left(database)


def test_resume_of_a_root_keeps_what_its_trigger_gave(database: Database) -> None:
    put(database, DIAMOND, concurrency_key={"key": "of the job", "at_once": 9}, payload="of the job")
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    given: dict[str, object] = {"payload": "order 7", "labels": {"customer": "acme"}, "traceparent": trace}
    root = database.trigger("a", overlap="allow_all", concurrency_key="acme", **given)
    for _ in range(2):
        play(database, fails_at("a"))
        assert changed(database, "resume", root)
    sent = [one for one in database.requests() if one.job_id == str(job_id("default", "a"))]
    found = [(one.payload, one.labels, one.traceparent, one.concurrency_key) for one in sent]
    assert found == [(b'"order 7"', {"customer": "acme"}, trace, "acme")] * 3
    assert database.rows("SELECT overlap, concurrency_key, generation FROM job_runs") == [("allow_all", "acme", 2)]
    play(database)
    assert latest_states(database, root) == dict.fromkeys("abcd", "succeeded")


def test_resume_is_refused_when_runs_are_no_longer_stored(database: Database) -> None:
    put(database, DIAMOND)
    root = database.trigger("a")
    play(database, fails_at("d"))
    database.execute("DELETE FROM finished_runs WHERE run_id = %s", [root])
    assert refusal(change(database, "resume", root)).problem == "runs of the occurrence are no longer stored"


def test_requests_about_no_occurrence_are_refused(database: Database) -> None:
    put(database, DIAMOND)
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    queued = database.trigger("a")
    for kind in ("pause", "resume", "cancel"):
        assert change(database, kind, queued).code == "unknown_workflow"
    play(database)
    assert change(database, "cancel", queued, tenant="acme").code == "unknown_workflow"
    assert refusal(change(database, "pause", queued)).problem == "the occurrence is succeeded"
