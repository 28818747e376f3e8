"""`capacity`: costs by stage and rate, with which `tidewheel capacity` computes.

One installation with every service has a steady load of one rate after the other: half of the runs are those of
timers, half are triggered. CPU of PostgreSQL is divided by session, so each stage has its own. A load's cost excludes
what the installation takes while it is idle. Whole pages after checkpoints are excluded too: the model computes them.
"""

import base64
import json
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import LiteralString, cast
from uuid import uuid4

import psutil
import psycopg

from tidewheel.bench.complete import Ends, check_runs, until_empty, wait_for
from tidewheel.bench.environment import Environment, Server
from tidewheel.bench.load import PAYLOAD, count_of, database_now, load_jobs, vacuum
from tidewheel.bench.measurement import Figure, Incomplete, Options, Round
from tidewheel.bench.scenarios.pipeline import EXECUTORS, all_services, due_after_loading, mark_before_firing, warm_up
from tidewheel.bench.usage import Meter
from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.client import Client
from tidewheel.kafka.clients import producer
from tidewheel.postgres.session import Conn

RATES = (30, 60, 100, 200, 300, 500, 1000, 2000, 3000)
LOADED = (10_000, 100_000, 1_000_000)  # jobs, of which the last counts are loaded on top of the first
_PERIOD = timedelta(seconds=20)
_ROUNDS = 2
_IDLE_SECONDS = 30.0
_SETTLE_SECONDS = 20.0  # after the warm-up: garbage is collected, and dead rows are removed
_BACKLOG = 25_000  # runs of timers, and as many triggered: some seconds of what two cores can do
_LARGE_BYTES = 3000  # of random bytes, as base64 4,000
_LARGE_RUNS = 4000
_WARM_RUNS = 30_000
_TICK_SECONDS = 0.02
_FLUSH_SECONDS = 60.0
_KEPT = ("finished_runs", "run_inputs", "attempts", "attempt_outputs", "requests")
_STAGES = ("scheduler", "intake", "relay", "executor")
_SESSIONS: LiteralString = (
    "SELECT pid, application_name FROM pg_stat_activity"
    " WHERE datname = current_database() AND backend_type = 'client backend'"
)
_SIZE: LiteralString = (
    "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class"
    " WHERE oid = %(table)s::regclass OR oid IN (SELECT relid FROM pg_partition_tree(%(table)s::regclass))"
)
_RUNNING: LiteralString = "SELECT count(*) FROM job_runs WHERE state = 'running'"


@dataclass(frozen=True, slots=True)
class _Used:
    """The use up to one instant, by stage where it is CPU."""

    at: float
    cpu: Mapping[str, float]
    wal: int
    kafka: int
    kept: Mapping[str, int]


def measure(server: Server, options: Options) -> Round:
    """Measure an idle installation, each rate, a backlog, a burst, large payloads, then jobs on disk.

    Raises:
        Incomplete: PostgreSQL or the broker is on another machine, or a run is missing.
    """
    if server.postgres() is None or not server.broker_logs():
        message = "the processes of PostgreSQL and the broker cannot be seen from here"
        raise Incomplete(message)
    figures: dict[str, Figure] = {}
    with server.environment() as environment, environment.connect() as connection, _without_checkpoints(server):
        ends = Ends(environment, environment.installation.topics.completions)
        _submit(environment)
        with all_services(environment, executors=EXECUTORS) as processes, environment.meter(processes) as meter:
            warm = min(_WARM_RUNS, options.jobs or _WARM_RUNS)
            warm_up(environment, connection, ends, options, warm)
            loads = _Loads(environment, connection, ends, meter=meter, options=options, runs=warm)
            figures |= loads.idle()
            for rate in (int(options.rate),) if options.rate else RATES:
                figures |= loads.steady(rate)
            figures |= loads.backlog(min(_BACKLOG, options.jobs or _BACKLOG))
            figures |= loads.burst(min(2 * _BACKLOG, options.jobs or 2 * _BACKLOG))
            large = min(_LARGE_RUNS, options.jobs or _LARGE_RUNS)
            figures |= loads.triggered("plain", large, "noop-triggers", lambda: PAYLOAD)
            figures |= loads.triggered("payload", large, "noop-triggers", _text)
            figures |= loads.triggered("result", large, "echoes", _text)
        check_runs(connection, loads.runs, environment.starts(), may_be_released=True)
        figures |= _job_sizes(environment, connection, options)
    return Round(figures)


