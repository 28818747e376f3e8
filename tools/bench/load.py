"""Write jobs by the million straight into the tables, without the cost of intake."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import cast
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

_COLUMNS: Mapping[str, str] = {
    "jobs": "job_id uuid, tenant text, key text, bucket int2, shard int2, version int4, schedule_kind text,"
    " interval_anchor timestamptz, interval_us int8, created_at timestamptz, updated_at timestamptz",
    "job_versions": "job_id uuid, version int4, tenant text, effective_at timestamptz, spec jsonb, schedule_json text,"
    " policy_json text, handler text, queue text, lane text, overlap text, definition bytea",
    "timers": "job_id uuid, tenant text, shard int2, due_at timestamptz, scheduled_at timestamptz, version int4",
}
_ONCE = timedelta(hours=2)  # an interval so long that a job fires once
_OVERLAP = "skip"
ONE_OWNER = (("default", 5),)
_AT_ONCE = 100_000  # jobs in one transaction
_LOADING_SECONDS = 4.0
_LOADING_SECONDS_A_JOB = 100e-6  # 75 beside other load; waiting costs time alone

PAYLOAD = "x" * 190  # as JSON, about the 200 bytes that the figures are quoted for


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Interval jobs whose next instants are spread evenly over a time, in whole milliseconds.

    The jobs take the pairs of tenant and priority in turns.
    """

    jobs: int
    every: timedelta = _ONCE
    rounds: int | None = None
    spread: timedelta = timedelta(0)
    target: Json = "noop"
    prefix: str = "bench"
    retry: Mapping[str, Json] | None = None
    owners: Sequence[tuple[str, int]] = ONE_OWNER
    analyze: bool = True  # else the planner plans as for an empty table

    @property
    def runs(self) -> int:
        """The number of runs in all rounds; without rounds each job has one."""
        return self.jobs * (self.rounds or 1)


def steady(jobs: int, period: timedelta, rounds: int, prefix: str = "steady") -> Load:
    """Return jobs with an even load over some rounds, whose handler records its start."""
    return Load(jobs=jobs, every=period, rounds=rounds, spread=period, target="noted", prefix=prefix)


def load_jobs(connection: Conn, installation: Installation, load: Load, due_at: datetime) -> None:
    """Write jobs, the first of which is due at an instant."""
    every, key = load.every, _key(load.prefix, 0)
    end_at = due_at + every * load.rounds - timedelta(microseconds=1) if load.rounds else None
    job: dict[str, Json] = {
        "key": key,
        "schedule": {"interval": every.total_seconds(), "anchor": (due_at - every).isoformat()},
        "target": load.target,
        "payload": PAYLOAD,
        "overlap": _OVERLAP,
        **({"end_at": end_at.isoformat()} if end_at else {}),
        **({"retry": dict(load.retry)} if load.retry else {}),
    }
    owners = [(tenant, *_job(tenant, {**job, "priority": priority}, key)) for tenant, priority in load.owners]
    document = {**owners[0][1], "anchor_fires": True}
    interval_us = int(every.total_seconds() * 1e6)

    @cache
    def schedule(at: datetime) -> str:
        # One schedule for all that share an instant: most jobs are due at the full minute, and share the answer.
        return canonical({**document, "anchor": (at - every).isoformat()}).decode()

    _trust(connection)
    tenants = [tenant for tenant, _ in load.owners]
    connection.execute("INSERT INTO tenants (tenant) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING", [tenants])
    # As the first scheduler notes in an empty database; in a full one it would look through all timers first.
    connection.execute("UPDATE settings SET value = %s WHERE name = 'tzdata'", [Jsonb(tzdata_version())])
    for first in range(0, load.jobs, _AT_ONCE):
        jobs: list[tuple[object, ...]] = []
        versions: list[tuple[object, ...]] = []
        timers: list[tuple[object, ...]] = []
        for number in range(first, min(first + _AT_ONCE, load.jobs)):
            key = _key(load.prefix, number)
            tenant, _, policy, handler, definition = owners[number % len(owners)]
            own_id = job_id(tenant, key)
            bucket, at = bucket_of(own_id), _whole_ms(due_at + load.spread * number / load.jobs)
            shard = shard_of(bucket, installation.shards)
            jobs.append((own_id, tenant, key, bucket, shard, 1, "interval", due_at, interval_us, due_at, due_at))
            texts = (schedule(at), policy, handler, "default", "standard", _OVERLAP)
            versions.append((own_id, 1, tenant, due_at, "{}", *texts, definition(own_id, key)))
            timers.append((own_id, tenant, shard, at, at, 1))
        for table, rows in (("jobs", jobs), ("job_versions", versions), ("timers", timers)):
            _copy(connection, table, rows)
        connection.commit()
    if load.analyze:
        vacuum(connection, list(_COLUMNS))


def lookahead_of(environment: Environment) -> timedelta:
    """Return how long before its instant the scheduler may fire, with the variables of this process."""
    return SchedulerSettings.load(database_url=environment.url, topic_prefix=environment.topics.prefix).lookahead


def due_after_loading(environment: Environment, jobs: int) -> datetime:
    """Return a whole second so late that so many jobs are loaded before the first may fire."""
    seconds = math.ceil(_LOADING_SECONDS + jobs * _LOADING_SECONDS_A_JOB)
    return environment.now().replace(microsecond=0) + lookahead_of(environment) + timedelta(seconds=seconds)


def database_now(connection: Conn) -> datetime:
    """Return the database's clock."""
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


def _job(
    tenant: str, job: Mapping[str, Json], own_key: str
) -> tuple[Mapping[str, object], str, str, Callable[[UUID, str], bytes]]:
    """Return the schedule, the policy, the handler and the encoder of a job's definition."""
    request = parse_request({"type": "job.submit", "job": job})
    assert isinstance(request, JobSubmit)
    spec = request.job
    own_id = str(job_id(tenant, own_key))
    record = definition_record(spec, tenant=tenant, job_id=own_id, job_version=1, job_key=own_key)
    encoded = encode(record)
    assert (encoded.count(own_id.encode()), encoded.count(own_key.encode())) == (1, 1), encoded

    def definition(job: UUID, key: str) -> bytes:
        """Return the definition with another id and key."""
        assert len(key) == len(own_key)  # the encoded lengths stay
        return encoded.replace(own_id.encode(), str(job).encode()).replace(own_key.encode(), key.encode())

    return schedule_document(spec), canonical(policy_document(spec)).decode(), needs(record.target), definition


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


def _copy(connection: Conn, table: str, rows: Iterable[tuple[object, ...]]) -> None:
    columns, types = zip(*(column.split() for column in _COLUMNS[table].split(",")), strict=True)
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(sql.Identifier(table), names)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(types)
        for row in rows:
            copy.write_row(row)
