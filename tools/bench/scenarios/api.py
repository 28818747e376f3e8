"""`api`: lists of the REST API, pages of the console, and commands, with 10 million finished runs.

Each read is a request to `tidewheel service api` with a key, one after the other on one connection. Beside its time are
the pages that PostgreSQL reads for it, which hardly differ between machines, or the bytes of a page of the console.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from http import HTTPStatus
from http.client import HTTPConnection
from threading import Event
from typing import LiteralString

from tidewheel.clock import monotonic_seconds
from tidewheel.control.api.request_input import Cursors, PageQuery
from tidewheel.control.client.client import Client
from tidewheel.doors.address import query_with
from tidewheel.ids import first_run_id
from tidewheel.jobs.values import format_timestamp
from tidewheel.local.daemon import free_port
from tidewheel.nouns.operation import operations
from tidewheel.nouns.runs.reads import RunList
from tools.bench.complete import until
from tools.bench.environment import Environment, Server
from tools.bench.history import BUSY_JOB, BYTES_OF_A_RUN, RARE_JOB, History, load_history
from tools.bench.measurement import Figure, Incomplete, Options, Round, percentile

_RUNS = 10_000_000
_JOBS = 100_000
_OPEN = 100_000
_TIMES = 100  # of each read
_COMMANDS = ("--version", "run list", "run list --status failed", "job list", "status")
_COMMAND_TIMES = 5
_READY_SECONDS = 60.0
_FLUSH_SECONDS = 11.0  # after at most 10 s without a statement a session adds its counters to those of all
_REST = "/api/v1"

# What the process does by itself, its heartbeat and the look-up of its keys, is in none of these tables.
_PAGES: LiteralString = """
SELECT coalesce(sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read, 0) + coalesce(idx_blks_hit, 0)), 0)::bigint
  FROM pg_statio_user_tables
 WHERE relname NOT IN ('processes', 'members', 'api_keys', 'settings', 'partition_days')
