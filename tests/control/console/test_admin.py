"""Tenants, keys and the audit log by pages and forms: changes, refusals, scopes, a secret once."""

import re
from collections.abc import Iterator
from datetime import timedelta
from http import HTTPStatus
from uuid import UUID

import httpx
import pytest

from tests.control.api.answering import ApiClient
from tests.control.console.pages import (
    assert_has,
    assert_refused,
    done,
    every_row,
    fields_of,
    key_of,
    next_page,
    posted,
    shown,
    signed_console,
)
from tests.fixtures.acts import submission
from tests.fixtures.database import Database
from tidewheel.control.client.client import Client
from tidewheel.nouns.tenants.reads import Count
from tidewheel.nouns.tenants.web import Gauge
from tidewheel.scheduler.tenant_deletions import TenantDeletions

RIGHT_TO_LEFT = "\u05e9\u05dc\u05d5\u05dd"
SECRET = re.compile(r'<input class="secret mono" readonly autofocus value="(tw_[^"]+)"')
ADMIN_PAGES = ("/admin/tenants", "/admin/tenants/acme", "/admin/keys", "/admin/audit")


def changed(client: httpx.Client, path: str, **fields: str) -> str:
    """Press the button of a dialog; return the page that it leads to."""
    return client.get(done(posted(client, path, **fields))).text


def refused(client: httpx.Client, path: str, **fields: str) -> str:
    answer = posted(client, path, **fields)
    assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY, answer.text
    return answer.text


def test_tenant_is_created_limited_frozen_thawed_and_deleted(pages: ApiClient) -> None:
    page = changed(pages, "/admin/new-tenant", name="acme", jobs="100", in_flight="20")
    assert_has(page, "Tenant acme is created.", "0 of 100")
    page = changed(pages, "/admin/tenants/acme/limits", jobs="", in_flight="40", triggers_per_second="2.5")
    assert_has(page, "Limits of acme are set.", "0 of 40", "2.5 per second")
    assert '<dt>jobs</dt><dd><span class="number">0</span></dd>' in page
    at = "scope=tenant&tenant=acme&next=/admin/tenants/acme"
    page = changed(pages, f"/freeze/scope?{at}", reason="audit")
    assert_has(page, "Frozen: tenant acme.", '<span class="word">frozen</span>')
    assert "Thaw…" in pages.get("/admin/tenants").text
    assert "Thawed: tenant acme." in changed(pages, f"/thaw?{at}")
    assert "This is not its name" in refused(pages, "/admin/tenants/acme/delete", typed="acm")
    assert "to be deleted" in changed(pages, "/admin/tenants/acme/delete", typed="acme")
    pages.database.execute("UPDATE tenants SET delete_at = tidewheel_now() WHERE tenant = 'acme'")
    TenantDeletions(pages.database.session(), pages.database.installation, timedelta(days=90)).work()
    [row] = re.findall(
        r'<tr><td class="identity"><a href="/admin/tenants/acme".*?</tr>', pages.get("/admin/tenants").text, re.DOTALL
    )
    assert "0 left" in row
    assert "no limit" not in row
    log = {each.action: each for each in pages.database.client.audit_log.list(all_tenants=True).entries}
    assert {"tenant.create", "tenant.limits", "freeze", "thaw", "tenant.delete"} <= set(log)
    assert {each.door for each in log.values()} == {"console"}


def test_count_that_ended_before_its_first_row_is_no_number() -> None:
    for limit, words in ((None, "no limit"), (40, "40")):
        assert Gauge("in_flight", Count(0, at_least=True), limit).words == words


def test_deletion_of_a_tenant_names_what_ends_and_is_taken_back(pages: ApiClient) -> None:
    pages.database.client.tenants.create("acme")
    manual = {"key": "nightly", "schedule": "manual", "target": "work"}
    run = {"type": "job.trigger", "tenant": "acme", "key": "nightly"}
    pages.database.apply_batch({"type": "job.submit", "tenant": "acme", "job": manual})
    pages.database.apply_batch(run, run)
    ends = "2 open runs end as cancelled, also those under way."
    shown(pages, "/admin/tenants/acme/delete", "Delete tenant acme with 1 job?", ends)
    assert "Tenant acme will be deleted in a day." in changed(pages, "/admin/tenants/acme/delete", typed="acme")
    assert "Keep…" in pages.get("/admin/tenants/acme").text
    assert "Tenant acme is kept." in changed(pages, "/admin/tenants/acme/undelete")


