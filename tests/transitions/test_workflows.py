"""Ends of runs release the children: one run per job and occurrence, whatever dies."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.services import until
from tests.scheduler.firing import fire_due
from tests.transitions.acts import (
    EXECUTOR,
    about,
    apply_batch,
    apply_batch_within,
    claim,
    final_state,
    lifecycle,
    requests,
    submission,
    succeed,
    trigger,
)
from tidewheel.ids import child_run_id, job_id
from tidewheel.runs import RunState
from tidewheel.scheduler.pending_cancels import PendingCancels
from tidewheel.schemas.generated.records import Reply, ReplyStatus
from tidewheel.transitions.claim import Claim, claim_runs
from tidewheel.transitions.drain import drain
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd

_ENDED = "SELECT count(*) FROM workflows WHERE finished_at IS NOT NULL"
ALL = list(range(64))
Parents = Mapping[str, list[tuple[str, str]]]


def put(database: Database, graph: Parents, **root: object) -> None:
    """Submit a graph: the parents of each key, with their conditions; parents come first."""
    documents = [
        submission(key, schedule={"after": [{"job": job, "when": when} for job, when in parents]})
        if parents
        else submission(key, **root)
        for key, parents in graph.items()
    ]
    replies = apply_batch(database, *documents)
    assert {reply.status for reply in replies} == {ReplyStatus.ACCEPTED}, replies


def after(*parents: str) -> list[tuple[str, str]]:
    return [(parent, "success") for parent in parents]


class Aborted(Exception):
    """A transaction that is rolled back on purpose."""


@dataclass
class Chance:
    """Rolls some transactions back."""

    draws: random.Random
    share: float = 0.0
    aborted: int = 0

    def visit(self) -> None:
        if self.draws.random() < self.share:
            self.aborted += 1
            raise Aborted


def end_some(database: Database, decide: Callable[[str], RunState], chance: Chance, limit: int = 20) -> int:
    """Claim and end queued runs as their jobs' keys decide."""
    rows = database.rows(
        "SELECT o.run_id, o.job_version, j.key FROM job_runs o JOIN jobs j USING (job_id)"
        " WHERE o.state = 'queued' AND o.publish_at <= tidewheel_now() ORDER BY random() LIMIT %s",
        [limit],
    )
    keys = {run: key for run, _, key in rows}
    try:
        with database.transaction() as connection:
            claimed = claim_runs(
                connection,
                database.installation,
                [Claim(run, 1, version, "test/0/0@0") for run, version, _ in rows],
                executor_id=EXECUTOR,
            )
            ends = [RunEnd(one.run_id, one.attempt, decide(keys[one.run_id]), EXECUTOR) for one in claimed.started]
            done = finish_runs(connection, database.installation, ends)
            chance.visit()
    except Aborted:
        return 1
    return len(done.states)


def drain_some(database: Database, chance: Chance, children: int = 500) -> int:
    try:
        with database.transaction() as connection:
            done = drain(connection, database.installation, ALL, children=children)
            chance.visit()
    except Aborted:
        return 1
    return done.releases


def play(database: Database, decide: Callable[[str], RunState] = lambda _: RunState.SUCCEEDED) -> None:
    """End runs and drain their releases until nothing is left to do."""
    never = Chance(random.Random(0))  # noqa: S311 - a test's draws
    while end_some(database, decide, never, 1000) + drain_some(database, never):
        pass


def states(database: Database, root: UUID) -> dict[str, str]:
    """Return the state of each job's run in an occurrence."""
    rows = database.rows(
        "SELECT j.key, r.state FROM runs r JOIN jobs j USING (job_id) WHERE r.workflow_run_id = %s", [root]
    )
    assert len(rows) == len(dict(rows)), rows
    return dict(rows)


def workflow(database: Database, root: UUID) -> tuple[str, int, int]:
    [row] = database.rows("SELECT state, pending, failed FROM workflows WHERE root_run_id = %s", [root])
    return row


def assert_nothing_left(database: Database) -> None:
    for table in ("job_runs", "releases", "joins", "active_runs"):
        assert database.count(table) == 0, table
    assert database.rows("SELECT count(*) FROM workflows WHERE finished_at IS NULL OR pending <> 0") == [(0,)]


def model(graph: Parents, decide: Callable[[str], RunState]) -> dict[str, str]:
    """Return the state that each job's run must have."""
    meets = {"success": {"succeeded"}, "failure": {"failed", "timed_out"}}
    found: dict[str, str] = {}
    for key, parents in graph.items():
        met = all(when == "always" or found[parent] in meets[when] for parent, when in parents)
        found[key] = str(decide(key)) if met else "skipped"
    return found


DIAMOND: Parents = {"a": [], "b": after("a"), "c": after("a"), "d": after("b", "c")}


