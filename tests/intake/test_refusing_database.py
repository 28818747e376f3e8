"""While the installation refuses intake's statements, no request is rejected."""

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import LiteralString

import httpx
import psycopg
import pytest
from prometheus_client import REGISTRY
from psycopg import sql

import tidewheel
from tests.control.api.answering import answering
from tests.fixtures.acts import about, submission
from tests.fixtures.database import Database
from tests.fixtures.services import Fleet, until
from tests.intake.running import Requests
from tests.intake.waiting import token_of, waiting
from tidewheel.control.client.bulk_load import BulkLoader, JobText
from tidewheel.control.client.client import Client
from tidewheel.local.stack import StackInfo
from tidewheel.postgres.faults import MAX_ALIKE
from tidewheel.process.logs import faults

pytestmark = pytest.mark.kafka
KEYS = [f"job-{number}" for number in range(5)]
MANY = [f"job-{number}" for number in range(20)]

ADD_CHECK: LiteralString = "ALTER TABLE jobs ADD CONSTRAINT of_a_newer_release CHECK (key LIKE 'mended%') NOT VALID"
DROP_CHECK: LiteralString = "ALTER TABLE jobs DROP CONSTRAINT of_a_newer_release"
ADD_COLUMN: LiteralString = (
    "ALTER TABLE jobs ADD newer int NOT NULL DEFAULT 0; ALTER TABLE jobs ALTER newer DROP DEFAULT"
)
DROP_COLUMN: LiteralString = "ALTER TABLE jobs DROP COLUMN newer"
MIGRATED: LiteralString = "INSERT INTO tidewheel_migrations VALUES ('9999_later_pre.sql', 'of another release')"
POISON: LiteralString = "ALTER TABLE jobs ADD CONSTRAINT poison CHECK (key NOT LIKE 'poison%')"
WAITS = "requests that fail alike"


def test_error_of_the_installation_rejects_no_request(fresh_database: Database, info: StackInfo) -> None:
    """A newer release has renamed a column for a while."""
    requests = Requests(fresh_database, info.kafka)
    with requests.running():
        fresh_database.execute("ALTER TABLE job_versions RENAME COLUMN has_deadlines TO deadlines")
        offsets = requests.send(*map(submission, KEYS))
        until(lambda: "tidewheel migrate" in str(faults.why_not_ready()), "it is reported with its remedy")
        assert fresh_database.count("jobs") == 0
        fresh_database.execute("ALTER TABLE job_versions RENAME COLUMN deadlines TO has_deadlines")
        requests.until_read(offsets[-1])
    assert {key for (key,) in fresh_database.rows("SELECT key FROM jobs")} == set(KEYS)
    assert faults.why_not_ready() is None


def keys_of(database: Database) -> set[str]:
    return {key for (key,) in database.rows("SELECT key FROM jobs")}


def waits() -> bool:
    return WAITS in str(faults.why_not_ready())


@pytest.mark.landing
@pytest.mark.parametrize(
    ("add", "drop"), [(ADD_CHECK, DROP_CHECK), (ADD_COLUMN, DROP_COLUMN)], ids=["CHECK", "NOT NULL"]
)
def test_constraint_of_a_newer_release_rejects_no_request(
    fresh_database: Database, info: StackInfo, caplog: pytest.LogCaptureFixture, add: LiteralString, drop: LiteralString
) -> None:
    """Only the partition waits whose requests it refuses."""
    requests = Requests(fresh_database, info.kafka, partitions=2)
    fresh_database.submit("other")
    with caplog.at_level(logging.INFO, "tidewheel"), requests.running():
        fresh_database.execute(add)
        fresh_database.execute(MIGRATED)
        offsets = requests.send(*(submission(key) | {"request_id": key} for key in MANY), key=b"k")
        until(waits, "it is reported")
        gauge = "tidewheel_installation_faults", {"work": WAITS}
        until(lambda: REGISTRY.get_sample_value(*gauge) == 1, "the metric has it, too")
        [trigger] = requests.send(about("job.trigger", "other"), partition=1)
        requests.until_read(trigger, 1)
        assert requests.next_offset(0) == 0
        assert (requests.replies(b"k"), fresh_database.count("requests")) == ([], 0)
        fresh_database.execute(drop)
        requests.until_read(offsets[-1])
        until(lambda: not waits(), "nothing waits")
    assert keys_of(fresh_database) == {"other", *MANY}
    assert [(reply.request_id, reply.status) for reply in requests.replies(b"k")] == [(key, "accepted") for key in MANY]
    reports = [
        record for record in caplog.records if record.getMessage().startswith(WAITS) and record.levelname == "ERROR"
    ]
    assert len(reports) == 1
    assert caplog.text.count("intake applies them one by one") <= 1, "a fetch of one request has no batch to split"


