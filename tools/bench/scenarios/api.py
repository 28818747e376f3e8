"""`api`: lists of the REST API, pages of the console, and commands, with 10 million finished runs.

Each read is a request to `tidewheel service api` with a key, one after the other on one connection. Beside its time are
the pages that PostgreSQL reads for it, which hardly differ between machines.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from http import HTTPStatus
from http.client import HTTPConnection
from threading import Event
from typing import LiteralString

from tidewheel.clock import monotonic_seconds
from tidewheel.control.api.queries import Cursors
from tidewheel.control.api.runs import RunsQuery
from tidewheel.control.client.client import Client
from tidewheel.ids import first_run_id
from tidewheel.jobs.values import format_timestamp
from tidewheel.local.daemon import free_port
from tidewheel.postgres.session import Conn
from tools.bench.environment import Environment, Server
from tools.bench.history import BUSY_JOB, BYTES_OF_A_RUN, RARE_JOB, History, load_history
from tools.bench.load import count_of
from tools.bench.measurement import Figure, Incomplete, Options, Round, percentile

_RUNS = 10_000_000
_JOBS = 100_000
_OPEN = 100_000
_TIMES = 100  # of each read
_COMMANDS = 5  # of each command
_READY_SECONDS = 60.0
_LOOK_SECONDS = 0.1
_FLUSH_SECONDS = 11.0  # after at most 10 s without a statement a session adds its counters to those of all

# What the process does by itself, its heartbeat and the look-up of its keys, is in none of these tables.
_PAGES: LiteralString = """
SELECT coalesce(sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read, 0) + coalesce(idx_blks_hit, 0)), 0)::bigint
  FROM pg_statio_user_tables
 WHERE relname NOT IN ('processes', 'members', 'api_keys', 'settings', 'partition_days')
