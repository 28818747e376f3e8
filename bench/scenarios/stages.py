"""`stages`: CPU of PostgreSQL and Python, and bytes, of firing, claim and end, one session each.

A pipeline round cannot show what a statement or a table costs: its processes disturb each other. Here one thread does
20,000 runs stage after stage, with the product's functions and its sessions' settings. No service and no broker runs.

The calibration stage is no product code and the same in all builds: COPY of fixed rows, then their DELETE. Where two
builds or rounds differ in it, the machine was not the same, and their other stages say nothing.
"""

import gc
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from time import thread_time
from typing import LiteralString, cast
from uuid import UUID, uuid4

import psutil

from tidewheel.bench.environment import Environment, Server
from tidewheel.bench.load import database_now, load_jobs, vacuum
from tidewheel.bench.measurement import Figure, Incomplete, Options, Round, least
from tidewheel.executor.claim import Claimer
from tidewheel.ids import read_uuid
from tidewheel.kafka.topics import DEFAULT_QUEUE
from tidewheel.postgres.session import BY_KEY, KEPT_PLANS, UNIFORM, Conn, Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.service import Shutdown
from tidewheel.runs import RunState
from tidewheel.scheduler.firing import FireBatch, fire
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import JobDefinition, RunRequest
from tidewheel.transitions.claim import Claim, Started
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.run_messages import DEFINITIONS

_HEARTBEAT_EXECUTOR = Statements("tidewheel.executor")["heartbeat_executor"]

RUNS = 20_000
_BATCH = 1000  # runs of a claim or an end, which a busy executor reaches
_SHARDS = 6  # of 64: a firing transaction of 20,000 jobs has just under 2,000, its limit
_FIRE_LIMIT = 2000
_HOUR = timedelta(hours=1)
_ROW = b"\0\2" + b"\0\0\0\x10%b" + b"\0\0\1\x2c" + b"x" * 300
_COPY: LiteralString = "COPY bench_calibration (id, value) FROM STDIN (FORMAT BINARY)"
_MESSAGES: LiteralString = "SELECT value FROM outbox ORDER BY slice_lane, publish_at, id"
_WAL: LiteralString = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
_KEPT: LiteralString = "SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('finished_runs')"

Message = tuple[Claim, RunRequest, JobDefinition]


def measure(server: Server, options: Options) -> Round:
    """Measure calibration, firing, claim and end of the same runs.

    Raises:
        Incomplete: PostgreSQL is on another machine, or a run is missing at the end of a stage.
    """
    runs = options.jobs or RUNS
    if server.postgres() is None:
        message = "PostgreSQL's processes cannot be seen from here"
        raise Incomplete(message)
    with server.environment() as environment, environment.connect(autocommit=True) as admin:
        stages = _Stages(admin, runs)
        options.report("calibration")
        _calibrate(environment, admin, stages)
        options.report(f"{runs:,} runs: fire, claim, end")
        _load(environment, runs)
        _fire(environment, stages)
        messages = read_messages(admin, runs)
        vacuum(admin, ["job_runs"])
        executor_id = uuid4()
        register_executor(environment, executor_id)
        started = _claim(environment, stages, messages, executor_id)
        _end(environment, stages, messages, started, executor_id)
        stages.measure_kept()
    return Round(stages.figures)


class _Stages:
    """The figures of stages. CPU is that of one backend and of this thread, without other processes."""

    def __init__(self, admin: Conn, runs: int) -> None:
        self._admin, self.runs = admin, runs
        self.figures: dict[str, Figure] = {}

    @contextmanager
    def stage(self, name: str, connection: Conn) -> Generator[None]:
        """Measure what the block does on this connection, without the collector, as in services."""
        connection.execute("SELECT 1")
        connection.rollback()
        gc.collect()
        gc.disable()
        try:
            wal, postgres, python = self._wal_bytes(), backend_seconds(connection), thread_time()
            yield
            python = thread_time() - python
            postgres = backend_seconds(connection) - postgres
        finally:
            gc.enable()
        self.figures |= {
            f"{name}_postgres": least(postgres / self.runs * 1e6, "µs a run"),
            f"{name}_python": least(python / self.runs * 1e6, "µs a run"),
            f"{name}_wal": least((self._wal_bytes() - wal) / self.runs, "bytes a run"),
        }

    def check(self, name: str, done: int) -> None:
        """Raise Incomplete if a stage has not done all runs."""
        if done != self.runs:
            message = f"{name}: {done:,} of {self.runs:,} runs"
            raise Incomplete(message)

    def measure_kept(self) -> None:
        """Measure what stays of a run until its retention ends, indexes included."""
        row = self._admin.execute(_KEPT).fetchone()
        assert row is not None
        self.figures["kept"] = least(int(str(row[0])) / self.runs, "bytes a run")

    def _wal_bytes(self) -> int:
        row = self._admin.execute(_WAL).fetchone()
        assert row is not None
        return int(str(row[0]))


