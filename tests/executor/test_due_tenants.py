"""The sweep serves tenants by turns, whatever the backlog of one."""

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any, LiteralString, cast
from uuid import UUID

import pytest
from psycopg.types.json import Jsonb

from tests.executor.running import ENTER
from tests.executor.test_sweep import sweep_of
from tests.fixtures.acts import EXECUTOR, HANDLER, submission
from tests.fixtures.database import Database
from tests.tidewheel.postgres.test_sql_plans import nodes
from tidewheel.control.client.client import Client
from tidewheel.executor import due_tenants
from tidewheel.executor.due_tenants import DueTenants, deal
from tidewheel.executor.remote_executors import RemoteClaim, RemoteExecutors
from tidewheel.executor.slots import Slots
from tidewheel.executor.sweep import Sweep
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Lane, Move, sources

BURST = 60
SLOTS = 40
TRIGGER = {"type": "job.trigger", "key": "job"}
TENANTS = 1500
LOOKED_AT = 512
PAUSED = TENANTS // 3
_ADD_TENANTS: LiteralString = """
WITH added AS (
    INSERT INTO tenants (tenant) SELECT 'tenant-' || n FROM generate_series(1, %(tenants)s) AS n RETURNING tenant
)
INSERT INTO job_runs (run_id, job_id, tenant, shard, queue, lane, handler, cause, overlap, state, job_version,
                      scheduled_at, publish_at, created_at)
SELECT gen_random_uuid(), j.job_id, a.tenant, j.shard, 'default', 'standard', %(handler)s, 'trigger', 'allow_all',
       'queued', 1, tidewheel_now(), tidewheel_now() - interval '5 s', tidewheel_now()
  FROM added AS a, jobs AS j, generate_series(1, %(runs)s)
 WHERE j.key = 'job'
"""


@dataclass(frozen=True)
class Run:
    """A run, as far as it has a turn."""

    tenant: str
    number: int


@pytest.fixture
def burst(database: Database) -> Database:
    with Client(database.url) as client:
        for tenant in ("b", "c"):
            client.tenants.create(tenant)
    database.apply_batch(*(submission("job") | {"tenant": tenant} for tenant in ("default", "b", "c")))
    database.apply_batch(*[TRIGGER] * BURST, *(TRIGGER | {"tenant": tenant} for tenant in ("b", "c")))
    database.execute(
        "UPDATE job_runs"
        "   SET publish_at = tidewheel_now() - (CASE tenant WHEN 'default' THEN 5 ELSE 2 END) * interval '1 s'"
    )
    database.execute(ENTER, [EXECUTOR])
    return database


def sweeping(database: Database, started: list[UUID], every: timedelta) -> Sweep:
    return sweep_of(
        database,
        Slots(SLOTS),
        lambda claimed: started.extend(run.run_id for run, *_ in claimed),
        every=every,
        idle=True,
    )


def tenants_of(database: Database, runs: list[UUID]) -> Counter[str]:
    rows = database.rows("SELECT tenant FROM job_runs WHERE run_id = ANY (%s)", [runs])
    return Counter(tenant for (tenant,) in rows)


def test_each_tenant_gets_a_slot_beside_the_backlog_of_another(burst: Database) -> None:
    """The oldest runs are all of one tenant. Each poll may leave out another one by chance: once in 2^30."""
    started = list[UUID]()
    sweeping(burst, started, timedelta(seconds=1)).step()
    found = tenants_of(burst, started)
    assert (found["b"], found["c"]) == (1, 1)
    assert found["default"] >= SLOTS // 2