class _Loads:
    """The loads of one installation, one after the other."""

    def __init__(
        self, environment: Environment, connection: Conn, ends: Ends, *, meter: Meter, options: Options, runs: int
    ) -> None:
        self.runs = runs  # all that have begun
        self._environment, self._connection, self._ends = environment, connection, ends
        self._meter, self._options = meter, options
        self._sender = producer(environment.kafka, role="bench-requests", linger_ms=5)
        self._idle: Mapping[str, float] = {}
        self._idle_wal = 0.0

    def idle(self) -> dict[str, Figure]:
        """Return CPU, WAL and bytes of Kafka a second without a run."""
        seconds = _IDLE_SECONDS if not self._options.seconds else min(_IDLE_SECONDS, self._options.seconds)
        self._options.report(f"idle for {seconds:.0f} s")
        threading.Event().wait(min(seconds, _SETTLE_SECONDS))
        before = self._used()
        threading.Event().wait(seconds)
        after = self._used()
        taken = after.at - before.at
        self._idle = {name: max(0.0, _difference(before, after, name)) / taken for name in after.cpu}
        self._idle_wal = (after.wal - before.wal) / taken
        figures = {f"idle_cpu_{name}": Figure(each * 1e3, "ms a second") for name, each in self._idle.items()}
        return {**figures, "idle_wal": Figure(self._idle_wal, "bytes a second")}

    def steady(self, rate: int) -> dict[str, Figure]:
        """Return the costs of so many runs a second, half of them triggered."""
        rounds = _ROUNDS if not self._options.seconds else max(1, round(self._options.seconds / 20))
        seconds, each = _PERIOD.total_seconds() * rounds, rate / 2
        jobs = int(each * _PERIOD.total_seconds())
        self._options.report(f"{rate:,} runs/s for {seconds:.0f} s")
        due_at = due_after_loading(self._environment, self._connection, jobs)
        load_jobs(
            self._connection, self._environment.installation, jobs, due_at=due_at, every=_PERIOD, spread=_PERIOD,
            end_at=due_at + _PERIOD * rounds - timedelta(microseconds=1), handler="naps", prefix=f"at-{rate}",
        )  # fmt: skip
        mark_before_firing(self._environment, self._connection, self._meter, due_at)
        before = self._used()
        wait = due_at - database_now(self._connection)
        self._connection.rollback()
        threading.Event().wait(max(0.0, wait / timedelta(seconds=1)))
        sampled = _Samples(self._environment.url)
        with sampled.running():
            self._trigger("naps", int(each * seconds), lambda: PAYLOAD, rate=each)
        return {
            **self._costs(f"at_{rate}", before, jobs * rounds, int(each * seconds), seconds=seconds),
            **sampled.figures(f"at_{rate}"),
        }

    def backlog(self, runs: int) -> dict[str, Figure]:
        """Return the costs of runs that are due at once and triggered at once, and the rate at which they end."""
        self._options.report(f"{2 * runs:,} runs at once, half of them triggered")
        return self._at_once("backlog", runs, runs)

    def burst(self, runs: int) -> dict[str, Figure]:
        """Return the costs of runs that are due at once."""
        self._options.report(f"{runs:,} runs due at once")
        return self._at_once("burst", runs, 0)

    def _at_once(self, name: str, runs: int, triggers: int) -> dict[str, Figure]:
        due_at = due_after_loading(self._environment, self._connection, runs)
        load_jobs(
            self._connection, self._environment.installation, runs, due_at=due_at, every=timedelta(hours=2),
            handler="naps", prefix=name,
        )  # fmt: skip
        mark_before_firing(self._environment, self._connection, self._meter, due_at)
        before = self._used()
        wait = due_at - database_now(self._connection)
        self._connection.rollback()
        threading.Event().wait(max(0.0, wait / timedelta(seconds=1)))
        self._trigger("naps", triggers, lambda: PAYLOAD)
        return self._costs(name, before, runs, triggers, since=due_at.timestamp())

    def triggered(self, name: str, runs: int, key: str, payload: Callable[[], str]) -> dict[str, Figure]:
        """Return bytes a run of triggers."""
        self._options.report(f"{runs:,} triggers: {name}")
        before = self._used()
        self._trigger(key, runs, payload)
        found = self._costs(name, before, 0, runs)
        return {each: value for each, value in found.items() if "cpu" not in each}

    def _trigger(self, key: str, count: int, payload: Callable[[], str], *, rate: float | None = None) -> None:
        """Request runs, at a pace where one is given."""
        topic, began = self._environment.installation.topics.requests, monotonic_seconds()
        sent = 0
        while sent < count:
            due = count if rate is None else min(count, int((monotonic_seconds() - began) * rate) + 1)
            for _ in range(due - sent):
                trigger = {"type": "job.trigger", "request_id": uuid4().hex, "key": key, "payload": payload()}
                self._sender.produce(topic, key=key.encode() + b"%d" % sent, value=json.dumps(trigger).encode())
                sent += 1
                if sent % 1000 == 0:
                    self._sender.poll(0)
            self._sender.poll(0)
            if rate is not None:
                threading.Event().wait(_TICK_SECONDS)
        self._sender.flush(_FLUSH_SECONDS)

    def _costs(
        self, name: str, before: _Used, timed: int, triggered: int, *, seconds: float | None = None, since: float = 0.0
    ) -> dict[str, Figure]:
        """Wait for the end of a load; its costs, CPU in milliseconds a second of the load without idling."""
        runs = timed + triggered
        self.runs += runs
        wait_for(self._environment.starts().count, self.runs, "runs begun")
        self._ends.watch(self.runs)
        until_empty(self._connection, "job_runs", "outbox")
        after = self._used()
        taken = after.at - before.at
        last = self._ends.last_seconds()
        active = seconds or (last - since if since else taken)
        figures = {
            "timed_per_second": Figure(timed / active, "runs/s"),
            "triggered_per_second": Figure(triggered / active, "runs/s"),
            "wal": Figure((after.wal - before.wal - self._idle_wal * taken) / runs, "bytes a run"),
            "kafka": Figure((after.kafka - before.kafka) / runs, "bytes a run"),
        }
        for stage in after.cpu:
            # A stage with a backlog never idles.
            idle = taken - active if since else taken
            spent = _difference(before, after, stage) - self._idle.get(stage, 0.0) * idle
            figures[f"cpu_{stage}"] = Figure(max(0.0, spent) / active * 1e3, "ms a second")
        for table in _KEPT:
            figures[f"kept_{table}"] = Figure((after.kept[table] - before.kept[table]) / runs, "bytes a run")
        return {f"{name}_{figure}": value for figure, value in figures.items()}

    def _used(self) -> _Used:
        mark = self._meter.mark()
        sessions = _by_session(self._connection)
        whole = mark.cpu_seconds.get("postgres", 0.0)
        services = {each: value for each, value in mark.cpu_seconds.items() if each != "postgres"}
        postgres = {f"postgres_{stage}": sessions.get(stage, 0.0) for stage in _STAGES}
        postgres["postgres_other"] = whole - sum(postgres.values()) - sessions.get("bench", 0.0)
        kept = {table: _size_of(self._connection, table) for table in _KEPT}
        return _Used(monotonic_seconds(), {**services, **postgres}, mark.wal_bytes, mark.kafka_bytes or 0, kept)


