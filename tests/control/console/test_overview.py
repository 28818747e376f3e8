"""The overview and the slow runs: figures that services have written, plots, states, hostile text."""

import re
from datetime import timedelta
from html import unescape
from http import HTTPStatus

import pytest

from tests.control.api.answering import ApiClient
from tests.control.console.pages import assert_has, shown, signed_console
from tests.control.explain.explaining import t
from tests.fixtures.database import ClockedDatabase, Database
from tests.transitions.figures import end_with_figures, finish, forget_figures
from tidewheel.runs import RunState
from tidewheel.transitions.claim import Started

HOSTILE = "<script>alert\u05d0\u05d1" + "k" * 200


def figures(page: str) -> dict[str, str]:
    """Return the figures of an overview by their meaning; of those with several the last."""
    return dict(re.findall(r'data-figure="(\w+)"[^>]*>([^<]*)<', page))


@pytest.fixture
def pages(pages: ApiClient) -> ApiClient:
    forget_figures(pages.database)
    return pages


@pytest.mark.landing
def test_overview_draws_what_ended_and_what_comes_and_counts_the_same_hour(pages: ApiClient) -> None:
    pages.database.submit("job", retry={"max_attempts": 1})
    pages.database.submit("soon", schedule={"interval": "5m"})
    finish(pages.database, "job", RunState.SUCCEEDED, RunState.SUCCEEDED, RunState.FAILED)
    for window in ("1h", "6h", "24h", "7d"):
        page = shown(pages, f"/?window={window}", "2 succeeded", "1 failed", "Upcoming: 1 job until")
        assert len(re.findall(r'<rect class="bad"', page)) >= 2, "for both widths"
        assert_has(page, "as table", without="First steps")
    for stage in ("claimed", "written", "ended"):
        assert 'aria-current="true">Until ' in shown(pages, f"/?stage={stage}")
    assert shown(pages, "/?window=1y"), "an unknown window is the first one"
    pages.database.execute("UPDATE activity SET at = now() - interval '59 min 50 s'")
    page = shown(pages, "/")
    assert [figures(page)[name] for name in ("ended", "drawn_succeeded", "drawn_failed")] == ["3", "2", "1"]
    pages.database.execute("UPDATE activity SET at = now() - interval '60 min 6 s'")
    page = shown(pages, "/")
    assert [figures(page)[name] for name in ("ended", "drawn_succeeded", "drawn_failed")] == ["0", "0", "0"]


def test_figures_lead_to_lists_of_what_they_count(pages: ApiClient) -> None:
    database = pages.database
    database.submit("job", retry={"max_attempts": 1}, overlap="allow_all")
    finish(database, "job", RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT)
    queued, again, ahead, stopping = (database.trigger("job") for _ in range(4))
    for run_id, state, publish_at in (
        (again, "retrying", "-1 min"),
        (ahead, "retrying", "1 h"),
        (queued, "queued", "-1 min"),
    ):
        database.execute(
            "UPDATE job_runs SET state = %s, publish_at = now() + %s::interval WHERE run_id = %s",
            [state, publish_at, run_id],
        )
    database.execute("UPDATE job_runs SET state = 'cancelling', publish_at = 'infinity' WHERE run_id = %s", [stopping])
    page = shown(pages, "/")
    counts = {
        label: (count, unescape(href))
        for href, label, count in re.findall(
            r'<a class="tile[^"]*" href="(/[^"]+)"><small>([^<]+)</small><b[^>]*>(\d+)</b>', page
        )
    }
    assert {label: count for label, (count, _) in counts.items()} == {
        "Running": "1", "Ended in the last hour": "3", "Failed in the last hour": "2",
    }  # fmt: skip
    [(due, waiting)] = re.findall(r'<a href="([^"]*lane=standard)" data-figure[^>]*>(\d+)</a>', page)
    for count, href in [*counts.values(), (waiting, unescape(due))]:
        listed = shown(pages, href)
        assert f'<span class="caption">{count} run' in listed, href
        assert listed.count('aria-current="page">') == 2, "the place and one tab"
    assert waiting == "2", "a retry that is ahead is not due"
    bars = {unescape(href) for href in re.findall(r'<a href="(/runs\?ended_since=[^"]+)" ', page)}
    matching = [re.search(r"(\d+) runs? match", shown(pages, href)) for href in bars]
    assert sum(int(found[1]) for found in matching if found) == 3, "one bar, or two if a minute has begun since"
    assert figures(page)["waiting_of_all"] == waiting
    assert "Open runs have no end" in pages.get("/runs?status=queued&ended_since=2026-01-01T00:00:00Z").text