def test_limit_below_the_usage_is_set_after_its_effect_was_shown(pages: ApiClient) -> None:
    for key in ("a", "b", "c"):
        pages.database.submit(key)
        pages.database.begun(key)
    path = "/admin/tenants/default/limits"
    page = posted(pages, path, jobs="1", in_flight="1")
    assert page.status_code == HTTPStatus.OK
    assert_has(page.text, "3 exist, more than 1", "no further one starts until fewer are active")
    assert "Set the limits all the same" in page.text
    assert "no limit" in pages.get("/admin/tenants/default").text
    again = pages.post(path, data=fields_of(page) | {"jobs": "2", "in_flight": "1"})
    assert again.status_code == HTTPStatus.OK, "the warning was about another limit"
    assert pages.post(path, data=fields_of(page) | {"jobs": "1", "in_flight": "1"}).is_redirect
    assert "3 of 1" in pages.get("/admin/tenants/default").text
    assert changed(pages, path, jobs="3", in_flight="3")


def test_limits_that_another_person_has_set_are_not_overwritten(pages: ApiClient) -> None:
    path = "/admin/tenants/default/limits"
    late = fields_of(pages.get(path))
    changed(pages, path, jobs="50")
    answer = pages.post(path, data=late | {"jobs": "9"})
    assert_refused(answer, "Another user changed the limits: jobs: 50,", 'name="jobs" value="9"')
    assert pages.post(path, data=late | {"jobs": "50", "weight": "1"}).is_redirect, "a repeat"
    assert pages.post(path, data=fields_of(answer) | {"jobs": "9"}).is_redirect


def test_refused_limit_stands_at_its_field_with_what_was_typed(pages: ApiClient) -> None:
    page = refused(pages, "/admin/tenants/default/limits", jobs="many", in_flight="0")
    assert_has(page, "&#39;many&#39; is not a number", 'name="jobs" value="many"')
    assert "&#39;0,5&#39; is not a number" in refused(pages, "/admin/tenants/default/limits", triggers_per_second="0,5")
    for text in ("1_0", "1e3", "inf"):  # Python's own reader accepts them
        page = refused(pages, "/admin/tenants/default/limits", triggers_per_second=text)
        assert f"&#39;{text}&#39; is not a number" in page
    page = refused(pages, "/admin/tenants/default/limits", in_flight="0", weight="101")
    assert "0 would refuse every request" in page
    assert 'name="weight" value="101" inputmode="numeric" aria-invalid="true"' in page
    assert "There is a tenant" in refused(pages, "/admin/new-tenant", name="default")
    assert "is not a tenant name" in refused(pages, "/admin/new-tenant", name="<b>Acme")
    assert "Tenant default cannot be deleted" in refused(pages, "/admin/tenants/default/delete", typed="default")
    assert pages.get("/admin/tenants/unknown").status_code == HTTPStatus.NOT_FOUND
    assert pages.get("/admin/tenants/%3Cb%3E").status_code == HTTPStatus.NOT_FOUND


def test_pages_of_many_tenants_follow_each_other(pages: ApiClient) -> None:
    pages.database.execute("INSERT INTO tenants (tenant) SELECT 'tenant-' || n FROM generate_series(100, 140) AS n")
    seen = every_row(pages, "/admin/tenants", r'<td class="identity"><a href="/admin/tenants/([^"/]+)"')
    assert seen == ["default", *(f"tenant-{number}" for number in range(100, 141))]


@pytest.fixture
def keyed(database: Database) -> Iterator[ApiClient]:
    """A console that needs keys, signed in with one of all tenants."""
    with signed_console(database, "admin", all_tenants=True) as client:
        yield client


