"""`tidewheel run`: services as one unit, on a database and topics of a test's own."""

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
from tidewheel.local.ports import free_port
from tidewheel.settings.kafka_client import client_variables

pytestmark = [pytest.mark.slow, pytest.mark.kafka]

TIDEWHEEL = str(Path(sys.executable).parent / "tidewheel")


class Unit:
    """A running `tidewheel run`."""

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
    port = free_port()
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
        unit.until("run", "relay ended by SIGKILL; it starts again in 0.5 s")
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
        psutil.wait_procs(services, timeout=10)
        assert not [service for service in services if service.is_running()]


def test_a_unit_ends_with_an_error_if_a_service_cannot_be_kept_running(fleet: Fleet) -> None:
    url = make_conninfo(fleet.database.url, dbname="none")
    with run(fleet, "--roles", "scheduler,relay", TIDEWHEEL_DATABASE_URL=url) as unit:
        until(lambda: unit.process.poll() is not None, f"the unit ends: {unit.lines()}")
        assert unit.process.wait() == 1
        failed = [line for line in unit.lines("run") if "has failed 5 times at once" in line["message"]]
        assert failed
        assert 'database "none" does not exist' in failed[0]["error"]


def children(unit: Unit) -> list[psutil.Process]:
    return psutil.Process(unit.process.pid).children()
