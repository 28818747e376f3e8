"""Dialogs of a job: trigger, delete, restore, roll back, release, backfill. Its versions. All links."""

import re
from datetime import timedelta
from http import HTTPStatus
from urllib.parse import urlsplit

import httpx
import pytest
from psycopg import sql

from tests.control.api.answering import ApiClient
from tests.control.console.pages import assert_has, assert_refused, done, fields_of, found_on, shown, signed_console
from tests.control.test_doctor import set_aside
from tests.fixtures.database import Database
from tests.scheduler.backfills import make_batch
from tests.transitions.graphs import DIAMOND, play, put
from tidewheel.control.client.client import Client
from tidewheel.runs import RunState

SCRIPT = "<script>alert(1)</script>"
DAILY = {"cron": "30 2 * * *"}
ACTIONS = ("pause", "trigger", "delete", "restore", "rollback?version=1", "release", "backfill")


def posted(client: httpx.Client, path: str, page: httpx.Response | None = None, **fields: str) -> httpx.Response:
    """Open a dialog, fill it, and press its button."""
    page = page or client.get(path)
    assert page.status_code == HTTPStatus.OK, page.text
    hidden = dict(re.findall(r'<input type="hidden" name="([a-z_]+)" value="([^"]*)">', page.text.split("<main")[1]))
    return client.post(path, data=hidden | {name.rstrip("_"): text for name, text in fields.items()})


def contents(database: Database) -> dict[str, list[tuple[object, ...]]]:
    """Return every row of every table, but what processes write about themselves and the use of keys."""
    names = database.rows("SELECT tablename FROM pg_tables WHERE schemaname = current_schema() ORDER BY 1")
    read = {
        str(name): sql.SQL("SELECT md5(t::text) FROM {} t ORDER BY 1").format(sql.Identifier(name)) for (name,) in names
    }
    return {name: database.rows(statement) for name, statement in read.items() if name not in {"members", "api_keys"}}


def test_trigger_makes_one_run_with_what_was_typed(pages: ApiClient) -> None:
    pages.database.submit("nightly", payload={"a": 1})
    page = pages.get("/jobs/nightly/trigger")
    typed = {"payload": '{"a": 2}', "delay": "1h", "labels": "team=x"}
    run = [done(posted(pages, "/jobs/nightly/trigger", page, **typed)) for _ in range(2)]
    assert run[0] == run[1]
    shown = pages.get(run[0]).text
    assert re.search(r"&#34;a&#34;(<[^>]+>|[: ])*2", shown), shown
    assert "team=x" in shown
    undo = found_on(shown, r'action="(/runs/[^/]+/cancel)".*?<button class="plain">Cancel the run</button>')
    assert done(pages.post(undo, data=fields_of(pages.get(f"{run[0]}/cancel")))) == run[0]
    assert "cancelled" in pages.get(run[0]).text
    for fields, word in (
        ({"payload": "{"}, "Not valid JSON"), ({"delay": "soon"}, "soon"), ({"labels": SCRIPT}, "Write name=value"),
    ):  # fmt: skip
        answer = posted(pages, "/jobs/nightly/trigger", None, **fields)
        assert_refused(answer, word)
        assert SCRIPT not in answer.text


def test_trigger_under_a_freeze_names_the_thaw(pages: ApiClient) -> None:
    pages.database.submit("nightly")
    posted(pages, "/freeze/scope?scope=tenant")
    frozen = shown(pages, "/jobs/nightly/trigger", "A freeze covers the job: the run starts after the thaw.")
    assert "If empty, the run starts after the thaw." in frozen


def without_button(client: httpx.Client, path: str, why: str) -> bool:
    """Return true if a dialog would change nothing, for this reason, and has only a way back."""
    page = client.get(path).text
    return "Nothing would change." in page and why in page and ">Back</a>" in page and 'class="primary"' not in page


def test_delete_is_undone_by_submitting_again(pages: ApiClient) -> None:
    pages.database.submit("nightly", schedule=DAILY, lane="batch")
    assert done(posted(pages, "/jobs/nightly/delete", reason=SCRIPT)) == "/jobs"
    page = pages.get("/jobs")
    assert "is deleted." in page.text
    undo = found_on(page.text, r'action="(/jobs/nightly/restore)"')
    gone = pages.get("/jobs/nightly")
    assert gone.status_code == HTTPStatus.NOT_FOUND
    assert_has(gone.text, "it was deleted at", 'href="/runs?job=nightly"')
    assert done(pages.post(undo, data=fields_of(page))) == "/jobs/nightly"
    assert "batch" in pages.get("/jobs/nightly/settings").text
    assert without_button(pages, "/jobs/nightly/restore", "is not deleted.")
    assert_refused(posted(pages, "/jobs/nightly/restore"), "already exists")


