"""The deletion of a tenant: its runs end, its rows go, its requests are refused, its name is reserved."""

import math
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import timedelta
from http import HTTPStatus
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from psycopg import sql

from tests.control.api.answering import answer_of, answering
from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.acts import ending, submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.services import until
from tests.scheduler.test_retention import Killed
from tidewheel.control.client.client import Client
from tidewheel.errors import InvalidInput, TenantDeleted, UnknownTenant
from tidewheel.migrations.runner import created_names
from tidewheel.postgres.statements import trusted
from tidewheel.process.logs import faults
from tidewheel.runs import RunState
from tidewheel.scheduler import tenant_deletions as module
from tidewheel.scheduler import tenant_rows
from tidewheel.scheduler.cancels import CancelResult, PendingCancels
from tidewheel.scheduler.releases import Releases
from tidewheel.scheduler.tenant_deletions import TenantDeletions
from tidewheel.scheduler.tenant_rows import KEPT
from tidewheel.schemas.generated.records import Reply, ReplyStatus

ACME = {"tenant": "acme"}
KEEP = timedelta(days=90)

_WITH_TENANT = """
SELECT c.relname::text
  FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'tenant'
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
 ORDER BY 1
"""
_COLUMNS = """
SELECT a.attname::text, format_type(a.atttypid, NULL)
  FROM pg_attribute AS a
 WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped AND a.attnotnull AND a.attidentity = ''
   AND a.attgenerated = '' AND a.attname <> 'tenant'
"""
_CONSTRAINTS = """
SELECT conrelid::regclass::text, conname::text FROM pg_constraint
 WHERE connamespace = 'public'::regnamespace AND contype IN ('c', 'f') AND conparentid = 0 AND conislocal
"""
_WAITING = "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'tenant_deletions'::regclass AND NOT granted)"
# A value of each type, for columns that need one; of a kind that no other row has.
_VALUES = {
    "uuid": "gen_random_uuid()",
    "text": "gen_random_uuid()::text",
    "bytea": "'x'::bytea",
    "jsonb": "'{}'::jsonb",
    "boolean": "false",
    "timestamp with time zone": "tidewheel_now() - %(ago)s",
    "date": "(tidewheel_now() - %(ago)s)::date",
    "bigint": "(random() * 1e15)::bigint",
    "integer": "(random() * 1e9)::integer",
    "smallint": "(random() * 1e4)::smallint",
    "double precision": "random()",
}


def tables(database: Database) -> list[str]:
    """Return every table with a tenant, from the catalog: so no new one is forgotten."""
    found = [name for (name,) in database.rows(_WITH_TENANT)]
    assert set(found) <= set(created_names())
    assert len(found) > 35
    return found


def rows_by_table(database: Database, tenant: str) -> dict[str, int]:
    """Return the number of rows of a tenant in each table that has any and keeps none of a deleted one."""
    found: dict[str, int] = {}
    for table in tables(database):
        query = sql.SQL("SELECT count(*) FROM {} WHERE tenant = %s").format(sql.Identifier(table))
        [(number,)] = database.rows(query, [tenant])
        if number and table not in KEPT - {"job_runs"}:
            found[table] = number
    return found