class _Samples:
    """Connections by service, and runs that have a slot, once a second."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connections: defaultdict[str, int] = defaultdict(int)
        self._slots: list[int] = []

    @contextmanager
    def running(self) -> Generator[None]:
        """Sample until the block ends."""
        over = threading.Event()

        def look() -> None:
            with psycopg.connect(self._url, autocommit=True, application_name="tidewheel-bench") as connection:
                while not over.wait(0.5):
                    row = connection.execute(_RUNNING).fetchone()
                    assert row is not None
                    self._slots.append(int(row[0]))
                    names = Counter(_stage_of(str(name)) for _, name in connection.execute(_SESSIONS).fetchall())
                    for name, count in names.items():
                        self._connections[name] = max(self._connections[name], count)

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def figures(self, name: str) -> dict[str, Figure]:
        """Return the mean of the runs in slots, and the most connections of each service."""
        slots = sum(self._slots) / max(1, len(self._slots))
        found = {f"{name}_connections_{stage}": Figure(self._connections[stage], "") for stage in _STAGES}
        return {f"{name}_slots": Figure(slots, ""), **found}


def _job_sizes(environment: Environment, connection: Conn, options: Options) -> dict[str, Figure]:
    """Return the bytes on disk of each count of jobs with their timers."""
    figures: dict[str, Figure] = {}
    tomorrow = database_now(connection) + timedelta(days=1)
    connection.rollback()
    tables = ("jobs", "job_versions", "timers")
    connection.execute("TRUNCATE jobs, job_versions, timers CASCADE")
    connection.commit()
    there = 0
    for count in (options.jobs,) if options.jobs else LOADED:
        options.report(f"{count:,} jobs on disk")
        load_jobs(
            connection, environment.installation, count - there, due_at=tomorrow, spread=timedelta(hours=1),
            prefix=f"d{len(str(count))}", analyze=False,
        )  # fmt: skip
        there = count
        vacuum(connection, tables)
        found = sum(count_of(connection, "SELECT pg_total_relation_size(%s::regclass)", each) for each in tables)
        figures[f"disk_{count}_jobs"] = Figure(found / count, "bytes a job")
        timers = count_of(connection, "SELECT pg_total_relation_size('timers')")
        figures[f"disk_{count}_timers"] = Figure(timers / count, "bytes a job")
    return figures


@contextmanager
def _without_checkpoints(server: Server) -> Generator[None]:
    """Let no checkpoint begin by time: its whole pages would be in the WAL of one load and not of another."""
    if not server.own_database:
        yield
        return
    with server.connect_admin() as admin:
        admin.execute("ALTER SYSTEM SET checkpoint_timeout = '1h'")
        admin.execute("SELECT pg_reload_conf()")
        admin.execute("CHECKPOINT")
        try:
            yield
        finally:
            admin.execute("ALTER SYSTEM RESET checkpoint_timeout")
            admin.execute("SELECT pg_reload_conf()")


def _submit(environment: Environment) -> None:
    with Client(environment.url) as client:
        for key, target in (("naps", "naps"), ("noop-triggers", "naps"), ("echoes", "echoes")):
            client.submit({"key": key, "schedule": "manual", "target": target})


def _size_of(connection: Conn, table: str) -> int:
    row = connection.execute(_SIZE, {"table": table}).fetchone()
    connection.rollback()
    assert row is not None
    return int(str(row[0]))


def _by_session(connection: Conn) -> dict[str, float]:
    """Return CPU seconds of the server's sessions by the service that they are of."""
    found: defaultdict[str, float] = defaultdict(float)
    rows = connection.execute(_SESSIONS).fetchall()
    connection.rollback()
    for pid, name in rows:
        found[_stage_of(str(name))] += _cpu_seconds(int(cast("int", pid)))
    return found


def _stage_of(name: str) -> str:
    part = name.removeprefix("tidewheel-").partition("-")[0]
    return part if part in _STAGES else "bench" if part == "bench" else "other"


def _cpu_seconds(pid: int) -> float:
    schedule = Path(f"/proc/{pid}/schedstat")
    try:
        if schedule.exists():
            return int(schedule.read_text().split()[0]) / 1e9
        times = psutil.Process(pid).cpu_times()
    except (OSError, psutil.Error):
        return 0.0
    return times.user + times.system


def _difference(before: _Used, after: _Used, name: str) -> float:
    return after.cpu[name] - before.cpu.get(name, 0.0)


def _text() -> str:
    return base64.b64encode(os.urandom(_LARGE_BYTES)).decode()
