"""Pages on a real database: empty, one, many, hostile text, unknown ids, headers, base path, tenants."""

import re
from html import unescape
from http import HTTPStatus
from urllib.parse import quote
from uuid import UUID, uuid4

import pytest
from psycopg.conninfo import make_conninfo

from tests.control.api.answering import ApiClient, answering
from tests.control.client.test_dead_letters import redrive
from tests.control.console.pages import HTML, assert_has, console, key_of, next_page, shown, signed_console, signed_in
from tests.control.reads.test_waits import executor
from tests.fixtures.acts import ending
from tests.fixtures.database import Database
from tidewheel.control.client.client import Client
from tidewheel.control.console import overview
from tidewheel.control.console.rendering import HEADERS
from tidewheel.errors import TidewheelError
from tidewheel.ids import job_id
from tidewheel.runs import RunState

SCRIPT = "<script>alert"
PAGES = ("/", "/jobs", "/jobs/job", "/runs", "/jobs/unknown", "/runs/unknown", "/nowhere", "/runs?status=none")


def failed(database: Database, key: str, message: str = "db-2 refused") -> UUID:
    started = database.begun(key)
    database.end(ending(started, RunState.FAILED, error_type="ConnectionError", error_message=message))
    return started.run_id


def test_every_page_has_the_headers_of_the_console(pages: ApiClient) -> None:
    pages.database.submit()
    run = pages.database.trigger()
    for path in (*PAGES, f"/runs/{run}"):
        answer = pages.get(path)
        assert {name: answer.headers.get(name) for name in HEADERS} == dict(HEADERS), path
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert "unsafe" not in answer.headers["content-security-policy"]


def test_empty_page_says_what_it_is_for_and_how_one_begins(pages: ApiClient) -> None:
    trigger_it = "tidewheel job trigger send-email --payload &#39;{&#34;to&#34;: &#34;a@example.org&#34;}&#39;"
    for path, *words in (
        ("/", trigger_it, 'href="/jobs/new">New job</a>'),
        ("/jobs", "No job yet."),
        ("/runs", "No run yet."),
        ("/bulk", "changes many runs at once", 'href="/jobs">', "tidewheel job backfill"),
        ("/workflows", 'href="/jobs/new">', "tidewheel job create publish --after load"),
        ("/calendars", "No calendar yet.", 'href="/new-calendar">', "tidewheel admin calendar put"),
        ("/admin/keys", "scopes limit", 'href="/admin/new-key">', "tidewheel admin api-key create"),
        ("/admin/tenants", 'href="/admin/new-tenant">', "tidewheel admin tenant create"),
        ("/fleet", "tidewheel service executor --handlers hello"),
    ):
        page = shown(pages, path)
        for each in words:
            assert each in page, (path, each)


def test_failed_run_shows_its_error_and_the_overview_names_its_job(pages: ApiClient) -> None:
    pages.database.submit("charge", retry={"max_attempts": 1})
    runs = [failed(pages.database, "charge") for _ in range(3)]
    page = shown(pages, f"/runs/{runs[0]}", "Failed after 1 attempt", "ConnectionError: db-2 refused<")
    assert "<bdi>ConnectionError</bdi>: <bdi>db-2 refused</bdi>" in shown(pages, "/runs?status=failed")
    overview = shown(pages, "/", '<a href="/jobs/charge"><bdi>charge</bdi> failing</a>')
    assert 'href="/runs?job=charge&amp;group=failed_or_timed_out">Show failed runs</a>' in overview
    assert "tidewheel run list" not in overview, "a page needs no command where it has a link"
    again = failed(pages.database, "charge")
    with Client(pages.database.url) as client:
        for retried in (again, runs[0]):
            client.runs.cancel(client.runs.retry(retried))
            page = shown(pages, "/jobs/charge")
            assert "4 failures in a row" in page, "a cancelled run neither fails nor succeeds"
            assert f'<a class="mono" href="/runs/{again}"><bdi>ConnectionError: db-2 refused</bdi></a>' in page
        assert '<a href="/jobs/charge"><bdi>charge</bdi> failing</a>' in shown(pages, "/")
    failed(pages.database, "charge")
    assert re.search(r"5 failures in a row since [0-9:]+\.", shown(pages, "/jobs/charge"))
    pages.database.succeed(pages.database.begun("charge"))
    assert "The last run succeeded; a run failed " in shown(pages, "/jobs/charge")