@pytest.mark.landing
def test_constraint_without_a_migration_rejects_few_requests(fresh_database: Database, info: StackInfo) -> None:
    """Neither a repeated reply nor an unchanged job proves that the installation is sound."""
    requests = Requests(fresh_database, info.kafka, partitions=2)
    fresh_database.submit("old")
    again = submission("first") | {"request_id": "again"}
    with requests.running():
        requests.until_read(requests.send(again, partition=1)[0], 1)
        fresh_database.execute(ADD_CHECK)
        offsets = requests.send(*map(submission, MANY), key=b"k")
        until(waits, "it is reported")
        repeats = requests.send(again, submission("old"), partition=1)
        requests.until_read(repeats[-1], 1)
        tries = requests.database.value(TRIES)
        until(lambda: requests.database.value(TRIES) > tries + 10, "it is tried again")
        assert requests.next_offset(0) == MAX_ALIKE
        fresh_database.execute(DROP_CHECK)
        requests.until_read(offsets[-1])
    statuses = [reply.status for reply in requests.replies(b"k")]
    assert statuses == ["rejected"] * MAX_ALIKE + ["accepted"] * (len(MANY) - MAX_ALIKE)
    assert keys_of(fresh_database) == {"old", "first", *MANY[MAX_ALIKE:]}
    assert not waits()


TRIES: LiteralString = "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()"


def poisons(count: int, *, first: int = 0) -> list[Mapping[str, object]]:
    return [submission(f"poison-{number}") for number in range(first, first + count)]


@pytest.mark.landing
@pytest.mark.parametrize("read_together", [True, False])
def test_poisoned_requests_in_a_row_block_no_partition(
    fresh_database: Database, info: StackInfo, *, read_together: bool
) -> None:
    """A good request behind them proves that the installation is sound, whenever it comes."""
    fresh_database.execute(POISON)
    requests = Requests(fresh_database, info.kafka)
    good = [submission(f"good-{number}") for number in range(4)]
    documents = [good[0], *poisons(MAX_ALIKE + 1), good[1], *poisons(2 * MAX_ALIKE + 1, first=10), good[2]]
    if read_together:
        requests.send(*documents, key=b"k")
    with requests.running():
        if not read_together:
            requests.send(*documents[: MAX_ALIKE + 2], key=b"k")
            until(waits, "the last one waits")
            requests.send(*documents[MAX_ALIKE + 2 :], key=b"k")
        [last] = requests.send(good[3], key=b"k")
        requests.until_read(last)
        until(lambda: not waits(), "nothing waits")
    assert keys_of(fresh_database) == {f"good-{number}" for number in range(4)}
    statuses = [reply.status for reply in requests.replies(b"k")]
    assert statuses == [
        "accepted",
        *["rejected"] * (MAX_ALIKE + 1),
        "accepted",
        *["rejected"] * (2 * MAX_ALIKE + 1),
        *["accepted"] * 2,
    ]


def test_poisoned_requests_go_on_when_another_partition_writes(fresh_database: Database, info: StackInfo) -> None:
    fresh_database.execute(POISON)
    requests = Requests(fresh_database, info.kafka, partitions=2)
    with requests.running():
        offsets = requests.send(*poisons(MAX_ALIKE + 1))
        until(waits, "the last one waits")
        requests.send(submission("good"), partition=1)
        requests.until_read(offsets[-1])
        until(lambda: not waits(), "nothing waits")


