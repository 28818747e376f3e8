"""A login without any right on the tables takes every lock that it can, and stops nothing.

The advisory keys are read from the code, from its migrations and from a list of those that 0.1 has. So a new one is
taken here without a line of its own.
"""

import re
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from datetime import date, timedelta
from itertools import product
from pathlib import Path
from typing import LiteralString, get_args

import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr

from tests.executor.running import ENTER
from tests.executor.test_claim import claimer
from tests.faults.backed_up_server import backed_up_server
from tests.fixtures.acts import EXECUTOR
from tests.fixtures.database import Database
from tests.fixtures.roles import role_passwords, stranger
from tests.fixtures.services import Fleet, Role, until
from tests.strict_types import ROOT
from tidewheel.control.client.client import Client
from tidewheel.control.doctor.check import Context, Limits, run_checks
from tidewheel.control.doctor.doctor import CHECKS
from tidewheel.ids import rate_key_id, tenant_key_id
from tidewheel.intake.runs import block_claims
from tidewheel.migrations.runner import migrate
from tidewheel.postgres.held_lock import OldLock, find_lock_holders
from tidewheel.postgres.partitions import day_of
from tidewheel.postgres.session import connect
from tidewheel.process.service import Shutdown
from tidewheel.scheduler.retention import Retention
from tidewheel.scheduler.retention_rules import Periods
from tidewheel.settings.connections import Connections
from tidewheel.transitions.installation import read_installation

SERVICES: tuple[Role, ...] = ("intake", "scheduler", "relay", "executor")
KEEP = Periods(*[timedelta(days=10)] * 5)
pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

# A key's name in an SQL text, and those of 0.1 that no statement has any more.
KEY = re.compile(r"hashtext(?:extended)?\(\s*'(tidewheel[^']*)'")
OF_0_1 = (
    "archive", "claims", "graphs", "kept_since", "migrations", "orphans", "postgres.partitions", "relay",
    "retention", "tenant_repair",
)  # fmt: skip
TENANTS = ("default", "acme")
# Keys of one number, those of two, and those of a tenant.
TAKE: LiteralString = """
SELECT count(*) FILTER (WHERE taken)
  FROM (SELECT pg_try_advisory_lock(hashtext(n.name)) FROM unnest(%(names)s::text[]) AS n (name)
        UNION ALL
        SELECT pg_try_advisory_lock(hashtext(n.name), s.number)
          FROM unnest(%(names)s::text[]) AS n (name) CROSS JOIN generate_series(0, 63) AS s (number)
        UNION ALL
        SELECT pg_try_advisory_lock(hashtext(n.name), hashtext(t.tenant))
          FROM unnest(%(names)s::text[]) AS n (name) CROSS JOIN unnest(%(tenants)s::text[]) AS t (tenant)
        UNION ALL
        SELECT pg_try_advisory_lock(hashtextextended(n.name || t.tenant, 0))
          FROM unnest(%(names)s::text[]) AS n (name) CROSS JOIN unnest(%(tenants)s::text[]) AS t (tenant)
        UNION ALL
        SELECT pg_try_advisory_lock(k.number) FROM unnest(%(numbers)s::bigint[]) AS k (number)) AS tried (taken)
"""
ENDED: LiteralString = """
SELECT count(*) FROM finished_runs AS r JOIN jobs AS j USING (job_id) WHERE j.key = %s AND r.state = 'succeeded'
"""
LATENESS: LiteralString = """
SELECT ARRAY[count(*), percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM r.started_at - r.scheduled_at))]
  FROM (SELECT r.started_at, r.scheduled_at FROM finished_runs AS r JOIN jobs AS j USING (job_id)
         WHERE j.key = 'every' AND r.scheduled_at > %s ORDER BY r.scheduled_at LIMIT 5) AS r
"""


def key_names() -> list[str]:
    files = [*ROOT.glob("*/**/*.sql"), *ROOT.glob("*/**/*.py")]
    texts = [path.read_text() for path in files if "tests" not in path.parts and ".venv" not in path.parts]
    return sorted({name for text in texts for name in KEY.findall(text)} | {f"tidewheel.{name}" for name in OF_0_1})


@pytest.fixture
def stranger_url(fresh_database: Database) -> Iterator[str]:
    with stranger(fresh_database.url) as url:
        yield url