def test_retry_that_a_cancellation_prevents_is_not_announced(pages: ApiClient) -> None:
    pages.database.submit()
    run_id = pages.database.trigger("job")
    pages.database.execute("UPDATE job_runs SET state = 'retrying', attempt = 1 WHERE run_id = %s", [run_id])
    page = shown(pages, "/")
    assert figures(page)["to_retry"] == "1"
    pages.database.client.runs.cancel_matching(key="job")
    page = shown(pages, "/")
    assert "to_retry" not in figures(page)


def test_overview_with_failures_is_not_all_well(database: Database) -> None:
    database.submit(retry={"max_attempts": 1})
    finish(database, "job", RunState.SUCCEEDED, RunState.FAILED)
    with signed_console(database) as client:
        page = shown(client, "/")
    assert ">1 problem needs attention</h1>" in page, "a dead letter of the failed run is no second one"
    assert re.findall(r"Retry…|Show failed runs", page) == ["Show failed runs"], "a key that reads sees no button"


def test_job_that_has_recovered_is_named_and_is_no_problem(pages: ApiClient) -> None:
    pages.database.submit(retry={"max_attempts": 1})
    finish(pages.database, "job", RunState.FAILED, *[RunState.SUCCEEDED] * 10)
    many = int(figures(shown(pages, "/"))["problems"].partition(" ")[0])
    pages.database.execute("UPDATE finished_runs SET finished_at = finished_at - interval '6 min'")
    pages.database.execute("UPDATE failed_runs SET finished_at = finished_at - interval '6 min'")
    found = figures(shown(pages, "/"))
    assert (found["recovered"], int(found["problems"].partition(" ")[0])) == ("1", many - 1)


@pytest.mark.landing
def test_six_problems_have_a_row_and_the_smaller_ones_a_line(database: Database) -> None:
    forget_figures(database)
    for number in range(8):
        database.submit(f"job-{number}", retry={"max_attempts": 1})
        finish(database, f"job-{number}", RunState.SUCCEEDED, *[RunState.FAILED] * (number + 1))
    with signed_console(database) as client:
        page = shown(client, "/")
    rows, line = page.split('data-figure="smaller"')
    assert re.findall(r'data-of="(job-\d)"', rows) == [f"job-{number}" for number in (7, 6, 5, 4, 3, 2)]
    assert re.findall(r'data-of="(job-\d)"', line) == ["job-1", "job-0"]
    assert (figures(page)["problems"], figures(page)["smaller"]) == ("8 problems need attention", "2")


def test_freezes_of_the_time_shown_are_drawn_and_named(pages: ApiClient) -> None:
    assert "For a job whose on_resume is skip, the thaw skips the held" in shown(pages, "/freeze/scope?scope=fleet")
    assert "was in force" not in shown(pages, "/")
    for action, minutes in (("freeze", 20), ("thaw", 5)):
        pages.database.execute(
            "INSERT INTO audit_log (at, tenant, door, actor_kind, actor, action, object)"
            " VALUES (now() - %s * interval '1 min', 'default', 'cli', 'user', 'anna', %s, 'freeze/key_prefix=<b>')",
            [minutes, action],
        )
    pages.database.apply_batch({"type": "freeze", "queue": "reports"})
    page = shown(pages, "/")
    assert re.search(r"A freeze of keys that begin with &lt;b&gt; was in force from \d\d:\d\d to \d\d:\d\d\.", page)
    assert re.search(r"A freeze of queue reports was in force (at|from) \d\d:\d\d", page)
    assert len(re.findall(r'<rect class="frozen"', page)) == 4, "two, for both widths"
    assert_has(page, 'href="/freeze">Show freezes</a>', "a run that a freeze held counts as late")
    pages.database.execute("UPDATE freezes SET created_at = created_at - interval '3 h'")
    assert "A freeze of queue reports of tenant default was in force from" in shown(pages, "/")


