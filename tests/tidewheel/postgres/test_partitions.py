"""Daily partitions: created on demand, cut by the instants at which rows are written.

They stay if the caller's transaction rolls back.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone
from itertools import count
from typing import LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from tests.fixtures.acts import ending
from tests.fixtures.database import Database, Template
from tests.fixtures.services import until
from tests.transitions.stepping import in_background
from tidewheel.errors import Unavailable
from tidewheel.ids import job_id, run_id
from tidewheel.postgres.partitions import AHEAD_DAYS, TABLES, day_of, ensure_days
from tidewheel.postgres.session import Conn
from tidewheel.runs import AttemptOutcome, Cause, RunState

DAY = timedelta(days=1)
MICROSECOND = timedelta(microseconds=1)
LOCK: LiteralString = "LOCK TABLE finished_runs, run_inputs, attempts, attempt_outputs IN SHARE UPDATE EXCLUSIVE MODE"
WAITING: LiteralString = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'tidewheel-partitions' AND wait_event_type = 'Lock'
"""
PARTITIONS: LiteralString = """
SELECT relname::text FROM pg_class WHERE relname LIKE %s AND relispartition AND relkind = 'r' ORDER BY relname
"""
HALF: LiteralString = "CREATE TABLE {} PARTITION OF attempts FOR VALUES FROM ({}) TO ({})"
_WRITE_RUN: LiteralString = """
INSERT INTO finished_runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at,
                           created_at, finished_at, state, attempt)
VALUES (%(run_id)s, %(job_id)s, 'default', 1, 0, 'trigger', 'default', 'standard', %(chosen)s, %(chosen)s, %(at)s,
        %(at)s, 'cancelled', 0)
RETURNING tableoid::regclass::text
"""
# A row of each table, at the instant of its writing.
WRITES: Mapping[str, LiteralString] = {
    "finished_runs": _WRITE_RUN,
    "run_inputs": """
INSERT INTO run_inputs (run_id, created_at, tenant) VALUES (%(run_id)s, %(at)s, 'default')
RETURNING tableoid::regclass::text
""",
    "attempts": """
INSERT INTO attempts (run_id, attempt, tenant, started_at, finished_at, outcome)
VALUES (%(run_id)s, 1, 'default', %(at)s, %(chosen)s, 'failed') RETURNING tableoid::regclass::text
""",
    "attempt_outputs": """
INSERT INTO attempt_outputs (run_id, attempt, started_at, tenant) VALUES (%(run_id)s, 1, %(at)s, 'default')
RETURNING tableoid::regclass::text
""",
}


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


def write(
    connection: Conn,
    at: datetime,
    *,
    table: str = "finished_runs",
    run: UUID | None = None,
    chosen: datetime | None = None,
) -> str:
    """Write a row at an instant, of a run whose id or instants a client has chosen; return its partition."""
    columns = {"run_id": run or uuid4(), "job_id": job_id("default", "job"), "at": at, "chosen": chosen or at}
    [(place,)] = connection.execute(WRITES[table], columns).fetchall()
    return str(place)


def test_day_is_created_once_with_all_its_tables(cut: Database, day: date) -> None:
    connection = cut.connection()
    ensure_days(connection, [day])
    ensure_days(connection, [day, day])
    assert partitions(cut, day) == all_of(day)


def test_partitions_survive_the_rollback_of_the_caller(cut: Database, day: date) -> None:
    connection = cut.connection()
    ensure_days(connection, [day])
    write(connection, midnight(day))
    connection.rollback()
    assert partitions(cut, day) == all_of(day)
    assert write(connection, midnight(day)) == f"finished_runs{day:_%Y%m%d}"
    connection.rollback()


def test_partitions_are_visible_while_the_callers_transaction_is_open(cut: Database, day: date) -> None:
    asking, other = cut.connection(), cut.connection()
    # With the parents' locks that any writer holds, by either side.
    write(asking, cut.now())
    write(other, cut.now())
    ensure_days(asking, [day])
    assert write(other, midnight(day)) == f"finished_runs{day:_%Y%m%d}"
    other.rollback()
    asking.rollback()