"""


def measure(server: Server, options: Options) -> Round:
    """Measure each list and read of a person, and the commands that show them.

    Raises:
        Incomplete: The disk is too small, or a request fails.
    """
    runs = options.jobs or _RUNS
    free = shutil.disk_usage(server.home).free
    if server.own_database and free < runs * BYTES_OF_A_RUN:
        message = f"{runs:,} runs need {runs * BYTES_OF_A_RUN / 1e9:.0f} GB of disk, and {free / 1e9:.0f} GB are free"
        raise Incomplete(message)
    with server.environment() as environment, environment.connect() as connection:
        history = load_history(
            connection, environment.url, environment.installation,
            runs=runs, jobs=_JOBS, open_runs=_OPEN, report=options.report,
        )  # fmt: skip
        with _serving(environment) as api:
            figures = _measure_reads(connection, api, history, options)
        options.report("commands")
        for words in (
            ["--version"],
            ["run", "list"],
            ["run", "list", "--status", "failed"],
            ["job", "list"],
            ["status"],
        ):
            figures |= _measure_command(environment, words)
    return Round(figures)


def _measure_reads(connection: Conn, api: "_Api", history: History, options: Options) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for name, address in _reads(api, history).items():
        options.report(name)
        api.get(address)  # plans and caches of the session
        before = _pages(connection)
        figures |= _times(name, [api.get(address) for _ in range(_TIMES)])
        figures[f"{name}_pages"] = Figure((_pages(connection) - before) / _TIMES, "pages")
    for name, address in _console(api, history).items():
        options.report(name)
        api.get_page(address)
        figures |= _times(name, [api.get_page(address) for _ in range(_TIMES)])
        figures[f"{name}_bytes"] = Figure(len(api.body), "bytes")
    return figures


def _times(name: str, took: list[float]) -> dict[str, Figure]:
    return {f"{name}_p{part}": Figure(percentile(took, part) * 1000, "ms") for part in (50, 99)}


def _reads(api: "_Api", history: History) -> Mapping[str, str]:
    """The address of each read, by its name."""
    middle = history.first + (history.last - history.first) / 2
    deep, rare_deep = (
        Cursors.of_list("/api/v1/runs", query, "default").write(history.last, middle, first_run_id(middle))
        for query in (RunsQuery(), RunsQuery(queue="reports"))
    )
    since, until = format_timestamp(middle), format_timestamp(history.first + (history.last - history.first) / 1.9)
    api.get("/runs?tenant=tiny")
    api.headers["Last-Event-ID"] = (history.last - timedelta(minutes=1)).isoformat()  # read by a stream alone
    run = str(json.loads(api.body)["runs"][0]["run_id"])
    return {
        "runs": "/runs",
        "runs_deep_page": f"/runs?cursor={deep}",
        "runs_of_time": f"/runs?since={since}&until={until}",
        "runs_succeeded": "/runs?status=succeeded",
        "runs_failed": "/runs?status=failed",
        "runs_queued": "/runs?status=queued",
        "runs_running": "/runs?status=running",
        "runs_of_rare_lane": "/runs?lane=batch",
        "runs_of_rare_queue_deep": f"/runs?queue=reports&cursor={rare_deep}",
        "runs_of_rare_cause": "/runs?cause=backfill",
        "runs_of_rare_label": f"/runs?label=rare%3Dyes&since={since}",
        "runs_of_a_job": f"/runs?job={RARE_JOB}",
        "runs_of_a_job_all_filters": f"/runs?job={RARE_JOB}&status=failed&label=rare%3Dyes&queue=reports",
        "open_runs_of_a_busy_job": f"/runs?job={BUSY_JOB}&status=running",
        "runs_of_a_small_tenant": "/runs?tenant=tiny",
        "queued_of_a_small_tenant": "/runs?tenant=tiny&status=queued",
        "run": f"/runs/{run}?tenant=tiny",
        "jobs": "/jobs",
        "jobs_of_rare_label": "/jobs?label=rare%3Dyes",
        "jobs_of_prefix": "/jobs?prefix=job-0005",
        "job": f"/jobs/{BUSY_JOB}",
        "dead_letters": "/dead-letters",
        "dead_letters_of_rare_error": "/dead-letters?error_type=RareError",
        "status": "/status",
        "changes_of_the_last_minute": "/run-events",
    }


def _console(api: "_Api", history: History) -> Mapping[str, str]:
    """The address of each page, by its name."""
    middle = format_timestamp(history.first + (history.last - history.first) / 2)
    runs: dict[str, str] = {}
    for status, until in ("running", ""), ("failed", f"&until={middle}"), ("succeeded", f"&until={middle}"):
        api.get(f"/runs?status={status}{until}")
        runs[status] = str(json.loads(api.body)["runs"][0]["run_id"])
    return {
        "page_overview": "/",
        "page_jobs": "/jobs",
        "page_jobs_unwell": "/jobs?status=unwell",
        "page_job": f"/jobs/{RARE_JOB}?window=7d",
        "page_job_busy": f"/jobs/{BUSY_JOB}?window=7d",
        "page_job_next": f"/jobs/{RARE_JOB}/next",
        "page_runs": "/runs",
        "page_runs_failed": "/runs?status=failed",
        "page_runs_of_a_job": f"/runs?job={BUSY_JOB}",
        **{f"page_run_{status}": f"/runs/{run_id}" for status, run_id in runs.items()},
        "page_dead_letters": "/dead-letters",
        "page_bulk": "/bulk",
        "page_fleet": "/fleet",
        "page_tenants": "/admin/tenants",
        "page_ask": "/ask?q=job-0000",
    }


class _Api:
    """A client of the API; a stream is read up to its first event or comment."""

    def __init__(self, port: int, key: str) -> None:
        self.connection = HTTPConnection("127.0.0.1", port, timeout=_READY_SECONDS)
        self.headers = {"Authorization": f"Bearer {key}"}
        self.body = b""

    def get(self, address: str) -> float:
        """Send a request to a route of REST; return its seconds.

        Raises:
            Incomplete: The answer is an error.
        """
        return self._send(f"/api/v1{address}", self.headers)

    def get_page(self, address: str) -> float:
        """Send a request for a page, as a browser sends it; return its seconds.

        Raises:
            Incomplete: The answer is an error.
        """
        return self._send(address, {**self.headers, "Accept": "text/html", "Accept-Encoding": "gzip"})

    def _send(self, address: str, headers: Mapping[str, str]) -> float:
        begun = monotonic_seconds()
        self.connection.request("GET", address, headers=headers)
        with self.connection.getresponse() as response:
            is_stream = response.headers.get_content_type() == "text/event-stream"
            self.body = response.readline() if is_stream else response.read()
            took = monotonic_seconds() - begun
        if is_stream:
            self.connection.close()
        if response.status != HTTPStatus.OK:
            message = f"GET {address}: {response.status} {self.body.decode(errors='replace')[:300]}"
            raise Incomplete(message)
        return took


@contextmanager
def _serving(environment: Environment) -> Generator[_Api]:
    with Client(environment.url) as client:
        key = client.api_keys.create("bench", ["admin"], all_tenants=True, rate=1e6).key
    port = free_port()
    with environment.services(["api"], variables={"TIDEWHEEL_API_PORT": str(port)}):
        api, deadline = _Api(port, key), monotonic_seconds() + _READY_SECONDS
        while True:
            try:
                api.get("/jobs?limit=1")
                break
            except OSError as error:
                if monotonic_seconds() > deadline:
                    message = f"the API does not answer: {environment.log_tail('api')}"
                    raise Incomplete(message) from error
                api.connection.close()
                Event().wait(_LOOK_SECONDS)
        yield api
        api.connection.close()


def _measure_command(environment: Environment, words: list[str]) -> dict[str, Figure]:
    took: list[float] = []
    for _ in range(_COMMANDS):
        begun = monotonic_seconds()
        program = [sys.executable, "-m", "tidewheel.control.cli", *words]
        done = subprocess.run(program, env=environment.variables, capture_output=True, check=False)
        took.append(monotonic_seconds() - begun)
        if done.returncode not in {0, 1}:  # 1: status has findings
            message = f"tidewheel {' '.join(words)} ended with {done.returncode}: {done.stderr.decode()[-300:]}"
            raise Incomplete(message)
    name = "_".join(word.strip("-") for word in words)
    return {f"command_{name}": Figure(percentile(took, 50), "s")}


def _pages(connection: Conn) -> int:
    """The pages that all sessions have read so far, in memory or not."""
    Event().wait(_FLUSH_SECONDS)
    return count_of(connection, _PAGES)
