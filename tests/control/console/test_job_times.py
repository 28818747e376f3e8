"""The pages of a job on its time axis: timeline, list, next, settings, and actions on one occurrence."""

import re
from datetime import timedelta
from html import unescape
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.control.api.answering import ApiClient
from tests.control.console.pages import assert_has, assert_refused, posted, shown, typed_in
from tests.control.explain.explaining import calendar, fire_all, t
from tests.control.reads.test_waits import executor
from tests.fixtures.acts import ending
from tests.fixtures.database import ClockedDatabase
from tidewheel.control.cli.job_files import read_job
from tidewheel.ids import job_id, run_id
from tidewheel.nouns.jobs.reads import show_job
from tidewheel.runs import Cause, RunState

BERLIN = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}


def test_timeline_shows_ends_and_skips_in_the_words_of_its_table(clocked: ClockedDatabase, pages: ApiClient) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    clocked.submit(schedule={"cron": "0 * * * *"}, retry={"max_attempts": 1})
    assert posted(pages, "/jobs/job/pause", reason="stock-taking").status_code == HTTPStatus.SEE_OTHER
    clocked.stop_clock(t("03-02T12:30"))
    paused = shown(pages, "/jobs/job")
    assert re.search(r"Paused since 08:00 by [^<]*: stock-taking\. 4 occurrences came due during the pause: ", paused)
    assert paused.count("stock-taking") == 1
    assert "It fires again, next at Mon 2 Mar 2026 13:00:00 UTC." in shown(pages, "/jobs/job/resume")
    assert posted(pages, "/jobs/job/resume").status_code == HTTPStatus.SEE_OTHER
    fire_all(clocked)
    clocked.succeed(clocked.begun())
    clocked.stop_clock(t("03-02T12:31"))
    failed = clocked.begun()
    clocked.end(ending(failed, RunState.FAILED, error_type="ConnectionError"))
    page = shown(pages, "/jobs/job?window=24h", "The last run failed at 12:31.")
    assert "The last run failed at 13:31." in shown(pages, "/jobs/job?window=24h&tz=Europe/Berlin")
    assert_has(page, "4 occurrences not fired, paused: 09:00 to 12:00", '<span class="word">4 skipped</span>')
    assert_has(page, "<bdi>the job was paused</bdi>", f'href="/runs/{failed.run_id}"', 'fill="url(#hatch)"')
    assert page.count("ConnectionError") >= 2
    only = shown(pages, "/jobs/job?show=failed")
    assert (only.count('class="mono"><a href="/runs/'), "4 skipped" in only) == (1, False)
    skipped = shown(pages, "/jobs/job?show=skipped")
    assert (skipped.count('class="mono"><a href="/runs/'), "4 skipped" in skipped) == (0, True)
    assert "Nothing retried in this range." in shown(pages, "/jobs/job?show=retried")


def test_resume_names_the_next_occurrence_and_no_start_of_a_run(clocked: ClockedDatabase, pages: ApiClient) -> None:
    clocked.stop_clock(t("03-02T11:59"))
    clocked.submit(schedule={"cron": "0 * * * *"}, jitter="10m")
    clocked.stop_clock(t("03-02T12:00"))
    fire_all(clocked)
    assert "fired; its run may start from" in shown(pages, "/jobs/job/next")
    assert posted(pages, "/jobs/job/pause").status_code == HTTPStatus.SEE_OTHER
    assert "It fires again, next at Mon 2 Mar 2026 13:" in shown(pages, "/jobs/job/resume")


def test_held_occurrences_name_the_hold_and_a_move_can_be_undone(clocked: ClockedDatabase, pages: ApiClient) -> None:
    clocked.stop_clock(t("03-20T12:00"))
    clocked.submit(schedule={"cron": "0 2 * * *"})
    posted(pages, "/jobs/job/move?at=2026-03-21T02:00:00Z", to="2026-03-21T09:00:00Z")
    assert posted(pages, "/jobs/job/pause").status_code == HTTPStatus.SEE_OTHER
    paused = shown(pages, "/jobs/job/next")
    assert re.search(r'class="why"[^>]*>paused, starts', paused)
    assert re.search(r'href="/jobs/job/unskip[^"]*">Undo…', paused)
    assert posted(pages, "/jobs/job/resume").status_code == HTTPStatus.SEE_OTHER
    assert posted(pages, "/freeze/scope?scope=tenant").status_code == HTTPStatus.SEE_OTHER
    held = re.findall(r'class="why"[^>]*>(frozen|paused)', shown(pages, "/jobs/job/next"))
    assert set(held) == {"frozen"}


