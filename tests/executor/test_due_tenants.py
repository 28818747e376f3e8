"""The sweep serves tenants by turns, whatever the backlog of one."""

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from uuid import UUID

import pytest
from psycopg.types.json import Jsonb

from tests.executor.test_claim import ENTER
from tests.executor.test_sweep import sweep_of
from tests.fixtures.acts import EXECUTOR, HANDLER, submission
from tests.fixtures.database import Database
from tidewheel.control.client.client import Client
from tidewheel.executor import due_tenants
from tidewheel.executor.due_tenants import DueTenants, deal
from tidewheel.executor.remote_executors import RemoteClaim, RemoteExecutors
from tidewheel.executor.slots import Slots
from tidewheel.executor.sweep import Sweep
from tidewheel.runs import Lane

BURST = 60
SLOTS = 40
TRIGGER = {"type": "job.trigger", "key": "job"}


@dataclass(frozen=True)
class Run:
    """A run, as far as it has a turn."""

    tenant: str
    number: int


@pytest.fixture
def burst(database: Database) -> Database:
    """A tenant with many due runs, and others with one younger run each."""
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
    remote = RemoteExecutors(burst.session(), burst.installation, notify=lambda _: None)
    mine = remote.register("theirs", ["default"], [HANDLER], BURST * 2, lease=timedelta(seconds=15))
    claimed = remote.claim(RemoteClaim(mine, 1, sweep=BURST * 2))
    assert tenants_of(burst, [one.run_id for one in claimed.started]) == {"default": BURST, "c": 1}


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
    remote = RemoteExecutors(burst.session(), burst.installation, notify=lambda _: None)
    mine = remote.register("theirs", ["default"], [HANDLER], SLOTS, lease=timedelta(seconds=15))
    claimed = remote.claim(RemoteClaim(mine, 1, sweep=SLOTS))
    found = tenants_of(burst, [one.run_id for one in claimed.started])
    assert found == {"b": 1, "c": 1, "default": SLOTS - 2}


def test_turns_are_dealt_by_weight_and_runs_of_a_tenant_keep_their_order() -> None:
    runs = [Run(tenant, number) for number in range(4000) for tenant in "abc"]
    dealt = deal(runs, {"b": 2, "c": 4}, Random(1).expovariate)  # noqa: S311 - no secret
    counts = Counter(run.tenant for run in dealt[:7000])
    assert [counts[tenant] for tenant in "abc"] == pytest.approx([1000, 2000, 4000], rel=0.1)
    assert [run.number for run in dealt if run.tenant == "a"] == [*range(4000)]


def test_sweep_of_remote_executors_skips_cancelled_runs(database: Database) -> None:
    """As the sweep of any executor does: a backlog of it would hide what is behind."""
    remote = RemoteExecutors(database.session(), database.installation, notify=lambda _: None)
    database.submit("cancelled", target="a")
    database.submit("wanted", target="a")
    for _ in range(2):
        database.trigger("cancelled")
    wanted = database.trigger("wanted")
    database.apply_batch({"type": "runs.cancel", "key": "cancelled"})
    database.execute("UPDATE job_runs SET publish_at = publish_at - interval '10 seconds'")
    mine = remote.register("theirs", ["default"], ["a"], 1, lease=timedelta(seconds=15))
    claimed = remote.claim(RemoteClaim(mine, 1, sweep=1))
    assert [one.run_id for one in claimed.started] == [wanted]


def test_sweep_of_remote_executors_skips_pending_cancels(database: Database) -> None:
    remote = RemoteExecutors(database.session(), database.installation, notify=lambda _: None)
    database.submit(target="a")
    cancelled, wanted = database.trigger(), database.trigger()
    with database.transaction() as holding:
        holding.execute("SELECT FROM job_runs WHERE run_id = %s FOR UPDATE", [cancelled])
        database.apply_batch({"type": "run.cancel", "run_id": str(cancelled)})
    database.execute("UPDATE job_runs SET publish_at = publish_at - interval '10 seconds'")
    mine = remote.register("theirs", ["default"], ["a"], 1, lease=timedelta(seconds=15))
    claimed = remote.claim(RemoteClaim(mine, 1, sweep=1))
    assert [one.run_id for one in claimed.started] == [wanted]
