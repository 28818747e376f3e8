"""The migration runner: each file once, in order, by one runner at a time, and never an edited file."""

import threading
from contextlib import closing
from datetime import datetime, timedelta
from hashlib import sha256
from typing import LiteralString

import psycopg
import pytest
import yaml
from psycopg import sql

from tests.control.cli.command import tidewheel
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.strict_types import ROOT
from tests.transitions.stepping import in_background
from tidewheel.clock import SystemClock, monotonic_seconds
from tidewheel.distribution import release_version
from tidewheel.errors import MigrationError, Unavailable
from tidewheel.migrations import registrations, runner
from tidewheel.migrations.runner import Migration, MigrationState, migrate, migrations, require_current, status
from tidewheel.postgres.partitions import AHEAD_DAYS, TABLES, day_of
from tidewheel.postgres.statements import Statements, trusted

NAMES = [migration.name for migration in migrations()]
LAST = NAMES[-1]

APPLIED: LiteralString = "SELECT name, checksum, applied_at FROM tidewheel_migrations ORDER BY name"
THINGS: LiteralString = """
SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace)
     + (SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace)
"""
WAITS: LiteralString = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = %s AND wait_event = %s
"""
FOR_A_RUNNER = "tidewheel-migrate-lock", "ClientRead"
FOR_A_TRANSACTION = "tidewheel-migrate", "virtualxid"
FOR_A_TABLE = "tidewheel-migrate", "relation"
LOCK: LiteralString = "LOCK TABLE tidewheel_migrations IN SHARE UPDATE EXCLUSIVE MODE"


def states(database: Database) -> list[MigrationState]:
    return [each.state for each in status(database.url)]


def test_files_are_in_the_order_of_their_numbers_and_hashed_byte_for_byte() -> None:
    files = sorted((ROOT / "migrations").glob("[0-9]*.sql"))
    assert [path.name for path in files] == NAMES
    assert [migration.number for migration in migrations()] == [int(path.name[:4]) for path in files]
    assert [migration.checksum for migration in migrations()] == [sha256(p.read_bytes()).hexdigest() for p in files]


def test_migrations_are_applied_once_and_in_order(empty_database: Database) -> None:
    assert states(empty_database) == [MigrationState.PENDING] * len(NAMES)
    assert migrate(empty_database.url) == NAMES
    first = empty_database.rows(APPLIED)
    assert [(name, checksum) for name, checksum, _ in first] == [(m.name, m.checksum) for m in migrations()]
    assert [at for _, _, at in first] == sorted(at for _, _, at in first)
    reported = [(each.name, each.applied_at) for each in status(empty_database.url)]
    assert reported == [(name, at) for name, _, at in first]
    assert states(empty_database) == [MigrationState.APPLIED] * len(NAMES)
    # A second migrate changes nothing.
    assert migrate(empty_database.url) == []
    assert empty_database.rows(APPLIED) == first
    empty_database.within(require_current)


def test_dry_run_names_the_pending_files_and_leaves_nothing(empty_database: Database) -> None:
    assert migrate(empty_database.url, dry_run=True) == NAMES
    assert empty_database.value(THINGS) == 0
    assert migrate(empty_database.url) == NAMES
    empty_database.execute("DELETE FROM schemas")
    before = empty_database.rows(APPLIED)
    assert migrate(empty_database.url, dry_run=True) == []
    assert (empty_database.rows(APPLIED), empty_database.count("schemas")) == (before, 0)


@pytest.mark.parametrize("name", [NAMES[0], LAST])
def test_edited_file_is_refused_and_nothing_is_applied(fresh_database: Database, name: str) -> None:
    fresh_database.execute("UPDATE tidewheel_migrations SET checksum = checksum || 'x' WHERE name = %s", [name])
    remedy = f"^{name} was edited after it was applied to this database; restore the released file$"
    for refused in (migrate, status):
        with pytest.raises(MigrationError, match=remedy):
            refused(fresh_database.url)
    with pytest.raises(MigrationError, match=remedy):
        fresh_database.within(require_current)
    fresh_database.execute("UPDATE tidewheel_migrations SET checksum = rtrim(checksum, 'x')")
    assert migrate(fresh_database.url) == [], "the refused runner has released the lock"


def test_database_with_newer_migrations_is_accepted(fresh_database: Database) -> None:
    """Migrations before a deploy suit the old code too."""
    fresh_database.execute("INSERT INTO tidewheel_migrations VALUES ('9999_later_pre.sql', 'of another release')")
    assert migrate(fresh_database.url) == []
    assert states(fresh_database) == [MigrationState.APPLIED] * len(NAMES)
    fresh_database.within(require_current)


def test_service_on_an_old_database_names_what_is_missing(fresh_database: Database, empty_database: Database) -> None:
    def refusal(database: Database) -> str:
        with database.transaction() as connection:
            with pytest.raises(MigrationError) as caught:
                require_current(connection)
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        return str(caught.value)

    assert refusal(empty_database) == f"the database lacks {', '.join(NAMES)}; run `tidewheel migrate`"
    fresh_database.execute("DELETE FROM tidewheel_migrations WHERE name = %s", [LAST])
    assert refusal(fresh_database) == f"the database lacks {LAST}; run `tidewheel migrate`"


def test_second_of_two_runners_waits_and_finds_nothing_to_do(empty_database: Database) -> None:
    empty_database.execute(Statements("tidewheel.migrations")["make_migrations_table"])
    with closing(empty_database.connection()) as holding:
        holding.execute(LOCK)
        runners = [in_background(lambda: migrate(empty_database.url)) for _ in range(2)]
        until(lambda: empty_database.value(WAITS, FOR_A_RUNNER) == 2, "both runners wait")
        assert empty_database.count("tidewheel_migrations") == 0
        holding.rollback()
        assert sorted(runner.result(30) for runner in runners) == [[], NAMES]
    assert states(empty_database) == [MigrationState.APPLIED] * len(NAMES)


def test_waiting_runner_holds_up_no_index_of_the_first(
    fresh_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    [name] = probes(monkeypatch, ("index", f"{ALONE}CREATE INDEX CONCURRENTLY probe ON jobs (tenant);\n"))
    with closing(fresh_database.connection()) as writer:
        writer.execute("UPDATE jobs SET tenant = tenant")
        first = in_background(lambda: migrate(fresh_database.url))
        until(lambda: fresh_database.value(WAITS, FOR_A_TRANSACTION) == 1, "the index waits for the writer")
        second = in_background(lambda: migrate(fresh_database.url))
        until(lambda: fresh_database.value(WAITS, FOR_A_RUNNER) == 1, "the second runner waits")
        writer.rollback()
        assert (first.result(30), second.result(30)) == ([name], [])


def test_failed_file_leaves_earlier_ones_applied_and_is_retried(empty_database: Database) -> None:
    empty_database.execute("CREATE TABLE outbox (other text)")
    with pytest.raises(psycopg.errors.DuplicateTable):
        migrate(empty_database.url)
    failed = next(name for name in NAMES if "outbox" in name)
    done, left = NAMES[: NAMES.index(failed)], NAMES[NAMES.index(failed) :]
    assert [name for name, _, _ in empty_database.rows(APPLIED)] == done
    empty_database.execute("DROP TABLE outbox")
    assert migrate(empty_database.url) == left


def test_migrating_again_creates_missing_partitions(fresh_database: Database) -> None:
    """A runner that is killed after its last commit has not created them; the next has no file to apply."""
    today = day_of(SystemClock().now())
    names = [f"{table}_{today + timedelta(days=n):%Y%m%d}" for table in TABLES for n in range(AHEAD_DAYS + 1)]
    for name in names:
        fresh_database.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(name)))
    assert migrate(fresh_database.url) == []
    assert [name for name in names if not fresh_database.value("SELECT to_regclass(%s) IS NOT NULL", [name])] == []


def test_unreachable_database_raises_unavailable() -> None:
    for attempt in (migrate, status):
        with pytest.raises(Unavailable):
            attempt("postgresql://127.0.0.1:1/none")


def probes(monkeypatch: pytest.MonkeyPatch, *texts: tuple[str, LiteralString]) -> list[str]:
    """Let the runner have these files too, after its own; return their names."""
    real = runner.migrations
    more = tuple(
        Migration(9000 + number, f"{9000 + number}_{name}.sql", text) for number, (name, text) in enumerate(texts)
    )
    monkeypatch.setattr(runner, "migrations", lambda: (*real(), *more))
    return [migration.name for migration in more]


def test_state_of_migrations_is_printed_in_each_form(fresh_database: Database) -> None:
    shown = tidewheel(fresh_database.url, "migrate", "--status", "-o", "json").json["migrations"]
    assert [[each.name, each.state.value] for each in status(fresh_database.url)] == [row[:2] for row in shown]
    assert datetime.fromisoformat(shown[0][2]).utcoffset() == timedelta(0)
    form = tidewheel(fresh_database.url, "migrate", "--status", "-o", "yaml").out
    assert form.startswith("---\nmigrations:\n")
    assert yaml.safe_load(form) == {"migrations": shown}
    assert tidewheel(fresh_database.url, "admin", "schemas", "check", "-o", "yaml").out == "---\nproblems: []\n"


def register_relay(database: Database, version: str = "0.0.9", *, pid: int = 7, silent: int = 1) -> None:
    """Register a process of a release without a heartbeat for so many hours."""
    database.execute(
        "INSERT INTO processes (process_id, role, host, pid, version, settings, sent_at, last_heartbeat_at, started_at)"
        " VALUES (gen_random_uuid(), 'relay', 'host-1', %s, %s, '{}', now(), now() - %s * interval '1 hour', now())",
        [pid, version, silent],
    )


ALONE: LiteralString = "-- outside a transaction\n"
ADD: LiteralString = "ALTER TABLE job_runs ADD COLUMN probe int"
DROP: LiteralString = "ALTER TABLE job_runs DROP COLUMN probe"


# The command has counted the silent rows.
LISTENS: LiteralString = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND state = 'idle' AND query LIKE '%SELECT count(*) FROM processes WHERE version%'
"""


