"""`schedule: {after: …}` makes the edges of a graph without a cycle and with one root."""

import threading
from datetime import timedelta
from functools import partial

import pytest

from tests.fixtures.acts import about, refusal, submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.transitions.stepping import batch_behind, in_background, until_blocked
from tidewheel.errors import Refused, Unavailable
from tidewheel.ids import job_id
from tidewheel.postgres.statements import Statements
from tidewheel.schemas.generated.records import Reply, ReplyStatus

LOCK_GRAPHS = Statements("tidewheel.intake")["lock_graphs"]


def after(*parents: object) -> dict[str, object]:
    return {"after": list(parents)}


def put(database: Database, key: str, *parents: object, **job: object) -> Reply:
    return database.apply(node(key, *parents, **job))


def node(key: str, *parents: object, **job: object) -> dict[str, object]:
    return submission(key=key, schedule=after(*parents) if parents else "manual", **job)


def edges(database: Database) -> set[tuple[str, str, str]]:
    return set(
        database.rows(
            "SELECT p.key, c.key, e.condition FROM job_edges e JOIN jobs p ON p.job_id = parent_job_id"
            " JOIN jobs c ON c.job_id = child_job_id WHERE until_at IS NULL"
        )
    )


def roots(database: Database) -> dict[str, str | None]:
    return dict(database.rows("SELECT j.key, r.key FROM jobs j LEFT JOIN jobs r ON r.job_id = j.root_job_id"))


def test_a_batch_of_parents_and_children_is_one_graph(database: Database) -> None:
    replies = database.apply_batch(
        node("a"),
        node("b", "a"),
        node("c", {"job": "a", "when": "failure"}),
        node("d", "b", {"job": "c", "when": "always"}),
    )
    assert [reply.status for reply in replies] == [ReplyStatus.ACCEPTED] * 4
    made = {("a", "b", "success"), ("a", "c", "failure"), ("b", "d", "success"), ("c", "d", "always")}
    assert edges(database) == made
    assert roots(database) == dict.fromkeys("abcd", "a")
    assert database.count("timers") == 0
    assert database.rows("SELECT DISTINCT finished_at FROM jobs") == [(None,)]
    parents = database.rows("SELECT parents FROM job_edges WHERE child_job_id = %s", [job_id("default", "d")])
    assert parents == [(2,), (2,)]


def test_an_edit_that_leaves_the_parents_alone_writes_no_edge(clocked: ClockedDatabase) -> None:
    clocked.apply_batch(node("a"), node("b", "a"))
    before = clocked.rows("SELECT * FROM job_edges")
    clocked.advance(timedelta(seconds=1))
    assert put(clocked, "b", "a", payload=2).job_version == 2
    assert put(clocked, "b", "a", payload=2).unchanged
    assert put(clocked, "a", payload=3).job_version == 2
    assert clocked.rows("SELECT * FROM job_edges") == before


def test_an_edit_closes_the_periods_of_the_former_parents(clocked: ClockedDatabase) -> None:
    clocked.apply_batch(node("a"), node("b", "a"), node("c", "b"))
    clocked.advance(timedelta(seconds=1))
    assert put(clocked, "c", "a").status is ReplyStatus.ACCEPTED
    assert edges(clocked) == {("a", "b", "success"), ("a", "c", "success")}
    assert roots(clocked) == dict.fromkeys("abc", "a")
    clocked.advance(timedelta(seconds=1))
    assert put(clocked, "c").status is ReplyStatus.ACCEPTED
    clocked.advance(timedelta(seconds=1))
    assert put(clocked, "b").status is ReplyStatus.ACCEPTED
    assert (edges(clocked), roots(clocked)) == (set(), dict.fromkeys("abc"))
    assert clocked.rows("SELECT count(*), count(until_at) FROM job_edges") == [(3, 3)]


def test_a_cycle_is_refused_with_its_path(database: Database) -> None:
    database.apply_batch(node("a"), node("b", "a"), node("c", "b"))
    for parent, problem in (("c", "would form a cycle: a → b → c → a"), ("a", "'a' would run after itself")):
        error = refusal(put(database, "a", parent))
        assert (error.path, error.problem) == ("job.schedule.after.0.job", problem)
    assert database.rows("SELECT version FROM jobs WHERE key = 'a'") == [(1,)]