def test_deletion_of_the_version_that_was_shown_counts_the_runs_of_its_dialog(pages: ApiClient) -> None:
    pages.database.submit("nightly")
    page = pages.get("/jobs/nightly/delete")
    pages.database.submit("nightly", lane="batch")
    assert_refused(posted(pages, "/jobs/nightly/delete", page), "The current version is 2, not 1")
    assert pages.get("/jobs/nightly").status_code == HTTPStatus.OK
    pages.database.trigger("nightly")
    pages.database.trigger("nightly")
    pages.database.begin(pages.database.trigger("nightly"))
    assert "2 waiting runs are cancelled." in pages.get("/jobs/nightly/delete").text
    posted(pages, "/jobs/nightly/delete")
    assert "nightly is deleted. 2 waiting runs are cancelled. Its runs under way finish." in pages.get("/jobs").text


def test_pause_and_delete_name_a_backfill_and_do_to_it_what_they_say(pages: ApiClient) -> None:
    database = pages.database
    database.submit("nightly", schedule=DAILY)
    assert "A backfill" not in pages.get("/jobs/nightly/pause").text
    now = database.now()
    with Client(database.url) as client:
        first, second = (
            client.backfill(
                "nightly", now - timedelta(days=days), now, versions="current", max_concurrent=1
            ).backfill_id
            for days in (9, 4)
        )
        assert first
        assert second
        make_batch(database, second)
        client.works.pause(first)
        assert "Its backfills end." in pages.get("/jobs/nightly/delete").text
        done(posted(pages, "/jobs/nightly/pause"))
        states = [client.works.get(each).state for each in (first, second)]
        assert states == ["paused", "running"]
        done(posted(pages, "/jobs/nightly/delete"))
        assert "2 end with their job&#39;s deletion<" in pages.get("/bulk").text
        done(posted(pages, "/jobs/nightly/restore"))
        listed = shown(pages, "/bulk", without="under way.")
        assert listed.count('<span class="word">ends with the job&#39;s deletion</span>') == 2
        assert "/pause" not in listed.split("<main")[1]
        for name in ("pause", "delete"):
            assert "A backfill" not in pages.get(f"/jobs/nightly/{name}").text
        range_ = {"from_": f"{now - timedelta(days=2):%Y-%m-%dT%H:%M:%SZ}", "to": f"{now:%Y-%m-%dT%H:%M:%SZ}"}
        again = posted(pages, "/jobs/nightly/backfill", None, **range_, versions="current", max_concurrent="1").text
        assert "Make 2 runs of nightly?" in again.replace("<bdi>", "").replace("</bdi>", "")
        assert "A backfill from" not in again
        for each in (first, second):
            page = pages.get(f"/bulk/backfill/{each}").text
            assert "Its job was deleted: it creates no further run, and a scheduler cancels it." in page
            shown(pages, f"/bulk/backfill/{each}/cancel", "Nothing would change. It ends with the job&#39;s deletion.")
            assert make_batch(database, each) == 0
            assert client.works.get(each).state == "cancelled"


def test_versions_name_their_authors_and_lead_back(database: Database) -> None:
    database.submit("nightly", schedule=DAILY, labels={"team": SCRIPT})
    with signed_console(database, "read", "write", name="anna <b>") as client:
        assert 'type="radio"' not in client.get("/jobs/nightly/versions").text, "one version compares with none"
        database.submit("nightly", schedule={"cron": "45 2 * * *"}, labels={"team": SCRIPT})
        page = client.get("/jobs/nightly/versions?a=1&b=2")
        assert '<td class="mono"><bdi>schedule.cron</bdi></td><td class="gone"><bdi>30 2 * * *</bdi>' in page.text
        assert_has(page.text, "Back to 1…", without="Back to 2…")
        back = "/jobs/nightly/rollback?version=1&if_version=2"
        dialog = shown(client, back, "schedule.cron: 45 2 * * * → 30 2 * * *")
        assert "02:30, by the clock of UTC" in dialog.replace("\n", " ")
        assert done(posted(client, back)) == "/jobs/nightly"
        assert posted(client, back).status_code == HTTPStatus.UNPROCESSABLE_ENTITY
        assert without_button(client, back, "Version 3 has the same spec.")
        assert without_button(client, "/jobs/nightly/rollback?version=3", "It is the version in force.")
        assert "<bdi>anna &lt;b&gt;, ops</bdi>" in client.get("/jobs/nightly/versions").text
        for path, status in (("a=1&b=9", 200), ("a=x", 422), ("before=1", 200)):
            assert client.get(f"/jobs/nightly/versions?{path}").status_code == status
    assert [each.path for each in database.client.diff("nightly", 1, 3)] == []


def test_release_of_a_quarantined_job(pages: ApiClient) -> None:
    pages.database.submit("nightly", schedule="@every 1h")
    set_aside(pages.database, "<script>no such zone")
    assert "/jobs/nightly/release" in pages.get("/jobs/nightly").text
    assert "&lt;script&gt;no such zone" in pages.get("/jobs/nightly/release").text
    assert done(posted(pages, "/jobs/nightly/release")) == "/jobs/nightly"
    shown(pages, "/jobs/nightly", "is released.", without="/jobs/nightly/release")
    assert without_button(pages, "/jobs/nightly/release", "is not quarantined.")