@pytest.mark.parametrize("table", TABLES)
def test_row_lies_in_the_partition_of_its_writing(cut: Database, day: date, table: str) -> None:
    """The instant that a client chose, and the id that holds it, decide nothing."""
    following = day + DAY
    connection = cut.connection()
    ensure_days(connection, [following, day])
    first, after = midnight(day), midnight(following)
    for at, expected in [(first, day), (after - MICROSECOND, day), (after, following), (after + DAY / 2, following)]:
        for chosen in (at, at - 9000 * DAY, at + 400 * DAY):
            run = run_id(uuid4(), chosen, Cause.TRIGGER)
            assert write(connection, at, table=table, run=run, chosen=chosen) == f"{table}{expected:_%Y%m%d}"
        assert day_of(at) == expected
    connection.rollback()


@pytest.mark.parametrize("table", TABLES)
def test_row_without_its_partition_is_an_error(cut: Database, day: date, table: str) -> None:
    connection = cut.connection()
    with pytest.raises(psycopg.errors.CheckViolation, match="no partition"):
        write(connection, midnight(day), table=table)
    connection.rollback()


def test_finished_run_is_unique_within_its_day(cut: Database, day: date) -> None:
    connection = cut.connection()
    ensure_days(connection, [day])
    run = uuid4()
    write(connection, midnight(day), run=run)
    with pytest.raises(psycopg.errors.UniqueViolation, match=f"finished_runs{day:_%Y%m%d}_run_id_idx"):
        write(connection, midnight(day) + DAY - MICROSECOND, run=run)
    connection.rollback()


def test_missing_partitions_of_these_days_are_created_for_the_repeat(fresh_database: Database) -> None:
    """No scheduler was up for days, or an operator has dropped one."""
    today = day_of(fresh_database.now())
    days = [today + ahead * DAY for ahead in range(-1, AHEAD_DAYS + 1)]
    ensure_days(fresh_database.connection(), days)
    for day in days:
        for table in TABLES:
            fresh_database.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(f"{table}{day:_%Y%m%d}")))
    session, at = fresh_database.session(), fresh_database.now()
    for table in TABLES:
        fresh_database.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(f"{table}{today:_%Y%m%d}")))
        with pytest.raises(Unavailable, match="no partition"), session.transaction() as connection:
            write(connection, at, table=table)
        assert [partitions(fresh_database, day) for day in days] == [all_of(day) for day in days]
        with session.transaction() as connection:
            assert write(connection, at, table=table) == f"{table}{today:_%Y%m%d}"


def test_violated_constraint_is_no_missing_partition(fresh_database: Database) -> None:
    """It has the same SQLSTATE; a repeat would fail for ever."""
    day = day_of(fresh_database.now())
    ensure_days(fresh_database.connection(), [day])
    with pytest.raises(psycopg.errors.CheckViolation), fresh_database.session().transaction() as connection:
        connection.execute(
            "INSERT INTO attempts (run_id, attempt, tenant, started_at, finished_at, outcome)"
            " VALUES (gen_random_uuid(), 1, 'default', %(at)s, %(at)s, 'another')",
            {"at": fresh_database.now()},
        )