def test_two_concurrent_submits_never_form_a_cycle(database: Database) -> None:
    database.apply_batch(node("x"), node("y"))
    gate = threading.Barrier(2)

    def submit_one(key: str, parent: str) -> Reply:
        gate.wait()
        return put(database, key, parent)

    submits = [in_background(partial(submit_one, *pair)) for pair in (("x", "y"), ("y", "x"))]
    statuses = sorted(each.result(30).status for each in submits)
    assert statuses == [ReplyStatus.ACCEPTED, ReplyStatus.REJECTED]
    assert len(edges(database)) == 1


@pytest.mark.parametrize("parent", ["nobody", "deleted", "other"])
def test_a_parent_that_is_not_there_is_refused(database: Database, parent: str) -> None:
    """Absent, deleted, or another tenant's: the answer is the same."""
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    database.apply_batch(node("deleted"), about("job.delete", "deleted"), node("other") | {"tenant": "acme"})
    error = refusal(put(database, "b", parent))
    assert (error.path, error.problem) == ("job.schedule.after.0.job", f"there is no job {parent!r}")
    assert database.rows("SELECT count(*) FROM jobs WHERE key = 'b'") == [(0,)]


def test_two_roots_are_refused(database: Database) -> None:
    database.apply_batch(node("a"), node("b", "a"), node("x"), node("y", "x"))
    error = refusal(put(database, "j", "b", "y"))
    assert (error.path, error.problem) == ("job.schedule.after.1.job", "'b' and 'y' belong to different workflows")
    assert put(database, "j", "b").status is ReplyStatus.ACCEPTED
    assert put(database, "k", "b", "j").status is ReplyStatus.ACCEPTED
    # An edit in the middle: k comes after j, and j would move to the other root.
    assert refusal(put(database, "j", "y")).path == "job.schedule"


def test_a_subtree_moves_to_another_root(database: Database) -> None:
    database.apply_batch(node("a"), node("b", "a"), node("c", "b"), node("x"))
    assert put(database, "b", "x").status is ReplyStatus.ACCEPTED
    assert roots(database) == {"a": None, "b": "x", "c": "x", "x": "x"}
    assert put(database, "x", "a").status is ReplyStatus.ACCEPTED
    assert set(roots(database).values()) == {"a"}
    assert put(database, "b").status is ReplyStatus.ACCEPTED
    assert roots(database) == {"a": "a", "x": "a", "b": "b", "c": "b"}


def test_a_job_with_children_is_not_deleted(database: Database) -> None:
    database.apply_batch(node("a"), node("b", "a"), node("c", "a"), node("d", "b"))
    error = database.refuse(about("job.delete", "a"))
    assert (error.path, error.problem) == ("key", "these jobs run after it: 'b', 'c'")
    replies = database.apply_batch(*(about("job.delete", key) for key in "abc"))
    assert [reply.status for reply in replies] == [ReplyStatus.REJECTED, ReplyStatus.REJECTED, ReplyStatus.ACCEPTED]
    replies = database.apply_batch(*(about("job.delete", key) for key in "abd"))
    assert [reply.status for reply in replies] == [ReplyStatus.ACCEPTED] * 3
    assert (edges(database), set(roots(database).values())) == (set(), {None})
    assert refusal(put(database, "b", "a")).problem == "there is no job 'a'"
    database.apply_batch(node("a"), node("b", "a"))
    assert edges(database) == {("a", "b", "success")}


def test_a_job_that_gets_its_first_child_meanwhile_is_not_deleted(database: Database) -> None:
    database.submit(key="a", schedule="@every 1h")
    first = node("b", "a")
    [reply] = batch_behind(
        database, lambda connection: database.apply_batch_within(connection, first), about("job.delete", "a")
    )
    assert refusal(reply).problem == "these jobs run after it: 'b'"


