"""The rows and pages that each list reads, beside 200,000 finished and 60,000 open runs of others."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.control.api.answering import answering
from tests.fixtures.history import OPEN, RUNS, Large
from tidewheel.control.api.streams import read_run_changes
from tidewheel.control.reads.fleet import list_executors
from tidewheel.nouns.api_keys.operations import list_api_keys
from tidewheel.nouns.audit_log.operations import list_audit_log
from tidewheel.nouns.batches.operations import list_batches
from tidewheel.nouns.dead_letters.operations import group_dead_letters, list_dead_letters
from tidewheel.nouns.freezes.reads import list_freezes
from tidewheel.nouns.jobs.reads import list_jobs, show_job
from tidewheel.nouns.jobs.versions import versions
from tidewheel.nouns.limits.operations import list_blocked_keys, list_keys, list_limits
from tidewheel.nouns.runs.detail import show_run
from tidewheel.nouns.runs.model import PageFilter, RunPage
from tidewheel.nouns.runs.operations import list_cancellations
from tidewheel.nouns.runs.reads import list_runs
from tidewheel.nouns.tenants.reads import list_tenants, tenant_usage
from tidewheel.nouns.workflows.operations import list_workflows
from tidewheel.nouns.works.operations import list_works
from tidewheel.postgres.session import Conn
from tools.bench.history import BUSY_JOB, RARE, RARE_JOB

pytestmark = pytest.mark.slow

LOOKED_AT = 20_000
OF_A_PAGE = 2_000  # rows beside those that are looked at: of 51 runs or jobs, in each partition
PAGES_OF_FEW = 1_500  # of ten runs: each partition of six days is searched by every index that serves the list

RARE_LABEL = {"rare": "yes"}
NARROW: dict[str, dict[str, Any]] = {
    "all": {},
    "succeeded": {"status": "succeeded"},
    "failed": {"status": "failed"},
    "queued": {"status": "queued"},
    "scheduled": {"status": "scheduled"},
    "waiting": {"status": "waiting"},
    "of a lane": {"lane": "batch"},
    "of a queue": {"queue": "reports"},
    "of a cause": {"cause": "backfill"},
    "of a key": {"concurrency_key": "acme"},
    "by all": {"status": "failed", "lane": "batch", "queue": "reports", "cause": "backfill"},
    "of a job": {"key": BUSY_JOB},
    "of a job, running": {"key": BUSY_JOB, "status": "running"},
    "of a job, waiting": {"key": BUSY_JOB, "status": "waiting"},
    "of a job, by lane": {"key": BUSY_JOB, "lane": "critical"},
    "of a job by label": {"key": RARE_JOB, "labels": RARE_LABEL},
    "of a job by its runs' labels": {"key": RARE_JOB, "run_labels": RARE_LABEL},
}


@pytest.mark.parametrize("name", NARROW)
def test_page_of_runs_looks_at_20_000_rows_at_most(large: Large, name: str) -> None:
    filters = PageFilter(**NARROW[name])
    pages: list[RunPage] = []
    rows, _ = large.cost(lambda connection: pages.append(list_runs(connection, "default", filters)))
    assert rows <= LOOKED_AT + OF_A_PAGE
    if pages[0].next_cursor is not None:
        after = pages[0].next_cursor
        rows, _ = large.cost(lambda connection: list_runs(connection, "default", filters, after=after))
        assert rows <= 2 * LOOKED_AT + OF_A_PAGE  # once more from the start, for the total


@pytest.mark.parametrize("name", ["labels", "run_labels"])
def test_page_by_label_looks_at_its_share(large: Large, name: str) -> None:
    filters = PageFilter(**{name: RARE_LABEL}, since=large.history.first)  # type: ignore[arg-type]  # either of them
    rows, _ = large.cost(lambda connection: list_runs(connection, "default", filters))
    assert rows <= LOOKED_AT


def test_few_matches_among_all_are_found_page_by_page(large: Large) -> None:
    found: list[UUID] = []
    after: str | None = None
    pages = 0
    with large.database.transaction() as connection:
        while True:
            filters = PageFilter(cause="backfill", queue="reports", lane="batch", labels=None)
            page = list_runs(connection, "default", filters, after=after)
            found += [run.run_id for run in page.runs]
            pages += 1
            after = page.next_cursor
            if after is None:
                break
    assert len(found) == len(set(found)) == RARE
    assert RUNS * 0.95 / LOOKED_AT <= pages <= (RUNS + OPEN) / LOOKED_AT + 1


@pytest.mark.parametrize("name", [name for name in NARROW if "job" not in name])
def test_no_list_of_a_tenant_reads_rows_of_another(large: Large, name: str) -> None:
    filters = PageFilter(**NARROW[name])
    rows, pages = large.cost(lambda connection: list_runs(connection, "tiny", filters))
    assert rows <= 50 * RARE
    assert pages <= PAGES_OF_FEW


# Of each other list: a page for a tenant with much, and the same for one with ten runs.
LISTS: dict[str, Callable[[Conn, str], object]] = {
    "/api/v1/jobs": lambda connection, tenant: list_jobs(connection, tenant),
    "/api/v1/jobs by label": lambda connection, tenant: list_jobs(connection, tenant, labels=RARE_LABEL),
    "/api/v1/jobs by prefix": lambda connection, tenant: list_jobs(connection, tenant, prefix="job-0001"),
    "/api/v1/jobs by queue": lambda connection, tenant: list_jobs(connection, tenant, queue="reports"),
    "/api/v1/jobs/{key}": lambda connection, tenant: show_job(
        connection, tenant, "of-tiny" if tenant == "tiny" else BUSY_JOB
    ),
    "/api/v1/jobs/{key}/versions": lambda connection, tenant: versions(
        connection, tenant, "of-tiny" if tenant == "tiny" else BUSY_JOB
    ),
    "/api/v1/dead-letters": lambda connection, tenant: list_dead_letters(connection, tenant),
    "/api/v1/dead-letters by error": lambda connection, tenant: list_dead_letters(
        connection, tenant, error_type="NoSuchError"
    ),
    "/api/v1/dead-letters by kind": lambda connection, tenant: list_dead_letters(connection, tenant, kind="message"),
    "/api/v1/dead-letters/groups": lambda connection, tenant: group_dead_letters(connection, tenant, redriven=False),
    "/api/v1/cancellations": lambda connection, tenant: list_cancellations(connection, tenant),
    "/api/v1/works": lambda connection, tenant: list_works(connection, tenant),
    "/api/v1/freezes": lambda connection, tenant: list_freezes(connection, tenant),
    "/api/v1/batches": lambda connection, tenant: list_batches(connection, tenant),
    "/api/v1/workflows": lambda connection, tenant: list_workflows(connection, tenant),
    "/api/v1/limits": lambda connection, tenant: list_limits(connection, tenant),
    "/api/v1/limits/keys": lambda connection, tenant: list_keys(connection, tenant),
    "/api/v1/ordering-keys": lambda connection, tenant: list_blocked_keys(connection, tenant),
    "/api/v1/keys": lambda connection, tenant: list_api_keys(connection, tenant),
    "/api/v1/audit-log": lambda connection, tenant: list_audit_log(connection, tenant),
    "/api/v1/executors": lambda connection, _: list_executors(connection, limit=51),
    "/api/v1/tenants/{tenant}/usage": lambda connection, tenant: tenant_usage(connection, tenant),
    "/api/v1/tenants": lambda connection, _: list_tenants(connection, limit=51),
}
OF_RUNS = {"/api/v1/runs", "/api/v1/jobs/{key}/runs"}


@pytest.mark.parametrize("name", LISTS)
def test_page_of_any_list_is_bounded_for_a_tenant_with_much_and_small_for_one_with_little(
    large: Large, name: str
) -> None:
    rows, _ = large.cost(lambda connection: LISTS[name](connection, "default"))
    assert rows <= LOOKED_AT + OF_A_PAGE
    rows, pages = large.cost(lambda connection: LISTS[name](connection, "tiny"))
    assert rows <= 50 * RARE
    assert pages <= PAGES_OF_FEW


def test_every_list_of_the_api_is_among_these(large: Large) -> None:
    with answering(large.database) as client:
        paths = client.get("/api/v1/openapi.json").json()["paths"]
    paged = {
        path
        for path, verbs in paths.items()
        if "cursor" in {each["name"] for each in verbs.get("get", {}).get("parameters", ())}
    }
    assert paged <= {name.partition(" ")[0] for name in LISTS} | OF_RUNS


def test_run_is_found_by_its_id_in_few_pages(large: Large) -> None:
    run_id = large.database.within(list_runs, "tiny", PageFilter()).runs[0].run_id
    rows, pages = large.cost(lambda connection: show_run(connection, "tiny", run_id))
    assert rows <= 5 * RARE
    assert pages <= PAGES_OF_FEW


@pytest.mark.parametrize("key", [None, BUSY_JOB])
def test_stream_reads_the_ends_of_its_span_alone(large: Large, key: str | None) -> None:
    first = large.history.first + timedelta(days=2)
    until = first + timedelta(seconds=60)

    def read(connection: Conn) -> None:
        connection.execute("SET LOCAL enable_bitmapscan = on")  # as in the sessions of streams
        read_run_changes(connection, "default", key, after=(first, UUID(int=0)), until=until, known=[])

    rows, _ = large.cost(read)
    ended = 60 * RUNS / timedelta(days=6).total_seconds()
    # BRIN finds ranges of 128 pages; beside them are the newest 500 open runs.
    assert rows <= 500 + ended + 128 * 100