def test_a_diamond_runs_each_job_once_after_its_parents(database: Database) -> None:
    put(database, DIAMOND)
    root = trigger(database, "a")
    play(database)
    assert states(database, root) == dict.fromkeys("abcd", "succeeded")
    assert workflow(database, root) == ("succeeded", 0, 0)
    assert_nothing_left(database)
    starts = dict(
        database.rows("SELECT j.key, r.started_at FROM finished_runs r JOIN jobs j USING (job_id) ORDER BY started_at")
    )
    assert next(iter(starts)) == "a"
    assert list(starts)[-1] == "d"
    [event] = [event for event in lifecycle(database) if event.type == "io.tidewheel.workflow.finished.v1"]
    assert (event.job_key, event.detail["state"], event.detail["root_run_id"]) == ("a", "succeeded", str(root))
    [message] = [one for one in requests(database) if one.job_id == str(job_id("default", "d"))]
    scheduled_at = database.rows("SELECT scheduled_at FROM finished_runs WHERE run_id = %s", [root])[0][0]
    assert message.run_id == str(child_run_id(job_id("default", "d"), scheduled_at, root, 0))
    assert (message.cause, message.scheduled_at) == ("workflow", scheduled_at)


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
    root = trigger(database, "a")
    play(database, lambda key: RunState.FAILED if key == failing else RunState.SUCCEEDED)
    assert states(database, root) == expected
    assert workflow(database, root)[0] == state
    assert_nothing_left(database)
    if failing == "b":
        [(run,)] = database.rows("SELECT run_id FROM runs JOIN jobs USING (job_id) WHERE key = 'c'")
        assert final_state(database, run) == ("skipped", "parents")


def test_a_root_without_a_begun_run_opens_no_occurrence(database: Database) -> None:
    put(database, DIAMOND)
    run = trigger(database, "a", delay="1h")
    apply_batch(database, {"type": "run.cancel", "run_id": str(run)})
    play(database)
    assert database.count("workflows") == 0
    assert_nothing_left(database)


def test_a_child_that_is_triggered_or_retried_runs_alone(database: Database) -> None:
    put(database, DIAMOND)
    alone = trigger(database, "b")
    play(database)
    root = trigger(database, "a")
    play(database, lambda key: RunState.FAILED if key == "b" else RunState.SUCCEEDED)
    failed = child_run_id(job_id("default", "b"), _scheduled_at(database, root), root, 0)
    apply_batch(database, {"type": "run.retry", "run_id": str(failed)})
    play(database)
    assert states(database, root) == {"a": "succeeded", "b": "failed", "c": "succeeded", "d": "skipped"}
    assert database.count("workflows") == 1
    assert final_state(database, alone) == ("succeeded", None)
    assert_nothing_left(database)


def _scheduled_at(database: Database, run: UUID) -> datetime:
    [(at,)] = database.rows("SELECT scheduled_at FROM runs WHERE run_id = %s", [run])
    return at


def test_an_occurrence_has_the_edges_and_versions_of_its_instant(clocked: ClockedDatabase) -> None:
    clocked.stop_clock()
    put(clocked, {"a": [], "b": after("a"), "c": after("a")})
    clocked.advance(timedelta(seconds=1))
    before = trigger(clocked, "a")
    clocked.advance(timedelta(seconds=1))
    put(clocked, {"a": [], "b": after("a"), "c": after("b")}, payload=2)
    at = trigger(clocked, "a")  # the instant of the edit: the former edges
    clocked.advance(timedelta(seconds=1))
    later = trigger(clocked, "a")
    play(clocked, lambda key: RunState.FAILED if key == "b" else RunState.SUCCEEDED)
    assert [states(clocked, root)["c"] for root in (before, at, later)] == ["succeeded", "succeeded", "skipped"]
    assert_nothing_left(clocked)


def end_and_drain(database: Database, limit: int = 20) -> None:
    """End some queued runs, and drain their releases, once."""
    never = Chance(random.Random(0))  # noqa: S311 - no draw matters
    end_some(database, lambda _: RunState.SUCCEEDED, never, limit)
    drain_some(database, never)


def test_a_drain_leaves_a_tenant_whose_graph_changes_to_a_later_one(database: Database) -> None:
    """The edit has an instant before the occurrence's, and is not committed when the first parent ends."""
    put(database, DIAMOND)
    with database.transaction() as editing:
        edit = submission("d", schedule={"after": [{"job": "b"}]})
        assert apply_batch_within(editing, database, edit)[0].status is ReplyStatus.ACCEPTED
        root = trigger(database, "a")
        end_and_drain(database)
        assert states(database, root) == {"a": "succeeded"}
        assert database.count("releases") == 1
    until(lambda: drain_some(database, Chance(random.Random(0))), "the release is due")  # noqa: S311 - no draw matters
    play(database)
    assert states(database, root) == dict.fromkeys("abcd", "succeeded")
    assert database.rows("SELECT count(*) FROM finished_runs WHERE started_at < created_at") == [(0,)]
    assert_nothing_left(database)


