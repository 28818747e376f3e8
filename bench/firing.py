"""Fires/s of the firing transaction, beside a plain binary COPY of the same rows with the same commit sizes."""

from datetime import timedelta

from bench.load import database_now, load_jobs
from bench.stage import Stage
from tidewheel.clock import monotonic_seconds
from tidewheel.db import Conn, Session
from tidewheel.scheduler.firing import Round, fire
from tidewheel.sql import trusted

JOBS = 200_000
BATCH = 2000

_ROWS = {
    "job_runs": "run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, made_at",
    "open_runs": "run_id, job_id, tenant, shard, queue, lane, handler, cause, overlap, state, job_version, "
    "scheduled_at, publish_at, made_at",
    "outbox": "slice, class, publish_at, topic, key, value, headers",
}


def measure(stage: Stage) -> dict[str, float]:
    """Fire everything that is due once, then COPY what came out of it again."""
    session = Session(stage.url, "tidewheel-bench")
    with stage.connect() as connection:
        now = database_now(connection)
        load_jobs(connection, stage.installation, JOBS, due_at=now)
    look = Round(
        shards=range(stage.installation.shards),
        now=now + timedelta(seconds=1),
        horizon=now + timedelta(seconds=5),
        misfire_after=timedelta(seconds=60),
        batch=BATCH,
    )
    started, fired = monotonic_seconds(), 0
    while moved := fire(session, stage.installation, look):
        fired += moved
    fire_seconds = monotonic_seconds() - started
    assert fired == JOBS, fired
    with stage.connect() as connection:
        floor_seconds = _copy_again(connection)
    return {
        "fires_per_second": JOBS / fire_seconds,
        "copy_rows_per_second": JOBS / floor_seconds,
        "ratio": floor_seconds / fire_seconds,
    }


def _copy_again(connection: Conn) -> float:
    """COPY the very rows that firing wrote, in batches of the same size, into the emptied tables."""
    taken = {table: _take(connection, table, columns) for table, columns in _ROWS.items()}
    connection.execute("TRUNCATE job_runs, open_runs, outbox, run_inputs")
    connection.commit()
    started = monotonic_seconds()
    for batch in range(0, JOBS, BATCH):
        for table, columns in _ROWS.items():
            statement = trusted(f"COPY {table} ({columns}) FROM STDIN (FORMAT BINARY)")
            with connection.cursor() as cursor, cursor.copy(statement) as copy:
                header, rows, trailer = taken[table]
                copy.write(header + b"".join(rows[batch : batch + BATCH]) + trailer)
        connection.commit()
    return monotonic_seconds() - started


def _take(connection: Conn, table: str, columns: str) -> tuple[bytes, list[bytes], bytes]:
    """The rows of a table as binary COPY has them: header, rows, trailer."""
    statement = trusted(f"COPY {table} ({columns}) TO STDOUT (FORMAT BINARY)")
    if table == "job_runs":  # partitioned: only a query can be copied out
        statement = trusted(f"COPY (SELECT {columns} FROM {table}) TO STDOUT (FORMAT BINARY)")  # noqa: S608
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        text = b"".join(bytes(data) for data in copy)
    header, position = text[:19], 19
    parts: list[bytes] = []
    while (fields := int.from_bytes(text[position : position + 2], signed=True)) >= 0:
        start = position
        position += 2
        for _ in range(fields):
            length = int.from_bytes(text[position : position + 4], signed=True)
            position += 4 + max(length, 0)
        parts.append(text[start:position])
    return header, parts, text[position:]