"""


def measure(server: Server, options: Options) -> Round:
    """Measure each list and read of a person, and the commands that show them."""
    runs = options.jobs or _RUNS
    free = shutil.disk_usage(server.home).free
    if server.own_database and free < runs * BYTES_OF_A_RUN:
        message = f"{runs:,} runs need {runs * BYTES_OF_A_RUN / 1e9:.0f} GB of disk, and {free / 1e9:.0f} GB are free"
        raise Incomplete(message)
    figures: dict[str, Figure] = {}
    with server.environment() as environment:
        history = load_history(
            environment.connection, environment.url, environment.installation,
            runs=runs, jobs=_JOBS, open_runs=_OPEN, report=options.report,
        )  # fmt: skip
        with _serving(environment) as api:
            for name, address in {**_reads(api, history), **_console(api, history)}.items():
                options.report(name)
                figures |= _measure_read(environment, api, name, address)
        for words in _COMMANDS:
            options.report(words)
            name = "_".join(word.strip("-") for word in words.split())
            took = [_time_command(environment, words.split()) for _ in range(_COMMAND_TIMES)]
            figures[f"command_{name}"] = Figure(percentile(took, 50), "s")
    return Round(figures)


def _measure_read(environment: Environment, api: "_Api", name: str, address: str) -> dict[str, Figure]:
    api.get(address)  # plans and caches of the session
    is_rest = address.startswith(_REST)
    before = _pages(environment) if is_rest else 0
    took = [api.get(address) for _ in range(_TIMES)]
    figures = {f"{name}_p{part}": Figure(percentile(took, part) * 1000, "ms") for part in (50, 99)}
    if is_rest:
        return {**figures, f"{name}_pages": Figure((_pages(environment) - before) / _TIMES, "pages")}
    return {**figures, f"{name}_bytes": Figure(len(api.body), "bytes")}


def _pages(environment: Environment) -> int:
    """The pages that all sessions have read so far, in memory or not."""
    Event().wait(_FLUSH_SECONDS)
    return environment.count(_PAGES)


def _reads(api: "_Api", history: History) -> Mapping[str, str]:
    """The address of each read, by its name."""
    middle = _middle(history)
    listed = operations(RunList)["list"]
    made, _ = query_with(PageQuery, listed, listed.parameters)
    place = f"{format_timestamp(history.last)}/{format_timestamp(middle)}/{first_run_id(middle)}"
    deep, rare_deep = (
        Cursors.of_list(f"{_REST}/runs", made.model_validate(given), "default").write(place)
        for given in ({}, {"queue": "reports"})
    )
    since, until = format_timestamp(middle), format_timestamp(history.first + (history.last - history.first) / 1.9)
    api.headers["Last-Event-ID"] = (history.last - timedelta(minutes=1)).isoformat()  # read by a stream alone
    run = api.first_run("tenant=tiny")
    addresses = {
        "runs": "/runs",
        "runs_deep_page": f"/runs?cursor={deep}",
        "runs_of_time": f"/runs?since={since}&until={until}",
        "runs_failed": "/runs?status=failed",
        "runs_running": "/runs?status=running",
        "runs_of_rare_queue_deep": f"/runs?queue=reports&cursor={rare_deep}",
        "runs_of_rare_cause": "/runs?cause=backfill",
        "runs_of_rare_label": f"/runs?label=rare%3Dyes&since={since}",
        "runs_of_a_job": f"/runs?job={RARE_JOB}",
        "runs_of_a_job_all_filters": f"/runs?job={RARE_JOB}&status=failed&label=rare%3Dyes&queue=reports",
        "open_runs_of_a_busy_job": f"/runs?job={BUSY_JOB}&status=running",
        "runs_of_a_small_tenant": "/runs?tenant=tiny",
        "run": f"/runs/{run}?tenant=tiny",
        "jobs": "/jobs",
        "jobs_of_rare_label": "/jobs?label=rare%3Dyes",
        "job": f"/jobs/{BUSY_JOB}",
        "dead_letters": "/dead-letters",
        "dead_letters_of_rare_error": "/dead-letters?error_type=RareError",
        "status": "/status",
        "changes_of_the_last_minute": "/run-events",
    }
    return {name: f"{_REST}{address}" for name, address in addresses.items()}


def _console(api: "_Api", history: History) -> Mapping[str, str]:
    """The address of each page, by its name."""
    until = f"until={format_timestamp(_middle(history))}"
    return {
        "page_overview": "/",
        "page_jobs": "/jobs",
        "page_job": f"/jobs/{RARE_JOB}?window=7d",
        "page_job_busy": f"/jobs/{BUSY_JOB}?window=7d",
        "page_runs": "/runs",
        "page_runs_of_a_job": f"/runs?job={BUSY_JOB}",
        "page_run_running": f"/runs/{api.first_run('status=running')}",
        "page_run_failed": f"/runs/{api.first_run(f'status=failed&{until}')}",
        "page_run_succeeded": f"/runs/{api.first_run(f'status=succeeded&{until}')}",
        "page_dead_letters": "/dead-letters",
        "page_fleet": "/fleet",
        "page_ask": "/ask?q=job-0000",
    }


def _middle(history: History) -> datetime:
    return history.first + (history.last - history.first) / 2


class _Api:
    """A client of the API; `body` is the last answer, of a stream its first event or comment."""

    def __init__(self, port: int, key: str) -> None:
        self.connection = HTTPConnection("127.0.0.1", port, timeout=_READY_SECONDS)
        self.headers = {"Authorization": f"Bearer {key}"}
        self.body = b""

    def get(self, address: str) -> float:
        """Send a request for a route of REST, or for a page as a browser does; return its seconds."""
        browser = {} if address.startswith(_REST) else {"Accept": "text/html", "Accept-Encoding": "gzip"}
        begun = monotonic_seconds()
        self.connection.request("GET", address, headers={**self.headers, **browser})
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

    def answers(self) -> bool:
        """Return True if the API has started."""
        try:
            self.get(f"{_REST}/jobs?limit=1")
        except OSError:
            self.connection.close()
            return False
        return True

    def first_run(self, query: str) -> str:
        """Return the id of the first run of a list."""
        self.get(f"{_REST}/runs?{query}")
        return str(json.loads(self.body)["runs"][0]["run_id"])


@contextmanager
def _serving(environment: Environment) -> Generator[_Api]:
    with Client(environment.url) as client:
        key = client.api_keys.create("bench", ["admin"], all_tenants=True, rate=1e6).key
    port = free_port()
    api = _Api(port, key)
    with environment.services(["api"], variables={"TIDEWHEEL_API_PORT": str(port)}):
        until(api.answers, "the API answers")
        yield api
    api.connection.close()


def _time_command(environment: Environment, words: Sequence[str]) -> float:
    begun = monotonic_seconds()
    program = [sys.executable, "-m", "tidewheel.control.cli", *words]
    done = subprocess.run(program, env=environment.variables, capture_output=True, check=False)
    if done.returncode not in {0, 1}:  # 1: status has findings
        message = f"tidewheel {' '.join(words)} ended with {done.returncode}: {done.stderr.decode()[-300:]}"
        raise Incomplete(message)
    return monotonic_seconds() - begun
