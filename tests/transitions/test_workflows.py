"""Ends of runs release the children: one run per job and occurrence, whatever dies."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.fixtures.acts import about, submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.services import until
from tests.scheduler.firing import fire_due
from tests.transitions.graphs import (
    DIAMOND,
    Chance,
    Parents,
    after,
    assert_nothing_left,
    changed,
    drain_some,
    end_and_drain,
    end_some,
    model,
    never,
    play,
    put,
    scheduled_at,
    states,
    workflow,
)
from tidewheel.ids import child_run_id, job_id
from tidewheel.runs import RunState
from tidewheel.schemas.generated.records import ReplyStatus

_ENDED = "SELECT count(*) FROM workflows WHERE finished_at IS NOT NULL"


def test_a_diamond_runs_each_job_once_after_its_parents(database: Database) -> None:
    put(database, DIAMOND)
    root = database.trigger("a")
    play(database)
    assert states(database, root) == dict.fromkeys("abcd", "succeeded")
    assert workflow(database, root) == ("succeeded", 0, 0)
    assert_nothing_left(database)
    starts = dict(
        database.rows("SELECT j.key, r.started_at FROM finished_runs r JOIN jobs j USING (job_id) ORDER BY started_at")
    )
    assert next(iter(starts)) == "a"
    assert list(starts)[-1] == "d"
    [event] = [event for event in database.lifecycle() if event.type == "io.tidewheel.workflow.finished.v1"]
    assert (event.job_key, event.detail["state"], event.detail["root_run_id"]) == ("a", "succeeded", str(root))
    [message] = [one for one in database.requests() if one.job_id == str(job_id("default", "d"))]
    scheduled_at = database.rows("SELECT scheduled_at FROM finished_runs WHERE run_id = %s", [root])[0][0]
    assert message.run_id == str(child_run_id(job_id("default", "d"), scheduled_at, root, 0))
    assert (message.cause, message.scheduled_at) == ("workflow", scheduled_at)


def test_children_are_in_the_trace_of_their_root(database: Database) -> None:
    """Also a child that was blocked; without a trace nothing is stored."""
    put(database, DIAMOND)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for given, stored in ({"traceparent": trace}, 4), ({}, 0):
        database.trigger("a", **given)
        play(database)
        assert database.rows("SELECT count(*) FROM run_inputs WHERE traceparent IS NOT NULL") == [(stored,)]
        sent = {(one.run_id, one.traceparent) for one in database.requests()}
        assert [one for _, one in sent] == [given.get("traceparent")] * 4
        database.execute("DELETE FROM outbox")
        database.execute("DELETE FROM run_inputs")


@pytest.mark.parametrize(
    ("failing", "expected", "state"),
    [
        ("b", {"a": "succeeded", "b": "failed", "c": "skipped", "repair": "succeeded", "end": "succeeded"}, "failed"),
        (
            "",
            {"a": "succeeded", "b": "succeeded", "c": "succeeded", "repair": "skipped", "end": "succeeded"},
            "succeeded",
        ),
        ("a", {"a": "failed", "b": "skipped", "c": "skipped", "repair": "skipped", "end": "succeeded"}, "failed"),
    ],
)
def test_conditions_decide_down_the_branches(
    database: Database, failing: str, expected: dict[str, str], state: str
) -> None:
    """An `always` beneath a skipped one beneath a failed one runs; the occurrence has failed all the same."""
    end = [("c", "always"), ("repair", "always")]
    graph = {"a": [], "b": after("a"), "c": after("b"), "repair": [("b", "failure")], "end": end}
    put(database, graph)
    root = database.trigger("a")
    play(database, lambda key: RunState.FAILED if key == failing else RunState.SUCCEEDED)
    assert states(database, root) == expected
    assert workflow(database, root)[0] == state
    assert_nothing_left(database)
    if failing == "b":
        [(run,)] = database.rows("SELECT run_id FROM runs JOIN jobs USING (job_id) WHERE key = 'c'")
        assert database.final_state(run) == ("skipped", "parents")


def test_a_root_without_a_begun_run_opens_no_occurrence(database: Database) -> None:
    put(database, DIAMOND)
    run = database.trigger("a", delay="1h")
    database.apply_batch({"type": "run.cancel", "run_id": str(run)})
    play(database)
    assert database.count("workflows") == 0
    assert_nothing_left(database)


def test_a_child_that_is_triggered_or_retried_runs_alone(database: Database) -> None:
    put(database, DIAMOND)
    alone = database.trigger("b")
    play(database)
    root = database.trigger("a")
    play(database, lambda key: RunState.FAILED if key == "b" else RunState.SUCCEEDED)
    failed = child_run_id(job_id("default", "b"), scheduled_at(database, root), root, 0)
    database.apply_batch({"type": "run.retry", "run_id": str(failed)})
    play(database)
    assert states(database, root) == {"a": "succeeded", "b": "failed", "c": "succeeded", "d": "skipped"}
    assert database.count("workflows") == 1
    assert database.final_state(alone) == ("succeeded", None)
    assert_nothing_left(database)


def test_an_occurrence_has_the_edges_and_versions_of_its_instant(clocked: ClockedDatabase) -> None:
    clocked.stop_clock()
    put(clocked, {"a": [], "b": after("a"), "c": after("a")})
    clocked.advance(timedelta(seconds=1))
    before = clocked.trigger("a")
    clocked.advance(timedelta(seconds=1))
    put(clocked, {"a": [], "b": after("a"), "c": after("b")}, payload=2)
    at = clocked.trigger("a")  # the instant of the edit: the former edges
    clocked.advance(timedelta(seconds=1))
    later = clocked.trigger("a")
    play(clocked, lambda key: RunState.FAILED if key == "b" else RunState.SUCCEEDED)
    assert [states(clocked, root)["c"] for root in (before, at, later)] == ["succeeded", "succeeded", "skipped"]
    assert_nothing_left(clocked)


def test_a_drain_leaves_a_tenant_whose_graph_changes_to_a_later_one(database: Database) -> None:
    """The edit has an instant before the occurrence's, and is not committed when the first parent ends."""
    put(database, DIAMOND)
    with database.transaction() as editing:
        edit = submission("d", schedule={"after": [{"job": "b"}]})
        assert database.apply_batch_within(editing, edit)[0].status is ReplyStatus.ACCEPTED
        root = database.trigger("a")
        end_and_drain(database)
        assert states(database, root) == {"a": "succeeded"}
        assert database.count("releases") == 1
    until(lambda: drain_some(database, never()), "the release is due")
    play(database)
    assert states(database, root) == dict.fromkeys("abcd", "succeeded")
    assert database.rows("SELECT count(*) FROM finished_runs WHERE started_at < created_at") == [(0,)]
    assert_nothing_left(database)


