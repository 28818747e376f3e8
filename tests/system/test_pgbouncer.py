"""All services behind PgBouncer: in session mode everything works, other modes are refused."""

import re
from datetime import timedelta

import psycopg
import pytest

from tests.fixtures.pgbouncer import pgbouncer
from tests.fixtures.services import Fleet
from tests.strict_types import ROOT
from tidewheel import Client
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.errors import SettingsError
from tidewheel.migrations.service_roles import role_of
from tidewheel.postgres.session import POOLED_BY_TRANSACTION, connect, connect_configured

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

# Longer than the test: what happens in time was notified.
UNPOLLED = {"SCHEDULER_POLL": "PT2M", "RELAY_POLL": "PT2M", "SWEEP": "PT2M"}


def test_services_work_through_a_pooler_in_session_mode(fleet: Fleet) -> None:
    direct = fleet.database.url
    with pgbouncer(direct, "session") as pooled:
        fleet.database.url = pooled
        with connect(pooled, "test", options="-c work_mem=7MB -c search_path=public,\\ pg_catalog") as connection:
            names = "synchronous_commit", "statement_timeout", "plan_cache_mode", "work_mem", "search_path"
            values = [connection.execute("SELECT current_setting(%s)", [name]).fetchone() for name in names]
            assert values == [("on",), ("30s",), ("force_custom_plan",), ("7MB",), ("public, pg_catalog",)]
        services = fleet.start_all(**UNPOLLED)
        services["api"] = fleet.start("api", API_PORT="0")
        fleet.wait_started()
        fleet.ask({"type": "job.submit", "job": {"key": "beat", "schedule": {"interval": "1s"}, "target": "note"}})
        fleet.ask({"type": "job.submit", "job": {"key": "call", "schedule": "manual", "target": "note"}})
        fleet.flush()
        ended = "SELECT count(*) FROM finished_runs AS f JOIN jobs AS j USING (job_id) WHERE j.key = 'beat'"
        fleet.until(lambda: fleet.database.value(ended) >= 3, "the job fires")
        with Client(pooled) as client:
            client.tenants.create("acme")
            assert client.runs.wait(client.trigger("call", {"n": 1})).state == "succeeded"
        with Client(pooled, tenant="acme") as client:  # by its own role, under row-level security
            assert client.runs.list().runs == ()
        with psycopg.connect(fleet.database.url_of("application")) as own:
            [(run_id,)] = own.execute("SELECT tidewheel_enqueue('call', '{}')").fetchall()
            own.commit()
        fleet.until(fleet.settled, f"the run {run_id} ends")
        open_ones = dict(
            fleet.database.rows(
                "SELECT usename::text, count(*) FROM pg_stat_activity WHERE datname = current_database() GROUP BY 1"
            )
        )
        most = _most_connections()
        for role in services:
            assert 1 <= open_ones[role_of(role)] <= most[role], (role, open_ones)
        print(f"connections of each process: {open_ones}")  # noqa: T201 - for docs/deployment.md
        fleet.stop()
        fleet.database.close()
        fleet.database.url = direct


def test_pooler_that_shares_sessions_is_refused(fleet: Fleet) -> None:
    direct = fleet.database.url
    with pgbouncer(direct, "transaction") as pooled:
        with pytest.raises(SettingsError, match="pool_mode = session"):
            connect_configured(pooled, "test")
        fleet.database.url = pooled
        refused = fleet.start("scheduler")
        refused.meant_to_die = True
        refused.process.join(timedelta(seconds=30).total_seconds())
        assert refused.process.exitcode == ExitCode.FAILED
        assert refused.has_logged(POOLED_BY_TRANSACTION)
        fleet.database.url = direct


def _most_connections() -> dict[str, int]:
    """Return the most connections of each process, as docs/deployment.md has them."""
    page = (ROOT / "docs" / "deployment.md").read_text()
    return {role: int(most) for role, most in re.findall(r"^\| `tidewheel (\w+)` \|[^|]*\| (\d+)", page, re.MULTILINE)}