@pytest.mark.parametrize("change", [node("a"), about("job.delete", "a")], ids=["submit", "delete"])
def test_a_change_of_a_job_that_gets_parents_meanwhile_is_tried_again(
    database: Database, change: dict[str, object]
) -> None:
    database.submit(key="p")
    database.submit(key="a", schedule="@every 1h")
    with pytest.raises(Unavailable, match="'a' part of a workflow"):
        batch_behind(database, lambda first: database.apply_batch_within(first, node("a", "p")), change)
    database.accept(change)
    assert (edges(database), set(roots(database).values())) == (set(), {None})


@pytest.mark.parametrize("key", ["b", "free"])
def test_a_rollback_locks_the_graph_before_the_job(database: Database, key: str) -> None:
    """Roll back a node, and a job to a version with parents."""
    database.apply_batch(node("a"), node("b", "a"), node("free", "a"), node("b", "a", payload=2), node("free"))
    holding, rolling = database.connection(), database.connection()
    holding.execute(LOCK_GRAPHS, {"tenant": "default"})
    rolled = in_background(lambda: database.apply_batch_within(rolling, about("job.rollback", key, version=1)))
    until_blocked(database, rolling)
    assert holding.execute("SELECT FROM jobs WHERE key = %s FOR UPDATE SKIP LOCKED", [key]).rowcount == 1
    holding.commit()
    assert [reply.job_version for reply in rolled.result(30)] == [3]
    rolling.commit()
    assert edges(database) >= {("a", key, "success")}


def test_rollback_of_a_job_without_parents_waits_for_no_graph(database: Database) -> None:
    """Else each rollback of a tenant postpones the children of all its workflows."""
    database.apply_batch(node("a"), node("b", "a"), node("free"), node("a", payload=2), node("free", payload=2))
    holding = database.connection()
    holding.execute(LOCK_GRAPHS, {"tenant": "default"})
    back = (about("job.rollback", key, version=1) for key in ("a", "free"))
    assert [reply.job_version for reply in database.apply_batch(*back)] == [3, 3]
    holding.rollback()


def test_a_further_child_does_not_rewrite_its_parent(database: Database) -> None:
    database.apply_batch(node("a"), node("b", "a"))
    before = database.rows("SELECT ctid, root_job_id FROM jobs WHERE key = 'a'")
    assert put(database, "c", "a").status is ReplyStatus.ACCEPTED
    assert database.rows("SELECT ctid, root_job_id FROM jobs WHERE key = 'a'") == before


def test_sizes_are_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidewheel.intake.graphs.MAX_NODES", 4)
    monkeypatch.setattr("tidewheel.intake.graphs.MAX_CHILDREN", 2)
    database.apply_batch(node("a"), node("b", "a"), node("c", "a"))
    assert "2 children" in refusal(put(database, "d", "a")).problem
    assert put(database, "d", "b").status is ReplyStatus.ACCEPTED
    assert refusal(put(database, "e", "c")).problem == "the workflow would have 5 jobs; the limit is 4"
    database.apply_batch(node("x"), node("y", "x"))
    assert "6 jobs" in refusal(put(database, "x", "c")).problem


@pytest.mark.parametrize(
    ("schedule", "extra", "path"),
    [
        ({"after": ["a", "a"]}, {}, "job.schedule.after.1.job"),
        ({"after": [{"job": "a", "when": "done"}]}, {}, "job.schedule.after.0.when"),
        ({"after": ["a"] * 1001}, {}, "job.schedule.after"),
        ({"after": ["a"], "cron": "* * * * *"}, {}, "job.schedule"),
        ({"after": ["a"], "timezone": "UTC"}, {}, "job.schedule.timezone"),
        ({"after": ["a"]}, {"jitter": "5s"}, "job.jitter"),
        ({"after": ["a"]}, {"catch_up": "skip"}, "job.catch_up"),
        ({"after": ["a"]}, {"end_at": "2099-01-01T00:00:00Z"}, "job.end_at"),
        ({"after": ["a"]}, {"exclude_calendars": ["de"]}, "job.exclude_calendars"),
    ],
)
def test_bad_input_names_the_field(database: Database, schedule: object, extra: dict[str, object], path: str) -> None:
    database.submit(key="a")
    with pytest.raises(Refused) as refused:
        database.submit(key="b", schedule=schedule, **extra)
    assert refused.value.errors[0].path == path
    assert refused.value.errors[0].remedy