def test_the_graph_of_an_occurrence_that_was_moved_ahead_is_that_of_its_start(clocked: ClockedDatabase) -> None:
    clocked.stop_clock()
    put(clocked, DIAMOND, schedule="@every 1h")
    [(at,)] = clocked.rows("SELECT scheduled_at FROM timers")
    to = clocked.now() + timedelta(seconds=1)
    assert apply_batch(clocked, about("job.move", "a", at=at.isoformat(), to=to.isoformat()))[0].status == "accepted"
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
        trigger(database, "a")
    never = Chance(random.Random(0))  # noqa: S311 - no draw matters
    end_some(database, lambda _: RunState.SUCCEEDED, never)
    drain_some(database, never, children=7)
    counted = "SELECT count(*), count(DISTINCT workflow_run_id) FROM job_runs"
    assert database.rows(counted) == [(6, 3)]
    drain_some(database, never, children=2)
    assert database.rows(counted) == [(8, 3)]
    play(database)
    assert_nothing_left(database)


def test_a_run_written_ahead_of_the_first_child_releases_it(clocked: ClockedDatabase) -> None:
    clocked.stop_clock()
    apply_batch(clocked, submission("a", schedule="@every 10s", overlap="allow_all"))
    clocked.advance(timedelta(seconds=8))
    delayed = trigger(clocked, "a", delay="1m")
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
    root = trigger(database, "a")
    apply_batch(database, {"type": "job.pause", "key": "b"}, {"type": "job.delete", "key": "c"})
    play(database)
    reasons = dict(database.rows("SELECT j.key, r.reason FROM finished_runs r JOIN jobs j USING (job_id)"))
    assert reasons == {"a": None, "b": "paused", "c": "deleted", "d": None}
    assert workflow(database, root) == ("succeeded", 0, 0)
    assert_nothing_left(database)


def test_a_blocked_run_that_is_cancelled_counts_as_ended(database: Database) -> None:
    put(database, {**DIAMOND, "e": [("d", "always")]})
    root = trigger(database, "a")
    chance = Chance(random.Random(0))  # noqa: S311 - a test's draws
    end_some(database, lambda _: RunState.SUCCEEDED, chance)
    drain_some(database, chance)
    end_some(database, lambda _: RunState.SUCCEEDED, chance, limit=1)
    drain_some(database, chance)
    [(blocked,)] = database.rows("SELECT run_id FROM job_runs WHERE state = 'blocked'")
    [reply] = apply_batch(database, {"type": "run.cancel", "run_id": str(blocked)})
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
    root = trigger(database, "a")
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
    roots = [trigger(database, "n0") for _ in range(5)]
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


def change(database: Database, kind: str, root: UUID, **fields: object) -> Reply:
    [reply] = apply_batch(database, {"type": f"workflow.{kind}", "run_id": str(root)} | fields)
    return reply


def changed(database: Database, kind: str, root: UUID) -> bool:
    reply = change(database, kind, root)
    assert reply.status is ReplyStatus.ACCEPTED, reply.errors
    return not reply.unchanged


@pytest.mark.parametrize("began", [False, True], ids=["while the root runs", "after its end"])
def test_a_paused_occurrence_releases_nothing_until_it_is_resumed(database: Database, began: bool) -> None:  # noqa: FBT001
    put(database, DIAMOND)
    root = trigger(database, "a")
    chance = Chance(random.Random(0))  # noqa: S311 - no draw matters
    [started] = claim(database, root).started
    if not began:
        assert changed(database, "pause", root)
    succeed(database, started)
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
    root = trigger(database, "a")
    chance = Chance(random.Random(0))  # noqa: S311 - no draw matters
    end_some(database, lambda _: RunState.SUCCEEDED, chance)
    drain_some(database, chance)
    end_some(database, lambda _: RunState.SUCCEEDED, chance, limit=1)
    drain_some(database, chance)
    assert changed(database, "cancel", root)
    assert claim_all(database) == 0  # at once, before the scheduler has ended them
    session = database.session()
    PendingCancels(session, database.installation).step()
    session.close()
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
    return end_some(database, lambda _: RunState.SUCCEEDED, Chance(random.Random(0)), 1000)  # noqa: S311 - as above


