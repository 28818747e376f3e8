"""Daily partitions: created on demand, even if the caller's transaction rolls back."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from itertools import count
from typing import LiteralString
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from tests.fixtures.database import Database, Template
from tests.fixtures.services import until
from tests.transitions.acts import submit, trigger
from tests.transitions.stepping import in_background
from tidewheel.ids import first_run_id, job_id, run_id
from tidewheel.postgres.partitions import TABLES, day_of, ensure_days, of_unknown_days
from tidewheel.postgres.session import Conn
from tidewheel.runs import Cause

DAY = timedelta(days=1)
MICROSECOND = timedelta(microseconds=1)
LOCK: LiteralString = "SELECT pg_advisory_lock(hashtext('tidewheel.postgres.partitions'))"
UNLOCK: LiteralString = "SELECT pg_advisory_unlock(hashtext('tidewheel.postgres.partitions'))"
WAITING: LiteralString = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'tidewheel-partitions' AND wait_event_type = 'Lock'
"""
PARTITIONS: LiteralString = """
SELECT relname::text FROM pg_class WHERE relname LIKE %s AND relispartition AND relkind = 'r' ORDER BY relname
"""
HALF: LiteralString = "CREATE TABLE {} PARTITION OF runs FOR VALUES FROM ({}) TO ({})"
WRITE_RUN: LiteralString = """
INSERT INTO runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, created_at)
VALUES (%(run_id)s, %(job_id)s, 'default', 1, 0, 'trigger', 'default', 'standard', %(at)s, %(at)s)
RETURNING tableoid::regclass::text
"""


@pytest.fixture(scope="module")
def cut(template: Template) -> Iterator[Database]:
    """A database that gains partitions; each test takes days that no other takes."""
    made = Database(template.copy(), template.installation)
    yield made
    made.close()


_later = count(40)


@pytest.fixture
def day(cut: Database) -> date:
    """A day that has no partitions."""
    new = day_of(cut.now()) + next(_later) * 2 * DAY
    assert partitions(cut, new) == []
    return new


def partitions(database: Database, day: date) -> list[str]:
    found = database.rows(PARTITIONS, [f"%{day:_%Y%m%d}"])
    return [name for (name,) in found]


def all_of(day: date) -> list[str]:
    return sorted(f"{table}{day:_%Y%m%d}" for table in TABLES)


def midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def write_run(connection: Conn, run: UUID, at: datetime) -> str:
    columns = {"run_id": run, "job_id": job_id("default", "job"), "at": at}
    [(place,)] = connection.execute(WRITE_RUN, columns).fetchall()
    return str(place)


def test_day_is_created_once_with_all_its_tables(cut: Database, day: date) -> None:
    connection = cut.connection()
    ensure_days(connection, [day])
    ensure_days(connection, [day, day])
    assert partitions(cut, day) == all_of(day)


def test_partitions_survive_the_rollback_of_the_caller(cut: Database, day: date) -> None:
    connection = cut.connection()
    ensure_days(connection, [day])
    write_run(connection, first_run_id(midnight(day)), midnight(day))
    connection.rollback()
    assert partitions(cut, day) == all_of(day)
    assert write_run(connection, first_run_id(midnight(day)), midnight(day)) == f"runs{day:_%Y%m%d}"
    connection.rollback()


def test_partitions_are_visible_while_the_callers_transaction_is_open(cut: Database, day: date) -> None:
    asking, other = cut.connection(), cut.connection()
    # With the parents' locks that any writer holds, by either side.
    write_run(asking, run_id(UUID(int=1), cut.now(), Cause.TRIGGER), cut.now())
    write_run(other, run_id(UUID(int=2), cut.now(), Cause.TRIGGER), cut.now())
    ensure_days(asking, [day])
    at = midnight(day)
    assert write_run(other, run_id(UUID(int=3), at, Cause.TRIGGER), at) == f"runs{day:_%Y%m%d}"
    other.rollback()
    asking.rollback()