def test_post_files_are_a_step_of_their_own_and_wait_for_other_releases(
    fresh_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pre, post = probes(monkeypatch, ("probe", ADD), ("probe_post", DROP))
    dry = tidewheel(fresh_database.url, "migrate", "--dry-run")
    assert dry.lines[0] == f"would apply {pre}"
    left = f"left     {post}: `tidewheel migrate --post`, after the last process of the previous release"
    assert tidewheel(fresh_database.url, "migrate").lines == [f"applied {pre}", left]
    assert tidewheel(fresh_database.url, "migrate").lines == ["nothing to do", left]
    fresh_database.within(require_current)  # the files of the later step are none that a service needs
    for version in ("0.0.9", release_version()):
        register_relay(fresh_database, version)
    [refusal] = tidewheel(fresh_database.url, "migrate", "--post").refusals
    assert refusal.startswith(f"{post}: only processes of {release_version()} support this")
    assert "others run: relay 0.0.9 on host-1 pid 7; stop them" in refusal
    monkeypatch.setattr(registrations, "_LISTEN_SECONDS", 0.0)
    forgot, applied = tidewheel(fresh_database.url, "migrate", "--post", "--forget-silent", "5m").lines
    assert forgot.startswith("forgot   relay 0.0.9 on host-1 pid 7, silent since ")
    assert applied == f"applied {post}"
    assert fresh_database.value("SELECT count(*) FROM processes") == 1, "silent ones of this release stay"
    fresh_database.execute("UPDATE processes SET version = '0.0.9'")
    [refusal] = tidewheel(fresh_database.url, "migrate", "--post").refusals
    assert refusal.startswith("the revoked rights: only processes")
    monkeypatch.undo()
    with pytest.raises(MigrationError, match=f"^the database has {post}"):
        fresh_database.within(require_current)


@pytest.mark.landing
def test_processes_with_a_fresh_heartbeat_are_never_forgotten(
    fresh_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One writes a heartbeat while the command waits, as after a pause of PostgreSQL."""
    monkeypatch.setattr(registrations, "_LISTEN_SECONDS", 3.0)
    for number in range(3):
        register_relay(fresh_database, pid=number, silent=number)
    running = in_background(lambda: tidewheel(fresh_database.url, "migrate", "--post", "--forget-silent", "5m"))
    until(lambda: fresh_database.value(LISTENS) == 1, "the command waits")
    fresh_database.execute("UPDATE processes SET last_heartbeat_at = now() WHERE pid = 1")
    done = running.result(30)
    assert done.out.startswith("forgot   relay 0.0.9 on host-1 pid 2, ")
    assert done.code == 1
    assert "relay 0.0.9 on host-1 pid 0; relay 0.0.9 on host-1 pid 1;" in done.err
    assert fresh_database.value("SELECT count(*) FROM processes") == 2


def test_older_release_forgets_no_process_of_a_newer_one(fresh_database: Database) -> None:
    fresh_database.execute("INSERT INTO tidewheel_migrations (name, checksum) VALUES ('9999_newer', '')")
    register_relay(fresh_database, "9.0.0")
    [refusal] = tidewheel(fresh_database.url, "migrate", "--post", "--forget-silent", "5m").refusals
    assert refusal.startswith("--forget-silent: a newer release has migrated this database")
    assert fresh_database.value("SELECT count(*) FROM processes") == 1


@pytest.mark.parametrize(
    "options", ["--forget-silent 5m", "--post --dry-run --forget-silent 5m", "--post --forget-silent 0s"]
)
def test_forgetting_needs_the_last_step_and_a_minute_of_silence(fresh_database: Database, options: str) -> None:
    [refusal] = tidewheel(fresh_database.url, "migrate", *options.split()).refusals
    assert refusal.startswith("--forget-silent: ")


def test_pending_post_file_of_an_earlier_release_is_no_part_of_the_next(
    fresh_database: Database, empty_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = probes(monkeypatch, ("a", ADD), ("b_post", DROP), ("c", ADD))
    with pytest.raises(MigrationError, match=f"^{names[1]} of an earlier release is pending"):
        migrate(fresh_database.url)
    assert migrate(fresh_database.url, post=True) == names  # no process is there
    assert migrate(empty_database.url) == NAMES + names


def test_migration_of_a_locked_table_blocks_others_for_a_moment_only(
    fresh_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    [name] = probes(monkeypatch, ("probe", ADD))
    with closing(fresh_database.connection()) as reader, fresh_database.connection(autocommit=True) as other:
        reader.execute("SELECT FROM job_runs")
        running = in_background(lambda: migrate(fresh_database.url))
        for _ in range(2):  # it tries again
            until(lambda: fresh_database.value(WAITS, FOR_A_TABLE) == 1, "the migration waits for the table")
            began = monotonic_seconds()
            other.execute("UPDATE job_runs SET priority = priority")
            assert monotonic_seconds() - began < 5  # 0.2 s on a quiet machine; without an end the lock's 10 s
            until(lambda: fresh_database.value(WAITS, FOR_A_TABLE) == 0, "it has given up")
        assert not running.done()
        reader.rollback()
        assert running.result(30) == [name]


HELD: LiteralString = """
SELECT DISTINCT c.relname::text
  FROM pg_locks AS l
  JOIN pg_class AS c ON c.oid = l.relation
 WHERE l.pid = pg_backend_pid() AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
   AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relnamespace = 'public'::regnamespace
"""
THERE: LiteralString = """
SELECT relname::text FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace
"""
EACH_KIND: LiteralString = """
ALTER TABLE ONLY jobs ADD COLUMN probe int;
COMMENT ON COLUMN timers.version IS 'probe';
CREATE TRIGGER probe BEFORE UPDATE
    ON outbox FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
CREATE POLICY probe ON skips USING (true);
CREATE TABLE probe (name text REFERENCES tenants (tenant));
DROP TABLE requests;
"""


def test_tables_that_a_file_locks_are_known(empty_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that the runner does not lock first would be waited for while others are locked."""
    probes(monkeypatch, ("probe", EACH_KIND))
    locked: set[str] = set()
    with closing(empty_database.connection()) as connection:
        for migration in runner.migrations():
            there = {str(name) for (name,) in connection.execute(THERE).fetchall()}
            connection.rollback()
            connection.autocommit = migration.statements is not None
            for statement in migration.statements or (migration.text,):
                connection.execute(statement)
            locked = {str(name) for (name,) in connection.execute(HELD).fetchall()} & there
            assert locked <= migration.locked_tables, migration.name
            connection.commit()
        assert locked == {"jobs", "timers", "outbox", "skips", "tenants"}


def test_file_that_locks_many_tables_blocks_writers_for_a_moment_only(
    fresh_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transactions that read the tables end one after the other, each just before the wait for it ends."""
    tables = ("job_edges", "job_runs", "job_versions", "jobs", "outbox", "overrides", "skips", "timers")
    text = trusted("".join(f"ALTER TABLE {table} ADD COLUMN probe int;\n" for table in tables))
    [name] = probes(monkeypatch, ("probe", text))
    monkeypatch.setattr(runner, "_PAUSE_SECONDS", 0.05)
    waits = trusted(
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock' AND relation = %s::regclass"
    )
    ended, written = threading.Event(), list[float]()

    def write() -> None:
        with fresh_database.connection(autocommit=True) as writing:
            while not ended.is_set():
                writing.execute("UPDATE job_edges SET until_at = until_at")
                written.append(monotonic_seconds())

    readers = {table: fresh_database.connection() for table in tables[1:]}
    for table, reader in readers.items():
        reader.execute(sql.SQL("SELECT FROM {}").format(sql.Identifier(table)))
    writing, running = in_background(write), in_background(lambda: migrate(fresh_database.url))
    held_up: list[int] = []
    for table, reader in readers.items():
        until(lambda: fresh_database.value(waits, [table]) == 1, f"the migration waits for {table}")  # noqa: B023
        held_up.append(len(written))
        ended.wait(0.15)
        reader.close()
    assert running.result(30) == [name]
    ended.set()
    writing.result(30)
    # All waits together are longer than one try may take. With a timeout for each table nothing is written meanwhile.
    assert held_up[-1] > held_up[0]


def test_post_step_looks_for_old_processes_before_each_try(
    fresh_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes(monkeypatch, ("probe", ADD), ("probe_post", DROP))
    migrate(fresh_database.url)
    with closing(fresh_database.connection()) as reader:
        reader.execute("SELECT FROM job_runs")
        running = in_background(lambda: migrate(fresh_database.url, post=True))
        until(lambda: fresh_database.value(WAITS, FOR_A_TABLE) == 1, "the migration waits for the table")
        register_relay(fresh_database, silent=0)
        with pytest.raises(MigrationError, match=r"others run: relay 0\.0\.9 on host-1"):
            running.result(30)


def test_statements_outside_a_transaction_are_recorded_when_all_are_done(
    fresh_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = "CREATE INDEX CONCURRENTLY probe ON jobs (tenant);\n"
    text: LiteralString = f"{ALONE}DROP INDEX CONCURRENTLY IF EXISTS probe;\n{make}"
    with monkeypatch.context() as broken:
        probes(broken, ("index", f"{text}SELECT 1 / 0;\n"))
        with pytest.raises(psycopg.errors.DivisionByZero):
            migrate(fresh_database.url)
    [name] = probes(monkeypatch, ("index", text))
    assert states(fresh_database)[-1] is MigrationState.PENDING
    assert migrate(fresh_database.url) == [name]
    assert fresh_database.value("SELECT indisvalid FROM pg_index WHERE indexrelid = 'probe'::regclass") is True