@contextmanager
def all_keys_taken(url: str) -> Generator[int]:
    """Hold every advisory key that is free; yield their number."""
    names = key_names()
    numbers = [number for tenant in TENANTS for number in (rate_key_id(tenant), tenant_key_id(tenant))]
    with psycopg.connect(url, autocommit=True) as holding:
        row = holding.execute(
            TAKE, {"names": [*names, "tidewheel jobs of "], "tenants": [*TENANTS], "numbers": numbers}
        )
        [(taken,)] = row.fetchall()
        yield int(taken)


def stored(database: Database, day: date) -> bool:
    return bool(database.rows("SELECT 1 FROM pg_class WHERE relname = %s", [f"attempts{day:_%Y%m%d}"]))


def work(fleet: Fleet, client: Client) -> None:
    """Let every part of the services do what needed a key in 0.1, and wait for its end."""
    database = fleet.database
    fleet.ask(
        {"type": "job.submit", "job": {"key": "job", "schedule": "manual", "target": "note", "overlap": "allow_all"}}
    )
    fleet.ask({"type": "job.submit", "job": {"key": "every", "target": "note", "schedule": "@every 1s"}})
    fleet.flush()
    fleet.until(lambda: database.count("jobs") == 2, "the jobs are submitted")
    fleet.ask({"type": "job.submit", "job": {"key": "after", "target": "note", "schedule": {"after": ["job"]}}})
    fleet.flush()
    fleet.until(lambda: database.count("job_edges") == 1, "a job has a child")
    for _ in range(20):
        fleet.ask({"type": "job.trigger", "key": "job"})
    fleet.flush()
    fleet.until(lambda: database.value(ENDED, ["job"]) == 20, "20 of 20 runs end")
    fleet.until(lambda: database.value(ENDED, ["after"]) == 20, "the runs of their children end")
    fleet.until(lambda: database.value(ENDED, ["every"]) > 2, "timers fire")
    client.submit({"key": "later", "schedule": "manual", "target": "note"})
    client.trigger("later", delay="1h")
    cancellation = client.runs.cancel_matching(key="later").cancellation_id or 0
    fleet.until(
        lambda: database.value("SELECT count(*) FROM finished_runs WHERE state = 'cancelled'") == 1,
        f"the cancellation {cancellation} ends its run",
    )


def lateness(fleet: Fleet) -> float:
    """Return the median seconds between the instant and the start of the next five runs of a job."""
    since = fleet.database.now()
    fleet.until(lambda: fleet.database.value(LATENESS, [since])[0] == 5, "five timers fire")
    return float(fleet.database.value(LATENESS, [since])[1])


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_role_without_rights_that_takes_every_advisory_key_stops_nothing(
    fleet: Fleet, stranger_url: str, when: str
) -> None:
    """Kind: a public name as a lock (N2 of issue 39)."""
    database = fleet.database
    with Client(database.url) as client, Client(database.url, tenant="acme") as acme:
        client.tenants.create("acme", triggers_per_second=1.0, jobs=10)
        services = fleet.start_all(*SERVICES) if when == "after" else {}
        fleet.wait_started()
        with all_keys_taken(stranger_url) as taken:
            assert taken > len(OF_0_1)
            services = services or fleet.start_all(*SERVICES)
            work(fleet, client)
            acme.submit({"key": "shaped", "schedule": "manual", "target": "note", "overlap": "allow_all"})
            for _ in range(5):
                acme.trigger("shaped")
            fleet.until(lambda: database.value(ENDED, ["shaped"]) == 5, "runs beyond the rate of a tenant end")
            assert migrate(database.url) == []
            old = day_of(database.now()) - timedelta(days=40)
            database.execute("SELECT tidewheel_create_day('attempts', %s)", [old])
            with closing(Retention(database.url, KEEP, Shutdown())) as retention:
                fleet.until(lambda: retention.step() or not stored(database, old), "retention drops a day")
            warning = " the advisory lock "
            fleet.until(lambda: warning in services["scheduler"].log.read_text(), "the log names the session")
            beside = lateness(fleet)
        assert beside < 2 * lateness(fleet) + 0.1


