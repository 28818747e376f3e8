"""Write jobs by the million straight into the tables, without the cost of intake."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cache
from typing import LiteralString, cast
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from tidewheel.ids import bucket_of, job_id, shard_of
from tidewheel.jobs.parsing import parse_request
from tidewheel.jobs.requests import JobSubmit
from tidewheel.jobs.spec import policy_document, schedule_document
from tidewheel.jobs.strict_json import Json, canonical
from tidewheel.postgres.session import Conn
from tidewheel.schedules.zones import tzdata_version
from tidewheel.schemas.codec import encode
from tidewheel.schemas.definitions import definition_record, needs
from tidewheel.settings.services import SchedulerSettings
from tidewheel.transitions.installation import Installation
from tools.bench.environment import Environment

_JOBS = (
    "COPY jobs (job_id, tenant, key, bucket, shard, version, schedule_kind, interval_anchor, interval_us, created_at, "
    "updated_at) "
    "FROM STDIN (FORMAT BINARY)"
)
_VERSIONS = (
    "COPY job_versions (job_id, version, tenant, effective_at, spec, schedule_json, policy_json, handler, queue,"
    " lane, overlap, definition) FROM STDIN (FORMAT BINARY)"
)
_TIMERS = "COPY timers (job_id, tenant, shard, due_at, scheduled_at, version) FROM STDIN (FORMAT BINARY)"
_JOB_TYPES = (
    "uuid", "text", "text", "int2", "int2", "int4", "text", "timestamptz", "int8", "timestamptz", "timestamptz"
)  # fmt: skip
_VERSION_TYPES = ("uuid", "int4", "text", "timestamptz", "jsonb", *["text"] * 6, "bytea")
_TIMER_TYPES = ("uuid", "text", "int2", "timestamptz", "timestamptz", "int4")
_LOADED = ("jobs", "job_versions", "timers")
_AT_ONCE = 100_000  # jobs in one transaction
_LOADING_SECONDS = 4.0
_LOADING_SECONDS_A_JOB = 100e-6  # 75 beside other load; waiting costs time alone

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
    target: Mapping[str, Json] | None = None,
    prefix: str = "bench",
    catch_up: str = "fire_once",
    end_at: datetime | None = None,
    retry: Mapping[str, Json] | None = None,
    analyze: bool = True,
) -> None:
    """Write interval jobs whose next instants are spread evenly from `due_at`, in whole milliseconds.

    Args:
        connection: Of the database.
        installation: Its shards.
        count: How many.
        due_at: The next instant of the first.
        every: Their interval.
        spread: Over what the next instants are spread.
        overlap: Their overlap policy.
        handler: What they run.
        target: What they run instead of a handler.
        prefix: What their keys begin with.
        catch_up: What becomes of missed occurrences.
        end_at: No occurrence after this.
        retry: Their retry policy; the default one without it.
        analyze: Run ANALYZE. The planner plans otherwise for an empty table.
    """
    job: dict[str, object] = {
        "key": _key(prefix, 0),
        "schedule": {"interval": every.total_seconds(), "anchor": (due_at - every).isoformat()},
        "target": dict(target) if target else handler,
        "payload": PAYLOAD,
        "overlap": overlap,
        "catch_up": catch_up,
        **({"end_at": end_at.isoformat()} if end_at else {}),
        **({"retry": dict(retry)} if retry else {}),
    }
    request = parse_request({"type": "job.submit", "job": cast("Json", job)})
    assert isinstance(request, JobSubmit)
    document = {**schedule_document(request.job), "anchor_fires": True}
    name = job_id("default", _key(prefix, 0))
    record = definition_record(request.job, tenant="default", job_id=str(name), job_version=1, job_key=_key(prefix, 0))
    policy = canonical(policy_document(request.job)).decode()
    texts = (policy, needs(record.target), "default", "standard", overlap)
    mould = _Mould(encode(record), str(name).encode(), _key(prefix, 0).encode())
    interval_us = int(every.total_seconds() * 1e6)

    @cache
    def schedule(at: datetime) -> str:
        # One schedule for all that share an instant: most jobs are due at the full minute, and share the answer.
        return canonical({**document, "anchor": (at - every).isoformat()}).decode()

    _trust(connection)
    # As the first scheduler notes in an empty database; in a full one it would look through all timers first.
    connection.execute("UPDATE settings SET value = %s WHERE name = 'tzdata'", [Jsonb(tzdata_version())])
    for first in range(0, count, _AT_ONCE):
        some = [(n, job_id("default", _key(prefix, n))) for n in range(first, min(first + _AT_ONCE, count))]
        instants = [_whole_ms(due_at + spread * number / count) for number, _ in some]
        shards = [(bucket, shard_of(bucket, installation.shards)) for bucket in (bucket_of(job) for _, job in some)]
        kept = ("interval", due_at, interval_us, due_at, due_at)
        _copy(
            connection,
            _JOBS,
            _JOB_TYPES,
            (
                (job, "default", _key(prefix, number), bucket, shard, 1, *kept)
                for (number, job), (bucket, shard) in zip(some, shards, strict=True)
            ),
        )
        _copy(
            connection,
            _VERSIONS,
            _VERSION_TYPES,
            (
                (job, 1, "default", due_at, "{}", schedule(at), *texts, mould.of(job, _key(prefix, number)))
                for (number, job), at in zip(some, instants, strict=True)
            ),
        )
        rows = zip(some, shards, instants, strict=True)
        due = ((job, "default", shard, at, at, 1) for (_, job), (_, shard), at in rows)
        _copy(connection, _TIMERS, _TIMER_TYPES, due)
        connection.commit()
    if analyze:
        vacuum(connection, _LOADED)


def lookahead_of(environment: Environment) -> timedelta:
    """Return how long before its instant the scheduler may fire, with the variables of this process."""
    return SchedulerSettings.load(database_url=environment.url, topic_prefix=environment.prefix).lookahead


def due_after_loading(environment: Environment, connection: Conn, jobs: int) -> datetime:
    """Return a whole second so late that so many jobs are loaded before the first may fire."""
    now = database_now(connection).replace(microsecond=0)
    connection.rollback()
    seconds = _LOADING_SECONDS + jobs * _LOADING_SECONDS_A_JOB
    return now + lookahead_of(environment) + timedelta(seconds=math.ceil(seconds))


def load_steady(
    connection: Conn,
    installation: Installation,
    jobs: int,
    *,
    due_at: datetime,
    period: timedelta,
    rounds: int,
    prefix: str = "steady",
) -> None:
    """Write jobs with an even load over some rounds, whose handler records its start."""
    load_jobs(
        connection,
        installation,
        jobs,
        due_at=due_at,
        every=period,
        spread=period,
        end_at=due_at + period * rounds - timedelta(microseconds=1),
        handler="noted",
        prefix=prefix,
    )


def count_of(connection: Conn, statement: LiteralString, *values: object) -> int:
    """The number that a query finds, in a transaction of its own."""
    row = connection.execute(statement, values).fetchone()
    connection.rollback()
    assert row is not None
    return int(str(row[0]))


def database_now(connection: Conn) -> datetime:
    """The database's clock."""
    row = connection.execute("SELECT tidewheel_now()").fetchone()
    assert row is not None
    return cast("datetime", row[0])