def fill(database: Database, *tenants: str) -> None:
    """Insert rows of these tenants into every table that the removal goes over, of today and of yesterday."""
    for table, constraint in database.rows(_CONSTRAINTS):
        name = sql.Identifier(table), sql.Identifier(constraint)
        database.execute(sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(*name))
    for table in set(tables(database)) - KEPT - {"tenants"}:
        columns = database.rows(_COLUMNS, [table])
        names = sql.SQL(", ").join(map(sql.Identifier, ["tenant", *(name for name, _ in columns)]))
        values = [_VALUES.get(kind, f"'{{}}'::{kind}") for _, kind in columns]
        insert = sql.SQL("INSERT INTO {} ({}) SELECT {} ON CONFLICT DO NOTHING").format(
            sql.Identifier(table),
            names,
            sql.SQL(trusted(", ".join(["%(tenant)s", *values]))),
        )
        for tenant in tenants:
            for days in range(2):
                database.execute(insert, {"tenant": tenant, "ago": timedelta(days=days)})


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    with Client(database.url) as made:
        made.tenants.create("acme")
        yield made


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no step wait for the next one, and make all batches small."""
    for name, value in {
        "_SHARE_SECONDS": 0.05, "_POLL_SECONDS": 0.0, "_WAIT_SECONDS": 0.0, "_JOBS": 2, "_SCANNED_JOBS": 5, "_RUNS": 2,
        "_WORKFLOWS": 1,
    }.items():  # fmt: skip
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(tenant_rows, "_REMOVED_ROWS", 3)
    monkeypatch.setattr(tenant_rows, "_PAGES", 1)


def stepper(database: Database) -> TenantDeletions:
    return TenantDeletions(database.session(), database.installation, KEEP)


def work(database: Database, state: str, *, most: int = 300) -> None:
    """Do a scheduler's duties until the deletion of acme has this state."""
    deletions, cancels = stepper(database), PendingCancels(database.session(), database.installation)
    releases = Releases(database.session(), database.installation)
    for _ in range(most):
        if database.value("SELECT state FROM tenant_deletions WHERE tenant = 'acme'") == state:
            return
        deletions.work()
        cancels.step()
        releases.step(range(64))
    raise AssertionError(rows_by_table(database, "acme"))


def is_removed(database: Database) -> bool:
    return bool(database.value("SELECT state = 'removed' FROM tenant_deletions"))


def send(database: Database, **document: object) -> Reply:
    [reply] = database.apply_batch(document | ACME)
    return reply


def accept(database: Database, **document: object) -> Reply:
    reply = send(database, **document)
    assert reply.status is ReplyStatus.ACCEPTED, reply.errors
    return reply


def run_of(reply: Reply) -> UUID:
    return UUID(reply.run_id)


def set_up(database: Database) -> dict[str, Any]:
    """Give acme work of each kind; return the runs of which the tests speak."""
    accept(database, **submission("plain", overlap="allow_all"))
    accept(database, **submission("called"))
    accept(database, **submission("other", concurrency_key={"key": "shared", "at_once": 1}))
    accept(database, **submission("hourly", schedule={"cron": "0 * * * *"}))
    accept(database, **submission("root"))
    accept(database, **submission("child", schedule={"after": [{"job": "root"}]}))
    accept(database, **submission("leaf", schedule={"after": [{"job": "child", "when": "always"}]}))
    trigger = {"type": "job.trigger", "key": "plain"}
    running = database.begin(run_of(accept(database, **trigger, request_id="r-1")))
    queued = run_of(accept(database, **trigger, payload={"order": 7}))
    delayed = run_of(accept(database, **trigger, delay="1h", dedupe={"key": "k", "window": "1h", "mode": "reject"}))
    root = database.begin(run_of(accept(database, type="job.trigger", key="root")))
    database.end(ending(root, RunState.SUCCEEDED))
    Releases(database.session(), database.installation).step(range(64))
    accept(
        database,
        type="batch.submit",
        open=True,
        runs=[{"ref": "one", "key": "other"}],
        on={"finished": {"key": "called"}},
    )
    accept(database, type="freeze", queue="reports")
    return {"running": running, "queued": queued, "delayed": delayed}


