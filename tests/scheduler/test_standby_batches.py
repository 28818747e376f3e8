"""Batches of changed rows for a standby site: what the topics would hold is what the tables hold."""

import json
import zlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, LiteralString, cast

import pytest
from prometheus_client import REGISTRY
from psycopg import sql

from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.scheduler.firing import fire_due
from tidewheel.control.standby import recording
from tidewheel.control.standby.state import read_recording
from tidewheel.postgres.session import BY_KEY, connect
from tidewheel.postgres.statements import Statements
from tidewheel.process.service import Shutdown
from tidewheel.scheduler import standby_batches
from tidewheel.scheduler.standby_batches import StandbyBatches
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import StandbyRow
from tidewheel.standby import CARRIED, MARK, read_key

_COPY_RUN: LiteralString = """
INSERT INTO job_runs
SELECT (jsonb_populate_record(r, '{"run_id": "00000000-0000-8000-8000-000000000000"}')).* FROM job_runs AS r LIMIT 1
"""
_ADD_KEY: LiteralString = "INSERT INTO tenant_rates (tenant, per_second) VALUES ('busy', 1)"
_REMOVE_KEY: LiteralString = "DELETE FROM tenant_rates"
_REFUSE: LiteralString = """
WITH refused AS (DELETE FROM outbox WHERE topic = %s RETURNING topic, key, value, headers)
INSERT INTO quarantine (kind, topic, key, value, headers, error, created_at)
SELECT 'outbox', topic, key, value, headers, 'too large', tidewheel_now() FROM refused
"""
_NOTE_MANY: LiteralString = """
INSERT INTO standby_changes (kind, key) SELECT 'tenants', '{"tenant": "default"}' FROM generate_series(1, 5000)
"""
_NOTE_ONE: LiteralString = "INSERT INTO standby_changes (kind, key) VALUES ('tenants', '{\"tenant\": \"default\"}')"
_EXPLAIN: LiteralString = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
_FIND_CHANGES = Statements("tidewheel.scheduler")["find_standby_changes"]
_AGE = "tidewheel_standby_age_seconds"
_TRIGGERS: LiteralString = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'standby%'"


@pytest.fixture
def batches(fresh_database: Database) -> Iterator[StandbyBatches]:
    """The batches of a scheduler, on its own role."""
    made = StandbyBatches(fresh_database.url_of("scheduler"), fresh_database.installation, Shutdown())
    yield made
    made.close()


def record(database: Database) -> None:
    with connect(database.url, "test", autocommit=True) as connection:
        recording.enable(connection, database.installation.topics)


def published(database: Database, held: dict[tuple[str, str], StandbyRow]) -> list[tuple[str, str]]:
    """Publish the outbox as a relay would into compacted topics; return the keys."""
    topics = [database.installation.topics.jobs, database.installation.topics.run_states]
    found = database.rows("DELETE FROM outbox WHERE topic = ANY (%s) RETURNING id, key, value", [topics])
    keys: list[tuple[str, str]] = []
    for _, key, value in sorted(found):
        keys.append(read_key(key))
        if value is None:
            held.pop(keys[-1], None)
        else:
            held[keys[-1]] = decode(value, StandbyRow)
    return keys


def test_topics_hold_every_row_as_of_the_last_mark(fresh_database: Database, batches: StandbyBatches) -> None:
    database, held = fresh_database, dict[tuple[str, str], StandbyRow]()
    database.submit("before", schedule="@every 1s", payload="x" * 100_000)
    assert batches.step() > 1.0, "it looks seldom while recording is off"
    record(database)
    assert batches.step() < 1.0
    assert batches.step() < 1.0, "a batch waits for the one before it"
    assert (MARK, "") not in published(database, held)
    assert batches.step() == 1.0, "its mark follows"
    assert published(database, held) == [(MARK, "")] * 2

    database.submit("after", schedule="@every 1s")
    database.execute("UPDATE timers SET due_at = due_at - interval '2 s', scheduled_at = scheduled_at - interval '2 s'")
    fire_due(database, lookahead=timedelta(seconds=1))
    publish_batch(database, batches, held)
    for kind in CARRIED:
        rows = database.rows(sql.SQL("SELECT to_jsonb(t) FROM {} AS t").format(sql.Identifier(kind)))
        found = [content(each) for (name, _), each in held.items() if name == kind]
        for each in found:
            each.pop("run_inputs", None)
        assert sorted(map(str, found)) == sorted(str(row) for (row,) in rows), kind
    assert database.count("job_runs") >= 1

    run_ids = [run for (run,) in database.rows("SELECT run_id::text FROM job_runs")]
    database.execute(_COPY_RUN)
    database.execute("DELETE FROM job_runs")
    keys = [json.loads(key)["run_id"] for kind, key in publish_batch(database, batches, held) if kind == "job_runs"]
    assert set(keys) == set(run_ids), "a run that began and ended between two batches has no record"

    with connect(database.url, "test", autocommit=True) as connection:
        assert recording.disable(connection)
    assert (database.value(_TRIGGERS), database.count("standby_changes")) == (0, 0)
    assert REGISTRY.get_sample_value(_AGE) != 0
    assert batches.step() > 1.0
    assert REGISTRY.get_sample_value(_AGE) == 0