def test_rail_counts_dead_letters_until_their_redrive_and_silent_executors(pages: ApiClient) -> None:
    pages.database.submit("charge", retry={"max_attempts": 1})
    count = re.compile(r'data-place="(\w+)"[^>]*>(?:(?!</a>).)*<b class="count">([^<]*)</b>', re.DOTALL)
    assert not count.search(shown(pages, "/jobs"))
    for _ in range(2):
        failed(pages.database, "charge")
    executor(pages.database, "charge", silent="1 h")
    assert set(count.findall(shown(pages, "/jobs"))) == {("dead_letters", "2"), ("fleet", "1 silent")}
    pages.database.execute("UPDATE dead_letters SET redriven_at = created_at")
    assert set(count.findall(shown(pages, "/jobs"))) == {("fleet", "1 silent")}


def test_job_and_run_name_the_target_without_its_headers(pages: ApiClient) -> None:
    target = {"type": "http", "url": "https://example.org/hook", "headers": {"Authorization": {"secret": "HOOK"}}}
    pages.database.submit("hook", target=target, description="x" * 400)
    run = pages.database.trigger("hook")
    for path in ("/jobs/hook", "/jobs/hook/next", f"/runs/{run}"):
        page = shown(pages, path)
        assert "<bdi>POST https://example.org/hook</bdi>" in page, path
        assert "HOOK" not in page
    assert '<details class="more"><summary>more</summary>' in shown(pages, "/jobs/hook")
    pages.database.submit("plain", target="send")
    assert "handler <b><bdi>send</bdi></b>" in shown(pages, "/jobs/plain")


def test_failed_row_of_a_job_and_the_run_of_its_redrive_link_each_other(pages: ApiClient) -> None:
    pages.database.submit("nightly", retry={"max_attempts": 1})
    run = failed(pages.database, "nightly")
    redrive(pages.database.client, pages.database, key="nightly")
    new = pages.database.value("SELECT redriven_run_id FROM dead_letters")
    page = shown(pages, "/jobs/nightly", f'retried as <a class="mono" href="/runs/{new}">')
    assert f'retry of <a class="mono" href="/runs/{run}">' in page


def test_equal_rows_of_a_job_are_one_row_with_a_link_that_opens_them(pages: ApiClient) -> None:
    pages.database.submit("nightly", retry={"max_attempts": 1})
    made = {str(failed(pages.database, "nightly")) for _ in range(6)}
    page = shown(pages, "/jobs/nightly", '<span class="word">5 failed</span>')
    [opened] = re.findall(r'href="([^"]+)">show 5</a>', page)
    assert set(re.findall(r'<td class="mono"><a href="/runs/([^"]+)"', shown(pages, unescape(opened)))) == made


def test_next_page_keeps_every_label(pages: ApiClient) -> None:
    for at in range(3):
        pages.database.submit(f"job-{at}", labels={"team": "billing", "tier": "1"})
        pages.database.trigger(f"job-{at}")
    pages.database.submit("other", labels={"team": "billing"})
    for path in ("/jobs?limit=2", "/runs?limit=2&last=1h"):
        page = shown(pages, f"{path}&label=team%3Dbilling&label=tier%3D1")
        address = next_page(page)
        assert address, path
        assert "label=team%3Dbilling&label=tier%3D1" in address
        keys = re.findall(r'href="/jobs/(job-\w+)"', page + shown(pages, address))
        assert set(keys) == {"job-0", "job-1", "job-2"}, path


