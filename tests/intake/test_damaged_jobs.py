"""A damaged job: intake replies to its requests, and applies those of other jobs."""

import logging
from collections.abc import Iterator

import pytest
from psycopg import IntegrityError
from psycopg.sql import SQL, Identifier

from tests.fixtures.acts import about, submission
from tests.fixtures.damages import damages
from tests.fixtures.database import Database
from tests.intake.running import Requests
from tidewheel.local.stack import StackInfo

pytestmark = pytest.mark.kafka

TABLES = {"jobs", "job_versions", "timers", "overrides"}
NAMES = {"tenant", "key", "handler", "queue", "lane"}  # other values are other names


@pytest.fixture(scope="module")
def requests(shared_database: Database, info: StackInfo) -> Iterator[Requests]:
    made = Requests(shared_database, info.kafka)
    with made.running():
        made.until_read(made.send({"type": "calendar.put", "name": "none", "days": ["2020-01-01"]})[-1])
        yield made


def job(key: str, **fields: object) -> dict[str, object]:
    calendars: dict[str, object] = {"exclude_calendars": ["none"], "on_excluded": "next_business_day"}
    return submission(
        key, schedule={"cron": "0 8 * * *"}, concurrency_key="{payload.a}", payload={"a": "b"}, **calendars, **fields
    )


def of_each_kind(key: str) -> list[dict[str, object]]:
    """Return a request of each type that reads what is stored of a job."""
    return [
        *(about(f"job.{kind}", key) for kind in ("trigger", "pause", "resume")),
        about("job.skip", key, at="2199-01-01T08:00:00Z"),
        job(key, priority=7),
        about("job.rollback", key, version=1),
        about("job.delete", key),
    ]


@pytest.mark.slow
def test_requests_about_other_jobs_are_applied_beside_a_damaged_one(
    requests: Requests, caplog: pytest.LogCaptureFixture
) -> None:
    database = requests.database
    faults: list[object] = []
    found = [each for each in damages(database) if each.table in TABLES and each.column not in NAMES]
    for number, (table, column, value) in enumerate(found):
        names = [f"{name}-{number}" for name in ("first", "bad", "last")]
        requests.until_read(requests.send(*map(job, names))[-1])
        requests.until_read(requests.send(about("job.skip", names[1], at="2198-01-01T08:00:00Z"))[-1])
        statement = SQL("UPDATE {} SET {} = {} WHERE job_id = (SELECT job_id FROM jobs WHERE key = {})").format(
            Identifier(table), Identifier(column), value, names[1]
        )
        try:
            database.execute(statement)
        except IntegrityError:
            continue
        caplog.clear()
        sent = [each for together in zip(*map(of_each_kind, names), strict=True) for each in together]
        key = f"replies-{number}".encode()
        with caplog.at_level(logging.ERROR):
            requests.until_read(requests.send(*sent, key=key)[-1])
        replies = requests.replies(key)
        if len(replies) != len(sent):
            faults.append((table, column, value, len(replies), len(sent)))
        for request, reply in zip(sent, replies, strict=False):
            if names[1] not in str(request) and reply.status != "accepted":
                faults.append((table, column, value, request, reply.errors))
        unread = [reply for reply in replies if any("could not be applied" in each.problem for each in reply.errors)]
        logged = [each for each in caplog.records if "cannot apply the request" in each.getMessage()]
        if len(logged) != len(unread):
            faults.append((table, column, value, len(logged), len(unread)))
    assert not faults, "\n".join(map(str, faults))


def test_rollback_keeps_a_key_that_the_payload_fills(requests: Requests) -> None:
    """The stored spec has no payload, and a key with its fields was refused without one."""
    requests.send(job("filled"), job("filled", priority=7), about("job.rollback", "filled", version=1))
    [offset] = requests.send(about("job.rollback", "filled", version=2), key=b"filled")
    requests.until_read(offset)
    assert [(reply.status, reply.job_version) for reply in requests.replies(b"filled")] == [("accepted", 4)]
