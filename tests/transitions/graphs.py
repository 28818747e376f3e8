"""Steps of tests of workflows: submit a graph, end its runs, drain its releases, read the states."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tests.fixtures.acts import EXECUTOR, submission
from tests.fixtures.database import Database
from tidewheel.runs import RunState
from tidewheel.schemas.generated.records import Reply, ReplyStatus
from tidewheel.transitions.claim import Claim, claim_runs
from tidewheel.transitions.drain import drain
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd

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
    replies = database.apply_batch(*documents)
    assert {reply.status for reply in replies} == {ReplyStatus.ACCEPTED}, replies


def after(*parents: str) -> list[tuple[str, str]]:
    return [(parent, "success") for parent in parents]


class Aborted(Exception):
    """A transaction that is rolled back on purpose."""


@dataclass
class Chance:
    draws: random.Random
    share: float = 0.0
    aborted: int = 0

    def visit(self) -> None:
        if self.draws.random() < self.share:
            self.aborted += 1
            raise Aborted


def never() -> Chance:
    return Chance(random.Random(0))  # noqa: S311 - no draw matters


def end_some(
    database: Database, decide: Callable[[str], RunState], chance: Chance, limit: int = 20, **error: str
) -> int:
    """Claim and end queued runs as their jobs' keys decide; failed ones with this error."""
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
            ends = [end._replace(**error) if end.state is RunState.FAILED else end for end in ends]
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


def play(database: Database, decide: Callable[[str], RunState] = lambda _: RunState.SUCCEEDED, **error: str) -> None:
    """End runs and drain their releases until nothing is left to do."""
    while end_some(database, decide, never(), 1000, **error) + drain_some(database, never()):
        pass


def states(database: Database, root: UUID) -> dict[str, str]:
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
    meets = {"success": {"succeeded"}, "failure": {"failed", "timed_out"}}
    found: dict[str, str] = {}
    for key, parents in graph.items():
        met = all(when == "always" or found[parent] in meets[when] for parent, when in parents)
        found[key] = str(decide(key)) if met else "skipped"
    return found


DIAMOND: Parents = {"a": [], "b": after("a"), "c": after("a"), "d": after("b", "c")}


def end_and_drain(database: Database, limit: int = 20) -> None:
    end_some(database, lambda _: RunState.SUCCEEDED, never(), limit)
    drain_some(database, never())


def scheduled_at(database: Database, run: UUID) -> datetime:
    [(at,)] = database.rows("SELECT scheduled_at FROM runs WHERE run_id = %s", [run])
    return at


def latest_states(database: Database, root: UUID) -> dict[str, str]:
    rows = database.rows(
        "SELECT j.key, r.state FROM runs r JOIN jobs j USING (job_id) WHERE workflow_run_id = %s ORDER BY generation",
        [root],
    )
    return dict(rows)


def change(database: Database, kind: str, root: UUID, **fields: object) -> Reply:
    return database.apply({"type": f"workflow.{kind}", "run_id": str(root)} | fields)


def changed(database: Database, kind: str, root: UUID) -> bool:
    return not database.accept({"type": f"workflow.{kind}", "run_id": str(root)}).unchanged


def fails_at(*failing: str) -> Callable[[str], RunState]:
    return lambda key: RunState.FAILED if key in failing else RunState.SUCCEEDED
