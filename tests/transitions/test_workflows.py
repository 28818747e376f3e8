"""Workflows: children run once after their parents, whose results they read."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest

from tests.fixtures.acts import EXECUTOR, about, cancelling, submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.examples import FULL
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
    fails_at,
    model,
    never,
    play,
    put,
    scheduled_at,
    states,
    workflow,
)
from tests.transitions.stepping import in_background
from tidewheel.errors import UnknownRun
from tidewheel.ids import child_run_id, job_id
from tidewheel.runs import RunState
from tidewheel.schemas.generated.records import ReplyStatus
from tidewheel.transitions.claim import Claim, claim_runs
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.parents import MAX_RESULTS_BYTES, ParentRun, read_parents

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


def test_conditions_decide_down_the_branches(database: Database) -> None:
    """An `always` beneath a skipped one beneath a failed one runs; the occurrence has failed all the same."""
    end = [("c", "always"), ("repair", "always")]
    graph = {"a": [], "b": after("a"), "c": after("b"), "repair": [("b", "failure")], "end": end}
    put(database, graph)
    for failing, state in (("b", "failed"), ("", "succeeded"), ("a", "failed")):
        root = database.trigger("a")
        play(database, fails_at(failing))
        assert states(database, root) == model(graph, fails_at(failing)), failing
        assert workflow(database, root)[0] == state, failing
        assert_nothing_left(database)
    skipped = database.rows("SELECT DISTINCT reason FROM finished_runs WHERE state = 'skipped'")
    assert skipped == [("parents",)]


def test_a_root_without_a_begun_run_opens_no_occurrence(database: Database) -> None:
    put(database, DIAMOND)
    run = database.trigger("a", delay="1h")
    database.apply(cancelling(run))
    play(database)
    assert database.count("workflows") == 0
    assert_nothing_left(database)


def test_a_child_that_is_triggered_or_retried_runs_alone(database: Database) -> None:
    put(database, DIAMOND)
    alone = database.trigger("b")
    play(database)
    root = database.trigger("a")
    play(database, fails_at("b"))
    failed = child_run_id(job_id("default", "b"), scheduled_at(database, root), root, 0)
    database.apply_batch({"type": "run.retry", "run_id": str(failed)})
    play(database)
    assert states(database, root) == {"a": "succeeded", "b": "failed", "c": "succeeded", "d": "skipped"}
    assert database.count("workflows") == 1
    assert database.final_state(alone) == ("succeeded", None)
    assert_nothing_left(database)


def test_an_occurrence_has_the_edges_and_versions_of_its_instant(still: ClockedDatabase) -> None:
    put(still, {"a": [], "b": after("a"), "c": after("a")})
    still.advance(timedelta(seconds=1))
    before = still.trigger("a")
    still.advance(timedelta(seconds=1))
    put(still, {"a": [], "b": after("a"), "c": after("b")}, payload=2)
    at = still.trigger("a")  # the instant of the edit: the former edges
    still.advance(timedelta(seconds=1))
    later = still.trigger("a")
    play(still, fails_at("b"))
    assert [states(still, root)["c"] for root in (before, at, later)] == ["succeeded", "succeeded", "skipped"]
    assert_nothing_left(still)


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


def test_the_graph_of_an_occurrence_that_was_moved_ahead_is_that_of_its_start(still: ClockedDatabase) -> None:
    put(still, DIAMOND, schedule="@every 1h")
    at, to = still.value("SELECT scheduled_at FROM timers"), still.now() + timedelta(seconds=1)
    still.accept(about("job.move", "a", at=at.isoformat(), to=to.isoformat()))
    still.advance(timedelta(seconds=2))
    fire_due(still)
    end_and_drain(still)
    end_and_drain(still, limit=1)  # one of the two parents
    still.advance(timedelta(seconds=1))
    [(first,)] = still.rows("SELECT key FROM finished_runs JOIN jobs USING (job_id) WHERE key <> 'a'")
    put(still, {"a": [], "b": after("a"), "c": after("a"), "d": after(first)}, schedule="@every 1h")
    play(still)
    [(root,)] = still.rows("SELECT root_run_id FROM workflows")
    assert states(still, root) == dict.fromkeys("abcd", "succeeded")
    assert_nothing_left(still)


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


def test_a_run_written_ahead_of_the_first_child_releases_it(still: ClockedDatabase) -> None:
    still.apply_batch(submission("a", schedule="@every 10s", overlap="allow_all"))
    still.advance(timedelta(seconds=8))
    delayed = still.trigger("a", delay="1m")
    fire_due(still, lookahead=timedelta(seconds=5))
    put(still, {"a": [], "b": after("a")}, schedule="@every 10s", overlap="allow_all")
    still.advance(timedelta(seconds=62))
    fire_due(still)
    play(still)
    assert states(still, delayed) == {"a": "succeeded", "b": "succeeded"}
    fired = still.rows("SELECT count(*) FROM finished_runs WHERE cause = 'timer'")[0][0]
    assert still.rows("SELECT count(*) FROM finished_runs WHERE cause = 'workflow'") == [(fired + 1,)]
    assert fired >= 6
    assert_nothing_left(still)


def test_paused_and_deleted_children_are_skipped_with_the_reason(database: Database) -> None:
    put(database, {"a": [], "b": after("a"), "c": after("a"), "d": after("a")})
    root = database.trigger("a")
    database.apply_batch(about("job.pause", "b"), about("job.delete", "c"))
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
    assert database.accept(cancelling(blocked)).run_status == "blocked"
    play(database)
    assert states(database, root) == dict.fromkeys("abce", "succeeded") | {"d": "cancelled"}
    assert workflow(database, root)[0] == "cancelled"
    assert changed(database, "resume", root)
    play(database)
    assert workflow(database, root) == ("succeeded", 0, 0)
    assert_nothing_left(database)


@pytest.mark.landing
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


@pytest.mark.landing
@pytest.mark.property
@pytest.mark.parametrize("seed", range(3 if FULL else 1))
def test_random_graphs_end_as_a_model_says_under_rollbacks(database: Database, seed: int) -> None:
    """Two that end runs and two that drain, each transaction rolled back at random."""
    draws = random.Random(seed)  # noqa: S311 - a test's draws
    graph = random_graph(draws, 40)
    outcome = {key: draws.choice([RunState.SUCCEEDED] * 3 + [RunState.FAILED]) for key in graph}
    outcome["n0"] = RunState.SUCCEEDED
    put(database, graph)
    roots = [database.trigger("n0") for _ in range(5)]
    over = threading.Event()

    def repeat(step: Callable[[Chance], int], number: int) -> None:
        chance = Chance(random.Random(number), share=0.15)  # noqa: S311 - a test's draws
        while not over.is_set():
            step(chance)

    steps: list[Callable[[Chance], int]] = [
        lambda chance: end_some(database, outcome.__getitem__, chance),
        lambda chance: end_some(database, outcome.__getitem__, chance, 3),
        lambda chance: drain_some(database, chance, 5),
        lambda chance: drain_some(database, chance),
    ]
    living = [in_background(partial(repeat, step, number)) for number, step in enumerate(steps)]
    try:
        until(lambda: any(each.done() for each in living) or database.value(_ENDED) == len(roots), "all of them end")
    finally:
        over.set()
        for each in living:
            each.result(30)
    expected = model(graph, outcome.__getitem__)
    for root in roots:
        assert states(database, root) == expected
    failed = sum(state == "failed" for state in expected.values())
    assert [workflow(database, root)[2] for root in roots] == [failed] * 5
    assert_nothing_left(database)


EIGHT_KIB = b'"%s"' % (b"x" * 8190)


def give(database: Database, results: dict[str, bytes | None]) -> None:
    """End the queued runs of these jobs with these results, and drain their releases."""
    rows = database.rows(
        "SELECT o.run_id, o.job_version, j.key FROM job_runs o JOIN jobs j USING (job_id)"
        " WHERE o.state = 'queued' AND j.key = ANY (%s)",
        [list(results)],
    )
    assert len(rows) == len(results)
    with database.transaction() as connection:
        claims = [Claim(run, 1, version, "test/0/0@0") for run, version, _ in rows]
        claim_runs(connection, database.installation, claims, executor_id=EXECUTOR)
        ends = [RunEnd(run, 1, RunState.SUCCEEDED, EXECUTOR, result=results[key]) for run, _, key in rows]
        finish_runs(connection, database.installation, ends)
    drain_some(database, never())


def run_of(database: Database, key: str) -> UUID:
    [*_, (run,)] = database.rows(
        "SELECT r.run_id FROM runs r JOIN jobs j USING (job_id) WHERE j.key = %s ORDER BY r.created_at", [key]
    )
    assert isinstance(run, UUID)
    return run


def parents(database: Database, child: UUID, key: str | None = None) -> dict[str, ParentRun]:
    return {one.key: one for one in database.within(read_parents, child, key=key)}


def test_results_are_left_out_above_64_kib_together_and_read_one_by_one(database: Database) -> None:
    above = b'"%s"' % (b"x" * (MAX_RESULTS_BYTES - 4))  # 64 KiB and one byte, together with the other parent's
    put(database, DIAMOND)
    for result, left_out in ((None, False), (EIGHT_KIB, False), (above, True)):
        size = len(result or b"")
        database.trigger("a")
        give(database, {"a": b"1"})
        give(database, {"b": result, "c": b"345"})
        found = parents(database, run_of(database, "d"))
        assert list(found) == ["b", "c"], size
        for key, given in (("b", result), ("c", b"345")):
            one = found[key]
            assert (one.status, one.run_id, one.when) == ("succeeded", run_of(database, key), "success"), size
            assert (one.left_out, one.expired, one.result_bytes) == (left_out, False, len(given or b"")), size
            assert one.result == (None if left_out else given), size
            assert parents(database, run_of(database, "d"), key)[key].result == given, size


def test_blocked_child_has_parents_that_have_not_run_yet(database: Database) -> None:
    put(database, {"a": [], "b": after("a"), "c": [("a", "always"), ("b", "always")]})
    database.trigger("a")
    give(database, {"a": b"7"})
    found = parents(database, run_of(database, "c"))
    assert (found["a"].result, found["b"].status) == (b"7", "queued")
    database.execute("DELETE FROM job_runs WHERE run_id = %s", [run_of(database, "b")])
    assert parents(database, run_of(database, "c"))["b"] == ParentRun("b", "always")


def test_result_whose_day_is_dropped_is_expired_and_no_error(database: Database) -> None:
    put(database, {"a": [], "b": after("a")})
    database.trigger("a")
    give(database, {"a": b"7"})
    child = run_of(database, "b")
    at = database.value("SELECT started_at FROM finished_runs")
    partition = f"attempt_outputs_{at:%Y%m%d}"
    # As retention leaves it: the day is gone. The test's template keeps the table.
    with database.connection(autocommit=True) as connection:
        connection.execute(f"ALTER TABLE attempt_outputs DETACH PARTITION {partition}")  # type: ignore[arg-type]
        connection.execute(f"ALTER TABLE {partition} RENAME TO gone")  # type: ignore[arg-type]
    try:
        found = parents(database, child)["a"]
        assert (found.status, found.result, found.expired) == ("succeeded", None, True)
        database.execute("DELETE FROM finished_runs")
        assert parents(database, child)["a"] == ParentRun("a", "success", expired=True)
    finally:
        with database.connection(autocommit=True) as connection:
            connection.execute(f"ALTER TABLE gone RENAME TO {partition}")  # type: ignore[arg-type]
            day = f"'{at:%Y-%m-%d} 00:00+00'"
            connection.execute(
                f"ALTER TABLE attempt_outputs ATTACH PARTITION {partition}"  # type: ignore[arg-type]
                f" FOR VALUES FROM ({day}) TO ({day}::timestamptz + interval '1 day')"
            )


def test_generations_and_retries_see_the_runs_before_them(database: Database) -> None:
    put(database, {"a": [], "b": after("a")})
    root = database.trigger("a")
    give(database, {"a": b"1"})
    first = run_of(database, "b")
    play(database, lambda _: RunState.FAILED)
    database.apply_batch({"type": "run.retry", "run_id": str(first)})
    retry = run_of(database, "b")
    assert retry != first
    assert changed(database, "resume", root)
    second = run_of(database, "b")
    for child in (first, retry, second):
        assert (parents(database, child)["a"].run_id, parents(database, child)["a"].result) == (root, b"1")
    alone = database.trigger("b")
    assert parents(database, alone) == {}
    assert parents(database, root) == {}
    with database.transaction() as connection, pytest.raises(UnknownRun):
        read_parents(connection, root, tenant="acme")
