"""Jobs by the hundred thousand, written straight into the tables: what intake would have written, without its cost."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import cast

from psycopg import sql

from tidewheel.db import Conn
from tidewheel.ids import JobId, bucket_of, job_id, shard_of
from tidewheel.jobs.requests import JobSubmit, parse_request
from tidewheel.jobs.spec import policy_document, schedule_document
from tidewheel.jobs.strict_json import canonical
from tidewheel.schemas.codec import encode
from tidewheel.schemas.definitions import definition_record
from tidewheel.transitions.installation import Installation

_JOBS = (
    "COPY jobs (job_id, tenant, key, bucket, shard, version, schedule_kind, anchor, every_us, created_at, updated_at) "
    "FROM STDIN (FORMAT BINARY)"
)
_VERSIONS = (
    "COPY job_versions (job_id, version, tenant, effective_at, spec, schedule, policy, handler, queue,"
    " lane, overlap, definition) FROM STDIN (FORMAT BINARY)"
)
_TIMERS = "COPY timers (job_id, tenant, shard, due_at, scheduled_at, version) FROM STDIN (FORMAT BINARY)"

_JOB_TYPES = (
    "uuid", "text", "text", "int2", "int2", "int4", "text", "timestamptz", "int8", "timestamptz", "timestamptz"
)  # fmt: skip

PAYLOAD = "x" * 190  # as JSON, about the 200 bytes that the figures are quoted for


def load_jobs(
    connection: Conn,
    installation: Installation,
    count: int,
    *,
    due_at: datetime,
    every: timedelta = timedelta(hours=1),
    spread: timedelta = timedelta(0),
    overlap: str = "skip",
    handler: str = "noop",
    prefix: str = "bench",
    catch_up: str = "fire_once",
) -> list[JobId]:
    """Write interval jobs whose next instant is `due_at` plus an even share of `spread`.

    Returns:
        Their ids.
    """
    request = parse_request(
        {
            "type": "job.submit",
            "job": {
                "key": "template",
                "schedule": {"interval": every.total_seconds(), "anchor": (due_at - every).isoformat()},
                "target": handler,
                "payload": PAYLOAD,
                "overlap": overlap,
                "catch_up": catch_up,
            },
        }
    )
    assert isinstance(request, JobSubmit)
    document = {**schedule_document(request.job), "anchor_fires": True}
    instants = [due_at + spread * (number / count) for number in range(count)]
    ids = [job_id("default", f"{prefix}-{number}") for number in range(count)]
    shards = [shard_of(bucket_of(job), installation.shards) for job in ids]
    with connection.cursor() as cursor, cursor.copy(_JOBS) as copy:
        copy.set_types(_JOB_TYPES)
        for number, (job, shard) in enumerate(zip(ids, shards, strict=True)):
            every_us = int(every.total_seconds() * 1e6)
            row = (job, "default", f"{prefix}-{number}", bucket_of(job), shard, 1, "interval", due_at, every_us)
            copy.write_row((*row, due_at, due_at))
    with connection.cursor() as cursor, cursor.copy(_VERSIONS) as copy:
        copy.set_types(["uuid", "int4", "text", "timestamptz", "jsonb"] + ["text"] * 6 + ["bytea"])
        for number, job in enumerate(ids):
            definition = definition_record(
                request.job, tenant="default", job_id=str(job), job_version=1, job_key=f"{prefix}-{number}"
            )
            # One schedule for all that share an instant: most jobs are due at the full minute, and share the answer.
            schedule = canonical({**document, "anchor": (instants[number] - every).isoformat()}).decode()
            text = (schedule, canonical(policy_document(request.job)).decode(), handler, "default", "standard", overlap)
            copy.write_row((job, 1, "default", due_at, "{}", *text, encode(definition)))
    with connection.cursor() as cursor, cursor.copy(_TIMERS) as copy:
        copy.set_types(["uuid", "text", "int2", "timestamptz", "timestamptz", "int4"])
        for job, shard, at in zip(ids, shards, instants, strict=True):
            copy.write_row((job, "default", shard, at, at, 1))
    connection.commit()
    _analyze(connection, ["jobs", "job_versions", "timers"])
    return ids


def database_now(connection: Conn) -> datetime:
    """The database's clock."""
    row = connection.execute("SELECT tidewheel_now()").fetchone()
    assert row is not None
    return cast("datetime", row[0])


def _analyze(connection: Conn, tables: Sequence[str]) -> None:
    connection.autocommit = True
    for table in tables:
        connection.execute(sql.SQL("VACUUM ANALYZE {}").format(sql.Identifier(table)))
    connection.autocommit = False