def test_doctor_names_the_stranger_that_holds_a_key(fresh_database: Database, stranger_url: str) -> None:
    settings = Connections.load(database_url=SecretStr(fresh_database.url))
    checks = [each for each in CHECKS if each.name in {"database", "schema", "locks"}]
    with psycopg.connect(stranger_url, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(hashtext('tidewheel.claims'))")
        found = run_checks(checks, Context(settings, Limits())).findings
        [named] = [each.evidence for each in found if each.check == "locks"]
        text = f"the session {other.info.backend_pid} of the role {other.info.user} has held the advisory lock claims"
        assert re.fullmatch(rf"{re.escape(text)} for \d+ s", named)
    # A session ends some time after its client has closed the connection.
    until(lambda: not run_checks(checks, Context(settings, Limits())).findings, "the lock is free")


def test_prepared_transaction_that_holds_the_key_of_claims_stops_none(tmp_path: Path) -> None:
    """It has no session, and outlives a restart of the server."""
    with backed_up_server(tmp_path) as server:
        with psycopg.connect(server.postgres.url, autocommit=True) as admin:
            admin.execute("ALTER SYSTEM SET max_prepared_transactions = 2")
        server.postgres.stop()
        server.postgres.start()
        url = server.postgres.url
        migrate(url, roles=role_passwords(url))
        with connect(url, "test") as connection:
            database = Database(url, read_installation(connection, Connections.load()))
        with closing(database), stranger(url) as other_url, psycopg.connect(other_url) as other:
            database.execute(ENTER, [EXECUTOR])
            database.submit()
            wanted = database.requested_claim(database.trigger())
            other.execute("SELECT pg_advisory_xact_lock(hashtext('tidewheel.claims'))")
            other.execute("PREPARE TRANSACTION 'theirs'")
            [holder] = database.within(find_lock_holders)
            assert (holder.process, holder.prepared, holder.role) == (None, "theirs", other.info.user)
            assert holder.remedy.endswith("ROLLBACK PREPARED 'theirs'")
            database.within(block_claims, [])
            assert len(claimer(database).claim([wanted], source="message").started) == 1
            other.autocommit = True
            other.execute("ROLLBACK PREPARED 'theirs'")


def test_every_statement_that_takes_an_advisory_key_goes_on_without_it() -> None:
    """Those that wait ask first whether a stranger has the key; `all_keys_taken` takes each of them."""
    known = {*key_names(), "tidewheel jobs of "}
    assert {*get_args(OldLock)} <= {*OF_0_1}, "names that a statement completes"
    for name, statement in statements_with("pg_(?:try_)?advisory_"):
        waits = re.search(r"pg_advisory_(?!unlock)", statement)
        assert not waits or "{{tidewheel.no_stranger(" in statement, name
        numbers = re.findall(r"%\(key_ids?\)s", statement)  # of `rate_key_id`, which `all_keys_taken` takes too
        assert numbers or {*KEY.findall(statement)} & known, name


def test_no_function_of_the_database_takes_an_advisory_key(fresh_database: Database) -> None:
    taking = "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prosrc ~ 'advisory_'"
    assert fresh_database.rows(taking) == []


def statements_with(pattern: str) -> list[tuple[str, str]]:
    """Return the named statements of all services that match, without their comments."""
    found: list[tuple[str, str]] = []
    for path in ROOT.glob("*/**/queries.sql"):
        for block in re.split(r"^-- (?:name|part): ", path.read_text(), flags=re.MULTILINE)[1:]:
            text = "\n".join(line for line in block.splitlines()[1:] if not line.startswith("--"))
            found += [(f"{path.parent.name}: {block.splitlines()[0]}", text)] if re.search(pattern, text) else []
    assert found
    return found


def locked_tables() -> list[str]:
    taking = r"LOCK TABLE (\w+)|DELETE FROM (\w+_lock) WHERE false"
    return sorted({a or b for _, text in statements_with(taking) for a, b in re.findall(taking, text)})


def test_a_role_without_rights_locks_no_table(stranger_url: str) -> None:
    modes: tuple[LiteralString, ...] = ("ROW EXCLUSIVE", "SHARE ROW EXCLUSIVE", "ACCESS SHARE")
    with psycopg.connect(stranger_url, autocommit=True) as other:
        for table, mode in product(locked_tables(), modes):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), other.transaction():
                other.execute(sql.SQL("LOCK TABLE {} IN {} MODE").format(sql.Identifier(table), sql.SQL(mode)))