def test_the_graph_of_an_occurrence_that_was_moved_ahead_is_that_of_its_start(clocked: ClockedDatabase) -> None:
    clocked.stop_clock()
    put(clocked, DIAMOND, schedule="@every 1h")
    [(at,)] = clocked.rows("SELECT scheduled_at FROM timers")
    to = clocked.now() + timedelta(seconds=1)
    assert clocked.apply_batch(about("job.move", "a", at=at.isoformat(), to=to.isoformat()))[0].status == "accepted"
    clocked.advance(timedelta(seconds=2))
    fire_due(clocked)
    end_and_drain(clocked)
    end_and_drain(clocked, limit=1)  # one of the two parents
    clocked.advance(timedelta(seconds=1))
    [(first,)] = clocked.rows("SELECT key FROM finished_runs JOIN jobs USING (job_id) WHERE key <> 'a'")
    put(clocked, {"a": [], "b": after("a"), "c": after("a"), "d": after(first)}, schedule="@every 1h")
    play(clocked)
    [(root,)] = clocked.rows("SELECT root_run_id FROM workflows")
    assert states(clocked, root) == dict.fromkeys("abcd", "succeeded")
    assert_nothing_left(clocked)


def test_a_drain_gives_each_release_its_part_of_the_limit(database: Database) -> None:
    put(database, {"a": []} | {f"m{number}": after("a") for number in range(10)})
    for _ in range(3):
        database.trigger("a")
    chance = never()
    end_some(database, lambda _: RunState.SUCCEEDED, chance)
    drain_some(database, chance, children=7)
    counted = "SELECT count(*), count(DISTINCT workflow_run_id) FROM job_runs"
    assert database.rows(counted) == [(6, 3)]
    drain_some(database, chance, children=2)
    assert database.rows(counted) == [(8, 3)]
    play(database)
    assert_nothing_left(database)


def test_a_run_written_ahead_of_the_first_child_releases_it(clocked: ClockedDatabase) -> None:
    clocked.stop_clock()
    clocked.apply_batch(submission("a", schedule="@every 10s", overlap="allow_all"))
    clocked.advance(timedelta(seconds=8))
    delayed = clocked.trigger("a", delay="1m")
    fire_due(clocked, lookahead=timedelta(seconds=5))
    put(clocked, {"a": [], "b": after("a")}, schedule="@every 10s", overlap="allow_all")
    clocked.advance(timedelta(seconds=62))
    fire_due(clocked)
    play(clocked)
    assert states(clocked, delayed) == {"a": "succeeded", "b": "succeeded"}
    fired = clocked.rows("SELECT count(*) FROM finished_runs WHERE cause = 'timer'")[0][0]
    assert clocked.rows("SELECT count(*) FROM finished_runs WHERE cause = 'workflow'") == [(fired + 1,)]
    assert fired >= 6
    assert_nothing_left(clocked)


