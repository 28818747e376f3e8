"""A child's parents: their latest runs in its occurrence, with results up to a limit."""

from uuid import UUID

import pytest

from tests.fixtures.acts import EXECUTOR
from tests.fixtures.database import Database
from tests.transitions.graphs import DIAMOND, after, changed, drain_some, never, play, put
from tidewheel.errors import UnknownRun
from tidewheel.runs import RunState
from tidewheel.transitions.claim import Claim, claim_runs
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.parents import MAX_RESULTS_BYTES, ParentRun, read_parents

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
    with database.transaction() as connection:
        return {one.key: one for one in read_parents(connection, child, key=key)}


@pytest.mark.parametrize(
    ("result", "left_out"),
    [(None, False), (EIGHT_KIB, False), (b'"%s"' % (b"x" * (MAX_RESULTS_BYTES - 4)), True)],
    ids=["none", "8 KiB", "64 KiB and one byte together"],
)
def test_results_are_left_out_above_64_kib_together_and_read_one_by_one(
    database: Database,
    result: bytes | None,
    left_out: bool,  # noqa: FBT001
) -> None:
    put(database, DIAMOND)
    database.trigger("a")
    give(database, {"a": b"1"})
    give(database, {"b": result, "c": b"345"})
    found = parents(database, run_of(database, "d"))
    assert list(found) == ["b", "c"]
    for key, given in (("b", result), ("c", b"345")):
        one = found[key]
        assert (one.status, one.run_id, one.when) == ("succeeded", run_of(database, key), "success")
        assert (one.left_out, one.expired, one.result_bytes) == (left_out, False, len(given or b""))
        assert one.result == (None if left_out else given)
        assert parents(database, run_of(database, "d"), key)[key].result == given


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