def test_first_steps_are_ticked_off(pages: ApiClient) -> None:
    assert shown(pages, "/").count(">done<") == 0
    pages.database.submit()
    assert shown(pages, "/").count(">done<") == 1
    pages.database.begun()
    assert shown(pages, "/").count(">done<") == 2
    finish(pages.database, "job", RunState.SUCCEEDED)
    assert "First steps" not in shown(pages, "/")


def test_list_of_skipped_runs_leads_to_skipped_occurrences(pages: ApiClient) -> None:
    pages.database.submit()
    assert '<a href="/jobs">choose a job</a>' in shown(pages, "/runs?status=skipped")
    assert '<a href="/jobs/job?window=30d&amp;show=skipped">see' in shown(pages, "/runs?status=skipped&job=job")
    assert "choose a job" not in shown(pages, "/runs")
    assert shown(pages, "/jobs/job?window=30d&show=skipped")


def test_runs_that_run_for_longer_than_the_slowest_are_above_it(clocked: ClockedDatabase, pages: ApiClient) -> None:
    started = [_begun_at(clocked, hour) for hour in (9, 10, 11, 12)]
    longest, long, slowest, short = (each.run_id for each in started)
    clocked.stop_clock(t("03-02T12:30"))
    assert shown(pages, "/runs/slow").count("still running</span>") == 4
    end_with_figures(clocked, started[2], RunState.SUCCEEDED)
    slow = shown(pages, "/runs/slow")
    places = [slow.find(f'<tr data-key="{run}"') for run in (longest, long, slowest)]
    assert -1 < places[0] < places[1] < places[2]
    assert str(short) not in slow
    assert slow.count("still running</span>") == 2


def test_jobs_of_slow_runs_have_their_p50_p99_and_share(clocked: ClockedDatabase, pages: ApiClient) -> None:
    noon = t("03-02T12:00")
    for nth, (key, seconds) in enumerate([("b", 30), ("a", 1), ("a", 1), ("a", 7), ("a", 1)]):
        begin = noon + nth * timedelta(minutes=1)
        clocked.stop_clock(begin)
        clocked.submit(key)
        started = clocked.begun(key)
        clocked.stop_clock(begin + timedelta(seconds=seconds))
        end_with_figures(clocked, started, RunState.SUCCEEDED)
    [table] = re.findall(r"<h2>By job</h2>.*?</table>", shown(pages, "/runs/slow?last=1h"), re.DOTALL)
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(<td.*?)</tr>", table, re.DOTALL)]
    assert [[re.sub("<[^>]+>", "", cell) for cell in row] for row in rows] == [
        ["b", "1", "30.0 s", "30.0 s", "75.0%"],
        ["a", "4", "1.00 s", "7.00 s", "25.0%"],
    ]


def _begun_at(database: ClockedDatabase, hour: int) -> Started:
    database.stop_clock(t(f"03-02T{hour:02}:00"))
    database.submit(f"job-{hour}", start_to_close="9h")
    return database.begun(f"job-{hour}")


def test_slow_runs_are_listed_and_hostile_text_is_text(pages: ApiClient) -> None:
    assert "no duration is stored for runs of this time." in shown(pages, "/runs/slow")
    pages.database.submit(HOSTILE)
    [run] = finish(pages.database, HOSTILE, RunState.SUCCEEDED)
    for path in ("/runs/slow", "/runs/slow?last=7d", "/"):
        assert "<script>alert" not in shown(pages, path)
    slow = shown(pages, "/runs/slow", f'href="/runs/{run}"')
    assert '<th class="right">Last attempt</th><th class="right">Scheduled to end</th>' in slow
    assert pages.get("/runs/slow?last=1y").status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert 'href="/runs/slow"' in shown(pages, "/runs")