def publish_batch(
    database: Database, batches: StandbyBatches, held: dict[tuple[str, str], StandbyRow]
) -> list[tuple[str, str]]:
    """Publish one batch and what follows it up to its mark; return the keys."""
    keys: list[tuple[str, str]] = []
    while keys[-1:] != [(MARK, "")]:
        batches.step()
        keys += published(database, held)
    return keys


def test_backlog_splits_the_changes_of_a_row(
    fresh_database: Database, batches: StandbyBatches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row has a record from the batch before; the next one has its last two changes alone."""
    database, held = fresh_database, dict[tuple[str, str], StandbyRow]()
    record(database)
    publish_batch(database, batches, held)
    monkeypatch.setattr(standby_batches, "_MOST_CHANGES", 2)
    for statement in (_ADD_KEY, _REMOVE_KEY, _ADD_KEY):
        database.execute(statement)
    batches.step()
    published(database, held)
    key = ("tenant_rates", '{"tenant": "busy"}')
    assert key in held
    database.execute(_REMOVE_KEY)
    monkeypatch.setattr(standby_batches, "_MOST_CHANGES", 100)
    publish_batch(database, batches, held)
    assert key not in held

    database.execute(_ADD_KEY)
    database.execute(_REMOVE_KEY)
    assert publish_batch(database, batches, held) == [(MARK, "")] * 2, "of a row that came and went is no record"

    monkeypatch.setattr(standby_batches, "_MOST_BYTES", 1)
    monkeypatch.setattr(standby_batches, "_READ_AT_ONCE", 1)
    for number in range(3):
        database.submit(f"large-{number}", schedule="@every 1h", payload="x" * 100_000)
    sent = list[int]()
    while (MARK, "") not in (keys := published(database, held)):
        sent.append(len(keys))
        batches.step()
    assert max(sent) == 1, "bytes bound a batch too"
    assert {kind for kind, _ in held} >= {"jobs", "job_versions", "timers"}


def test_mark_waits_for_records_that_are_late_or_refused(fresh_database: Database, batches: StandbyBatches) -> None:
    database, held = fresh_database, dict[tuple[str, str], StandbyRow]()
    topics = database.installation.topics
    database.submit("large", schedule="@every 1h")
    record(database)
    publish_batch(database, batches, held)

    database.execute("UPDATE timers SET due_at = due_at")
    batches.step()
    database.execute("UPDATE outbox SET publish_at = publish_at + interval '1 h' WHERE topic = %s", [topics.run_states])
    for _ in range(2):
        assert 0 < batches.step() <= 1.0
    waiting = database.rows("SELECT topic FROM outbox WHERE topic = ANY (%s)", [[topics.jobs, topics.run_states]])
    assert waiting == [(topics.run_states,)], "the relay has made a record due later: no mark and no batch passes it by"
    assert publish_batch(database, batches, held)[0][0] == "timers"

    database.execute("UPDATE timers SET due_at = due_at")
    batches.step()
    database.execute(_REFUSE, [topics.run_states])
    for _ in range(3):
        batches.step()
    assert published(database, held) == []
    with connect(database.url, "test", autocommit=True) as connection:
        found = read_recording(connection)
        assert found is not None
        assert not found.listed
        recording.enable(connection, topics)
    assert "timers" in {kind for kind, _ in publish_batch(database, batches, held)}
    assert database.count("quarantine") == 0


def test_taken_changes_are_not_read_again(fresh_database: Database, batches: StandbyBatches) -> None:
    """Vacuum removes nothing beside an old snapshot.

    A transaction elsewhere in the server, such as autoanalyze, holds back what one batch has taken for sure: then a
    later batch has.
    """
    database, held = fresh_database, dict[tuple[str, str], StandbyRow]()
    with (
        connect(database.url, "test", autocommit=True, options=BY_KEY) as connection,
        connect(database.url, "old") as old,
    ):
        recording.enable(connection, database.installation.topics)
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM standby_changes")
        database.execute(_NOTE_MANY)

        def reads_few_blocks() -> bool:
            database.execute(_NOTE_ONE)
            publish_batch(database, batches, held)
            limits = {"oldest": str(vars(batches)["_oldest"]), "limit": 10}
            [(plan,)] = connection.execute(_EXPLAIN + _FIND_CHANGES, limits).fetchall()
            return bool(cast("Any", plan)[0]["Plan"]["Shared Hit Blocks"] < 10)

        until(reads_few_blocks, "the next batch reads fewer than 10 blocks")


def content(record: StandbyRow) -> dict[str, object]:
    """Return the row of a record."""
    return json.loads(zlib.decompress(record.row) if record.is_compressed else record.row)