def test_run_of_a_chosen_day_creates_no_partition_of_it(cut: Database) -> None:
    """From its trigger to its end, with inputs, a failed attempt, output and a result."""
    cut.submit()
    before = cut.rows(PARTITIONS, ["%"])
    now = cut.now()
    ahead = now + 400 * DAY - timedelta(minutes=1)
    cancelled = cut.trigger(run_at=ahead.isoformat(), payload=1)
    assert cut.value("SELECT scheduled_at FROM job_runs WHERE run_id = %s", [cancelled]) == ahead
    cut.apply_batch({"type": "run.cancel", "run_id": str(cancelled)})
    past = cut.trigger(run_at=(now - 9000 * DAY).isoformat(), payload=2)
    cut.requeue(cut.begin(past), AttemptOutcome.FAILED)
    started = cut.begin(past)
    cut.end(ending(started, RunState.SUCCEEDED, result=b"1", output=b"out"))
    assert cut.rows(PARTITIONS, ["%"]) == before
    placed = dict(cut.rows("SELECT run_id, tableoid::regclass::text FROM finished_runs"))
    assert placed.keys() == {cancelled, past}
    assert set(placed.values()) <= {f"finished_runs_{day:%Y%m%d}" for day in (now, now + timedelta(minutes=5))}


def test_concurrent_callers_create_a_day_once(cut: Database, day: date) -> None:
    holding = cut.connection()
    holding.execute(LOCK)
    asking = [cut.connection(), cut.connection()]

    def ask_for(connection: Conn) -> None:
        ensure_days(connection, [day])

    done = [in_background(lambda connection=connection: ask_for(connection)) for connection in asking]
    until(lambda: cut.value(WAITING) == 2, "both are about to make it")
    assert partitions(cut, day) == []
    holding.rollback()
    for each in done:
        each.result(20)
    assert partitions(cut, day) == all_of(day)


def test_partially_created_day_is_completed(cut: Database, day: date) -> None:
    name = sql.Identifier(f"attempts{day:_%Y%m%d}")
    bounds = [sql.Literal(str(midnight(bound))) for bound in (day, day + DAY)]
    cut.execute(sql.SQL(HALF).format(name, *bounds))
    ensure_days(cut.connection(), [day])
    assert partitions(cut, day) == all_of(day)


def test_partition_has_its_parents_indexes_and_constraints(cut: Database, day: date) -> None:
    ensure_days(cut.connection(), [day])
    own = """
    SELECT pg_get_indexdef(i.indexrelid) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
     WHERE i.indrelid = %s::text::regclass AND NOT c.relispartition
    """
    indexes = "SELECT count(*) FROM pg_index WHERE indrelid = %s::text::regclass"
    checks = "SELECT count(*) FROM pg_constraint WHERE contype IN ('c', 'p') AND conrelid = %s::text::regclass"
    for table, unique in TABLES.items():
        partition = f"{table}{day:_%Y%m%d}"
        definitions = [definition for (definition,) in cut.rows(own, [partition])]
        expected = [f" ON public.{partition} USING btree ({unique})"] if unique else []
        assert [definition[definition.index(" ON ") :] for definition in definitions] == expected
        assert cut.value(indexes, [partition]) == cut.value(indexes, [table]) + len(expected), table
        assert cut.value(checks, [partition]) == cut.value(checks, [table]), table


def test_day_of_an_instant_is_in_utc() -> None:
    east = timezone(timedelta(hours=14))
    assert day_of(datetime(2027, 1, 1, 13, 59, tzinfo=east)) == date(2026, 12, 31)
    assert day_of(datetime(2027, 1, 1, 14, 0, tzinfo=east)) == date(2027, 1, 1)


def test_known_days_are_kept_per_database(cut: Database, fresh_database: Database, day: date) -> None:
    ensure_days(cut.connection(), [day])
    ensure_days(fresh_database.connection(), [day])
    assert partitions(fresh_database, day) == all_of(day)


def test_copy_that_is_used_again_has_the_day_that_a_process_has_dropped(template: Template) -> None:
    url = template.take()
    with psycopg.connect(url) as connection:
        ensure_days(connection, [date(2021, 1, 1)])
        connection.execute("DROP TABLE finished_runs_20210101")
    template.give_back(url)
    assert template.take() == url
    with psycopg.connect(url) as connection:
        ensure_days(connection, [date(2021, 1, 1)])
        assert connection.execute(PARTITIONS, ["finished_runs_20210101"]).fetchall() == [("finished_runs_20210101",)]
    template.give_back(url)