def test_paused_and_deleted_children_are_skipped_with_the_reason(database: Database) -> None:
    put(database, {"a": [], "b": after("a"), "c": after("a"), "d": after("a")})
    root = database.trigger("a")
    database.apply_batch({"type": "job.pause", "key": "b"}, {"type": "job.delete", "key": "c"})
    play(database)
    reasons = dict(database.rows("SELECT j.key, r.reason FROM finished_runs r JOIN jobs j USING (job_id)"))
    assert reasons == {"a": None, "b": "paused", "c": "deleted", "d": None}
    assert workflow(database, root) == ("succeeded", 0, 0)
    assert_nothing_left(database)


def test_a_blocked_run_that_is_cancelled_counts_as_ended(database: Database) -> None:
    put(database, {**DIAMOND, "e": [("d", "always")]})
    root = database.trigger("a")
    chance = never()
    end_some(database, lambda _: RunState.SUCCEEDED, chance)
    drain_some(database, chance)
    end_some(database, lambda _: RunState.SUCCEEDED, chance, limit=1)
    drain_some(database, chance)
    [(blocked,)] = database.rows("SELECT run_id FROM job_runs WHERE state = 'blocked'")
    [reply] = database.apply_batch({"type": "run.cancel", "run_id": str(blocked)})
    assert reply.run_status == "blocked"
    play(database)
    assert states(database, root) == dict.fromkeys("abce", "succeeded") | {"d": "cancelled"}
    assert workflow(database, root)[0] == "cancelled"
    assert changed(database, "resume", root)
    play(database)
    assert workflow(database, root) == ("succeeded", 0, 0)
    assert_nothing_left(database)


def test_a_fan_out_of_a_thousand_and_back_in(database: Database) -> None:
    middle = [f"m-{number}" for number in range(1000)]
    put(database, {"a": []} | {key: after("a") for key in middle} | {"end": after(*middle)})
    root = database.trigger("a")
    play(database)
    assert Counter(states(database, root).values()) == {"succeeded": 1002}
    assert workflow(database, root) == ("succeeded", 0, 0)
    assert_nothing_left(database)


def random_graph(draws: random.Random, nodes: int) -> Parents:
    graph: dict[str, list[tuple[str, str]]] = {"n0": []}
    for number in range(1, nodes):
        parents = draws.sample(sorted(graph), min(len(graph), draws.choice([1, 1, 2, 3, 8])))
        graph[f"n{number}"] = [(key, draws.choice(["success", "success", "failure", "always"])) for key in parents]
    return graph


@pytest.mark.parametrize("seed", range(3))
def test_random_graphs_end_as_a_model_says_under_rollbacks(database: Database, seed: int) -> None:
    """Two that end runs and two that drain, each transaction rolled back at random."""
    draws = random.Random(seed)  # noqa: S311 - a test's draws
    graph = random_graph(draws, 40)
    outcome = {key: draws.choice([RunState.SUCCEEDED] * 3 + [RunState.FAILED]) for key in graph}
    outcome["n0"] = RunState.SUCCEEDED
    put(database, graph)
    roots = [database.trigger("n0") for _ in range(5)]
    over, errors = threading.Event(), list[BaseException]()

    def repeat(step: Callable[[Chance], int], number: int) -> None:
        chance = Chance(random.Random(number), share=0.15)  # noqa: S311 - a test's draws
        try:
            while not over.is_set():
                step(chance)
        except BaseException as error:  # noqa: BLE001 - the test reports it
            errors.append(error)

    steps: list[Callable[[Chance], int]] = [
        lambda chance: end_some(database, outcome.__getitem__, chance),
        lambda chance: end_some(database, outcome.__getitem__, chance, 3),
        lambda chance: drain_some(database, chance, 5),
        lambda chance: drain_some(database, chance),
    ]
    threads = [threading.Thread(target=repeat, args=(step, number)) for number, step in enumerate(steps)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: errors or database.value(_ENDED) == len(roots), "the occurrences end")
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not errors
    expected = model(graph, outcome.__getitem__)
    for root in roots:
        assert states(database, root) == expected
    failed = sum(state == "failed" for state in expected.values())
    assert [workflow(database, root)[2] for root in roots] == [failed] * 5
    assert_nothing_left(database)