def test_zoom_is_a_link_and_a_wrong_time_is_refused(clocked: ClockedDatabase, pages: ApiClient) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    clocked.submit()
    clocked.trigger()
    page = shown(pages, "/jobs/job?from=2026-03-02T06:00:00Z&to=2026-03-02T10:00:00Z")
    assert 'aria-label="Zoom in" href="/jobs/job?show=all&amp;from=' in page
    for window in ("1h", "6h", "7d", "30d", "90d"):
        assert "upcoming, " not in shown(pages, f"/jobs/job?window={window}")
    for query, word in (("from=2026-03-02T06:00:00Z", "belong together"), ("window=2d", "window"), ("show=x", "show")):
        assert_refused(pages.get(f"/jobs/job?{query}"), word)


def test_axis_has_some_dozens_of_occurrences_and_the_latest_run(clocked: ClockedDatabase, pages: ApiClient) -> None:
    def window(key: str) -> str:
        [found] = re.findall(r'window=(\w+)&amp;show=all" aria-current="page"', shown(pages, f"/jobs/{key}"))
        return str(found)

    clocked.stop_clock(t("03-02T08:00"))
    for interval, expected in (("2s", "2m"), ("20s", "10m"), ("1m", "1h"), ("1h", "24h"), ("1d", "30d")):
        clocked.submit(f"each-{interval}", schedule={"interval": interval})
        assert window(f"each-{interval}") == expected
    clocked.submit("manual")
    assert window("manual") == "24h"
    clocked.trigger("manual")
    clocked.stop_clock(t("03-02T08:05"))
    assert window("manual") == "10m"
    fire_all(clocked)
    clocked.stop_clock(t("03-02T12:00"))
    assert window("each-2s") == "6h"


def test_job_of_a_second_is_drawn_in_bins(clocked: ClockedDatabase, pages: ApiClient) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    clocked.submit(schedule={"cron": "* * * * * *"}, overlap="allow_all", catch_up="fire_all", window="1h")
    clocked.stop_clock(t("03-02T08:00") + timedelta(seconds=450))
    fire_all(clocked)
    page = shown(pages, "/jobs/job?window=1h", "30 occurrences upcoming, 08:10", " open")
    assert page.count("<rect") < 400


def test_job_whose_occurrences_are_skipped_does_not_run_well(clocked: ClockedDatabase, pages: ApiClient) -> None:
    clocked.stop_clock(t("03-02T08:00:30"))
    clocked.submit(schedule={"cron": "* * * * *"}, overlap="skip")
    for minute in (1, 3):
        first, second = (
            run_id(job_id("default", "job"), t(f"03-02T08:0{at}"), Cause.TIMER) for at in (minute, minute + 1)
        )
        clocked.stop_clock(t(f"03-02T08:0{minute}"))
        fire_all(clocked)
        holder = clocked.begin(first)
        clocked.stop_clock(t(f"03-02T08:0{minute + 1}"))
        fire_all(clocked)
        clocked.claim(second)
        clocked.succeed(holder)
    page = shown(pages, "/jobs/job?window=24h", "2 runs skipped in the last 24 hours: another run of the job was")
    assert re.search(r">next <time [^>]*>in ", page)
    assert "Runs well" not in page


def test_failures_since_a_version_name_its_change_and_lead_back(clocked: ClockedDatabase, pages: ApiClient) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    clocked.submit(retry={"max_attempts": 1}, payload={"token": "a"})
    clocked.succeed(clocked.begun())
    clocked.stop_clock(t("03-02T09:00"))
    clocked.submit(retry={"max_attempts": 1}, payload={"token": "b"})
    clocked.stop_clock(t("03-02T09:00:12"))
    for _ in range(2):
        clocked.end(ending(clocked.begun(), RunState.FAILED, error_type="E", error_message="token expired\nat line 4"))
    page = shown(pages, "/jobs/job", "2 failures in a row since 09:00, 12.0 s after version 2 was saved.")
    assert "<bdi>E: token expired</bdi>" in page
    assert "Changed since version 1: <code>payload</code> from {&#34;token&#34;: &#34;a&#34;} to" in page
    assert 'href="/jobs/job/versions?a=1&amp;b=2">Compare 1 and 2</a>' in page
    assert 'href="/jobs/job/rollback?version=1">Roll back to version 1…</a>' in page
    clocked.submit(retry={"max_attempts": 1}, payload={"token": "c"})
    page = shown(pages, "/jobs/job", "2 failures in a row since 09:00, from version 2 on.")
    assert_has(page, "No run of version 3, which is in force now, has succeeded or failed yet.", without="Roll back")
    clocked.stop_clock(t("03-02T10:00"))
    clocked.succeed(
        clocked.begin(clocked.client.runs.retry(clocked.value("SELECT max(run_id::text)::uuid FROM failed_runs")))
    )
    assert "The last run succeeded; a run failed 59 min ago." in shown(pages, "/jobs/job")
    clocked.stop_clock(t("03-02T10:00:01"))
    clocked.end(ending(clocked.begun(), RunState.FAILED))
    page = shown(pages, "/jobs/job")
    assert "The last run failed at 10:00." in page, "the version of a success is no cause"
    assert "no error is recorded" in page


