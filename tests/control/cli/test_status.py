"""`tidewheel status` and `GET /api/v1/status`: who lives, what is due, and what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.control.api.answering import answer_of, answering
from tests.control.cli.command import NO_DATABASE, Done, tidewheel
from tests.control.reads.test_waits import executor
from tests.fixtures.acts import HANDLER
from tests.fixtures.database import Database
from tests.fixtures.services import Fleet
from tidewheel.control.cli.exit_codes import ExitCode


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No local stack: only the database that each test names."""
    monkeypatch.setenv("TIDEWHEEL_HOME", str(tmp_path / "home"))


def status(database: Database | str, *arguments: str) -> Done:
    return tidewheel(database, "status", *arguments)


def process(database: Database, role: str, silent: str = "0 s") -> None:
    database.execute(
        "INSERT INTO processes SELECT gen_random_uuid(), %s, 'host-1', 7, '0.1.0', '{}', at, at, at"
        "  FROM (SELECT tidewheel_now() - %s::interval AS at) AS seen",
        [role, silent],
    )


def test_installation_that_nothing_uses_yet_has_no_problem(database: Database) -> None:
    done = status(database)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("no service is running: ")


def test_status_names_each_role_that_does_not_live(database: Database) -> None:
    database.submit()
    process(database, "scheduler")
    process(database, "relay", silent="1 min")
    executor(database, HANDLER, silent="1 min")
    done = status(database)
    assert done.code == ExitCode.FAILED
    assert "no scheduler" not in done.out
    assert "error: no relay is running: " in done.out
    assert "error: no executor is running: no run starts\n" in done.out
    assert "  evidence: the only one, executor worker-1, is dead: last heartbeat at " in done.out
    assert "warning: no intake is running: " in done.out


def test_dead_process_is_shown_until_another_has_replaced_it(database: Database) -> None:
    def shown() -> list[tuple[str, bool]]:
        services = json.loads(status(database, "--output", "json").out)["services"]
        return [(each["host"], each["is_silent"]) for each in services if each["role"] == "relay"]

    process(database, "relay", silent="5 min")
    process(database, "relay", silent="4 min")
    process(database, "relay", silent="3 min")
    assert shown() == [("host-1", True)], "each has replaced the one before"
    assert [line.split()[:2] for line in status(database).out.splitlines()[1:2]] == [["relay", "dead"]]
    process(database, "relay")
    assert shown() == [("host-1", False)]
    database.execute(
        "UPDATE processes SET started_at = '2026-01-01' WHERE last_heartbeat_at > tidewheel_now() - interval '10 s'"
    )
    assert shown() == [("host-1", False), ("host-1", True)], "one that lived beside it has not replaced it"


def test_api_is_missed_only_if_one_has_died(database: Database) -> None:
    database.submit()
    assert "no api is running" not in status(database).out
    process(database, "api", silent="1 min")
    done = status(database)
    assert "warning: no api is running: HTTP requests get no answer" in done.out
    assert "  remedy: tidewheel service api\n" in done.out


def test_status_names_a_queue_without_the_executor_that_its_due_runs_need(database: Database) -> None:
    database.submit()
    run_id = database.trigger()
    for role in ("scheduler", "relay", "intake"):
        process(database, role)
    executor(database, "other")
    assert status(database).code == 0
    database.execute("UPDATE job_runs SET publish_at = tidewheel_now() - interval '1 min'")
    done = status(database)
    assert done.code == ExitCode.FAILED
    assert f"error: no executor of queue default has handler {HANDLER}\n" in done.out
    assert f"  evidence: 1 run waiting in tenant default, such as {run_id}\n" in done.out


def test_status_has_what_is_due_and_each_freeze(database: Database) -> None:
    database.submit()
    database.trigger()
    database.execute("UPDATE outbox SET publish_at = tidewheel_now() - interval '1 min'")
    with answering(database) as client:
        found: Any = answer_of(client.get("/api/v1/status"))
        [due] = found["due"]
        assert (due["queue"], due["lane"], due["due"]) == ("default", "standard", 1)
        assert {each["lane"]: each["due"] for each in found["outbox"]}["standard"] == 1
        database.client.freezes.freeze(queue="default", reason="printer swap")
        found = answer_of(client.get("/api/v1/status"))
    assert found["due"] == []
    [freeze] = [each for each in found["problems"] if each["check"] == "freezes"]
    assert freeze["what"] == "a freeze is in force: runs of queue default of tenant default do not start"


def test_database_that_is_away_and_one_that_no_setting_names_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    done = status(NO_DATABASE)
    assert (done.code, done.out) == (ExitCode.UNAVAILABLE, "")
    monkeypatch.setenv("TIDEWHEEL_DATABASE_URL", "")
    assert status("").code == ExitCode.NOT_RUNNING


@pytest.mark.slow
@pytest.mark.kafka
def test_status_of_a_fleet_names_its_only_executor_once_dead(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    services = fleet.start_all()
    fleet.wait_started()
    roles = sorted(services)

    def lives() -> bool:
        found = fleet.database.rows("SELECT role FROM processes ORDER BY 1")
        return [role for (role,) in found] == roles

    fleet.until(lives, "each process has a row")
    monkeypatch.setenv("TIDEWHEEL_TOPIC_PREFIX", fleet.topics.prefix)
    fleet.until(lambda: status(fleet.database).code == 0, "status finds no error")  # a stalled executor looks dead
    services["executor"].kill()
    fleet.until(lambda: "no executor is running" in status(fleet.database).out, "status reports it")
    services["scheduler"].ask_to_stop()
    services["scheduler"].wait_stopped()
    assert "error: no scheduler is running: " in status(fleet.database).out
