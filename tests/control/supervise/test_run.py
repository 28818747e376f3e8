"""`tidewheel serve`: services as one unit, on a database and topics of a test's own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest
from psycopg.conninfo import make_conninfo

from tests.fixtures.services import Fleet, until
from tidewheel.local.daemon import free_port, is_free
from tidewheel.settings.sources import client_variables

pytestmark = [pytest.mark.slow, pytest.mark.kafka]

TIDEWHEEL = str(Path(sys.executable).parent / "tidewheel")


class Unit:
    """A running `tidewheel serve`."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process, self._log = process, log

    def lines(self, service: str | None = None) -> list[dict[str, Any]]:
        text = self._log.read_text()
        found = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [line for line in found if service in (None, line["service"])]

    def messages(self, service: str | None = None) -> list[str]:
        return [line["message"] for line in self.lines(service)]

    def until(self, service: str, text: str) -> None:
        until(lambda: any(text in message for message in self.messages(service)), f"{service}: {text}")


@contextmanager
def run(fleet: Fleet, *flags: str, **more: str) -> Generator[Unit]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEWHEEL_", "PG"))}
    environment: Mapping[str, str] = {
        **kept,
        **client_variables(fleet.kafka),
        "TIDEWHEEL_DATABASE_URL": fleet.database.url,
        "TIDEWHEEL_TOPIC_PREFIX": fleet.topics.prefix,
        **more,
    }
    log = fleet.folder / "run.log"
    with log.open("wb") as output:
        process = subprocess.Popen([TIDEWHEEL, "run", *flags], env=environment, stderr=output, cwd=fleet.folder)
    try:
        yield Unit(process, log)
    finally:
        process.kill()
        process.wait()


def test_services_of_a_unit_execute_runs_and_stop_in_order(fleet: Fleet) -> None:
    (fleet.folder / "unit_handlers.py").write_text(
        'import tidewheel\n\n@tidewheel.handler("unit")\ndef unit(ctx, payload):\n    print("ran", payload)\n'
    )
    port = next(port for port in iter(free_port, 0) if all(is_free(port + n) for n in range(1, 4)))  # one for each role
    flags = ["--roles", "intake,scheduler,relay,executor", "--handlers", "unit_handlers", "--metrics-port", str(port)]
    with run(fleet, *flags) as unit:
        fleet.ask({"type": "job.submit", "job": {"key": "unit", "schedule": "manual", "target": "unit"}})
        fleet.flush()
        fleet.ask({"type": "job.trigger", "key": "unit", "payload": 7}, key="unit")
        fleet.flush()
        unit.until("executor", "ran 7")
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
            assert answer.status == 200
        [relay] = [each for each in children(unit) if "relay" in each.cmdline()]
        relay.kill()
        unit.until("run", "relay ended by SIGKILL; restarting in 0.5 s")
        until(lambda: sum("relay started" in message for message in unit.messages("relay")) == 2, "the relay is back")
        unit.process.send_signal(signal.SIGTERM)
        assert unit.process.wait(60) == 0
        ends = [line["service"] for line in unit.lines() if line["message"].startswith("stop requested")]
        assert set(ends[:2]) == {"intake", "scheduler"}
        assert ends[2:] == ["executor", "relay"]


def test_no_service_outlives_a_killed_unit(fleet: Fleet) -> None:
    with run(fleet, "--roles", "scheduler,relay") as unit:
        unit.until("relay", "relay started")
        unit.until("scheduler", "scheduler started")
        services = children(unit)
        assert len(services) == 2
        unit.process.kill()
        psutil.wait_procs(services, timeout=60)
        assert not [service for service in services if service.is_running()]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"dbname": "none"}, 'database "none" does not exist'),
        ({"password": "none"}, "password authentication failed"),
        ({"dbname": "none", "host": "127.0.0.1,127.0.0.2"}, 'database "none" does not exist'),  # the second is away
    ],
)
def test_a_unit_that_the_database_refuses_ends_at_once_with_the_remedy(
    fleet: Fleet, wrong: dict[str, str], reason: str
) -> None:
    url = make_conninfo(fleet.database.url, **wrong)
    with run(fleet, "--roles", "scheduler,relay", TIDEWHEEL_DATABASE_URL=url) as unit:
        until(lambda: unit.process.poll() is not None, f"the unit ends: {unit.lines()}")
        assert unit.process.wait() == 1
        [failed] = [line for line in unit.lines("run") if "cannot start" in line["message"]]
        assert reason in failed["message"]
        assert "correct user, password, database or TLS in TIDEWHEEL_DATABASE_URL" in failed["message"]
        assert not [message for message in unit.messages("run") if "restarting" in message]


def test_a_unit_waits_for_a_database_that_is_away_and_for_topics_of_its_queues(fleet: Fleet) -> None:
    away = make_conninfo(fleet.database.url, port=free_port())
    with run(fleet, "--roles", "scheduler", TIDEWHEEL_DATABASE_URL=away) as unit:
        unit.until("scheduler", "the database does not answer")
        [told, *_] = [each for each in unit.messages("scheduler") if "the database does not answer" in each]
        assert "this process tries again until it succeeds" in told
        unit.process.terminate()
        assert unit.process.wait(60) == 0
    with run(fleet, "--roles", "executor", TIDEWHEEL_QUEUES="default,reports") as unit:
        unit.until("executor", "run `tidewheel admin topics apply --queues reports`")


def test_a_service_that_crashes_at_its_start_ends_the_unit_with_its_last_lines(fleet: Fleet) -> None:
    (fleet.folder / "crashing.py").write_text('import os\nprint("last words", flush=True)\nos._exit(7)\n')
    with run(fleet, "--roles", "executor", "--handlers", "crashing") as unit:
        until(lambda: unit.process.poll() is not None, "the unit ends")
        assert unit.process.wait() == 1
        [failed] = [line for line in unit.lines("run") if line["level"] == "error" and "error" in line]
        assert failed["message"].startswith("executor has failed 5 times in a row and last ended with exit code 7; ")
        assert "last words" in failed["error"]
        assert sum("restarting in" in message for message in unit.messages("run")) == 4


def children(unit: Unit) -> list[psutil.Process]:
    return psutil.Process(unit.process.pid).children()