def test_waiting_runs_name_their_lack_and_the_handler_that_live_executors_have(
    clocked: ClockedDatabase, pages: ApiClient
) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    clocked.submit(target="render")
    clocked.submit(target="pdf")
    executor(clocked, "render")
    clocked.trigger()
    assert "1 run waiting since 08:00: no live executor of queue" in shown(pages, "/jobs/job")
    clocked.trigger()
    page = shown(pages, "/jobs/job", "2 runs waiting, oldest since 08:00: no live executor of queue")
    assert "<code><bdi>tidewheel service executor --queues default" in page
    assert "Version 1 used <code>render</code>, which 1 live executor of the queue has." in page
    assert "Roll back to version 1…" in page
    clocked.submit(target="csv")
    assert "Roll back" not in shown(pages, "/jobs/job"), "no run of the version in force waits"


def test_retry_is_placed_where_it_ran(clocked: ClockedDatabase, pages: ApiClient) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    clocked.submit(retry={"max_attempts": 1})
    failed = clocked.begun()
    clocked.end(ending(failed, RunState.FAILED))
    clocked.stop_clock(t("03-02T10:00"))
    retry = clocked.client.runs.retry(failed.run_id)
    clocked.succeed(clocked.begin(retry))
    clocked.stop_clock(t("03-02T10:30"))
    page = shown(pages, "/jobs/job?window=6h", "succeeded, 10:00, retry of 08:00")
    rows = re.findall(r'<tr><td class="nowrap">(?:retried )?<time datetime="([^"]+)".*?</tr>', page, re.DOTALL)
    assert rows == ["2026-03-02T10:00:00.000000Z", "2026-03-02T08:00:00.000000Z"]


def test_list_of_jobs_has_the_age_of_a_retry_since_its_request(clocked: ClockedDatabase, pages: ApiClient) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    clocked.submit(retry={"max_attempts": 1})
    failed = clocked.begun()
    clocked.end(ending(failed, RunState.FAILED))
    clocked.stop_clock(t("03-02T10:00"))
    assert ">2 h ago</time>" in shown(pages, "/jobs")
    posted(pages, f"/runs/{failed.run_id}/retry")
    shown(pages, "/jobs", '<span class="caption">waiting</span>', ">now</time>", without="h ago")