def test_secret_of_a_new_key_is_shown_once_and_opens_the_api(keyed: ApiClient) -> None:
    name = f"<script>{RIGHT_TO_LEFT}"
    answer = posted(keyed, "/admin/new-key", name=name, read="yes", write="yes", lifetime="90d", rate="5")
    assert answer.status_code == HTTPStatus.OK
    found = SECRET.search(answer.text)
    assert found, answer.text
    secret = found[1]
    assert f'data-copy="{secret}" hidden>Copy the key<' in answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert secret not in str(answer.headers)
    assert f"&lt;script&gt;{RIGHT_TO_LEFT}" in answer.text
    for path in (*ADMIN_PAGES, "/", "/ask?q=tw"):
        assert secret not in keyed.get(path, follow_redirects=True).text
    assert not any(secret in str(cookie.value) for cookie in keyed.cookies.jar)
    shown(keyed, "/admin/keys", "read, write", "never used", without="<script>")


def test_repeat_of_a_new_key_makes_no_second_one(keyed: ApiClient) -> None:
    fields = fields_of(keyed.get("/admin/new-key")) | {"name": "ci", "read": "yes"}
    first = keyed.post("/admin/new-key", data=fields)
    assert SECRET.search(first.text)
    repeat = keyed.post("/admin/new-key", data=fields)
    assert_refused(repeat, "only the first response shows")
    assert not SECRET.search(repeat.text)
    assert keyed.database.count("api_keys") == 2
    assert SECRET.search(posted(keyed, "/admin/new-key", name="ci", read="yes").text)
    assert keyed.database.count("api_keys") == 3


def test_refused_key_keeps_what_was_typed(keyed: ApiClient) -> None:
    assert "scopes" in refused(keyed, "/admin/new-key", name="ci")
    page = refused(keyed, "/admin/new-key", name="ci", admin="yes", lifetime="soon", rate="fast")
    assert_has(page, 'name="lifetime" value="soon"', 'aria-invalid="true"', "checked")
    assert keyed.database.count("api_keys") == 1


def test_revoked_key_ends_the_sign_in_that_revoked_it(database: Database) -> None:
    with signed_console(database, "admin", all_tenants=True) as client:
        page = shown(client, "/admin/keys", "this sign-in")
        [path] = set(re.findall(r'href="(/admin/keys/[a-z0-9]+/revoke)"', page))
        dialog = client.get(path)
        assert "You are signed in with it" in dialog.text
        assert "is the last one that is valid for all tenants and has the scope admin." in dialog.text
        assert_refused(client.post(path, data=fields_of(dialog)), "This is not the name of the key")
        key_of(database, "admin", all_tenants=True)
        assert "is the last one" not in client.get(path).text
        answer = client.post(path, data=fields_of(dialog))
        assert answer.headers["location"] == "/admin/keys"
        wait = client.get("/admin/keys")
        while wait.status_code in {HTTPStatus.OK, HTTPStatus.TOO_MANY_REQUESTS}:  # within a second
            wait = client.get("/admin/keys")
        assert wait.headers["location"] == "/sign-in?next=/admin/keys&ended=1"
    assert database.client.api_keys.list(all_tenants=True)[-1].revoked_at is not None


def test_key_of_one_tenant_sees_its_own_alone(database: Database) -> None:
    for name in ("acme", "rival"):
        database.execute("INSERT INTO tenants (tenant) VALUES (%s)", (name,))
        database.apply_batch(submission(f"job-of-{name}") | {"tenant": name})
    key_of(database, "read", tenant="rival")
    key_of(database, "read", all_tenants=True)
    with Client(database.url, tenant="rival") as client:
        [rival] = client.api_keys.list()
    with signed_console(database, "admin", tenant="acme") as client:
        page = client.get("/admin/tenants", follow_redirects=True)
        assert page.url.path == "/admin/tenants/acme"
        assert_has(page.text, "/freeze/scope?scope=tenant&amp;next=", without="Limits…")
        freeze = "/freeze/scope?scope=tenant&tenant=rival"
        for path in ("/admin/tenants/rival", freeze, f"/admin/keys/{rival.key_id}/revoke"):
            assert client.get(path).status_code == HTTPStatus.NOT_FOUND, path
        for path in ("/admin/new-tenant", "/admin/tenants/acme/limits", "/admin/tenants/acme/delete", "/fleet"):
            assert client.get(path).status_code == HTTPStatus.FORBIDDEN, path
        keys = client.get("/admin/keys").text
        assert rival.key_id not in keys
        assert ">all</td>" not in keys
        assert client.get("/admin/audit?tenant=rival").status_code == HTTPStatus.NOT_FOUND
        shown(client, "/admin/audit", "job-of-acme", without="rival")
        assert 'name="all_tenants"' not in client.get("/admin/new-key").text
        token = fields_of(client.get("/admin/new-key"))
        forged = client.post("/admin/new-key", data=token | {"name": "x", "read": "yes", "all_tenants": "yes"})
        assert forged.status_code == HTTPStatus.FORBIDDEN