def test_tenants_whose_runs_cannot_start_leave_their_turns_to_others(
    burst: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is paused, one has a run for a handler elsewhere, a third so many that others may follow."""
    with Client(burst.url) as client:
        client.tenants.create("d")
        client.tenants.pause("d")
    burst.apply_batch(submission("job") | {"tenant": "d"})
    burst.apply_batch(*[TRIGGER | {"tenant": "d"}] * 3, *[TRIGGER | {"tenant": "c"}] * 21)
    burst.execute(
        "UPDATE job_runs SET handler = 'elsewhere', publish_at = tidewheel_now() - interval '3 s'"
        " WHERE tenant IN ('b', 'c')"
    )
    burst.execute(
        "UPDATE job_runs SET handler = %s, publish_at = publish_at + interval '1 s'"
        " WHERE run_id = (SELECT run_id FROM job_runs WHERE tenant = 'c' LIMIT 1)",
        [HANDLER],
    )
    burst.execute("UPDATE job_runs SET publish_at = tidewheel_now() - interval '3 s' WHERE tenant = 'd'")
    monkeypatch.setattr(due_tenants, "_MOST_TENANTS", 2)
    monkeypatch.setattr(due_tenants, "_DOUBTFUL", 1)
    tenants = DueTenants(burst.session(), ["default"], [HANDLER], timedelta(seconds=1))
    tenants.refresh()
    parts, left_out = tenants.parts([("default", Lane.STANDARD, SLOTS)])
    assert ([part.tenant for part in parts], left_out) == (["default", "c"], False)
    monkeypatch.setattr(due_tenants, "_MOST_TENANTS", 1)
    monkeypatch.setattr(due_tenants, "_DOUBTFUL", 0)
    parts, left_out = tenants.parts([("default", Lane.STANDARD, SLOTS)])
    assert ([part.tenant for part in parts], left_out) == (["default"], True)
    started = claim_remotely(burst, BURST * 2)
    assert tenants_of(burst, started) == {"default": BURST, "c": 1}


def claim_remotely(database: Database, slots: int, handler: str = HANDLER) -> list[UUID]:
    """Sweep as an executor over REST; return the runs that it gets."""
    remote = RemoteExecutors(database.session(), database.installation, notify=lambda _: None)
    mine = remote.register("theirs", ["default"], [handler], slots, lease=timedelta(seconds=15))
    return [one.run_id for one in remote.claim(RemoteClaim(mine, 1, sweep=slots)).started]


def test_run_of_a_lane_that_is_held_back_is_swept_after_a_quarter_of_a_second(burst: Database) -> None:
    started = list[UUID]()
    sweep = sweeping(burst, started, timedelta(seconds=60))
    sweep.step()
    assert not started
    burst.execute(
        "INSERT INTO members (member_id, role, name, last_heartbeat_at, started_at, held)"
        " VALUES (gen_random_uuid(), 'relay', 'r', tidewheel_now(), tidewheel_now(), %s)",
        [Jsonb([{"queue": "default", "lane": "standard"}])],
    )
    sweeping(burst, started, timedelta(seconds=60)).step()
    assert len(started) >= SLOTS // 2


def test_remote_executor_gets_a_run_of_each_tenant(burst: Database) -> None:
    started = claim_remotely(burst, SLOTS)
    found = tenants_of(burst, started)
    assert found == {"b": 1, "c": 1, "default": SLOTS - 2}


def test_turns_are_dealt_by_weight_and_runs_of_a_tenant_keep_their_order() -> None:
    runs = [Run(tenant, number) for number in range(4000) for tenant in "abc"]
    dealt = deal(runs, {"b": 2, "c": 4}, Random(1).expovariate)  # noqa: S311 - no secret
    counts = Counter(run.tenant for run in dealt[:7000])
    assert [counts[tenant] for tenant in "abc"] == pytest.approx([1000, 2000, 4000], rel=0.1)
    assert [run.number for run in dealt if run.tenant == "a"] == [*range(4000)]


@pytest.fixture
def many(fresh_database: Database) -> Database:
    fresh_database.submit(overlap="allow_all")
    fresh_database.execute(_ADD_TENANTS, {"tenants": TENANTS, "runs": 3, "handler": HANDLER})
    fresh_database.execute(
        "INSERT INTO freezes (tenant) SELECT 'tenant-' || n FROM generate_series(1, %s) AS n", [PAUSED]
    )
    fresh_database.execute("VACUUM ANALYZE")
    return fresh_database


def read_by(database: Database, statement: str, **columns: object) -> Counter[str]:
    """Execute a statement of executors; return the looks at each table, and of freezes the rows."""
    served = [("default", lane) for lane in Lane]
    facts = {
        "queues": [queue for queue, _ in served],
        "lanes": [lane for _, lane in served],
        "handlers": [HANDLER],
        "sources": sources(Move.CLAIM),
    }
    explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {Statements('tidewheel.executor')[statement]}"
    with database.transaction() as connection:
        [(found,)] = cast("list[Any]", connection.execute(explain.encode(), facts | columns).fetchall())
    looks = Counter[str]()
    for node in nodes(found[0]["Plan"]):
        if table := node.get("Relation Name"):
            rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0) if table == "freezes" else 1
            looks[table] += round(node["Actual Loops"] * rows)
    return looks


def test_claim_beside_many_tenants_looks_at_the_runs_of_few(many: Database) -> None:
    """The look at all of 3,000 tenants, and at all freezes for each of their runs, took 0.6 s."""
    looks = read_by(many, "find_due_handled", limit=100, min_age=timedelta(0), acts_for=None)
    assert looks["job_runs"] < TENANTS + 2 * LOOKED_AT
    assert looks["freezes"] < 10 * PAUSED
    looks = read_by(many, "find_due_handled", limit=100, min_age=timedelta(0), acts_for=f"tenant-{TENANTS}")
    assert looks["job_runs"] < 10
    assert read_by(many, "find_due_tenants")["freezes"] < 10 * PAUSED


def test_remote_executor_gets_the_run_of_the_only_tenant_among_many_that_it_can_start(many: Database) -> None:
    many.execute("UPDATE job_runs SET handler = 'elsewhere'")
    many.execute(
        "UPDATE job_runs SET handler = %s WHERE run_id = (SELECT run_id FROM job_runs WHERE tenant = %s LIMIT 1)",
        [HANDLER, f"tenant-{TENANTS}"],
    )
    started = claim_remotely(many, SLOTS)
    assert tenants_of(many, started) == {f"tenant-{TENANTS}": 1}


@pytest.mark.parametrize("locked", [False, True], ids=["by filter", "pending"])
def test_sweep_of_remote_executors_skips_cancelled_runs(database: Database, *, locked: bool) -> None:
    """As the sweep of any executor does: a backlog of it would hide what is behind."""
    database.submit("cancelled", target="a")
    database.submit("wanted", target="a")
    cancelled, other, wanted = (database.trigger(key) for key in ("cancelled", "cancelled", "wanted"))
    if locked:
        database.apply_batch({"type": "run.cancel", "run_id": str(other)})
        with database.transaction() as holding:
            holding.execute("SELECT FROM job_runs WHERE run_id = %s FOR UPDATE", [cancelled])
            database.apply_batch({"type": "run.cancel", "run_id": str(cancelled)})
    else:
        database.apply_batch({"type": "runs.cancel", "key": "cancelled"})
    database.execute("UPDATE job_runs SET publish_at = publish_at - interval '10 seconds'")
    [started] = claim_remotely(database, 1, handler="a")
    assert started == wanted
