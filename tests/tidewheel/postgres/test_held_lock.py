"""A process whose lock is lost with its connection changes nothing more (review of issue 39)."""

import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, LiteralString, get_args
from uuid import uuid4

import psycopg
import pytest

from tests.control.archive.test_archive import ADD_RUNS
from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.database import Database
from tests.fixtures.roles import stranger
from tests.fixtures.services import delete_topics, until
from tidewheel.control.archive.days import locked_archive
from tidewheel.control.archive.stores import FolderStore
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.occurrence_audit.result import run_audit
from tidewheel.control.restore.procedure import restore
from tidewheel.errors import Unavailable
from tidewheel.local.stack import StackInfo
from tidewheel.migrations import runner
from tidewheel.migrations.runner import migrate, migrations
from tidewheel.postgres.held_lock import OldLock, try_old_lock
from tidewheel.postgres.partitions import day_of, ensure_days, stored_days
from tidewheel.postgres.session import connect
from tidewheel.process.service import Shutdown
from tidewheel.scheduler import retention as retention_module
from tidewheel.scheduler.retention import Retention
from tidewheel.scheduler.retention_rules import periods_of
from tidewheel.settings.connections import Connections
from tidewheel.settings.services import SchedulerSettings

DAY = timedelta(days=1)
LOSE: LiteralString = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = %s
"""
LOST = "the connection that held the lock was lost"


def then_lose(database: Database, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that loses a lock once it has done its first work."""
    lost: list[str] = []

    def working(*arguments: object) -> object:
        result = work(*arguments)
        if not lost:
            lost.append(name)
            assert database.rows(LOSE, [name]) == [(True,)]
        return result

    return working


def retention_of(database: Database) -> Retention:
    return Retention(database.url, periods_of(SchedulerSettings.load()), Shutdown())


@pytest.mark.landing
@pytest.mark.parametrize(("step", "manifests"), [("prepare", 0), ("keep", 0), ("write_manifest", 1)])
def test_archiver_without_its_lock_writes_deletes_and_records_nothing(
    fresh_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, manifests: int
) -> None:
    monkeypatch.setenv("TIDEWHEEL_ARCHIVE", str(tmp_path))
    at = fresh_database.now() - 5 * DAY
    day = day_of(at)
    ensure_days(fresh_database.connection(autocommit=True), [day])
    fresh_database.execute(ADD_RUNS, {"at": at, "tenants": ["default"], "runs": 3})
    closing_days = retention_of(fresh_database)
    closing_days.step()
    closing_days.close()
    left = tmp_path / "days" / str(day) / "runs-9999-0.avro"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"of another process")
    with ExitStack() as other:
        held = iter([locked_archive(fresh_database.url)])
        losing = then_lose(fresh_database, "tidewheel-archive-lock", getattr(FolderStore, step))

        def stepping(*arguments: object) -> object:
            result = losing(*arguments)
            if entering := next(held, None):
                other.enter_context(entering)
            return result

        monkeypatch.setattr(FolderStore, step, stepping)
        done = tidewheel(fresh_database, "admin", "archive", "run")
        assert (done.code, LOST in done.err) == (ExitCode.UNAVAILABLE, True), done
    assert (len(list(tmp_path.glob("days/*/manifest.json"))), fresh_database.count("archived_days")) == (manifests, 0)
    assert left.exists()
    monkeypatch.undo()
    monkeypatch.setenv("TIDEWHEEL_ARCHIVE", str(tmp_path))
    assert str(day) in {each["day"] for each in json_output(fresh_database, "admin", "archive", "run")["archived"]}
    assert tidewheel(fresh_database, "admin", "archive", "verify").code == 0