def test_key_without_admin_sees_none_of_it(database: Database) -> None:
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    with signed_console(database, "read", "write", "operate", all_tenants=True) as client:
        shown(client, "/", 'href="/fleet"', without='href="/admin/tenants"')
        for path in (*ADMIN_PAGES, "/admin/new-key", "/admin/new-tenant"):
            answer = client.get(path)
            assert answer.status_code == HTTPStatus.FORBIDDEN, path
            assert "admin" in answer.text


def test_audit_log_is_filtered_and_leads_to_what_was_changed(pages: ApiClient) -> None:
    pages.database.submit("a/b")
    pages.database.submit(f"<b>{RIGHT_TO_LEFT}")
    changed(pages, "/admin/new-tenant", name="acme")
    pages.database.client.pause("a/b", reason="stock")
    page = shown(pages, "/admin/audit", "&lt;b&gt;", without="<b>")
    assert re.search(r'href="/jobs/id:[0-9a-f-]{36}\?tenant=default">', page) or 'href="/jobs/id:' in page
    assert 'href="/admin/tenants/acme"' in page
    one = pages.get("/admin/audit?object=job/a/b&action=job.pause").text
    assert one.count("<tr>") == 2
    assert_has(one, "job.pause", "stock</")
    assert "No change matches the filters" in pages.get("/admin/audit?since=%2B5m&door=kafka").text
    assert_refused(pages.get("/admin/audit?since=soon"), "since")
    following = next_page(pages.get("/admin/audit?limit=1&since=24h").text)
    assert following
    assert pages.get(following).status_code == HTTPStatus.OK


def test_unknown_tenant_has_a_page_with_the_way_back(pages: ApiClient) -> None:
    with Client(pages.database.url) as client:
        for nth in range(52):
            client.tenants.create(f"a-{nth:02}")
        client.tenants.create("zeta")
        client.tenants.delete("zeta", grace=timedelta(0))
    for path in ("/admin/tenants/zeta", "/admin/audit", "/admin/keys", "/fleet"):
        assert pages.get(f"{path}?tenant=zeta").status_code == HTTPStatus.OK, path
    assert pages.get("/jobs?tenant=zeta").status_code == HTTPStatus.CONFLICT
    for path in ("/", "/jobs", "/runs", "/bulk", "/admin/keys", "/admin/audit"):
        page = pages.get(f"{path}?tenant=nope")
        assert page.status_code == HTTPStatus.NOT_FOUND, path
        assert_has(page.text, "There is no tenant &#39;nope&#39;", '<a class="button" href="/">Overview</a>')
    assert "There is no run" in pages.get(f"/runs/{UUID(int=1)}").text


def test_tenant_shows_what_ended_in_the_last_hour(pages: ApiClient) -> None:
    shown(pages, "/admin/tenants/default", "last hour: no run")
    pages.database.execute(
        "INSERT INTO activity (tenant, at, grain, queue, lane, state, runs, stages, took, slowest)"
        " SELECT 'default', tidewheel_now() - at, 0, 'q', 'batch', state, runs, '{}', '{}', '{}'"
        " FROM (VALUES ('1 min'::interval, 'succeeded', 1200), ('40 min', 'failed', 3), ('2 h', 'failed', 9))"
        " AS a (at, state, runs)"
    )
    page = shown(pages, "/admin/tenants/default", "last hour: 1,200 succeeded, 3 failed")
    assert page.count('<path class="g3"') == page.count('<path class="b1"') == 1
