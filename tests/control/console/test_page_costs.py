"""The number of statements of each page, and the tables that they scan, beside a long history."""

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast

import psycopg
import pytest

from tests.control.api.answering import ApiClient, answering
from tests.control.console.pages import HTML
from tests.fixtures.history import Large
from tidewheel.postgres.session import FOR_LISTS, connect
from tools.bench.history import BUSY_JOB, RARE_JOB

pytestmark = pytest.mark.slow

OF_RUNS = ("job_runs", "finished_runs", "failed_runs", "attempts", "run_inputs", "attempt_outputs", "dead_letters")
MOST = 20  # statements of a page
MOST_BYTES, OF_A_GRID = 20 * 1024, 100 * 1024
MOST_ELEMENTS = 3_000
PAGES = {
    "/": 47, "/?window=7d": 47,
    "/jobs": MOST, "/jobs?prefix=job-0001": MOST, "/jobs?status=unwell": MOST, "/jobs?label=rare%3Dyes": MOST,
    "/jobs?view=grid": MOST, "/jobs?view=grid&window=7d": MOST,
    f"/jobs/{BUSY_JOB}": 65, f"/jobs/{BUSY_JOB}?window=7d": 65, f"/jobs/{RARE_JOB}?window=90d&show=failed": 65,
    f"/jobs/{BUSY_JOB}/next": 40, f"/jobs/{BUSY_JOB}/settings": MOST, f"/jobs/{BUSY_JOB}/versions": MOST,
    f"/jobs/{BUSY_JOB}/edit": MOST,
    "/runs": MOST, "/runs?status=failed": MOST, "/runs?status=succeeded": MOST, "/runs?status=queued": MOST,
    "/runs?queue=reports": MOST, "/runs?lane=batch&status=failed": MOST, f"/runs?job={BUSY_JOB}": MOST,
    "/runs?ended_since=2026-01-01T00:00:00Z": MOST,
    "/runs?group=failed_or_timed_out&ended_since=2026-01-01T00:00:00Z": MOST, "/runs?group=due&queue=reports": MOST,
    "/runs/slow": MOST, "/runs/{running}": 40, "/runs/{queued}": 40, "/runs/{failed}": 40, "/runs/{succeeded}": 40,
    f"/runs/cancel-all?job={BUSY_JOB}": MOST, "/runs/cancel-all?queue=default": MOST,
    "/dead-letters": MOST, "/dead-letters?error_type=RareError": MOST, "/dead-letters/redrive?kind=run": MOST,
    "/dead-letters/purge?kind=run": MOST,
    "/batches": MOST, "/bulk": MOST, "/freeze": MOST,
    "/fleet": 25, "/admin/tenants": 125, "/admin/tenants/default": MOST,
    "/admin/keys": MOST, "/admin/audit": MOST, "/calendars": MOST, "/ask?q=job-0000": MOST,
}  # fmt: skip
"""Each page with the number of its statements, at most."""


@dataclass
class Seen:
    """The statements of a page with their parameters."""

    statements: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])

    @contextmanager
    def recording(self, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
        """Record what sessions execute in the block."""
        execute = psycopg.Cursor[Any].execute

        def recorded(cursor: psycopg.Cursor[Any], query: Any, params: Any = None, **options: Any) -> Any:  # noqa: ANN401
            self.statements.append((str(query), params))
            return execute(cursor, query, params, **options)

        with monkeypatch.context() as patched:
            patched.setattr(psycopg.Cursor, "execute", recorded)
            yield


@pytest.fixture(scope="module")
def console(large: Large) -> Iterator[ApiClient]:
    with answering(large.database) as client:
        client.headers.update(HTML)
        yield client


@pytest.fixture(scope="module")
def run_ids(console: ApiClient) -> dict[str, str]:
    states = ("running", "queued", "failed", "succeeded")
    found = {state: console.get("/api/v1/runs", params={"status": state, "limit": 1}).json() for state in states}
    return {state: answer["runs"][0]["run_id"] for state, answer in found.items()}


@pytest.mark.parametrize("path", PAGES)
def test_page_is_small_has_few_statements_and_scans_no_table_of_runs(
    console: ApiClient, run_ids: dict[str, str], large: Large, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    address, seen = path.format_map(run_ids), Seen()
    answer = console.get(address)  # keys and settings, which a process reads once
    assert answer.status_code == HTTPStatus.OK
    assert answer.headers["Content-Encoding"] == "gzip"
    is_grid = "view=grid" in path  # of 200 jobs
    assert int(answer.headers["Content-Length"]) <= (OF_A_GRID if is_grid else MOST_BYTES)
    assert len(re.findall(r"<[a-z]", answer.text)) <= MOST_ELEMENTS * (3 if is_grid else 1)
    with seen.recording(monkeypatch):
        assert console.get(address).status_code == HTTPStatus.OK
    texts = [text for text, _ in seen.statements if is_read(text)]
    assert texts
    assert len(texts) <= PAGES[path], "\n".join(text.partition("\n")[0] for text in texts)
    assert not [found for statement in seen.statements for found in scans(large, *statement)]


def is_read(text: str) -> bool:
    """Return True for a statement of a page: those that lock rows are of the reaper, which runs beside it."""
    return "SELECT" in text and "set_config" not in text and " FOR UPDATE" not in text.replace("\n", " ")


def scans(large: Large, text: str, parameters: Any) -> list[str]:  # noqa: ANN401
    """Return the sequential scans of tables of runs in the plan of a statement, each with its first line."""
    if not is_read(text):
        return []
    with connect(large.database.url, "test", options=FOR_LISTS) as connection:
        [(plan,)] = connection.execute(f"EXPLAIN (FORMAT JSON) {text}".encode(), parameters).fetchall()
    return [f"{node['Relation Name']}: {text.partition(chr(10))[0]}" for node in nodes(cast("Any", plan)[0]["Plan"])]


def nodes(plan: Any) -> Iterator[Any]:  # noqa: ANN401
    """Find the sequential scans of tables of runs."""
    if plan["Node Type"] in {"Seq Scan", "Parallel Seq Scan"} and plan["Relation Name"].startswith(OF_RUNS):
        yield plan
    for each in plan.get("Plans", ()):
        yield from nodes(each)