def test_all_that_is_under_way_ends_and_no_row_is_left(client: Client, database: Database) -> None:
    runs = set_up(database)
    with Client(database.url, tenant="acme") as acme:
        key = acme.api_keys.create("ops", ["admin"])
        acme.limits.set("shared", at_once=2)
    database.apply_batch(submission("plain"))
    before = rows_by_table(database, "default")
    assert client.tenants.delete("acme", grace=timedelta(0))
    assert not client.tenants.delete("acme", grace=timedelta(0))
    assert client.tenants.get("acme").state == "deleting"
    assert database.value("SELECT revoked_at IS NOT NULL FROM api_keys WHERE key_id = %s", [key.summary.key_id])
    # Nothing of it is accepted or starts.
    assert send(database, type="job.trigger", key="plain", request_id="late").code == "tenant_deleted"
    assert database.claim(runs["queued"]).started == []
    # The running attempt gets the signal; the deletion waits for its end.
    with pytest.raises(AssertionError):
        work(database, "removing", most=30)
    assert [kind for (kind,) in database.rows("SELECT kind FROM signals WHERE tenant = 'acme'")] == ["cancel"]
    assert rows_by_table(database, "acme")["job_runs"] == 1
    database.end(ending(runs["running"], RunState.CANCELLED))
    work(database, "removing")
    cancelled = {each.run_id for each in database.completions() if each.tenant == "acme" and each.status == "cancelled"}
    assert {str(run) for run in (runs["queued"], runs["delayed"], runs["running"].run_id)} <= cancelled
    deleted = [each.job_key for each in database.lifecycle() if each.type == "io.tidewheel.job.deleted.v1"]
    assert sorted(deleted) == ["called", "child", "hourly", "leaf", "other", "plain", "root"]
    work(database, "removed")
    assert rows_by_table(database, "acme") == {}
    assert rows_by_table(database, "default") == before
    assert database.value("SELECT count(*) FROM audit_log WHERE tenant = 'acme'") > 0
    found = client.tenants.get("acme").deletion
    assert found is not None
    assert (found.jobs, found.removed["jobs"], found.removed["workflows"]) == (7, 7, 2)
    assert found.finished_at is not None
    assert found.free_at is not None
    assert abs(found.free_at - found.finished_at - KEEP) < timedelta(seconds=1)


