"""Figures of ended runs: counted after the commit, written each 5 seconds, merged as they age."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest

from tests.fixtures.acts import ending
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tidewheel import activity as counting
from tidewheel.activity import Activity, Class, Stage, activity, begin_of, quantile, unpack_stages
from tidewheel.postgres.session import Session
from tidewheel.presence import Presence
from tidewheel.process.service import Shutdown
from tidewheel.runs import RunState
from tidewheel.scheduler import retention
from tidewheel.scheduler.removals import Pace
from tidewheel.scheduler.retention import merge_activity
from tidewheel.settings.services import SchedulerSettings
from tidewheel.transitions.finish import finish_runs

COUNTS = "SELECT state, sum(runs)::integer FROM activity GROUP BY state ORDER BY state"


@pytest.fixture(autouse=True)
def nothing_counted(database: Database) -> Iterator[None]:
    """The counts of this process are those of the test alone."""
    write(database)
    database.execute("DELETE FROM activity")
    yield
    write(database)


def write(database: Database) -> None:
    database.within(activity.write)


def finish(session: Session, database: Database, key: str = "job", state: RunState = RunState.SUCCEEDED) -> UUID:
    """End a run as a service does, in a transaction of a session."""
    started = database.begun(key)
    session.within(finish_runs, database.installation, [ending(started, state, error_type="E")])
    return started.run_id


def test_ended_runs_are_counted_by_class_with_their_lateness(database: Database, session: Session) -> None:
    database.submit("job", retry={"max_attempts": 1})
    runs = [finish(session, database) for _ in range(3)]
    finish(session, database, state=RunState.FAILED)
    write(database)
    assert database.rows(COUNTS) == [("failed", 1), ("succeeded", 3)]
    [(tenant, queue, lane, took, slowest, stages)] = database.rows(
        "SELECT tenant, queue, lane, took, slowest, stages FROM activity WHERE state = 'succeeded'"
        " ORDER BY runs DESC LIMIT 1"
    )
    assert (tenant, queue, lane) == ("default", "default", "standard")
    assert set(slowest) <= set(runs)
    assert took == sorted(took, reverse=True)
    found = unpack_stages([(each >> 32, each & 0xFFFFFFFF) for each in stages])
    assert found[Stage.CLAIMED].total() == found[Stage.ENDED].total() == len(slowest)
    assert quantile(found[Stage.ENDED], 0.5) is not None
    assert not found[Stage.WRITTEN], "a triggered run has no instant of a schedule"


def test_rolled_back_end_is_not_counted(database: Database, session: Session) -> None:
    database.submit()
    started = database.begun()
    with suppress(ZeroDivisionError), session.transaction() as connection:
        finish_runs(connection, database.installation, [ending(started, RunState.SUCCEEDED)])
        raise ZeroDivisionError
    with session.transaction() as connection:
        connection.execute("SELECT 1")
    write(database)
    assert database.count("activity") == 0


def test_process_writes_its_figures_and_the_last_ones_when_it_stops(database: Database, session: Session) -> None:
    database.submit()
    presence = Presence(database.url, SchedulerSettings.load(), role="scheduler", process_id=uuid4())
    finish(session, database)
    presence.start()
    until(lambda: database.count("activity") == 1, "its figures are written")
    finish(session, database)
    presence.leave()
    assert database.rows(COUNTS) == [("succeeded", 2)]


def test_figures_that_cannot_be_written_cost_no_heartbeat(database: Database, session: Session) -> None:
    database.submit()
    finish(session, database)
    database.execute("ALTER TABLE activity RENAME TO away")
    presence = Presence(database.url, SchedulerSettings.load(), role="scheduler", process_id=uuid4())
    presence.start()
    until(lambda: database.count("processes") == 1, "it has a row")
    presence.leave()
    database.execute("ALTER TABLE away RENAME TO activity")
    assert database.count("processes") == 0
    write(database)
    assert database.count("activity") == 0


def test_three_slowest_runs_of_a_class_are_kept(database: Database) -> None:
    figures = Activity().of(_class(database.now()))
    for seconds in (3, 9, 1, 7, 5):
        figures.ran([(seconds, str(seconds))])
    figures.ran([(5, "later")])
    assert figures.slowest == [(9, "9"), (7, "7"), (5, "5")]


def test_counts_that_nobody_writes_are_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MOST", 3)
    database.execute("INSERT INTO tenants (tenant) VALUES ('a'), ('b'), ('c'), ('d')")
    made = Activity()
    for tenant in "abcd":
        made.of(_class(database.now())._replace(tenant=tenant)).runs += 1
    database.within(made.write)
    assert database.rows("SELECT tenant, runs FROM activity") == [("d", 1)]


def test_figures_of_a_tenant_that_is_deleted_are_dropped(database: Database) -> None:
    made = Activity()
    for tenant in ("default", "gone"):
        made.of(_class(database.now())._replace(tenant=tenant)).runs += 1
    database.within(made.write)
    assert database.rows("SELECT tenant, runs FROM activity") == [("default", 1)]


def test_old_figures_are_merged_and_stay_the_same_in_sum(database: Database) -> None:
    now = database.now()
    for minutes in (1, 130, 131, 131, 60 * 49, 60 * 49 + 1):
        _add(database, now - timedelta(minutes=minutes), took=float(minutes))
    before = database.rows("SELECT sum(runs), sum(u.packed & 4294967295) FROM activity, unnest(stages) AS u (packed)")
    merge = Session(database.url, "merge", autocommit=True)
    with merge.transaction() as connection:
        merge_activity(connection, now, Pace(Shutdown()))
        merge_activity(connection, now, Pace(Shutdown()))
    merge.close()
    after = database.rows("SELECT sum(runs), sum(u.packed & 4294967295) FROM activity, unnest(stages) AS u (packed)")
    assert before == after
    assert database.rows("SELECT grain, count(*) FROM activity GROUP BY grain ORDER BY grain")[0] == (0, 1)
    assert {grain for (grain,) in database.rows("SELECT DISTINCT grain FROM activity")} == {0, 1, 2}
    hours = database.rows(
        "SELECT at = date_trunc('hour', at), took[1] FROM activity WHERE grain = 2 ORDER BY took[1] DESC"
    )
    assert hours[0] == (True, 60.0 * 49 + 1)


def test_each_statement_merges_the_figures_of_some_tenants(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_TENANTS", 2)
    now = database.now()
    tenants = ["acme", "default", "<script>", "other", "z" * 63]
    for tenant in tenants:
        for seconds in (0, 5):
            _add(database, begin_of(now) - timedelta(hours=3, seconds=seconds), took=1.0, tenant=tenant)
    stopped = Shutdown()
    stopped.request()
    merge = Session(database.url, "merge", autocommit=True)
    with merge.transaction() as connection:
        merge_activity(connection, now, Pace(stopped))
        assert database.rows("SELECT count(DISTINCT tenant) FROM activity WHERE grain = 1") == [(2,)]
        merge_activity(connection, now, Pace(Shutdown()))
    merge.close()
    found = dict(database.rows("SELECT tenant, sum(runs) FROM activity WHERE grain = 1 GROUP BY tenant"))
    assert found == dict.fromkeys(tenants, 4)


def _class(at: datetime) -> Class:
    return Class(begin_of(at), "default", "default", "standard", "succeeded")


def _add(database: Database, at: datetime, *, took: float, tenant: str = "default") -> None:
    database.execute(
        "INSERT INTO activity (tenant, at, grain, queue, lane, state, runs, stages, took, slowest)"
        " VALUES (%s, %s, 0, 'default', 'standard', 'succeeded', 2, ARRAY[(5::bigint << 32) + 2],"
        " ARRAY[%s::float8], ARRAY[gen_random_uuid()])",
        [tenant, begin_of(at), took],
    )
