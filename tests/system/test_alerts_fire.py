"""Each alert fires in a disturbed installation, and every panel of the dashboard has data.

A real Prometheus scrapes real services and evaluates the shipped rules. Only their `for` is left out, which waits.
"""

import json
import math
import re
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from tests.fixtures.database import ClockedDatabase
from tests.fixtures.prometheus import Launcher, Prometheus
from tests.fixtures.services import Fleet, Service, make_fleet
from tests.strict_types import ROOT
from tidewheel.local.stack import StackInfo
from tidewheel.process.metrics import METRICS, Kind, Metrics

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

RULES = ROOT / "compose" / "alerts.yml"
DASHBOARD = ROOT / "compose" / "dashboard.json"
LATER = timedelta(minutes=2)
FAILED = 500
HELD = 120
BACKLOG = 10_100
SEEN = {
    "TidewheelOutboxBehind",
    "TidewheelLockWaits",
    "TidewheelTimersOverdue",
    "TidewheelJobsBehind",
    "TidewheelOrderingKeysBlocked",
    "TidewheelRunsFailing",
    "TidewheelSuccessLow",
    "TidewheelBacklog",
    "TidewheelLeaseNearlyOver",
    "TidewheelRunsOrphaned",
    "TidewheelNoScheduler",
}
JOBS: tuple[dict[str, object], ...] = (
    {"key": "tick", "schedule": {"interval": "1s"}, "target": "note"},
    {"key": "errand", "schedule": "manual", "target": "note"},
    {"key": "lost-cause", "schedule": "manual", "target": "lost-cause", "retry": {"max_attempts": 1}},
    {
        "key": "in-order",
        "schedule": "manual",
        "target": "lost-cause",
        "retry": {"max_attempts": 1},
        "ordering_key": "k",
    },
)


@pytest.fixture
def fleet(clocked: ClockedDatabase, info: StackInfo, tmp_path: Path) -> Iterator[Fleet]:
    """A fleet whose database's clock the test moves."""
    made = make_fleet(clocked, info.kafka, tmp_path)
    try:
        yield made
    finally:
        made.close()


def rules_at_once() -> dict[str, Any]:
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    return rules


def port_of(service: Service) -> int:
    [port] = {m[1] for line in service.log_lines() if (m := re.search(r"on port (\d+)", str(line.get("message"))))}
    return int(port)


def queries(dashboard: Path) -> dict[str, str]:
    panels = json.loads(dashboard.read_text(encoding="utf-8"))["panels"]
    return {f"{panel['title']} {target['refId']}": target["expr"] for panel in panels for target in panel["targets"]}


def test_promtool_accepts_the_rules(prometheus_programs: Path) -> None:
    checked = subprocess.run(
        [prometheus_programs / "promtool", "check", "rules", RULES], capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_promtool_finds_nothing_to_mend_in_the_metrics(prometheus_programs: Path) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for row in METRICS:
        labels = ["value"] * len(row.labels)
        match row.kind:
            case Kind.COUNTER:
                metrics.count(row.name, 1, *labels)
            case Kind.GAUGE:
                metrics.set(row.name, 1, *labels)
            case Kind.HISTOGRAM:
                metrics.observe(row.name, [1], *labels)
    text = generate_latest(registry)
    checked = subprocess.run(
        [prometheus_programs / "promtool", "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_each_alert_fires_and_each_panel_has_data(
    fleet: Fleet, clocked: ClockedDatabase, prometheus: Launcher, tmp_path: Path
) -> None:
    services = fleet.start_all(METRICS_PORT="0", METRICS_JOBS="10", LEASE="PT5S", SLOTS=str(HELD + 30))
    fleet.wait_started()
    for job in JOBS:
        fleet.ask({"type": "job.submit", "job": job})
    fleet.flush()
    seen = prometheus.start({role: port_of(service) for role, service in services.items()}, rules_at_once())

    def fires(*names: str) -> None:
        fleet.until(lambda: seen.firing() >= set(names), f"{names} fire", seconds=180)

    def resolves(*names: str) -> None:
        fleet.until(lambda: not seen.firing() & set(names), f"{names} fire no more")

    fleet.until(lambda: on_time(seen) > 0.9, "runs start on time")
    fleet.until(lambda: coverage(seen) == 1.0, "the timers that fired count as covered")
    resolves(*SEEN)  # a busy start may have disturbed it

    trigger(fleet, "in-order", 2)
    fleet.until(lambda: clocked.value("SELECT count(blocked_by) FROM order_keys") == 1, "the failed run blocks its key")

    services["relay"].pause()
    clocked.advance(LATER)
    fires("TidewheelOutboxBehind")
    services["relay"].resume()
    resolves("TidewheelOutboxBehind")
    fires("TidewheelOrderingKeysBlocked")

    with clocked.transaction() as connection:
        connection.execute("SELECT FROM timers FOR UPDATE")
        clocked.advance(LATER)
        fires("TidewheelTimersOverdue", "TidewheelJobsBehind")
        fleet.until(lambda: coverage(seen) < 1.0, "coverage falls")
    resolves("TidewheelTimersOverdue", "TidewheelJobsBehind")

    with clocked.transaction() as connection:
        connection.execute("LOCK TABLE requests IN ACCESS EXCLUSIVE MODE")
        fleet.ask({"type": "job.trigger", "key": "errand"})
        fleet.flush()
        fires("TidewheelLockWaits")
    resolves("TidewheelLockWaits")

    trigger(fleet, "lost-cause", FAILED)
    fires("TidewheelRunsFailing", "TidewheelSuccessLow")

    gated = {"key": "gated", "schedule": "manual", "target": "gated", "payload": str(tmp_path / "gate")}
    fleet.ask({"type": "job.submit", "job": gated})
    trigger(fleet, "gated", HELD)
    fleet.until(lambda: running(clocked) >= HELD, "the runs are held")

    def without_data() -> set[str]:
        return {title for title, expression in queries(DASHBOARD).items() if not seen.query(expression)}

    fleet.until(lambda: not without_data(), "each panel has data")

    services["executor"].pause()
    trigger(fleet, "errand", BACKLOG)
    fires("TidewheelLeaseNearlyOver", "TidewheelRunsOrphaned", "TidewheelBacklog")
    [scaled_by] = seen.query(scaler_query())
    assert float(scaled_by["value"][1]) > BACKLOG / 2

    services["scheduler"].kill()
    fires("TidewheelNoScheduler")
    fleet.kill()


def trigger(fleet: Fleet, key: str, count: int) -> None:
    request = json.dumps({"type": "job.trigger", "key": key}).encode()
    for _ in range(count):
        fleet.produce(fleet.topics.requests, key.encode(), request)
    fleet.flush()


def scaler_query() -> str:
    """The query that the page gives to KEDA."""
    [query] = re.findall(r"^ +query: (.*)$", (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8"), re.MULTILINE)
    return query


def running(database: ClockedDatabase) -> int:
    return int(database.value("SELECT count(*) FROM job_runs WHERE state = 'running'"))


def on_time(seen: Prometheus) -> float:
    return max((float(each["value"][1]) for each in seen.query("tidewheel:runs_on_time:ratio_rate5m")), default=0.0)


def coverage(seen: Prometheus) -> float:
    """The covered share, not a number until the rule has data."""
    found = seen.query("tidewheel:schedule_coverage:ratio_increase1h")
    return max((float(each["value"][1]) for each in found), default=math.nan)
