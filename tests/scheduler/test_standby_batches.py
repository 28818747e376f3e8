"""Batches of changed rows for a standby site: what the topics would hold is what the tables hold."""

import json
import zlib
from collections.abc import Iterator
from datetime import timedelta
from typing import LiteralString

import pytest
from psycopg import sql

from tests.fixtures.database import Database
from tests.scheduler.firing import fire_due
from tests.transitions.acts import submit
from tidewheel.control.standby import recording
from tidewheel.postgres.session import connect
from tidewheel.process.service import Shutdown
from tidewheel.scheduler.standby_batches import StandbyBatches
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import StandbyRow
from tidewheel.standby import CARRIED, MARK, read_key

_COPY_RUN: LiteralString = """
INSERT INTO job_runs
SELECT (jsonb_populate_record(r, '{"run_id": "00000000-0000-8000-8000-000000000000"}')).* FROM job_runs AS r LIMIT 1
"""
_TRIGGERS: LiteralString = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'standby%'"


@pytest.fixture
def batches(fresh_database: Database) -> Iterator[StandbyBatches]:
    """The batches of a scheduler, on its own role."""
    made = StandbyBatches(fresh_database.url_of("scheduler"), fresh_database.installation, Shutdown())
    yield made
    made.close()


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
    submit(database, "before", schedule="@every 1s", payload="x" * 100_000)
    assert batches.step() > 1.0, "it looks seldom while recording is off"
    with connect(database.url, "test", autocommit=True) as connection:
        recording.enable(connection)
    assert batches.step() == 1.0
    assert batches.step() < 1.0, "a batch waits for the one before it"
    assert {(MARK, "")} < set(published(database, held))

    submit(database, "after", schedule="@every 1s")
    database.execute("UPDATE timers SET due_at = due_at - interval '2 s', scheduled_at = scheduled_at - interval '2 s'")
    fire_due(database, lookahead=timedelta(seconds=1))
    batches.step()
    published(database, held)
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
    batches.step()
    keys = [json.loads(key)["run_id"] for kind, key in published(database, held) if kind == "job_runs"]
    assert set(keys) == set(run_ids), "a run that began and ended between two batches has no record"

    with connect(database.url, "test", autocommit=True) as connection:
        assert recording.disable(connection)
    assert (database.value(_TRIGGERS), database.count("standby_changes")) == (0, 0)


def content(record: StandbyRow) -> dict[str, object]:
    """Return the row of a record."""
    return json.loads(zlib.decompress(record.row) if record.is_compressed else record.row)