def test_backfill_is_counted_before_it_is_made(pages: ApiClient) -> None:
    pages.database.submit("nightly", schedule={"interval": "1h", "anchor": "2020-01-01T00:00:00Z"})
    pages.database.execute("UPDATE job_versions SET effective_at = effective_at - interval '2 days'")
    pages.database.execute("UPDATE jobs SET created_at = created_at - interval '2 days'")
    now = pages.database.now()
    fields = {
        "from_": f"{now.replace(hour=0, minute=0, second=0, microsecond=0):%Y-%m-%dT%H:%M:%SZ}",
        "to": f"{now:%Y-%m-%dT%H:%M:%SZ}",
    }
    fields |= {"what": "all", "versions": "current", "max_concurrent": "3", "order": "oldest_first", "reason": SCRIPT}
    wrong = posted(pages, "/jobs/nightly/backfill", None, **fields | {"to": "yesterday"})
    assert wrong.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert 'value="yesterday" aria-invalid="true"' in wrong.text
    early = fields | {"from_": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z", "versions": "as_of"}
    refused = posted(pages, "/jobs/nightly/backfill", None, **early).text
    assert "In the field versions, choose &#34;version 1 for all&#34;</bdi>." in refused, "as the form words it"
    assert "aria-invalid" not in refused, "the range is right, the choice is not"
    counted = posted(pages, "/jobs/nightly/backfill", None, **fields)
    assert counted.status_code == HTTPStatus.OK
    assert re.search(r"Make \d+ runs? of nightly", counted.text), counted.text
    assert "These runs wait for each other, because the overlap of the job does not allow" in counted.text
    chosen = posted(pages, "/jobs/nightly/backfill", None, **fields | {"overlap": "skip"}).text
    assert "If a run of the job is active when it starts, the new run is skipped." in chosen
    repeated = "An occurrence whose run was skipped or cancelled runs again."
    assert repeated not in counted.text, "all of them run"
    assert repeated in posted(pages, "/jobs/nightly/backfill", None, **fields | {"what": "missing_only"}).text
    assert SCRIPT not in counted.text
    assert pages.database.count("backfills") == 0
    grown = posted(pages, "/jobs/nightly/backfill", counted, counted="0")
    assert "It was 0 runs when they were counted." in grown.text
    assert pages.database.count("backfills") == 0
    place, repeated = (done(posted(pages, "/jobs/nightly/backfill", counted)) for _ in range(2))
    assert place.startswith("/bulk/backfill/")
    assert (repeated, pages.database.count("backfills")) == (place, 1)
    assert "makes" in pages.get(place).text
    again = posted(pages, "/jobs/nightly/backfill", None, **fields)
    assert '<button class="primary">' in again.text


def test_key_that_may_only_read_sees_no_action_and_changes_nothing(database: Database) -> None:
    put(database, DIAMOND)
    root = database.trigger("a")
    play(database, lambda key: RunState.FAILED if key == "b" else RunState.SUCCEEDED)
    database.submit("nightly")
    run = database.trigger("nightly")
    actions = {"/jobs/nightly": ACTIONS, f"/runs/{run}": ("cancel", "retry"), f"/workflows/{root}": ("resume",)}
    with signed_console(database, "read") as client:
        before = contents(database)
        for place, names in actions.items():
            page = client.get(place)
            assert page.status_code == HTTPStatus.OK
            for action in names:
                assert f"{place}/{action}" not in page.text
                opened, sent = client.get(f"{place}/{action}"), client.post(f"{place}/{action}", data=fields_of(page))
                for answer in (opened, sent):
                    assert answer.status_code == HTTPStatus.FORBIDDEN, (place, action)
        assert "operate" in client.get("/jobs/nightly/pause").text
        assert contents(database) == before


@pytest.mark.landing
def test_no_link_of_any_page_changes_a_table(database: Database) -> None:
    database.submit("nightly", schedule=DAILY)
    database.submit("nightly", schedule=DAILY, lane="batch")
    database.begun("nightly")
    database.trigger("nightly")
    with signed_console(database, "read", "write", "operate") as client:
        before = contents(database)
        open_paths, seen = ["/"], {"/": 1}
        while open_paths:
            page = client.get(open_paths.pop())
            for found in re.finditer(r'(?:href|action)="(/[^"#]*)', page.text):
                path = found[1].replace("&amp;", "&")
                plain = urlsplit(path).path
                seen[plain] = seen.get(plain, 0) + 1
                # Windows of time and months lead on for ever: two links to each page are opened.
                if seen[plain] < 3 and not plain.startswith(("/static/", "/api/", "/sign-out", "/theme")):
                    open_paths.append(path)
        expected = {f"/jobs/nightly/{name}" for name in ("edit", "versions", "trigger", "backfill", "delete", "pause")}
        assert expected | {"/jobs/new"} <= seen.keys()
        assert contents(database) == before
