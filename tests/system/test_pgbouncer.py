"""Deployments: readiness, a pooler, a queue without topics."""

import re
from datetime import timedelta
from urllib.error import HTTPError
from urllib.request import urlopen

import psycopg
import pytest
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # its stub re-exports no NewTopic
from pydantic import SecretStr

from tests.executor.test_consume import let_in
from tests.faults.workload import Workload
from tests.fixtures.oracle import Oracle
from tests.fixtures.pgbouncer import pgbouncer
from tests.fixtures.services import LONG_LEASE, Fleet, Service, admin_of
from tests.strict_types import ROOT
from tidewheel import Client
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.doctor.doctor import diagnose
from tidewheel.control.reads.fleet import read_status
from tidewheel.errors import SettingsError
from tidewheel.local.stack import StackInfo
from tidewheel.migrations.service_roles import role_of
from tidewheel.postgres.session import POOLED_BY_TRANSACTION, connect, connect_configured
from tidewheel.runs import Lane
from tidewheel.settings.connections import Connections
from tidewheel.settings.sources import client_variables

# Longer than the test: what happens in time was notified.
UNPOLLED = {"SCHEDULER_POLL": "PT2M", "RELAY_POLL": "PT2M", "SWEEP": "PT2M"}


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.slow
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


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.slow
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
    return {
        role: int(most)
        for role, most in re.findall(r"^\| `tidewheel service (\w+)` \|[^|]*\| (\d+)", page, re.MULTILINE)
    }


def get(service: Service, path: str) -> tuple[int, str]:
    """Return a service's response; it was started with METRICS_PORT=0."""
    [port] = {m[1] for line in service.log_lines() if (m := re.search(r"on port (\d+)", str(line.get("message"))))}
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def lacks(service: Service, reason: str) -> bool:
    status, text = get(service, "/readyz")
    return status == 503 and reason in text


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.slow
def test_service_without_a_database_is_live_and_not_ready(fleet: Fleet, info: StackInfo) -> None:
    services = fleet.start_all(METRICS_PORT="0")
    fleet.wait_started()
    for service in services.values():
        fleet.until(lambda: get(service, "/readyz") == (200, "ok\n"), f"{service.role} is ready")  # noqa: B023
    fleet.database.close()
    let_in(fleet.database, info, allowed=False)
    try:
        for service in services.values():
            fleet.until(lambda: lacks(service, "database: does not answer"), f"{service.role} is not ready")  # noqa: B023
            assert get(service, "/healthz") == (200, "ok\n")
    finally:
        let_in(fleet.database, info, allowed=True)
    for service in services.values():
        fleet.until(lambda: get(service, "/readyz") == (200, "ok\n"), f"{service.role} is ready again")  # noqa: B023


@pytest.mark.landing
@pytest.mark.postgres
@pytest.mark.kafka
def test_draining_executor_is_not_ready(fleet: Fleet, oracle: Oracle) -> None:
    work = Workload(fleet, oracle)
    held = work.hold()
    fleet.start_all("intake", "relay")
    executor = fleet.start("executor", METRICS_PORT="0", DRAIN_TIMEOUT="PT30S", LEASE=LONG_LEASE)
    held.wait_begun(1)
    assert get(executor, "/readyz") == (200, "ok\n")
    executor.ask_to_stop()
    fleet.until(lambda: lacks(executor, "service: stop requested"), "it says that it is on its way out")
    assert get(executor, "/healthz") == (200, "ok\n")
    held.let_go()
    executor.wait_stopped()


_SECONDS = 200.0  # a minute is what is compared
REMEDY = "tidewheel admin topics apply --queues default"


def remedies(fleet: Fleet) -> list[str]:
    problems = fleet.database.within(read_status, fleet.database.installation.shards).problems
    return [problem.remedy for problem in problems if problem.check == "fallbacks"]


@pytest.mark.kafka
@pytest.mark.slow
def test_queue_without_topics_is_found_with_one_remedy(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runs started a second late, by the sweep alone, and nothing said so."""
    services = fleet.start_all("scheduler", "relay", "executor")
    fleet.wait_started()
    fleet.database.submit("often", schedule="@every 1s", target="note")
    ended = "SELECT count(*) FROM finished_runs WHERE claimed_from <> 'sweep'"
    fleet.until(lambda: fleet.database.value(ended), "a message brings a run")
    admin = admin_of(fleet.kafka)
    for gone in admin.delete_topics([fleet.topics.runs("default", lane) for lane in Lane]).values():
        gone.result(60)
    fleet.until(lambda: remedies(fleet), "status finds it", seconds=_SECONDS)
    [remedy] = remedies(fleet)
    assert f"`{REMEDY}`" in remedy
    for service in (services["relay"], services["executor"]):
        fleet.until(lambda service=service: service.has_logged(f"`{REMEDY}`"), f"the {service.role} logs it")
    for name, value in client_variables(fleet.kafka).items():
        monkeypatch.setenv(name, value)
    settings = Connections.load(database_url=SecretStr(fleet.database.url), topic_prefix=fleet.topics.prefix)
    findings = [each for each in diagnose(settings).findings if each.check in {"topics", "fallbacks"}]
    about = [each for each in findings if ".runs." in each.what or each.check == "fallbacks"]
    assert {each.check for each in about} == {"topics", "fallbacks"}
    assert all(REMEDY in each.remedy for each in about), about


@pytest.mark.kafka
@pytest.mark.slow
def test_queue_whose_topics_were_made_again_is_read_again_or_found(fleet: Fleet) -> None:
    """Else the sweep alone brings its runs, a second late.

    The topics are gone until the clients notice: older builds, too, read a topic that was made again at once.
    """
    fleet.start_all("scheduler", "relay", "executor")
    fleet.wait_started()
    fleet.database.submit("often", schedule="@every 1s", target="note")
    by_message = "SELECT count(*) FROM finished_runs WHERE claimed_from <> 'sweep' AND started_at > %s"
    fleet.until(lambda: fleet.database.value(by_message, ["-infinity"]) > 9, "messages bring runs")
    topics = [fleet.topics.runs("default", lane) for lane in Lane]
    admin = admin_of(fleet.kafka)
    for gone in admin.delete_topics(topics, operation_timeout=60).values():
        gone.result(60)
    deleted = fleet.database.now()
    by_sweep = "SELECT count(*) FROM finished_runs WHERE claimed_from = 'sweep' AND started_at > %s"
    fleet.until(lambda: fleet.database.value(by_sweep, [deleted]) > 15, "the sweep alone brings runs")
    for made in admin.create_topics([NewTopic(name, 2, 1) for name in topics], operation_timeout=60).values():
        made.result(60)
    made_again = fleet.database.now()
    fleet.until(
        lambda: fleet.database.value(by_message, [made_again]) > 2 or remedies(fleet),
        "messages or a finding",
        seconds=_SECONDS,
    )