def test_list_of_jobs_shows_the_last_runs_and_which_fail_in_one_of_ten(pages: ApiClient) -> None:
    pages.database.submit("charge", retry={"max_attempts": 1})
    pages.database.submit("well", schedule={"cron": "30 2 * * *", "timezone": "Europe/Berlin"})
    for _ in range(3):
        failed(pages.database, "charge")
    pages.database.succeed(pages.database.begun("well"))
    page = shown(pages, "/jobs", 'aria-label="charge: 3 failed"', 'aria-label="well: 1 succeeded')
    assert_has(page, "at 02:30, Berlin time", 'href="/jobs/charge/pause"')
    unwell = shown(pages, "/jobs?status=unwell")
    assert ('href="/jobs/charge"' in unwell, 'href="/jobs/well"' in unwell) == (True, False)
    assert 'aria-current="page">Failing' in unwell
    for _ in range(9):
        pages.database.succeed(pages.database.begun("charge"))
    assert 'href="/jobs/charge"' in shown(pages, "/jobs?status=unwell"), "one of its last ten runs failed"
    pages.database.succeed(pages.database.begun("charge"))
    assert 'href="/jobs/charge"' in shown(pages, "/jobs?status=unwell"), "it failed within five minutes"
    pages.database.execute("UPDATE finished_runs SET finished_at = finished_at - interval '6 min'")
    assert 'href="/jobs/charge"' not in shown(pages, "/jobs?status=unwell")


def test_filters_are_those_of_rest_and_errors_name_the_field(pages: ApiClient) -> None:
    pages.database.submit("a", labels={"team": "billing"})
    pages.database.submit("b")
    page = shown(pages, "/jobs?label=team%3Dbilling&prefix=&kind=&queue=")
    assert ('href="/jobs/a"' in page, 'href="/jobs/b"' in page) == (True, False)
    assert "No job key begins with <bdi>zzz</bdi>" in shown(pages, "/jobs?prefix=zzz")
    for path, word in (
        ("/runs?status=none", "status"),
        ("/runs?cursor=x", "cursor"),
        ("/runs?label=a%3Db", "read all runs"),
        ("/runs?workflow=1", "There is no filter &#39;workflow&#39;</bdi>. <bdi>The known filters are tenant, limit"),
        ("/runs/cancel-all", "There is no filter, so every run would be cancelled"),
        ("/runs/cancel-all", "<title>Not possible"),
        ("/runs/cancel?run=hourly", "&#39;hourly&#39; is not the id of a run</bdi>. <bdi>Write a UUID</bdi>."),
    ):
        answer = pages.get(path)
        assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY, path
        assert word in answer.text, path


def test_hostile_text_is_text_on_every_page(pages: ApiClient) -> None:
    key = f"{SCRIPT}(1)</script>/../\u05d0\u05d1"
    job = {"labels": {"<i>x": f"{SCRIPT}\u202e"}, "description": f"{SCRIPT}\u05d0", "payload": {"a": SCRIPT}}
    pages.database.submit(key, retry={"max_attempts": 1}, **job)
    run = failed(pages.database, key, f"{SCRIPT}(2)\u202egnp.exe")
    by_id = f"/jobs/id:{job_id('default', key)}"
    for path in (
        "/",
        "/jobs",
        by_id,
        "/runs",
        f"/runs/{run}",
        f"/jobs?prefix={quote(SCRIPT)}",
        f"/runs?job={quote(SCRIPT)}",
        f"/{quote(SCRIPT)}",
    ):
        text = pages.get(path).text
        assert SCRIPT not in text, path
        assert "\u202e" not in text, path
    assert "U+202E" in shown(pages, f"/runs/{run}")
    assert f'href="{by_id}"' in shown(pages, "/jobs")