def test_an_id_lies_in_the_partition_of_its_instant(cut: Database, day: date) -> None:
    following = day + DAY
    connection = cut.connection()
    ensure_days(connection, [following, day])
    job, first, after = job_id("default", "job"), midnight(day), midnight(following)
    for at, expected in [(first, day), (after - MICROSECOND, day), (after, following), (after + DAY / 2, following)]:
        run = run_id(job, at, Cause.TRIGGER)
        assert write_run(connection, run, at) == f"runs{expected:_%Y%m%d}"
        assert day_of(at) == expected
    # The very first and the very last value of type uuid that a day can hold.
    assert write_run(connection, first_run_id(first), first) == f"runs{day:_%Y%m%d}"
    last = UUID(int=first_run_id(after).int - 1)
    assert write_run(connection, last, first) == f"runs{day:_%Y%m%d}"
    connection.rollback()


def test_run_without_its_partition_is_an_error(cut: Database, day: date) -> None:
    connection = cut.connection()
    with pytest.raises(psycopg.errors.CheckViolation, match="no partition"):
        write_run(connection, first_run_id(midnight(day)), midnight(day))
    connection.rollback()


def test_writing_a_run_creates_its_day(cut: Database, day: date) -> None:
    submit(cut)
    run = trigger(cut, run_at=midnight(day).isoformat())
    assert partitions(cut, day) == all_of(day)
    place = cut.value("SELECT tableoid::regclass::text FROM runs WHERE run_id = %s", [run])
    assert place == f"runs{day:_%Y%m%d}"


def test_concurrent_callers_create_a_day_once(cut: Database, day: date) -> None:
    holding = cut.connection(autocommit=True)
    holding.execute(LOCK)
    asking = [cut.connection(), cut.connection()]

    def ask_for(connection: Conn) -> None:
        ensure_days(connection, [day])

    done = [in_background(lambda connection=connection: ask_for(connection)) for connection in asking]
    until(lambda: cut.value(WAITING) == 2, "both are about to make it")
    assert partitions(cut, day) == []
    holding.execute(UNLOCK)
    for each in done:
        each.result(20)
    assert partitions(cut, day) == all_of(day)


def test_partially_created_day_is_completed(cut: Database, day: date) -> None:
    name = sql.Identifier(f"runs{day:_%Y%m%d}")
    bounds = [sql.Literal(str(first_run_id(midnight(bound)))) for bound in (day, day + DAY)]
    cut.execute(sql.SQL(HALF).format(name, *bounds))
    ensure_days(cut.connection(), [day])
    assert partitions(cut, day) == all_of(day)


def test_partition_has_its_parents_indexes_and_constraints(cut: Database, day: date) -> None:
    ensure_days(cut.connection(), [day])
    for table in TABLES:
        indexes = "SELECT count(*) FROM pg_index WHERE indrelid = %s::text::regclass"
        checks = "SELECT count(*) FROM pg_constraint WHERE contype IN ('c', 'p') AND conrelid = %s::text::regclass"
        for counted in (indexes, checks):
            partition = f"{table}{day:_%Y%m%d}"
            assert cut.value(counted, [partition]) == cut.value(counted, [table]), (table, counted)
    detached = """
    SELECT count(*) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
     WHERE i.indrelid = %s::text::regclass AND NOT c.relispartition
    """
    assert all(cut.value(detached, [f"{table}{day:_%Y%m%d}"]) == 0 for table in TABLES)


def test_runs_of_unknown_days_are_recognized(cut: Database, day: date) -> None:
    connection = cut.connection()
    ensure_days(connection, [day])
    seen = [first_run_id(midnight(day)), UUID(int=first_run_id(midnight(day + DAY)).int - 1)]
    unseen = [UUID(int=seen[0].int - 1), first_run_id(midnight(day + DAY)), UUID(int=(1 << 128) - 1), UUID(int=0)]
    assert of_unknown_days(connection, seen) == []
    assert of_unknown_days(connection, [*unseen, *seen]) == unseen


def test_day_of_an_instant_is_in_utc() -> None:
    east = timezone(timedelta(hours=14))
    assert day_of(datetime(2027, 1, 1, 13, 59, tzinfo=east)) == date(2026, 12, 31)
    assert day_of(datetime(2027, 1, 1, 14, 0, tzinfo=east)) == date(2027, 1, 1)


def test_known_days_are_kept_per_database(cut: Database, fresh_database: Database, day: date) -> None:
    ensure_days(cut.connection(), [day])
    ensure_days(fresh_database.connection(), [day])
    assert partitions(fresh_database, day) == all_of(day)