def test_retention_without_its_lock_drops_no_further_day(
    fresh_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = [day_of(fresh_database.now()) - age * DAY for age in (200, 201)]
    ensure_days(fresh_database.connection(autocommit=True), days)
    before = len(stored_days(fresh_database.connection(autocommit=True)))
    dropping = then_lose(fresh_database, "tidewheel-retention-lock", retention_module.drop_day)
    monkeypatch.setattr(retention_module, "drop_day", dropping)
    retention = retention_of(fresh_database)
    with pytest.raises(Unavailable, match=LOST):
        retention.step()
    retention.close()
    assert len(stored_days(fresh_database.connection(autocommit=True))) == before - 1
    monkeypatch.undo()
    assert retention.step()
    retention.close()
    assert not {each.day for each in stored_days(fresh_database.connection(autocommit=True))} & set(days)


@pytest.mark.landing
def test_migration_without_its_lock_applies_no_further_file(
    empty_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [each.name for each in migrations()]
    applying = then_lose(empty_database, "tidewheel-migrate-lock", runner._apply)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(runner, "_apply", applying)
    with pytest.raises(Unavailable, match=LOST):
        migrate(empty_database.url)
    assert empty_database.rows("SELECT name FROM tidewheel_migrations") == [(names[0],)]
    assert migrate(empty_database.url) == names[1:]


def test_audit_without_its_lock_has_no_result(database: Database) -> None:
    report = StringIO()
    report.write = then_lose(database, "tidewheel-audit-lock", report.write)  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match=LOST):
        run_audit(database.url, database.now() - timedelta(hours=1), report=report)


HOLDER = """
import sys
from datetime import timedelta
from tidewheel.postgres.held_lock import held_lock
lock = "LOCK TABLE kept_since_lock IN ROW EXCLUSIVE MODE"
with held_lock(sys.argv[1], "tidewheel-audit-lock", lock, lease=timedelta(seconds=2)):
    print("held", flush=True)
    sys.stdin.read()
"""
RENEWED: LiteralString = """
SELECT query_start - xact_start > interval '3 seconds' FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'tidewheel-audit-lock'
"""


def is_kept(database: Database) -> bool:
    try:
        with database.transaction() as connection:
            connection.execute("LOCK TABLE kept_since_lock IN SHARE ROW EXCLUSIVE MODE NOWAIT")
    except psycopg.errors.LockNotAvailable:
        return True
    return False


@pytest.mark.landing
def test_stopped_audit_loses_its_lock_and_a_living_one_keeps_it(database: Database) -> None:
    """Issue 39, N2: a stopped audit kept retention from removing runs for as long as it was stopped."""
    given = [sys.executable, "-c", HOLDER, database.url]
    with subprocess.Popen(given, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == b"held\n"
            until(lambda: database.rows(RENEWED) == [(True,)], "the lease of 2 s was renewed after 3 s")
            assert is_kept(database)
            holder.send_signal(signal.SIGSTOP)
            until(lambda: not is_kept(database), "the lease is over")
        finally:
            holder.kill()


def archives(url: str) -> bool:
    try:
        with locked_archive(url):
            return True
    except Unavailable:
        return False


def takes(name: OldLock, url: str) -> bool:
    with connect(url, "test") as connection:
        return try_old_lock(connection, name)


OF_0_1: dict[OldLock, Callable[[str], bool]] = {
    **{name: partial(takes, name) for name in get_args(OldLock)}, "archive": archives,
}  # fmt: skip
LOCK_OLD: LiteralString = "SELECT pg_advisory_xact_lock(hashtext('tidewheel.' || %s))"


@pytest.mark.parametrize("name", OF_0_1)
def test_work_of_0_1_is_respected_until_it_ends_and_a_stranger_never(fresh_database: Database, name: OldLock) -> None:
    """Both releases work during a rolling upgrade (N2 of issue 39)."""
    works, url = OF_0_1[name], fresh_database.url
    with psycopg.connect(fresh_database.url_of("scheduler")) as old:
        old.execute(LOCK_OLD, [name])
        assert not works(url)
    assert works(url)
    with stranger(url) as other_url, psycopg.connect(other_url) as other:
        other.execute(LOCK_OLD, [name])
        assert works(url)


def test_archive_keeps_one_of_0_1_out(fresh_database: Database) -> None:
    with locked_archive(fresh_database.url):
        assert fresh_database.value("SELECT pg_try_advisory_lock(hashtext('tidewheel.archive'))") is False


@pytest.mark.landing
@pytest.mark.kafka
def test_restore_without_its_lock_does_not_open_the_database(
    fresh_database: Database, info: StackInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = f"t{uuid4().hex[:10]}"
    monkeypatch.setenv("TIDEWHEEL_TOPIC_PREFIX", prefix)
    monkeypatch.setenv("TIDEWHEEL_KAFKA_PROPERTIES", str(info.kafka_properties))
    assert tidewheel(fresh_database, "admin", "topics", "apply").code == 0
    settings, since = Connections.load(), fresh_database.now() - timedelta(minutes=1)

    def lose(step: str) -> None:
        if step == "recording runs and their ends":
            with psycopg.connect(fresh_database.url) as other:
                assert other.execute(LOSE, ["tidewheel-restore-lock"]).fetchall() == [(True,)]

    def is_stopped() -> bool:
        with pytest.raises(Unavailable) as stopped:
            restore(fresh_database.url, settings, since=since, progress=lose)
        return LOST in str(stopped.value)  # else the new topics have no leaders yet

    until(is_stopped, "the restore has lost its lock")
    with pytest.raises(Unavailable, match="session is read-only"):
        fresh_database.execute("DELETE FROM job_runs")
    restore(fresh_database.url, settings, since=since)
    fresh_database.execute("DELETE FROM job_runs")
    delete_topics(info.kafka, prefix)
