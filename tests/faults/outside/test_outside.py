"""Faults under load, judged from outside: the rows of the matrix, and mutants of the product.

The short run is one of the slow tests. `make faults` runs everything once: it sets TIDEWHEEL_FAULTS=full. With
TIDEWHEEL_FAULTS_MINUTES the rows are drawn at random for so long. TIDEWHEEL_FAULTS_REPORT names the file of the report,
which is also printed at the end. TIDEWHEEL_FAULTS_SEED repeats a seed.
"""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.faults.outside import machine_rows, rows
from tests.faults.outside.campaign import Campaign, print_now, seed_of
from tests.faults.outside.mutants import MUTANTS
from tests.faults.outside.network import why_no_mounts, why_no_namespaces
from tests.faults.outside.rows import Row
from tests.faults.outside.site import Disks, Site
from tests.faults.outside.summary import Result, summary, table
from tests.faults.outside.verdict import Enough, Report
from tidewheel.clock import monotonic_seconds

pytestmark = [pytest.mark.process, pytest.mark.slow]

FULL = pytest.mark.skipif(os.environ.get("TIDEWHEEL_FAULTS") != "full", reason="run by `make faults`")
_MINUTES = float(os.environ.get("TIDEWHEEL_FAULTS_MINUTES", "0"))
_REPORT = os.environ.get("TIDEWHEEL_FAULTS_REPORT", "")
_ROUND = 12  # rows of one campaign of a long run

# The rows in which a mutant shows.
_SHOWN_BY: dict[str, Sequence[type[Row]]] = {
    "claim-early": (rows.CRASH["intake"],),
    "complete-without-token": (rows.PauseExecutorInCalls,),
    "mark-before-report": (rows.CrashRelaysInOutage,),
    "no-lease": (rows.CRASH["intake"],),
    "no-reaper": (rows.FullSlots,),
    "pause-ignored": (rows.CRASH["intake"], rows.CRASH["intake"], rows.CRASH["intake"]),
}
_CALM = {"no-lease": 40.0}  # seconds, so that a repeat has no fault near it


_RESULTS: list[Result] = []
Judge: TypeAlias = Callable[..., Report]


@pytest.fixture(scope="module", autouse=True)
def report_at_the_end(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    capture: Any = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print_now(f"\n{summary(_RESULTS)}")


@pytest.fixture
def judge(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Judge:
    """Live through a campaign, print its verdict, and write the report of all campaigns so far."""

    def run(campaign: Campaign, *, seed: int | None = None) -> Report:
        begun, name, seed = monotonic_seconds(), request.node.name.removeprefix("test_"), seed or campaign.seed
        with capsys.disabled():
            print_now(f"\nseed {seed}: {', '.join(row.name for row in campaign.rows)}")
            history, report = campaign.run()
            print_now(f"{report}\n{table([history])}")
        seconds = monotonic_seconds() - begun
        _RESULTS.append(Result(name, seed, history, report, seconds, mutant=bool(campaign.site.mutant)))
        if _REPORT:
            Path(_REPORT).write_text(f"{summary(_RESULTS)}\n")
        return report

    return run


def test_nothing_is_lost_doubled_early_or_stuck(tmp_path: Path, judge: Judge) -> None:
    seed = seed_of("TIDEWHEEL_FAULTS_SEED")
    report = judge(Campaign(Site(tmp_path, seed), seed, rows.SHORT, Enough(targets=200, faults=4)))
    assert report.verdict == "pass", f"seed {seed}"


@FULL
def test_every_crash_pause_and_outage(tmp_path: Path, judge: Judge) -> None:
    seed = seed_of("TIDEWHEEL_FAULTS_SEED")
    report = judge(Campaign(Site(tmp_path, seed), seed, rows.PROCESSES))
    assert report.verdict == "pass", f"seed {seed}"


@FULL
def test_downtime_with_missed_occurrences(tmp_path: Path, judge: Judge) -> None:
    seed = seed_of("TIDEWHEEL_FAULTS_SEED")
    site = Site(tmp_path, seed, settings={"MISFIRE_AFTER": "1s"})
    enough = Enough(targets=400, faults=3)
    report = judge(Campaign(site, seed, rows.MISSED * 2, enough, policies=True, edits=False))
    assert report.verdict == "pass", f"seed {seed}"


@FULL
def test_slow_lossy_and_silent_lines(tmp_path: Path, judge: Judge) -> None:
    seed = seed_of("TIDEWHEEL_FAULTS_SEED")
    site = Site(tmp_path, seed, proxied=True)
    report = judge(Campaign(site, seed, machine_rows.LINES * 2, Enough(targets=250, faults=5)))
    assert report.verdict == "pass", f"seed {seed}"


@FULL
def test_partitions(tmp_path: Path, judge: Judge) -> None:
    if reason := why_no_namespaces():
        pytest.skip(f"not run: {reason}")
    seed = seed_of("TIDEWHEEL_FAULTS_SEED")
    site = Site(tmp_path, seed, namespaces=True)
    report = judge(Campaign(site, seed, machine_rows.NETWORK, Enough(targets=500, faults=8)))
    assert report.verdict == "pass", f"seed {seed}"


@FULL
def test_one_broker_of_three(tmp_path: Path, judge: Judge) -> None:
    seed = seed_of("TIDEWHEEL_FAULTS_SEED")
    site = Site(tmp_path, seed, brokers=3)
    report = judge(Campaign(site, seed, rows.BROKERS, Enough(targets=250, faults=4)))
    assert report.verdict == "pass", f"seed {seed}"


@FULL
def test_full_disks(tmp_path: Path, judge: Judge) -> None:
    if reason := why_no_mounts(tmp_path / "probe"):
        pytest.skip(f"not run: {reason}")
    seed = seed_of("TIDEWHEEL_FAULTS_SEED")
    site = Site(tmp_path, seed, disks=Disks(data=512, wal=144, broker=512))
    report = judge(Campaign(site, seed, machine_rows.DISKS, Enough(targets=250, faults=4)))
    assert report.verdict == "pass", f"seed {seed}"


@FULL
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_found(name: str, tmp_path: Path, judge: Judge) -> None:
    seed = seed_of("TIDEWHEEL_FAULTS_SEED")
    site, calm = Site(tmp_path, seed, mutant=name), _CALM.get(name, 2.0)
    report = judge(Campaign(site, seed, _SHOWN_BY[name], Enough(0, 0), calm, patience=20))
    assert report.verdict == "fail", f"seed {seed}: {MUTANTS[name].what}"


@pytest.mark.skipif(not _MINUTES, reason="set TIDEWHEEL_FAULTS_MINUTES")
def test_long_run_of_random_rows(tmp_path: Path, judge: Judge) -> None:
    seed, end = seed_of("TIDEWHEEL_FAULTS_SEED"), monotonic_seconds() + 60 * _MINUTES
    draw = random.Random(seed)  # noqa: S311
    reports: list[Report] = []
    while monotonic_seconds() < end:
        drawn = draw.choices(rows.PROCESSES, k=_ROUND)
        site = Site(tmp_path / str(len(reports)), draw.getrandbits(32))
        enough = Enough(targets=500, faults=_ROUND)
        reports.append(judge(Campaign(site, site.seed, drawn, enough, calm=draw.uniform(1, 10)), seed=seed))
    assert {report.verdict for report in reports} == {"pass"}, f"seed {seed}"