def latest_states(database: Database, root: UUID) -> dict[str, str]:
    rows = database.rows(
        "SELECT j.key, r.state FROM runs r JOIN jobs j USING (job_id) WHERE workflow_run_id = %s ORDER BY generation",
        [root],
    )
    return dict(rows)


def test_resume_runs_the_failed_part_again(database: Database) -> None:
    """A `failure` branch that has succeeded stays; the rest runs in its current version."""
    graph = {**DIAMOND, "e": after("d"), "repair": [("b", "failure")]}
    put(database, graph)
    root = trigger(database, "a")
    play(database, lambda key: RunState.FAILED if key == "b" else RunState.SUCCEEDED)
    expected = {
        "a": "succeeded",
        "b": "failed",
        "c": "succeeded",
        "d": "skipped",
        "e": "skipped",
        "repair": "succeeded",
    }
    assert states(database, root) == expected
    assert workflow(database, root) == ("failed", 0, 1)
    apply_batch(database, submission("b", schedule={"after": [{"job": "a", "when": "success"}]}, payload="corrected"))
    assert changed(database, "resume", root)
    assert change(database, "resume", root).unchanged  # it is open
    play(database)
    assert latest_states(database, root) == dict.fromkeys(graph, "succeeded")
    again = dict(
        database.rows("SELECT j.key, r.job_version FROM runs r JOIN jobs j USING (job_id) WHERE generation = 1")
    )
    assert again == {"b": 2, "d": 1, "e": 1}
    assert workflow(database, root) == ("succeeded", 0, 0)
    assert_nothing_left(database)
    reply = change(database, "resume", root)
    assert (reply.status, reply.errors[0].path) == (ReplyStatus.REJECTED, "run_id")


def test_resume_of_a_failed_root_and_then_again(database: Database) -> None:
    put(database, DIAMOND)
    root = trigger(database, "a")
    failing = {"a"}
    play(database, lambda key: RunState.FAILED if key in failing else RunState.SUCCEEDED)
    assert states(database, root) == {"a": "failed", "b": "skipped", "c": "skipped", "d": "skipped"}
    failing = {"c"}
    assert changed(database, "resume", root)
    play(database, lambda key: RunState.FAILED if key in failing else RunState.SUCCEEDED)
    assert latest_states(database, root) == {"a": "succeeded", "b": "succeeded", "c": "failed", "d": "skipped"}
    failing = set[str]()
    assert changed(database, "resume", root)
    play(database)
    assert latest_states(database, root) == dict.fromkeys("abcd", "succeeded")
    assert_nothing_left(database)


def test_resume_of_a_root_keeps_what_its_trigger_gave(database: Database) -> None:
    put(database, DIAMOND, concurrency_key={"key": "of the job", "at_once": 9}, payload="of the job")
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    given: dict[str, object] = {"payload": "order 7", "labels": {"customer": "acme"}, "traceparent": trace}
    root = trigger(database, "a", overlap="allow_all", concurrency_key="acme", **given)
    failing = {"a"}
    play(database, lambda key: RunState.FAILED if key in failing else RunState.SUCCEEDED)
    assert changed(database, "resume", root)
    play(database, lambda key: RunState.FAILED if key in failing else RunState.SUCCEEDED)
    failing.clear()
    assert changed(database, "resume", root)
    sent = [one for one in requests(database) if one.job_id == str(job_id("default", "a"))]
    assert [(one.payload, one.labels, one.traceparent, one.concurrency_key) for one in sent] == [
        (b'"order 7"', {"customer": "acme"}, trace, "acme")
    ] * 3
    assert database.rows("SELECT overlap, concurrency_key, generation FROM job_runs") == [("allow_all", "acme", 2)]
    play(database)
    assert latest_states(database, root) == dict.fromkeys("abcd", "succeeded")


def test_resume_is_refused_when_runs_are_no_longer_stored(database: Database) -> None:
    put(database, DIAMOND)
    root = trigger(database, "a")
    play(database, lambda key: RunState.FAILED if key == "d" else RunState.SUCCEEDED)
    database.execute("DELETE FROM finished_runs WHERE run_id = %s", [root])
    reply = change(database, "resume", root)
    assert (reply.status, reply.errors[0].problem) == (
        ReplyStatus.REJECTED, "runs of the occurrence are no longer stored",
    )  # fmt: skip


def test_requests_about_no_occurrence_are_refused(database: Database) -> None:
    put(database, DIAMOND)
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    queued = trigger(database, "a")
    for kind in ("pause", "resume", "cancel"):
        reply = change(database, kind, queued)
        assert (reply.status, reply.code) == (ReplyStatus.REJECTED, "unknown_workflow")
    play(database)
    assert change(database, "cancel", queued, tenant="acme").code == "unknown_workflow"
    assert change(database, "pause", queued).errors[0].problem == "the occurrence is succeeded"