def test_outbox_that_refuses_rejections_ends_no_member(fresh_database: Database, info: StackInfo) -> None:
    """Neither the request nor its rejection can be written: both wait."""
    requests = Requests(fresh_database, info.kafka)
    with requests.running():
        fresh_database.execute("ALTER TABLE outbox ADD CONSTRAINT none CHECK (false) NOT VALID")
        offsets = requests.send(*map(submission, KEYS))
        until(waits, "it is reported")
        assert requests.next_offset() == 0
        fresh_database.execute("ALTER TABLE outbox DROP CONSTRAINT none")
        requests.until_read(offsets[-1])
    assert [reply.status for reply in requests.replies()] == ["accepted"] * len(KEYS)


@pytest.mark.slow
def test_crash_while_requests_wait_loses_none(fleet: Fleet) -> None:
    """The offset of a request that waits is not stored, so the next intake reads it again."""
    database = fleet.database
    database.execute(ADD_CHECK)
    database.execute(MIGRATED)
    first = fleet.start("intake")
    for key in MANY:
        fleet.ask(submission(key), key=key)
    fleet.flush()
    fleet.until(lambda: first.has_logged(WAITS), "it waits")
    first.kill()
    second = fleet.start("intake")
    fleet.until(lambda: second.has_logged(WAITS), "the next one waits")
    assert (database.count("jobs"), database.count("requests"), database.count("outbox")) == (0, 0, 0)
    database.execute(DROP_CHECK)
    fleet.until(lambda: database.count("requests") == len(MANY), "all are applied")
    assert keys_of(database) == set(MANY)
    assert database.value("SELECT count(*) FROM outbox WHERE topic = %s", [fleet.topics.replies]) == len(MANY)


def test_direct_callers_get_the_error_and_no_rejection_is_stored(fresh_database: Database) -> None:
    database = fresh_database
    database.submit()
    started = waiting(database)
    before = database.count("outbox")
    for table in ("jobs", "outbox", "job_runs"):
        database.execute(REFUSE_ALL.format(sql.Identifier(table)))
    new = [JobText("jobs:1", json.dumps(submission("loaded")["job"]).encode())]

    def submit_new(client: Client) -> int:
        return client.submit({"key": "new", "schedule": "manual", "target": "x"}, request_id="submitted").version

    def complete(api: httpx.Client) -> int:
        body = {"token": token_of(database, started), "request_id": "completed"}
        return api.post(f"/api/v1/runs/{started.run_id}:complete", json=body).status_code

    with Client(database.url) as client, BulkLoader(database.url) as loader, answering(database) as api:
        with pytest.raises(psycopg.errors.CheckViolation):
            submit_new(client)
        with psycopg.connect(database.url) as own, pytest.raises(psycopg.errors.CheckViolation):
            tidewheel.enqueue(own, "job", request_id="triggered")
        assert complete(api) >= HTTPStatus.INTERNAL_SERVER_ERROR
        assert loader.apply(new).rejected == 1
        assert loader.load(new).rejected == 1
        assert (database.count("requests"), database.count("outbox")) == (0, before)
        for table in ("jobs", "outbox", "job_runs"):
            database.execute(ACCEPT_ALL.format(sql.Identifier(table)))
        assert submit_new(client) == 1
        with psycopg.connect(database.url) as own:
            tidewheel.enqueue(own, "job", request_id="triggered")
        assert complete(api) == HTTPStatus.OK
        assert loader.apply(new).created == 1
    assert database.final_state(started.run_id)[0] == "succeeded"


REFUSE_ALL = sql.SQL("ALTER TABLE {} ADD CONSTRAINT refuse_all CHECK (false) NOT VALID")
ACCEPT_ALL = sql.SQL("ALTER TABLE {} DROP CONSTRAINT refuse_all")