@pytest.mark.parametrize(
    ("overlap", "words", "states"),
    [
        ("skip", "the new run, starts, the new run is skipped.", {"running", "skipped"}),
        ("allow_all", "the new run, starts, both run.", {"running"}),
    ],
)
def test_move_onto_another_occurrence_is_shown_before_it_is_done(
    clocked: ClockedDatabase, pages: ApiClient, overlap: str, words: str, states: set[str]
) -> None:
    clocked.stop_clock(t("03-19T12:00"))
    clocked.submit("nightly", schedule={"cron": "0 2 * * *"}, overlap=overlap)
    path, to = "/jobs/nightly/move?at=2026-03-21T02:00:00Z", "2026-03-22T02:00:00Z"
    warned = posted(pages, path, to=to, reason="stock")
    assert warned.status_code == HTTPStatus.OK
    assert_has(warned.text, "Another occurrence of this job fires at", words)
    assert clocked.count("overrides") == 0
    hidden = dict(re.findall(r'type="hidden" name="(to|reason|onto)" value="([^"]*)"', warned.text))
    assert hidden == {"to": to, "reason": "stock", "onto": to}
    assert posted(pages, path, **hidden).status_code == HTTPStatus.SEE_OTHER
    third = "/jobs/nightly/move?at=2026-03-23T02:00:00Z"
    assert "Another occurrence" in posted(pages, third, to=to).text
    assert posted(pages, third, to="2026-03-21T02:00:00Z").status_code == HTTPStatus.SEE_OTHER, "none is left there"
    assert posted(pages, third, to="2026-03-21T02:00:00Z").status_code == HTTPStatus.SEE_OTHER, "it is there itself"
    fourth = "/jobs/nightly/move?at=2026-03-24T02:00:00Z"
    assert "Another occurrence" in posted(pages, fourth, to="2026-03-21T02:00:00Z").text, "one was moved there"
    assert posted(pages, "/jobs/nightly/unskip?at=2026-03-23T02:00:00Z").status_code == HTTPStatus.SEE_OTHER
    clocked.stop_clock(t("03-20T02:00"))
    fire_all(clocked)
    clocked.succeed(clocked.begin(clocked.value("SELECT run_id FROM job_runs")))
    clocked.stop_clock(t("03-22T02:00"))
    fire_all(clocked)
    for (run,) in clocked.rows("SELECT run_id FROM job_runs ORDER BY run_id"):
        clocked.claim(run)
    found = clocked.rows("SELECT state FROM runs WHERE scheduled_at >= '2026-03-21Z'")
    assert len(found) == 2
    assert {state for (state,) in found} == states


def test_undo_of_a_move_whose_own_time_has_passed_fires_at_once(clocked: ClockedDatabase, pages: ApiClient) -> None:
    clocked.stop_clock(t("03-19T12:00"))
    clocked.submit("nightly", schedule={"cron": "0 2 * * *"})
    at = "?at=2026-03-20T02:00:00Z"
    posted(pages, f"/jobs/nightly/move{at}", to="2026-03-20T09:00:00Z")
    words = "It was moved to Fri 20 Mar 2026 09:00:00 UTC, by "
    assert words in shown(pages, f"/jobs/nightly/skip{at}")
    assert "After that, it fires on time." in shown(pages, f"/jobs/nightly/unskip{at}")
    clocked.stop_clock(t("03-20T08:00"))
    assert "After that, it fires at once, because its own time has passed." in shown(pages, f"/jobs/nightly/unskip{at}")
    posted(pages, f"/jobs/nightly/unskip{at}")
    assert "fires now: its time has passed." in shown(pages, "/jobs/nightly/next")
    fire_all(clocked)
    assert clocked.count("job_runs") == 1


def test_edit_and_rollback_keep_skips_and_name_what_they_drop(clocked: ClockedDatabase, pages: ApiClient) -> None:
    clocked.stop_clock(t("03-19T12:00"))
    clocked.submit("nightly", schedule={"cron": "0 2 * * *"})
    clocked.submit("nightly", schedule={"cron": "0 2 * * *"}, lane="batch")
    clocked.submit("nightly", schedule={"cron": "0 4 * * *"}, lane="batch")
    clocked.submit("nightly", schedule={"cron": "0 2,3 * * *"})
    for kind, at, to in (("skip", 20, ""), ("move", 21, "2026-03-21T09:00:00Z"), ("move", 22, "2026-03-22T09:00:00Z")):
        path = f"/jobs/nightly/{kind}?at=2026-03-{at}T02:00:00Z"
        assert posted(pages, path, **({"to": to} if to else {})).status_code == HTTPStatus.SEE_OTHER
    back = shown(pages, "/jobs/nightly/rollback?version=1")
    assert "It then fires at Sat 21 Mar 02:00 (moved to Sat 21 Mar 09:00), Sun 22 Mar 02:00 (moved to" in back
    assert_has(back, "Mon 23 Mar 02:00, by the clock of UTC.", "A skip by request leaves out Fri 20 Mar 02:00.")
    assert "This drops" not in back
    drops = "This drops 2 requested moves, the first at"
    shown(pages, "/jobs/nightly/rollback?version=3", "It then fires at Fri 20 Mar 04:00, Sat 21 Mar 04:00", drops)
    form = typed_in(pages.get("/jobs/nightly/edit")) | {"do": "check"}
    checked = pages.post("/jobs/nightly/edit", data=form | {"schedule.cron": "0 3 * * *"}).text
    assert drops in checked
    kept = pages.post("/jobs/nightly/edit", data=form | {"lane": "batch"}).text
    assert_has(kept, "will be skipped", without=(drops, '<ins class="new">'))
    went = posted(pages, "/jobs/nightly/rollback?version=3")
    assert went.status_code == HTTPStatus.SEE_OTHER
    assert clocked.value("SELECT count(*) FROM overrides WHERE kind = 'move'") == 0