def test_key_that_a_proxy_would_change_is_addressed_by_its_id(pages: ApiClient) -> None:
    for key in ("a/b", "../x", "new", "k" * 255, "id:x", "\u05d0"):
        pages.database.submit(key)
        by_id = f"/jobs/id:{job_id('default', key)}"
        assert f'href="{by_id}"' in shown(pages, f"/jobs?prefix={quote(key)}")
        assert pages.get(by_id).status_code == HTTPStatus.OK
        if key != "new" and not key.startswith("id:"):  # that address has the form of a new job
            away = pages.get(f"/jobs/{quote(key, safe='')}")
            assert (away.status_code, away.headers["location"]) == (HTTPStatus.SEE_OTHER, by_id)
    pages.database.submit("plain")
    for page in ("", "/next"):
        moved = pages.get(f"/jobs/id:{job_id('default', 'plain')}{page}")
        assert moved.headers["location"] == f"/jobs/plain{page}"


def test_unknown_ids_are_pages_of_404(pages: ApiClient) -> None:
    for path in ("/jobs/none", f"/jobs/id:{uuid4()}", "/jobs/id:none", f"/runs/{uuid4()}", "/runs/none", "/jobs/a/b"):
        answer = pages.get(path)
        assert answer.status_code == HTTPStatus.NOT_FOUND, path
        assert "<h1>Not found</h1>" in answer.text, path
        assert_has(answer.text, 'aria-label="Places"', 'href="/runs">Runs</a>')
    hostile = pages.get("/jobs/id:%3Cscript%3E").text
    assert '<input class="wide" name="q" value="&lt;script&gt;"' in hostile


def test_address_with_a_slash_at_its_end_leads_to_the_one_without(pages: ApiClient) -> None:
    pages.database.submit("a/b")
    for path, to in (
        ("/jobs/?prefix=a", "/jobs?prefix=a"),
        ("/jobs/a%2Fb/", "/jobs/a%2Fb"),
        ("/nowhere//", "/nowhere"),
        ("//example.org/", "/example.org"),
    ):
        moved = pages.get(f"{str(pages.base_url).rstrip('/')}{path}")
        assert (moved.status_code, moved.headers["location"]) == (HTTPStatus.PERMANENT_REDIRECT, to), path
    assert pages.get("/api/v1/jobs/").status_code == HTTPStatus.NOT_FOUND


def test_mistyped_id_opens_no_page_of_another(pages: ApiClient) -> None:
    """Python's UUID reads `+` for the zero with which both ids begin."""
    key = next(name for name in map(str, range(1000)) if str(job_id("default", name)).startswith("0"))
    pages.database.submit(key)
    for path in (f"/jobs/id:{job_id('default', key)}", f"/runs/{pages.database.trigger(key)}"):
        shown(pages, path)
        before, _, after = path.partition("0")
        assert pages.get(f"{before}%2B{after}").status_code == HTTPStatus.NOT_FOUND, path


def test_addresses_of_rest_keep_problem_documents(pages: ApiClient) -> None:
    for path in ("/api/v1/jobs/none", "/api/v1/none", "/api"):
        answer = pages.get(path)
        assert answer.status_code == HTTPStatus.NOT_FOUND
        assert answer.headers["content-type"] == "application/problem+json"
    assert pages.get("/nowhere", headers={"Accept": "*/*"}).headers["content-type"] == "application/problem+json"


def test_static_files_are_named_by_their_content_and_kept(pages: ApiClient) -> None:
    found = re.findall(r'(?:href|src)="(/static/[0-9a-f]{12}/([\w.-]+))"', shown(pages, "/"))
    assert {name for _, name in found} == {"tokens.css", "console.css", "console.js", "log.js", "favicon.svg"}
    [style] = [path for path, name in found if name == "tokens.css"]
    fonts = re.findall(r'url\("\.\.(/[0-9a-f]{12}/[\w-]+\.woff2)"\)', pages.get(style).text)
    assert len(fonts) == 2
    for path in [*(path for path, _ in found), *(f"/static{font}" for font in fonts)]:
        answer = pages.get(path)
        assert answer.status_code == HTTPStatus.OK, path
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert sum(len(pages.get(f"/static{font}").content) for font in fonts) <= 60 * 1024
    other = re.sub(r"/static/.{12}/", "/static/000000000000/", found[0][0])
    assert pages.get(other).status_code == HTTPStatus.NOT_FOUND


