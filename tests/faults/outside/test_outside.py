"""Faults under load, judged from outside: the rows of the matrix, and mutants of the product.

The short run is one of the slow tests. `make faults` runs everything once: it sets TIDEWHEEL_FAULTS=full. With
TIDEWHEEL_FAULTS_MINUTES the rows are drawn at random for so long, and TIDEWHEEL_FAULTS_REPORT names the file of the
report. TIDEWHEEL_FAULTS_SEED repeats a seed.
"""

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.outside import machine_rows, rows
from tests.faults.outside.campaign import Campaign, print_now, seed_of, table
from tests.faults.outside.mutants import MUTANTS
from tests.faults.outside.network import why_no_mounts, why_no_namespaces
from tests.faults.outside.records import History
from tests.faults.outside.rows import Row
from tests.faults.outside.site import Disks, Site
from tests.faults.outside.verdict import Enough, Report
from tidewheel.clock import monotonic_seconds

pytestmark = [pytest.mark.process, pytest.mark.slow]

FULL = pytest.mark.skipif(os.environ.get("TIDEWHEEL_FAULTS") != "full", reason="run by `make faults`")
_MINUTES = float(os.environ.get("TIDEWHEEL_FAULTS_MINUTES", "0"))
_REPORT = os.environ.get("TIDEWHEEL_FAULTS_REPORT", "")
_ROUND = 12  # rows of one campaign of a long run

# The rows in which a mutant shows.
_SHOWN_BY: dict[str, Sequence[type[Row]]] = {
    "claim-early": (rows.CrashIntake,),
    "mark-before-report": (rows.CrashRelaysInOutage,),
    "no-lease": (rows.CrashIntake,),
    "no-reaper": (rows.CrashExecutor, rows.CrashExecutor, rows.CrashExecutor),
    "pause-ignored": (rows.CrashIntake, rows.CrashIntake, rows.CrashIntake),
}
_CALM = {"no-lease": 40.0}  # seconds, so that a repeat has no fault near it


def judge(campaign: Campaign, capsys: pytest.CaptureFixture[str]) -> tuple[History, Report]:
    with capsys.disabled():
        print_now(f"\nseed {campaign.seed}: {', '.join(row.name for row in campaign.rows)}")
        history, report = campaign.run()
        print_now(f"{report}\n{table([history])}")
    return history, report


def test_nothing_is_lost_doubled_early_or_stuck(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = seed_of("TIDEWHEEL_FAULTS_SEED")
    _, report = judge(Campaign(Site(tmp_path, seed), seed, rows.SHORT, Enough(targets=200, faults=4)), capsys)
    assert report.verdict == "pass", f"seed {seed}"


@FULL
def test_every_crash_pause_and_outage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = seed_of("TIDEWHEEL_FAULTS_SEED")
    _, report = judge(Campaign(Site(tmp_path, seed), seed, rows.PROCESSES), capsys)
    assert report.verdict == "pass", f"seed {seed}"


@FULL
def test_downtime_with_missed_occurrences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = seed_of("TIDEWHEEL_FAULTS_SEED")
    site = Site(tmp_path, seed, settings={"MISFIRE_AFTER": "1s"})
    enough = Enough(targets=400, faults=3)
    _, report = judge(Campaign(site, seed, rows.MISSED * 2, enough, policies=True, edits=False), capsys)
    assert report.verdict == "pass", f"seed {seed}"


@FULL
def test_slow_lossy_and_silent_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = seed_of("TIDEWHEEL_FAULTS_SEED")
    site = Site(tmp_path, seed, proxied=True)
    _, report = judge(Campaign(site, seed, machine_rows.LINES * 2, Enough(targets=250, faults=5)), capsys)
    assert report.verdict == "pass", f"seed {seed}"


@FULL
def test_partitions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if reason := why_no_namespaces():
        pytest.skip(f"not run: {reason}")
    seed = seed_of("TIDEWHEEL_FAULTS_SEED")
    site = Site(tmp_path, seed, namespaces=True)
    _, report = judge(Campaign(site, seed, machine_rows.NETWORK, Enough(targets=500, faults=8)), capsys)
    assert report.verdict == "pass", f"seed {seed}"


@FULL
def test_full_disks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if reason := why_no_mounts(tmp_path / "probe"):
        pytest.skip(f"not run: {reason}")
    seed = seed_of("TIDEWHEEL_FAULTS_SEED")
    site = Site(tmp_path, seed, disks=Disks(data=512, wal=144, broker=512))
    _, report = judge(Campaign(site, seed, machine_rows.DISKS, Enough(targets=250, faults=4)), capsys)
    assert report.verdict == "pass", f"seed {seed}"


@FULL
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_found(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = seed_of("TIDEWHEEL_FAULTS_SEED")
    site, calm = Site(tmp_path, seed, mutant=name), _CALM.get(name, 2.0)
    _, report = judge(Campaign(site, seed, _SHOWN_BY[name], Enough(0, 0), calm, patience=20), capsys)
    found = sorted({anomaly.check for anomaly in report.anomalies})
    with capsys.disabled():
        print_now(f"mutant {name} ({MUTANTS[name].what}): {', '.join(found) or 'not found'}")
    assert report.verdict == "fail", f"seed {seed}"


@pytest.mark.skipif(not _MINUTES, reason="set TIDEWHEEL_FAULTS_MINUTES")
def test_long_run_of_random_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed, end = seed_of("TIDEWHEEL_FAULTS_SEED"), monotonic_seconds() + 60 * _MINUTES
    draw = random.Random(seed)  # noqa: S311
    histories: list[History] = []
    reports: list[Report] = []
    while monotonic_seconds() < end:
        drawn = draw.choices(rows.PROCESSES, k=_ROUND)
        site = Site(tmp_path / str(len(reports)), draw.getrandbits(32))
        history, report = judge(Campaign(site, site.seed, drawn, calm=draw.uniform(1, 10)), capsys)
        histories.append(history)
        reports.append(report)
        write_report(seed, histories, reports)
    assert not [report for report in reports if report.verdict == "fail"], f"seed {seed}"


def write_report(seed: int, histories: Sequence[History], reports: Sequence[Report]) -> None:
    totals = {name: sum(report.counts[name] for report in reports) for name in reports[0].counts}
    anomalies = [str(anomaly) for report in reports for anomaly in report.anomalies]
    lines = [
        f"seed {seed}, {len(reports)} campaigns, {len(anomalies)} anomalies",
        ", ".join(f"{count} {name}" for name, count in totals.items()),
        table(histories),
        *anomalies,
    ]
    if _REPORT:
        Path(_REPORT).write_text("\n".join(lines) + "\n")