def test_every_table_is_emptied_of_the_tenant_alone_whatever_dies(
    fresh_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third transaction is lost before its commit, and each process dies after one step."""
    database = fresh_database
    with Client(database.url) as client:
        client.tenants.create("acme")
        database.apply_batch(*(submission(f"job/{number}") | ACME for number in range(5)))
        client.tenants.delete("acme", grace=timedelta(0))
    visits = count()

    def die(point: str) -> None:
        if point == "deleting.before_commit" and next(visits) % 3 == 2:
            raise Killed

    monkeypatch.setattr(module, "failpoint", die)

    session = database.session()

    def step() -> None:
        with suppress(Killed):
            TenantDeletions(session, database.installation, KEEP).work()

    while database.value("SELECT jobs FROM tenant_deletions") < 5:
        step()
    work_on = stepper(database)  # a pass that stops a tenant is in memory: one process has to see it whole
    while database.value("SELECT state FROM tenant_deletions") == "stopping":
        with suppress(Killed):
            work_on.work()
    fill(database, "acme", "rival")
    filled = rows_by_table(database, "acme")
    assert set(filled) == set(tables(database)) - KEPT - {"tenants"}
    before = rows_by_table(database, "rival")
    for _ in range(2000):
        if database.value("SELECT state FROM tenant_deletions") == "removed":
            break
        step()
    assert rows_by_table(database, "acme") == {}
    assert rows_by_table(database, "rival") == before
    removed = database.value("SELECT removed FROM tenant_deletions")
    assert {table: removed[table] for table in filled} == filled


def test_what_a_transaction_writes_that_began_before_goes_too(client: Client, database: Database) -> None:
    deletions = stepper(database)
    with database.transaction() as connection:
        [reply] = database.apply_batch_within(connection, submission("late", schedule="@every 1s") | ACME)
        assert reply.status is ReplyStatus.ACCEPTED
        client.tenants.delete("acme", grace=timedelta(0))
        for _ in range(10):
            deletions.work()
        assert database.value("SELECT state FROM tenant_deletions") == "stopping"
    assert rows_by_table(database, "acme")["jobs"] == 1
    work(database, "removed")
    assert rows_by_table(database, "acme") == {}


def test_firing_waits_for_no_deletion(database: Database) -> None:
    """Its thread waits here for a table; the loop goes on, and gets the result later."""
    with Client(database.url) as client:
        client.tenants.create("acme")
        accept(database, **submission("job"))
        client.tenants.delete("acme", grace=timedelta(0))
    with (
        closing(TenantDeletions(database.session("background"), database.installation, KEEP)) as deletions,
        database.transaction() as connection,
    ):
        assert deletions.step(deletes=False) == (CancelResult(), math.inf)
        connection.execute("LOCK TABLE tenant_deletions")
        deletions.step(deletes=True)
        until(lambda: database.value(_WAITING), "the deletion waits")
        assert deletions.step(deletes=True)[0] == CancelResult()
        connection.rollback()
        until(lambda: deletions.step(deletes=True) and is_removed(database), "it ends")
    assert rows_by_table(database, "acme") == {}


def test_refusals_name_the_field_and_the_time_from_which_the_name_is_free(clocked: ClockedDatabase) -> None:
    database = clocked
    with Client(database.url) as client:
        client.tenants.create("acme")
        with pytest.raises(InvalidInput, match="default cannot be deleted"):
            client.tenants.delete("default")
        with pytest.raises(UnknownTenant):
            client.tenants.delete("nobody")
        for grace in (timedelta(seconds=-1), timedelta(days=401)):
            with pytest.raises(InvalidInput, match=r"grace: .*; write 0s to 400d"):
                client.tenants.delete("acme", grace=grace)
        refused = tidewheel(database, "admin", "tenant", "delete", "acme").refusals
        assert [line.partition(":")[0] for line in refused] == ["--yes"]
        now = tidewheel(database, "admin", "tenant", "delete", "acme", "--yes", "--grace", "0s").lines[0]
        assert "is being deleted" in now
        with pytest.raises(TenantDeleted, match="is being deleted"):
            client.tenants.create("acme")
        with pytest.raises(TenantDeleted):
            client.tenants.limit("acme", jobs=1)
        work(database, "removed")
        found = client.tenants.get("acme")
        assert found.state == "deleted"
        with pytest.raises(TenantDeleted, match="reserved until 20") as reserved:
            client.tenants.create("acme")
        [error] = reserved.value.errors
        assert (error.path, f"{found.deletion.free_at:%Y-%m-%d}" in error.remedy) == ("tenant", True)  # type: ignore[union-attr]
        with answering(database) as http:
            listed = answer_of(http.get("/api/v1/tenants"))["tenants"]
            assert [each["tenant"] for each in listed] == ["acme", "default"]
            assert answer_of(http.get("/api/v1/tenants/acme")) == json_output(
                database, "admin", "tenant", "show", "acme"
            )
            assert http.get("/api/v1/jobs?tenant=acme").json()["code"] == "tenant_deleted"
            told = http.post("/api/v1/tenants", json={"tenant": "acme"})
            assert (told.status_code, told.json()["errors"][0]["path"]) == (409, "tenant")
            http.post("/api/v1/tenants", json={"tenant": "free"})
            for body in (None, {}, {"tenant": "default"}):
                asked = http.request("DELETE", "/api/v1/tenants/free", json=body)
                assert asked.status_code in {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}, asked.text
                assert answer_of(http.get("/api/v1/tenants/free"))["delete_at"] is None
            later = http.request("DELETE", "/api/v1/tenants/free", json={"tenant": "free"})
            assert (later.status_code, later.json()["unchanged"]) == (202, False)
            assert later.json()["tenant"]["deletion"] is None
            assert later.json()["tenant"]["delete_at"] > f"{database.now():%Y-%m-%dT%H}"
            assert answer_of(http.post("/api/v1/tenants/free:undelete"))["tenant"]["delete_at"] is None
            gone = http.request("DELETE", "/api/v1/tenants/free", json={"tenant": "free", "grace": "0s"})
            assert (gone.status_code, gone.json()["unchanged"]) == (202, False)
            assert gone.json()["tenant"]["deletion"]["finished_at"] is None
        database.advance(KEEP + timedelta(seconds=1))
        assert client.tenants.create("acme")
        assert client.tenants.get("acme").deletion is None


def test_a_run_that_cannot_be_ended_stops_no_other(
    client: Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AFTER_FAILURE_SECONDS", 0.0)
    accept(database, **submission("job", overlap="allow_all"))
    runs = sorted(run_of(accept(database, type="job.trigger", key="job")) for _ in range(5))
    ending_all = module.end_candidates
    broken = {runs[2]}

    def fail(connection: Any, installation: Any, rows: Any, reason: str) -> Any:  # noqa: ANN401
        if broken & {row.run_id for row in rows}:
            raise ValueError
        return ending_all(connection, installation, rows, reason)

    monkeypatch.setattr(module, "end_candidates", fail)
    client.tenants.delete("acme", grace=timedelta(0))
    with pytest.raises(AssertionError):
        work(database, "removing", most=20)
    assert database.rows("SELECT run_id FROM job_runs") == [(runs[2],)]
    broken.clear()
    work(database, "removed")


def test_a_tenant_whose_deletion_fails_stops_no_other(fresh_database: Database) -> None:
    with Client(fresh_database.url) as client:
        for tenant in ("acme", "zeta"):
            client.tenants.create(tenant)
        accept(fresh_database, **submission("job"))
        fresh_database.execute("ALTER TABLE jobs ADD CHECK (deleted_at IS NULL)")
        for tenant in ("acme", "zeta"):
            client.tenants.delete(tenant, grace=timedelta(0))
    deletions = stepper(fresh_database)
    for _ in range(50):
        deletions.work()
    states = fresh_database.rows("SELECT tenant, state FROM tenant_deletions ORDER BY tenant")
    assert states == [("acme", "stopping"), ("zeta", "removed")]
    assert "deletion of tenant acme" in str(faults.why_not_ready())


def test_a_deletion_waits_a_day_in_which_nothing_of_the_tenant_changes(clocked: ClockedDatabase) -> None:
    with Client(clocked.url) as client:
        client.tenants.create("acme")
        clocked.apply_batch(submission("job") | ACME)
        before = rows_by_table(clocked, "acme")
        assert client.tenants.delete("acme")
        assert not client.tenants.delete("acme")
        tenant = client.tenants.get("acme")
        assert (tenant.state, tenant.deletion) == ("to be deleted", None)
        assert tenant.delete_at is not None
        assert abs(tenant.delete_at - clocked.now() - timedelta(days=1)) < timedelta(minutes=1)
        deletions = TenantDeletions(clocked.session(), clocked.installation, KEEP)
        clocked.advance(timedelta(hours=23))
        deletions.work()
        assert rows_by_table(clocked, "acme") == before
        assert send(clocked, type="job.trigger", key="job").status is ReplyStatus.ACCEPTED
        # Taken back, it does not come.
        assert tidewheel(clocked, "admin", "tenant", "delete", "acme", "--undo").lines == ["tenant acme: stays"]
        assert not client.tenants.undelete("acme")
        clocked.advance(timedelta(hours=2))
        deletions.work()
        assert client.tenants.get("acme").state == "active"
        # Requested again, it begins by itself, and is not taken back any more.
        client.tenants.delete("acme", grace=timedelta(hours=1))
        clocked.advance(timedelta(hours=1))
        deletions.work()
        assert client.tenants.get("acme").state == "deleting"
        with pytest.raises(TenantDeleted):
            client.tenants.undelete("acme")
        work(clocked, "removed")
        assert rows_by_table(clocked, "acme") == {}