def test_every_link_is_below_the_base_path(database: Database) -> None:
    database.submit()
    run = database.trigger()
    base = "/ops/tidewheel"
    with console(database, api_base_path=base) as client:
        assert client.get(f"{base}/jobs").headers["location"] == f"{base}/sign-in?next=/jobs"
        signed_in(client, key_of(database), f"{base}/sign-in")
        for path in ("", "/", "/jobs", "/jobs/job", "/runs", f"/runs/{run}", "/jobs/none"):
            page = client.get(base + path)
            assert page.status_code in {HTTPStatus.OK, HTTPStatus.NOT_FOUND}
            links = re.findall(r'(?:href|src|action)="([^"#][^"]*)"', page.text)
            assert len(links) > 5
            assert all(link.startswith(f"{base}/") for link in links), links
        moved = client.get(f"{base}/jobs/id:{job_id('default', 'job')}")
        assert moved.headers["location"] == f"{base}/jobs/job"
        headers = {"Authorization": f"Bearer {key_of(database)}"}
        assert client.get(f"{base}/api/v1/jobs", headers=headers).json()["total"] == 1


def test_key_of_a_tenant_sees_that_tenant_alone(database: Database) -> None:
    database.submit("of-default")
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    acme = {"type": "job.submit", "tenant": "acme", "job": {"key": "of-acme", "schedule": "manual", "target": "t"}}
    database.apply_batch(acme)
    with signed_console(database, tenant="acme") as client:
        page = shown(client, "/jobs")
        assert ("of-acme" in page, "of-default" in page) == (True, False)
        assert "No scheduler is running" not in shown(client, "/")
        assert client.get("/jobs/of-default").status_code == HTTPStatus.NOT_FOUND
        assert client.get("/jobs?tenant=default").status_code == HTTPStatus.NOT_FOUND
    with signed_console(database, "admin", all_tenants=True) as client:
        shown(client, "/jobs?tenant=acme", 'href="/jobs/of-acme?tenant=acme"')
        assert "No scheduler is running" in shown(client, "/?tenant=acme")


def test_head_of_a_page_has_no_content(pages: ApiClient) -> None:
    answer = pages.head("/jobs")
    assert (answer.status_code, answer.content) == (HTTPStatus.OK, b"")


def test_error_page_keeps_the_rail_of_the_signed_in_reader(database: Database) -> None:
    with signed_console(database, "admin", all_tenants=True) as client:
        lost = client.get("/jobs/nothing?tenant=default").text
        assert_has(lost, 'href="/fleet"', 'href="/admin/tenants"', 'class="freeze"', "key <bdi>ops")
        assert 'href="/admin/tenants"' in client.get("/nowhere").text
    with signed_console(database, tenant="default") as client:
        refused = client.get("/fleet")
        assert refused.status_code == HTTPStatus.FORBIDDEN
        assert_has(refused.text, "Read only", without='href="/admin/tenants"')


def test_without_database_a_page_says_so(database: Database) -> None:
    nowhere = Database(make_conninfo(database.url, dbname="there_is_none"), database.installation)
    with answering(nowhere) as client:
        answer = client.get("/", headers=HTML)
        assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
        assert answer.headers["retry-after"] == "1"
        assert "Nothing was changed." in answer.text


def test_all_is_well_only_where_every_part_was_read(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.submit()
    with signed_console(database) as client:
        assert "Nothing of this tenant needs attention</h1>" in shown(client, "/")

    def refuse(*_: object, **__: object) -> None:
        message = "the tenant is gone"
        raise TidewheelError(message)

    monkeypatch.setattr(overview, "read_now_of", refuse)
    with answering(database) as client:
        page = shown(client, "/", "A part could not be read")
        assert page.count("could not be read: the tenant is gone") == 1
        assert "Runs by minute, last hour: none ended." in page