def _calibrate(environment: Environment, admin: Conn, stages: _Stages) -> None:
    admin.execute("CREATE TABLE bench_calibration (id uuid PRIMARY KEY, value bytea)")
    ids = [((number * 0x9E3779B97F4A7C15) % 2**64).to_bytes(8) * 2 for number in range(stages.runs)]
    header, end = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
    session = Session(environment.url, "tidewheel-bench")
    connection = session.connection()
    with stages.stage("calibration", connection):
        for first in range(0, stages.runs, _FIRE_LIMIT):
            rows = b"".join([_ROW % each for each in ids[first : first + _FIRE_LIMIT]])
            with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
                copy.write(header + rows + end)
            connection.commit()
        connection.execute("DELETE FROM bench_calibration")
        connection.commit()
    session.close()


def _load(environment: Environment, runs: int) -> None:
    """Load the jobs, without a checkpoint: whole pages in the WAL of firing would depend on its instant."""
    with environment.connect() as connection:
        load_jobs(connection, environment.installation, runs, due_at=database_now(connection))


def _fire(environment: Environment, stages: _Stages) -> None:
    with environment.connect() as connection:
        now = database_now(connection)
    session, shards = Session(environment.url, "tidewheel-scheduler", options=BY_KEY), environment.installation.shards
    parts = [range(first, min(first + _SHARDS, shards)) for first in range(0, shards, _SHARDS)]
    fired = 0
    with stages.stage("fire", session.connection()):
        for part in parts:
            batch = FireBatch(shards=part, now=now, horizon=now, misfire_after=_HOUR, limit=_FIRE_LIMIT)
            while done := fire(session, environment.installation, batch):
                fired += done
    session.close()
    stages.check("fire", fired)


def read_messages(admin: Conn, runs: int) -> list[Message]:
    """The messages in the order in which the relay reads them, decoded as by the executor."""
    found = list[Message]()
    for (value,) in admin.execute(_MESSAGES).fetchall():
        request = decode(cast("bytes", value), RunRequest)
        claim = Claim(read_uuid(request.run_id), request.attempt, request.job_version, "bench/0/0@0")
        found.append((claim, request, DEFINITIONS.of(request.definition)))
    assert len(found) == runs
    return found


def register_executor(environment: Environment, executor_id: UUID) -> None:
    """Register the executor: a claim locks its row."""
    about = {
        "executor_id": executor_id,
        "name": "bench",
        "queues": [DEFAULT_QUEUE],
        "handlers": [],
        "slots": _BATCH,
        "group_protocol": "classic",
        "lease": _HOUR,
        "stopping": False,
    }
    with environment.connect() as connection:
        connection.execute(_HEARTBEAT_EXECUTOR, about)


def _claim(environment: Environment, stages: _Stages, messages: list[Message], executor_id: UUID) -> list[Started]:
    session, started = Session(environment.url, "tidewheel-executor", options=KEPT_PLANS), list[Started]()
    claimer = Claimer(
        session, environment.installation, executor_id, Shutdown(), lease_lost=lambda: None, notify=lambda _: None
    )
    with stages.stage("claim", session.connection()):
        for first in range(0, len(messages), _BATCH):
            claims = [claim for claim, _, _ in messages[first : first + _BATCH]]
            started += claimer.claim(claims, source="message").started
    claimer.close()
    stages.check("claim", len(started))
    return started


def _end(
    environment: Environment, stages: _Stages, messages: list[Message], started: list[Started], executor_id: UUID
) -> None:
    session, ended = Session(environment.url, "tidewheel-executor-complete", options=UNIFORM), 0
    by_run = {claim.run_id: (request, definition) for claim, request, definition in messages}
    with stages.stage("end", session.connection()):
        for first in range(0, len(started), _BATCH):
            ends = [
                RunEnd(
                    each.run_id,
                    each.attempt,
                    RunState.SUCCEEDED,
                    executor_id,
                    unflushed=True,
                    request=by_run[each.run_id][0],
                    definition=by_run[each.run_id][1],
                    claimed_from=each.claimed_from,
                )
                for each in started[first : first + _BATCH]
            ]
            with session.transaction() as connection:
                ended += len(finish_runs(connection, environment.installation, ends, uniform=True).states)
    session.close()
    stages.check("end", ended)


def backend_seconds(connection: Conn) -> float:
    """CPU seconds of a connection's server process: by the nanosecond on Linux, else by the tick."""
    pid = connection.info.backend_pid
    schedule = Path(f"/proc/{pid}/schedstat")
    if schedule.exists():
        return int(schedule.read_text().split()[0]) / 1e9
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system