def checkpoint(connection: Conn) -> None:
    """Write a checkpoint before the measurement, if this user may. Ends the transaction."""
    connection.commit()
    with suppress(psycopg.errors.InsufficientPrivilege):
        connection.execute("CHECKPOINT")
    connection.rollback()


def vacuum(connection: Conn, tables: Sequence[str]) -> None:
    """VACUUM ANALYZE; ends the transaction."""
    connection.commit()
    before, connection.autocommit = connection.autocommit, True
    for table in tables:
        connection.execute(sql.SQL("VACUUM ANALYZE {}").format(sql.Identifier(table)))
    connection.autocommit = before


class _Mould:
    """An encoded definition in which a job's id and key are replaced by others of the same length."""

    def __init__(self, encoded: bytes, job: bytes, key: bytes) -> None:
        assert (encoded.count(job), encoded.count(key)) == (1, 1), encoded
        self._encoded, self._job, self._key = encoded, job, key

    def of(self, job: UUID, key: str) -> bytes:
        """The definition of another job."""
        assert len(key) == len(self._key)
        return self._encoded.replace(self._job, str(job).encode()).replace(self._key, key.encode())


def _key(prefix: str, number: int) -> str:
    return f"{prefix}-{number:08d}"


def _whole_ms(at: datetime) -> datetime:
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


def _trust(connection: Conn) -> None:
    """Disable foreign key checks, if this user may: the jobs are written with their versions."""
    try:
        connection.execute("SET session_replication_role = replica")
        connection.commit()
    except psycopg.errors.InsufficientPrivilege:
        connection.rollback()


def _copy(connection: Conn, statement: LiteralString, types: Sequence[str], rows: Iterable[tuple[object, ...]]) -> None:
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(types)
        for row in rows:
            copy.write_row(row)
