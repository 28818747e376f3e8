"""`tidewheel admin audit` finds each tampered record, and nothing where all is in order."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.acts import about, ending, submission
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tests.transitions.graphs import drain_some, never
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.client.client import Client
from tidewheel.control.occurrence_audit.result import AuditResult, run_audit
from tidewheel.errors import Unavailable
from tidewheel.ids import job_id
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.scheduler.releases import Thaws

START = datetime(2026, 3, 29, 0, 0, 30, tzinfo=UTC)  # a Sunday; at 01:00 Berlin's clock goes forward
MIDNIGHT = datetime(2026, 3, 29, tzinfo=UTC)
JOBS: Mapping[str, dict[str, object]] = {
    "in-the-gap": {"schedule": {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}},
    "wall-clock": {"schedule": {"cron": "*/5 * * * *", "timezone": "Europe/Berlin"}, "overlap": "allow_all"},
    "interval": {"schedule": {"interval": "1m"}, "overlap": "allow_all", "catch_up": "fire_all"},
    "paused": {"schedule": {"interval": "1m"}},
    "frozen": {"schedule": {"interval": "1m"}, "labels": {"team": "ice"}},
    "held": {"schedule": {"interval": "5m"}},
    "closed": {"schedule": {"cron": "*/10 * * * *"}, "exclude_calendars": ["holidays"]},
    "shifted": {"schedule": "15 0 * * SUN", "exclude_calendars": ["closed"], "on_excluded": "next_business_day"},
    "overridden": {"schedule": {"cron": "*/20 * * * *"}, "overlap": "allow_all"},
    "late": {"schedule": {"once": "2026-03-28T12:00:00Z"}},
    "edited": {"schedule": {"interval": "2m"}},
    "deleted": {"schedule": {"interval": "3m"}},
    "chain": {"schedule": {"fixed_delay": "10m"}},
    "by-hand": {"schedule": "manual"},
    "child": {"schedule": {"after": [{"job": "by-hand"}]}},
}
RANGE = ("--from", "2026-03-29T00:00Z", "--to", "2026-03-30T00:00Z")
STEPS = (20, 45, 300, 60, 600, 20, 300, 1200, 45, 600, 1200, 600, 300, 45)  # seconds


def fire(database: ClockedDatabase) -> None:
    thaws = Thaws(database.session(), database.installation)
    while thaws.step():
        pass
    while fire_due(database):
        pass


@pytest.fixture
def history(clocked: ClockedDatabase) -> ClockedDatabase:
    """A day with a clock change, in irregular steps: with misfires, a pause, a freeze, edits and attempts."""
    clocked.stop_clock(datetime(2026, 3, 27, tzinfo=UTC))
    clocked.stop_clock(MIDNIGHT)
    for name in ("closed", "holidays"):
        clocked.apply_batch({"type": "calendar.put", "name": name, "weekdays": ["SUN"]})
    now = clocked.stop_clock(START)
    for key, spec in JOBS.items():
        clocked.submit(key, **spec)
    script: dict[int, list[dict[str, object]]] = {
        3: [about("job.pause", "paused"), about("job.skip", "overridden", at="2026-03-29T00:40:00Z")],
        4: [{"type": "freeze", "labels": {"team": "ice"}}],
        5: [about("job.move", "overridden", at="2026-03-29T01:00:00Z", to="2026-03-29T00:50:00Z")],
        7: [about("job.resume", "paused"), {"type": "thaw", "labels": {"team": "ice"}}],
        8: [about("job.pause", "held"), about("job.delete", "deleted")],
        9: [{"type": "calendar.put", "name": "holidays", "days": ["2026-12-25"]}],
    }
    for number, step in enumerate(STEPS):
        if number == 6:
            clocked.submit("edited", schedule={"interval": "5m"})
            clocked.submit("deleted", schedule={"interval": "4m"})
        for document in script.get(number, ()):
            [reply] = clocked.apply_batch(document)
            assert not reply.errors, (document, reply.errors)
        fire(clocked)
        now = clocked.stop_clock(now + timedelta(seconds=step))
        fire(clocked)
    runs = clocked.rows(
        "SELECT run_id FROM job_runs WHERE job_id = %s AND publish_at <= %s ORDER BY run_id LIMIT 12",
        [job_id("default", "interval"), now],
    )
    assert len(runs) == 12
    for number, (run,) in enumerate(runs):
        started = clocked.begin(run)
        if number % 3 == 0:
            clocked.requeue(started, AttemptOutcome.FAILED)
            started = clocked.begin(run)
        clocked.end(ending(started, RunState.FAILED if number % 4 == 0 else RunState.SUCCEEDED))
    for _ in range(4):
        [(link,)] = clocked.rows("SELECT run_id FROM job_runs WHERE job_id = %s", [job_id("default", "chain")])
        clocked.end(ending(clocked.begin(link), RunState.SUCCEEDED))
        now = clocked.stop_clock(now + timedelta(minutes=12))
        fire(clocked)
    clocked.end(ending(clocked.begin(clocked.trigger("by-hand")), RunState.SUCCEEDED))
    drain_some(clocked, never())
    [(child,)] = clocked.rows("SELECT run_id FROM job_runs WHERE job_id = %s", [job_id("default", "child")])
    clocked.end(ending(clocked.begin(child), RunState.SUCCEEDED))
    drain_some(clocked, never())
    assert clocked.value("SELECT state FROM workflows") == "succeeded"
    clocked.stop_clock(MIDNIGHT + timedelta(days=1, minutes=20))
    fire(clocked)
    return clocked


def audited(database: ClockedDatabase, first: datetime = MIDNIGHT) -> AuditResult:
    return run_audit(database.url, first)


def found(result: AuditResult) -> set[tuple[str, str, str]]:
    """Return each finding as problem, key and first instant."""
    return {(each.finding.problem, each.key, f"{each.finding.first_at:%d %H:%M}") for each in result.findings}


def test_every_occurrence_is_accounted_for_and_the_report_proves_itself(
    history: ClockedDatabase, tmp_path: Path
) -> None:
    result = audited(history, datetime(2026, 3, 28, tzinfo=UTC))
    assert not result.findings, found(result)
    totals = result.totals
    assert totals.computed == totals.fired + totals.skipped.total() + totals.undecided.total()
    assert set(totals.skipped) >= {"misfire", "paused", "frozen", "excluded", "manual"}
    assert set(totals.undecided) >= {"pause"}
    assert totals.by_message == 12 + 4
    assert totals.attempts == 16 + 4

    path = tmp_path / "audit.json"
    done = tidewheel(history, "admin", "audit", "--from", "2026-03-29T00:00Z", "--report", path)
    assert (done.code, done.err) == (0, ""), done
    *lines, last = path.read_bytes().splitlines(keepends=True)
    report = json.loads(path.read_bytes())
    assert report["sha256"] == sha256(b"".join(lines)).hexdigest() in done.out
    assert last.startswith(b'"sha256"')
    assert report["passed"]
    assert report["tzdata"]
    assert {job["key"] for job in report["jobs"]} == set(JOBS) - {"by-hand", "late", "child"}
    assert sum(job["computed"] for job in report["jobs"]) == report["totals"]["computed"]

    assert history.client.audit(MIDNIGHT).totals.computed == report["totals"]["computed"]
    one = json_output(history, "admin", "audit", "--from", "2026-03-29T00:00Z", "--job", "in-the-gap")
    assert (one["totals"]["computed"], one["totals"]["fired"], one["passed"]) == (1, 1, True)


def test_each_tampered_record_is_named_with_its_instant(history: ClockedDatabase) -> None:
    def first_run(key: str) -> tuple[UUID, datetime]:
        [row] = history.rows(
            "SELECT run_id, scheduled_at FROM runs WHERE job_id = %s ORDER BY scheduled_at LIMIT 1",
            [job_id("default", key)],
        )
        return row[0], row[1]

    wanted: set[tuple[str, str, str]] = set()
    removed, at = first_run("interval")
    assert history.execute("DELETE FROM job_runs WHERE run_id = %s", [removed]) or history.execute(
        "DELETE FROM finished_runs WHERE run_id = %s", [removed]
    )
    wanted.add(("missing", "interval", f"{at:%d %H:%M}"))
    [(at,)] = history.rows(
        "DELETE FROM skips WHERE job_id = %s AND reason = 'paused' RETURNING first_at", [job_id("default", "paused")]
    )
    wanted.add(("missing", "paused", f"{at:%d %H:%M}"))
    doubled, at = first_run("wall-clock")
    history.execute(
        """INSERT INTO finished_runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at,
                                      publish_at, created_at, finished_at, state, attempt)
           SELECT gen_random_uuid(), job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at,
                  created_at, tidewheel_now(), 'cancelled', 0
             FROM runs WHERE run_id = %s""",
        [doubled],
    )
    wanted.add(("doubled", "wall-clock", f"{at:%d %H:%M}"))
    history.execute(
        "UPDATE job_versions SET schedule_json = replace(schedule_json, '30 2', '30 3') WHERE job_id = %s",
        [job_id("default", "in-the-gap")],
    )
    wanted |= {("unexpected", "in-the-gap", "29 01:00"), ("missing", "in-the-gap", "29 01:30")}
    [(at,)] = history.rows(
        "UPDATE skips SET occurrences = occurrences + 1 WHERE job_id = %s AND reason = 'frozen' RETURNING first_at",
        [job_id("default", "frozen")],
    )
    wanted.add(("miscounted", "frozen", f"{at:%d %H:%M}"))
    [(attempted,)] = history.rows(
        "DELETE FROM attempts WHERE outcome = 'failed' AND attempt = 1 AND run_id <> %s RETURNING run_id", [removed]
    )[:1]
    [(at,)] = history.rows(
        """DELETE FROM finished_runs
            WHERE run_id = (SELECT run_id FROM finished_runs WHERE job_id = %s ORDER BY scheduled_at OFFSET 1 LIMIT 1)
        RETURNING scheduled_at""",
        [job_id("default", "chain")],
    )
    wanted.add(("missing", "chain", f"{at:%d %H:%M}"))
    [(at,)] = history.rows(
        "DELETE FROM finished_runs WHERE job_id = %s RETURNING scheduled_at", [job_id("default", "child")]
    )
    wanted.add(("missing", "child", f"{at:%d %H:%M}"))
    history.execute("UPDATE calendars SET weekdays = '{0,1}' WHERE name = 'holidays'")
    [(at,)] = history.rows(
        "SELECT min(scheduled_at) FROM runs WHERE job_id = %s AND state <> 'skipped'", [job_id("default", "closed")]
    )
    wanted.add(("excluded", "closed", f"{at:%d %H:%M}"))
    result = audited(history)
    assert found(result) >= wanted
    assert {problem for problem, *_ in found(result)} == {problem for problem, *_ in wanted} | {"attempts"}
    assert any(str(attempted) in each.finding.words for each in result.findings)
    done = tidewheel(history, "admin", "audit", "--from", "2026-03-29T00:00Z", "--job", "paused")
    assert done.code == ExitCode.FAILED
    assert done.out.startswith("missing: default/paused at 2026-03-29T00:")
    history.execute(
        """UPDATE calendars
              SET past = (SELECT jsonb_agg(s.held)
                            FROM (SELECT past -> 0 || '{"until": "2026-03-30T00:20:00+00:00"}' AS held
                                    FROM generate_series(1, 100)) AS s)
            WHERE name = 'holidays'"""
    )
    assert "excluded" not in {problem for problem, *_ in found(audited(history))}  # the days may be forgotten


def report_of(database: ClockedDatabase, path: Path) -> dict[str, Any]:
    assert tidewheel(database, "admin", "audit", *RANGE, "--report", path).code == 0
    document: dict[str, Any] = json.loads(path.read_bytes())
    return document


def test_tenant_that_is_being_deleted_is_left_out_and_named(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(MIDNIGHT)
    with Client(clocked.url) as client:
        client.tenants.create("acme")
        for tenant in ("acme", "default"):
            clocked.apply_batch(submission("interval", schedule={"interval": "1m"}) | {"tenant": tenant})
        for minutes in (1, 2):
            clocked.stop_clock(MIDNIGHT + timedelta(minutes=minutes, seconds=1))
            fire(clocked)
        whole = audited(clocked).totals.fired
        client.tenants.delete("acme", grace=timedelta(0))
    clocked.execute("DELETE FROM timers WHERE tenant = 'acme'")
    clocked.stop_clock(MIDNIGHT + timedelta(minutes=3))
    fire(clocked)
    for _ in range(2):
        result = audited(clocked)
        assert not result.findings, found(result)
        assert (whole, result.totals.jobs, result.facts.deleting) == (4, 1, ["acme"])
        clocked.execute("DELETE FROM job_versions WHERE tenant = 'acme'")
    done = tidewheel(clocked, "admin", "audit", "--from", "2026-03-29T00:00Z")
    assert "acme" in done.out
    [refusal] = tidewheel(clocked, "admin", "audit", "--from", "2026-03-29T00:00Z", "--tenant", "acme").refusals
    assert refusal.startswith("tenant: tenant 'acme' is being deleted")


def test_refused_audit_leaves_the_report_before_it(history: ClockedDatabase, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    report_of(history, path)
    before = path.read_bytes()
    for wrong in (("--job", "nope"), ("--tenant", "nope")):
        done = tidewheel(history, "admin", "audit", *RANGE, *wrong, "--report", path)
        assert (done.code, path.read_bytes(), [*tmp_path.iterdir()]) == (ExitCode.NOT_FOUND, before, [path])
    for nowhere in (tmp_path, tmp_path / "none" / "report.json"):
        [refusal] = tidewheel(history, "admin", "audit", *RANGE, "--report", nowhere).refusals
        assert refusal.startswith(f"--report: {nowhere} cannot be written")


def test_range_that_is_ahead_or_no_longer_kept_is_refused(history: ClockedDatabase) -> None:
    [ahead] = tidewheel(history, "admin", "audit", "--from", "2026-03-29T00:00Z", "--to", "2027-01-01T00:00Z").refusals
    assert ahead.startswith("--to: 2027-01-01T00:00:00.000000Z is ahead")
    history.execute("UPDATE job_versions SET effective_at = '1999-01-01' WHERE version = 1")
    assert "no longer kept" in tidewheel(history, "admin", "audit", "--from", "1999-01-02T00:00Z").refusal
    [unknown] = tidewheel(history, "admin", "audit", "--from", "2026-03-29T00:00Z", "--job", "none").refusals
    assert unknown.startswith("key: tenant 'default' has no job 'none'")


@pytest.mark.slow
def test_audit_beside_a_pass_of_retention_that_does_not_end_is_refused(clocked: ClockedDatabase) -> None:
    with psycopg.connect(clocked.url) as retention:
        retention.execute("LOCK TABLE kept_since_lock IN SHARE ROW EXCLUSIVE MODE")
        with pytest.raises(Unavailable, match="retention is running"):
            run_audit(clocked.url, MIDNIGHT)