def test_calendar_and_list_show_clock_changes_days_skips_and_moves(clocked: ClockedDatabase, pages: ApiClient) -> None:
    clocked.stop_clock(t("03-19T12:00"))
    calendar(clocked, "holidays", days=["2026-03-20"])
    clocked.submit("nightly", schedule=BERLIN, exclude_calendars=["holidays"])
    page = shown(pages, "/jobs/nightly/next", "19 Mar to 19 Apr", "▨ <bdi>holidays</bdi>")
    assert_has(page, "the clock goes from 02:00 to 03:00", "Skip…")
    assert [day in page for day in (">16<", ">1 Apr<", ">19<", ">20 Apr<")] == [True, True, True, False]
    shown(pages, "/jobs/nightly/next?month=2026-03", "March 2026", 'name="month" aria-label="Month" value="2026-03"')
    answer = posted(pages, "/jobs/nightly/skip?at=2026-03-21T01:30:00Z", reason="<b>closed")
    assert answer.headers["location"] == "/jobs/nightly/next"
    shown(pages, "/jobs/nightly/next", "will be skipped.", "◆ 1 skipped", "&lt;b&gt;closed", "Undo…")
    assert posted(pages, "/jobs/nightly/move?at=2026-03-22T01:30:00Z", to="2026-03-22T05:00:00Z").status_code == 303
    page = shown(pages, "/jobs/nightly/next?limit=50", "◇ 1 moved, to 22 Mar 06:00")
    assert re.search(r"will be moved to <time [^>]+>Sun 22 Mar 2026 06:00:00 CET</time>", page), "as its own time"
    for text in ("◷ clock change", '<p class="caption phone">29 Mar: '):
        assert text in page
    refused = posted(pages, "/jobs/nightly/move?at=2026-03-23T01:30:00Z", to="tomorrow")
    assert refused.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert 'value="tomorrow" aria-invalid="true"' in refused.text
    assert posted(pages, "/jobs/nightly/unskip?at=2026-03-21T01:30:00Z").status_code == HTTPStatus.SEE_OTHER
    assert (
        "1 skipped" not in shown(pages, "/jobs/nightly/next?month=2026-03&limit=100").partition("will fire on time")[2]
    )
    absent = shown(pages, "/jobs/nightly/skip?at=2026-03-21T03:00:00Z")
    assert "The nearest occurrence is that of Sat 21 Mar 2026 02:30:00 Europe/Berlin." in absent
    assert '<button class="primary">' not in absent
    assert pages.get("/jobs/nightly/skip?at=tomorrow").status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert pages.get("/jobs/nightly/next?month=2026-13").status_code == HTTPStatus.UNPROCESSABLE_ENTITY


def test_first_row_of_an_overdue_job_names_since_when_and_what_it_awaits(
    clocked: ClockedDatabase, pages: ApiClient
) -> None:
    clocked.stop_clock(t("03-19T12:00"))
    clocked.submit("nightly", schedule={"cron": "0 2 * * *"})
    clocked.stop_clock(t("03-20T02:03"))
    page = shown(pages, "/jobs/nightly/next")
    assert re.search(r"overdue since <time [^>]*>Fri 20 Mar 2026 02:00:00.000 UTC</time><br>", page)
    assert "A scheduler creates its run at its next poll" in page
    clocked.execute("UPDATE timers SET due_at = due_at + interval '10 min'")
    shown(pages, "/jobs/nightly/next", "Firing failed and is postponed")


def test_file_of_the_settings_changes_nothing(clocked: ClockedDatabase, pages: ApiClient, tmp_path: Path) -> None:
    payload = {"yes": "no", "text": "a: b\n# c\u202e \x07", "number": 1.5e300, "on": [True, None]}
    clocked.submit("nightly", schedule=BERLIN, payload=payload, labels={"team": "1e3"})
    [text] = re.findall('data-copy="([^"]*)"[^>]*>Copy file', shown(pages, "/jobs/nightly/settings"))
    (tmp_path / "job.yaml").write_text(unescape(text))
    with clocked.connection() as connection:
        assert read_job(str(tmp_path / "job.yaml")) == show_job(connection, "default", "nightly").job
