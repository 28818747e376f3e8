"""Dead letters, bulk work, selections of runs and freezes, by forms on a real API."""

import re
from datetime import timedelta
from html import unescape
from http import HTTPStatus
from uuid import UUID

import httpx
import pytest

from tests.control.api.answering import ApiClient
from tests.control.client.test_dead_letters import batch, fail, garble, work_off
from tests.control.console.pages import (
    assert_has,
    assert_refused,
    done,
    fields_of,
    found_on,
    posted,
    signed_console,
)
from tests.control.console.pages import shown as shown_page
from tests.control.reads.test_waits import executor
from tests.fixtures.acts import ending, submission
from tests.fixtures.database import Database
from tests.transitions.figures import finish
from tests.transitions.graphs import after, play, put
from tests.transitions.test_workflows import run_of
from tidewheel.ids import job_id
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.scheduler.cancels import BulkCancel

REASON = "<script>alert(1)</script>\u202e"
LABELS = {"team": "billing"}
MANY = 300


@pytest.fixture
def pages(pages: ApiClient) -> ApiClient:
    """A console on a database with two jobs."""
    pages.database.submit()
    pages.database.submit("other", queue="reports", labels=LABELS)
    return pages


def shown(client: httpx.Client, path: str, *words: str, without: str | tuple[str, ...] = ()) -> str:
    """Return the text of a page, in which no text of users acts."""
    text = shown_page(client, path, *words, without=without)
    assert_has(text, without=("<script>alert", "\u202e"))
    return text


def link(text: str, label: str) -> str:
    """The address of the link with this label."""
    return found_on(text, rf'<a class="(?:button|item)[^"]*" href="([^"]+)">{re.escape(label)}<')


def counted(client: httpx.Client, path: str) -> dict[str, str]:
    """The hidden fields of a dialog: what it has counted, and when."""
    fields = dict(re.findall(r'type="hidden" name="(counted\w*)" value="([^"]*)"', client.get(path).text))
    assert set(fields) == {"counted", "counted_at"}
    return {name: unescape(value) for name, value in fields.items()}


def triggered(database: Database, key: str, count: int) -> None:
    database.apply_batch(*({"type": "job.trigger", "key": key} for _ in range(count)))


def test_second_redrive_and_a_repeat_change_each_dead_letter_once(pages: ApiClient) -> None:
    database, path = pages.database, "/dead-letters/redrive?kind=run"
    fail(database)
    fields = fields_of(pages.get(path)) | counted(pages, path)
    first = done(pages.post(path, data=fields))
    assert done(pages.post(path, data=fields)) == first
    assert database.count("works") == 1
    second = done(posted(pages, path, **counted(pages, path)))
    assert "0 of 1 dead letter that matched at its start" in shown(pages, second)
    work_off(database)
    assert database.value("SELECT sum(done_count) FROM works") == 1
    assert first != second
    assert done(pages.post(path, data=fields)) == first, "no dead letter matches any more"
    assert "No open dead letter matches." in shown(pages, "/dead-letters?job=other")


def test_cancellation_beside_another_concerns_what_that_leaves(pages: ApiClient) -> None:
    path = "/runs/cancel-all?queue=reports"
    triggered(pages.database, "other", 2)
    run = pages.database.value("SELECT min(run_id::text) FROM job_runs")
    place = done(posted(pages, path, **counted(pages, path)))
    assert f'<a href="{place}">Its progress</a>' in shown(pages, f"/runs/{run}")
    for covered in (path, f"{path}&cause=trigger"):
        dialog = shown(pages, covered)
        assert "Nothing would change. Each run that matches has ended or is being cancelled already." in dialog
        assert '<button class="danger' not in dialog
    triggered(pages.database, "other", 1)
    beside = shown(pages, path)
    assert "Cancel 1 run of queue reports?" in re.sub(r"</?bdi>", "", beside)
    assert "1 run has not started and ends as cancelled" in beside
    pages.database.begun("other")
    beside = shown(pages, path, '<button class="danger unchecked"><bdi>Cancel 1 run</bdi></button>')
    assert '<button class="danger checked"><bdi>Cancel 2 runs</bdi></button>' in beside
    form = fields_of(pages.get(path)) | counted(pages, path) | {"include_started": "yes", "with_started": "2"}
    done_at = done(pages.post(path, data=form))
    assert "2 runs are being cancelled: no executor starts them any more." in shown(pages, done_at)
    assert "0 of 2 runs that matched at its start" in shown(pages, done_at), "the number of the dialog"


def test_cancellation_names_the_runs_that_ended_before(pages: ApiClient) -> None:
    triggered(pages.database, "other", 2)
    path = "/runs/cancel-all?queue=reports"
    place = done(posted(pages, path, **counted(pages, path)))
    run = pages.database.value("SELECT min(run_id::text) FROM job_runs")
    pages.database.client.runs.cancel(run)
    assert "Runs that end by themselves or by another request are not counted." in shown(pages, place)
    assert re.search(r"being cancelled.* <a href=./bulk/cancellation/", shown(pages, "/jobs/other"))
    work_off_cancellations(pages.database)
    page, words = shown(pages, place), "1 run ended before, by itself or by another request."
    assert_has(page, "<h2><span>1 of 2 runs that matched at its start</span>", words)
    both = '1 of 2 <span class="caption" title="runs that matched at its start">runs</span>'
    assert f'{both}<p class="caption" title="{words}">1 ended before</p>' in shown(pages, "/bulk")


def work_off_cancellations(database: Database) -> None:
    cancelling = BulkCancel(database.session(), database.installation)
    while database.value("SELECT count(*) FROM cancellations WHERE finished_at IS NULL"):
        cancelling.step()


def test_causes_of_dead_letters_lead_to_a_redrive_of_just_these(pages: ApiClient) -> None:
    database = pages.database
    for _ in range(3):
        fail(database)
    message = f"no{'x' * 300}\nsecond line"
    database.end(ending(database.begun("other"), RunState.FAILED, error_type=REASON, error_message=message))
    database.submit(labels={"a": "b"})
    text = shown(pages, "/dead-letters", ">4</span></a>", without="second line")
    assert "x" * 200 not in text
    assert "version 1; now 2" in text
    path = link(text, "Retry 3…")
    dialog = shown(pages, path)
    assert "Retry 3 dead letters?" in re.sub(r"</?bdi>", "", dialog)
    assert "Failed runs are retried on their job's current version" in unescape(dialog)
    place = done(posted(pages, path, rate="0.5", reason=REASON))
    progress = shown(pages, place, "0 of 3 dead letters that matched at its start", "No scheduler is alive")
    assert_has(progress, '<span class="word">waits for a scheduler</span>', "0.5 a second at most", "&lt;script&gt;")
    paused = posted(pages, f"{place}/pause", reason="stop")
    assert "Resume…" in shown(pages, done(paused))
    assert "No scheduler" not in shown(pages, place)
    done(posted(pages, f"{place}/resume"))
    database.execute("UPDATE works SET rate = NULL")
    work_off(database)
    assert "3 retried" in shown(pages, place)
    made = found_on(shown(pages, place), r'href="([^"]+)">The dead letters that it included')
    listed = shown(pages, made)
    for run in database.rows("SELECT redriven_run_id FROM dead_letters WHERE redriven_run_id IS NOT NULL"):
        assert f'href="/runs/{run[0]}"' in listed
    assert "Retry of dead letters" in shown(pages, "/bulk")
    assert ">1</span></a>" in shown(pages, "/dead-letters")
    [run] = re.findall(r'href="/runs/([0-9a-f-]{36})"', shown(pages, "/dead-letters?show=redriven&limit=1"))
    assert "queued" in shown(pages, f"/runs/{run}")


def test_redrive_names_the_dead_letters_that_left_it(pages: ApiClient) -> None:
    first, _ = fail(pages.database), fail(pages.database)
    place = done(posted(pages, "/dead-letters/redrive?kind=run", **counted(pages, "/dead-letters/redrive?kind=run")))
    done(posted(pages, f"/runs/{first}/retry"))
    page = shown(pages, place, "0 of 2 dead letters that matched at its start")
    assert "0 retried. Another retry or a purge took 1 dead letter first." in page
    assert "0 of 2" in shown(pages, "/bulk")
    took = "Another retry or a purge took 1 dead letter first."
    lost = f'<p class="caption" title="{took}">1 taken by others</p>'
    assert lost in shown(pages, "/bulk")
    done(posted(pages, f"{place}/pause"))
    assert f"Done so far: 0 of 2 dead letters. {took}" in shown(pages, f"{place}/resume")
    done(posted(pages, f"{place}/resume"))
    work_off(pages.database)
    assert lost in shown(pages, "/bulk")
    ended = shown(pages, place, "1 of 2 dead letters that matched at its start")
    assert "1 retried. Another retry or a purge took 1 dead letter first." in ended


def test_account_of_a_cancelled_redrive_adds_up(pages: ApiClient) -> None:
    database, path = pages.database, "/dead-letters/redrive?kind=run"
    [fail(database) for _ in range(5)]
    place = done(posted(pages, path, **counted(pages, path)))
    assert batch(database, UUID(place.rpartition("/")[2]), 1) == 1
    _, second, third, *_ = [row[0] for row in database.rows("SELECT id FROM dead_letters ORDER BY id")]
    run = database.value("SELECT run_id FROM dead_letters WHERE id = %s", [second])
    done(posted(pages, f"/runs/{run}/retry"))
    database.client.dead_letters.redrive(ids=[third])
    done(posted(pages, f"{place}/cancel"))
    words = "Another retry or a purge took 1 dead letter. 3 dead letters are left as before."
    shown(pages, place, "1 of 5 dead letters that matched at its start", f"1 retried. {words}")
    assert words in shown(pages, "/bulk")
    assert f"Done so far: 1 of 5 dead letters. {words}" in shown(pages, f"{place}/cancel")
    work_off(database)
    page = shown(pages, place)
    assert "took 2 dead letters. 2 dead letters are left as before. A run that" in page, "1 + 2 + 2 of 5"


def test_dead_letter_shows_its_run_its_attempts_and_what_it_became(pages: ApiClient) -> None:
    run = fail(pages.database)
    number = pages.database.value("SELECT id FROM dead_letters")
    path = f"/dead-letters/{number}"
    text = shown(pages, path, "Failed after 1 attempt", "ValueError: no<", f'href="/runs/{run}"')
    place = done(posted(pages, link(text, "Retry…")))
    work_off(pages.database)
    again = pages.database.value("SELECT redriven_run_id FROM dead_letters")
    assert f'href="/runs/{again}"' in shown(pages, place)
    shown(pages, path, f'as <a class="mono" href="/runs/{again}">', without="Retry…")
    assert_refused(posted(pages, f"/dead-letters/redrive?id={number}"), "No dead letter matches")


def test_dead_message_is_shown_in_hexadecimal_and_as_text_and_sent_again(pages: ApiClient) -> None:
    garble(pages.database, value=b"\xff{\x00<script>alert(1)</script>" + "\u202e".encode())
    number = pages.database.value("SELECT id FROM dead_letters")
    text = shown(pages, f"/dead-letters/{number}", "0000  ff 7b 00 3c 73 63 72 69", ".{.&lt;script&gt;", "3 @ 0")
    assert "neither JSON nor Avro" in text
    done(posted(pages, link(text, "Retry…")))
    work_off(pages.database)
    assert "unchanged." in shown(pages, f"/dead-letters/{number}")


def test_purge_of_many_needs_their_number(pages: ApiClient) -> None:
    for offset in range(101):
        garble(pages.database, offset)
    fail(pages.database)
    path = link(shown(pages, "/dead-letters?kind=message"), "Purge all that match…")
    assert "Type 101 to confirm" in shown(pages, path)
    assert "Runs stay until" not in shown(pages, path), "a message has none"
    assert_refused(posted(pages, path, typed="100", counted="101"), "This is not the number 101")
    assert pages.database.value("SELECT count(*) FROM dead_letters") == 102
    assert "101 dead letters are being purged." in shown(pages, done(posted(pages, path, typed="101", counted="101")))
    work_off(pages.database)
    assert pages.database.value("SELECT count(*) FROM dead_letters") == 1


def test_what_comes_after_the_count_of_a_dialog_is_left_alone(pages: ApiClient) -> None:
    database = pages.database
    fail(database)
    triggered(database, "other", 2)
    letters, runs = "/dead-letters/redrive?kind=run", "/runs/cancel-all?job=other"
    purge = "/dead-letters/purge?kind=message"
    garble(database, 0)
    before = {path: counted(pages, path) for path in (letters, runs, purge)}
    fail(database)
    garble(database, 1)
    database.trigger("other")
    purged = done(posted(pages, purge, **before[purge]))
    work_off(database)
    assert "1 purged." in shown(pages, purged)
    assert database.value("SELECT count(*) FROM dead_letters WHERE topic IS NOT NULL") == 1
    assert "0 of 2 runs" in shown(pages, done(posted(pages, runs, include_started="yes", **before[runs])))
    work_off_cancellations(database)
    assert database.value("SELECT count(*) FROM job_runs WHERE job_id = %s", (job_id("default", "other"),)) == 1
    place = done(posted(pages, letters, **before[letters]))
    assert "0 of 1 dead letter that matched at its start" in shown(pages, place)


def test_repeat_of_a_cancellation_gets_its_first_answer_after_the_runs_have_ended(pages: ApiClient) -> None:
    triggered(pages.database, "other", 2)
    path = "/runs/cancel-all?job=other"
    page = pages.get(path)
    fields = fields_of(page) | counted(pages, path) | {"include_started": "yes", "with_started": "2"}
    first = done(pages.post(path, data=fields))
    work_off_cancellations(pages.database)
    assert done(pages.post(path, data=fields)) == first
    assert pages.database.value("SELECT count(*) FROM cancellations") == 1
    assert "No open run matches" in posted(pages, path, counted="").text
    text = shown(pages, path, "Nothing would change. Each run of other has ended or is being cancelled already.")
    assert not {"Reason", "Cancel 0"} & set(re.findall("Reason|Cancel 0", text))


def test_dialog_of_a_cancellation_counts_the_started_runs_apart(pages: ApiClient) -> None:
    pages.database.begun("other")
    path = "/runs/cancel-all?job=other"
    dialog = shown(pages, path)
    assert '<button class="danger"><bdi>Cancel 1 run</bdi></button>' in dialog, "without a choice it has no box"
    assert "1 run has started. An attempt under way gets a signal" in dialog
    triggered(pages.database, "other", 2)
    dialog = shown(pages, path, "Cancel runs of other?", "Cancels 3 runs instead of 2.")
    assert 'name="include_started" value="yes" aria' in dialog, "it is not checked"
    assert '<button class="danger unchecked"><bdi>Cancel 2 runs</bdi></button>' in dialog, "the box decides the number"
    assert '<button class="danger checked"><bdi>Cancel 3 runs</bdi></button>' in dialog
    assert 'name="with_started" value="3"' in dialog
    assert "2 runs have not started and end as cancelled." in dialog
    assert_has(dialog, "1 run has started. With the box below", "A run between two attempts ends as cancelled at once.")
    form = fields_of(pages.get(path)) | counted(pages, path)
    grown = pages.post(path, data=form | {"include_started": "yes", "with_started": "2"})
    assert "3 match now, and 2 when they were counted" in grown.text
    assert 'value="yes" checked aria' in grown.text, "a refusal keeps the choice"
    assert "2 runs are being cancelled" in shown(pages, done(pages.post(path, data=form)))


def test_dialog_of_selected_runs_counts_those_between_two_attempts_apart(pages: ApiClient) -> None:
    retried, started, queued = pages.database.begun(), pages.database.begun("other"), pages.database.trigger()
    pages.database.requeue(retried, AttemptOutcome.FAILED, timedelta(hours=1))
    dialog = shown(pages, f"/runs/cancel?run={retried.run_id}&run={started.run_id}&run={queued}")
    for words in (
        "1 run has not started and ends", "1 run has started. An attempt under way",
        "1 run is between two attempts. No further attempt",
    ):  # fmt: skip
        assert words in dialog
    pages.database.submit("ended")
    ended = fail(pages.database, "ended")
    for path in (f"/runs/cancel?run={ended}", f"/runs/retry?run={queued}"):
        shown(pages, path, "Nothing would change.", without='name="reason"')


def test_number_that_has_grown_is_shown_before_anything_changes(pages: ApiClient) -> None:
    """The form names the future, or a smaller number than that of its dialog."""
    for offset in range(3):
        garble(pages.database, offset)
    fail(pages.database)
    for path in ("/dead-letters/purge?kind=message", "/dead-letters/redrive?kind=message"):
        refused = posted(pages, path, counted="2", counted_at="9999-12-31T00:00:00+00:00")
        assert_refused(refused, "3 match now, and 2 when they were counted")
        assert 'name="counted" value="3"' in refused.text
    triggered(pages.database, "other", 2)
    cancelled = done(posted(pages, "/runs/cancel-all?job=other", counted="2", counted_at="9999-12-31T00:00:00+00:00"))
    work_off_cancellations(pages.database)
    pages.database.trigger("other")
    assert "2 runs" in shown(pages, cancelled)
    assert pages.database.value("SELECT count(*) FROM works") == 0
    assert pages.database.value("SELECT count(*) FROM job_runs WHERE state = 'queued'") == 1


def test_purge_concerns_what_the_list_shows(pages: ApiClient) -> None:
    fail(pages.database)
    text = shown(pages, "/dead-letters")
    assert link(text, "Retry 1 run…") == "/dead-letters/redrive"
    assert link(text, "Purge all open…") == "/dead-letters/purge?redriven=false"
    for path in ("/dead-letters?redriven=true", "/dead-letters?show=redriven"):
        assert "/dead-letters/redrive" not in shown(pages, path)
    assert posted(pages, "/dead-letters/purge?redriven=true").status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert pages.database.value("SELECT count(*) FROM dead_letters") == 1
    pages.database.execute("UPDATE dead_letters SET redriven_at = tidewheel_now()")
    fail(pages.database)
    path = "/dead-letters/purge?redriven=false"
    done(posted(pages, path, **counted(pages, path)))
    work_off(pages.database)
    assert pages.database.rows("SELECT redriven_at IS NULL FROM dead_letters") == [(False,)]


def test_all_runs_that_match_are_cancelled_by_their_number(pages: ApiClient) -> None:
    database = pages.database
    triggered(database, "job", MANY)
    database.trigger("other")
    assert "Cancel all open runs" not in shown(pages, "/runs")
    path = link(shown(pages, "/runs?job=job"), "Cancel all open runs of this job…")
    dialog = shown(pages, path)
    assert "Cancel 300 runs of job?" in re.sub(r"</?bdi>", "", dialog)
    assert "Type 300 to confirm" in dialog
    assert posted(pages, path, include_started="yes").status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    place = done(posted(pages, path, include_started="yes", typed="300", counted="300", reason=REASON))
    assert "0 of 300 runs that matched at its start" in shown(pages, place)
    work_off_cancellations(database)
    shown(pages, place, "300 runs", "No run is left to cancel.", "&lt;script&gt;")
    assert pages.get(f"{place}/cancel").status_code == HTTPStatus.NOT_FOUND
    assert database.value("SELECT count(*) FROM job_runs") == 1


def test_selected_runs_are_cancelled_and_retried(pages: ApiClient) -> None:
    database = pages.database
    chosen, left = [database.trigger("other") for _ in range(2)], database.trigger("other")
    [box] = re.findall(r'type="checkbox" name="run" value="([^"]+)"', shown(pages, "/runs?job=other"))
    assert set(box.split()) == {str(each) for each in (*chosen, left)}
    path = "/runs/cancel?" + "&".join(f"run={run}" for run in chosen)
    assert "Cancel 2 runs?" in re.sub(r"</?bdi>", "", shown(pages, path))
    assert done(posted(pages, path, reason="wrong")) == "/runs"
    assert "Cancel of 2 runs requested." in shown(pages, "/runs")
    assert posted(pages, path).status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    path = f"/runs/retry?run={chosen[0]}&run={left}"
    assert "1 run has not ended: only" in shown(pages, path)
    assert done(posted(pages, path)).startswith("/runs?cause=retry")
    assert "1 run created. 1 could not be retried." in shown(pages, "/runs")
    assert "1 run matches." in shown(pages, "/runs?cause=retry&last=1h")
    for wrong in ("/runs/cancel", "/runs/retry"):
        assert "No run is selected" in shown(pages, wrong)
    assert pages.get("/runs/cancel?run=x").status_code == HTTPStatus.UNPROCESSABLE_ENTITY


def test_selected_run_that_has_a_cancel_is_neither_counted_nor_cancelled_again(pages: ApiClient) -> None:
    database = pages.database
    named, path = database.trigger(), "/runs/cancel-all?job=job"
    done(posted(pages, path, **counted(pages, path)))
    path = f"/runs/cancel?run={named}&run={database.trigger('other')}"
    assert "Cancel 1 run?" in re.sub(r"</?bdi>", "", shown(pages, path))
    done(posted(pages, path))
    assert "Cancel of 1 run requested. 1 ended or had a cancel before." in shown(pages, "/runs")
    assert database.value("SELECT state FROM job_runs WHERE run_id = %s", [named]) == "queued", (
        "the cancellation ends it"
    )


def test_dialogs_of_many_retries_count_what_the_button_does_to_them(pages: ApiClient) -> None:
    database = pages.database
    put(database, {"root": [], "part": after("root")})
    database.trigger("root")
    play(database, lambda key: RunState.FAILED if key == "part" else RunState.SUCCEEDED)
    part, plain, retried, gone = run_of(database, "part"), fail(database), fail(database), fail(database, "other")
    database.client.runs.retry(retried)
    database.client.delete("other")
    path = "/runs/retry?" + "&".join(f"run={run}" for run in (part, plain, retried, gone))
    dialog = shown(pages, path)
    for words in (
        "Retry 3 runs?",
        "2 of these 3 runs have dead letters, which are then marked retried.",
        "1 of these 3 runs is a part of a workflow. The jobs after it do not run",
        "1 of these 3 runs was retried before and gets one more run.",
        "1 earlier retry is open and continues.",
        "Of these, 1 run cannot be retried: the job is deleted",
    ):
        assert words in dialog, words
    assert "Retry 3 dead letters?" in shown(pages, "/dead-letters/redrive")
    assert "It cannot be retried: its job is deleted." in shown(pages, f"/runs/{gone}/retry")
    place = done(posted(pages, "/dead-letters/redrive"))
    done(posted(pages, path))
    assert "3 runs created. 1 could not be retried." in shown(pages, "/runs")
    work_off(database)
    assert "0 retried" in shown(pages, place)
    assert database.value("SELECT count(*) FROM dead_letters WHERE redriven_at IS NULL") == 1


@pytest.mark.landing
def test_selected_jobs_are_paused_and_resumed_and_refusals_name_their_keys(pages: ApiClient) -> None:
    database, hostile = pages.database, "<script>alert(1)</script>\u05d0" + "x" * 200
    keys = ["a", "b", hostile]
    database.apply_batch(*map(submission, keys))
    chosen = "&".join(f"job={job_id('default', key)}" for key in keys)
    assert shown(pages, "/jobs").count('type="checkbox" name="job"') == 5
    dialog = re.sub(r"</?bdi>", "", shown(pages, f"/selected-jobs/pause?{chosen}"))
    assert "Pause 3 jobs?" in dialog
    assert done(posted(pages, f"/selected-jobs/pause?{chosen}", reason="stock-taking")) == "/jobs?status=paused"
    shown(pages, "/jobs?status=paused", "3 jobs paused.", '<span class="caption">3 jobs<')
    database.execute("UPDATE jobs SET paused = false WHERE key = 'a'")
    assert "Of these, 1 job is not paused." in shown(pages, f"/selected-jobs/resume?{chosen}")
    assert done(posted(pages, f"/selected-jobs/resume?{chosen}")) == "/jobs"
    assert "2 jobs resumed. 1 already was." in shown(pages, "/jobs")
    assert done(posted(pages, f"/selected-jobs/resume?{chosen}&next=/jobs%3Fprefix%3Da")) == "/jobs?prefix=a"
    database.apply_batch({"type": "job.resume", "key": "b", "request_id": f"x/{job_id('default', 'b')}"})
    assert done(posted(pages, f"/selected-jobs/pause?{chosen}", request_id="x")) == "/jobs?status=paused"
    assert re.search(r"2 jobs paused\. 1 refused: b: ", shown(pages, "/jobs"))
    first = chosen.partition("&")[0]
    assert "All of the selected jobs are paused already." in shown(pages, f"/selected-jobs/pause?{first}")
    assert "No job is selected." in shown(pages, "/selected-jobs/pause")
    assert posted(pages, "/selected-jobs/pause").status_code == HTTPStatus.UNPROCESSABLE_ENTITY


def test_pause_of_many_leaves_the_end_of_a_pause_that_its_dialog_counts_apart(pages: ApiClient) -> None:
    database = pages.database
    database.submit("nightly", schedule={"cron": "0 2 * * *"})
    database.client.pause("nightly", until=database.now() + timedelta(days=1))
    path = "/selected-jobs/pause?" + "&".join(f"job={job_id('default', key)}" for key in ("nightly", "job"))
    dialog = pages.get(path)
    assert "Pause 1 job?" in dialog.text
    kept = found_on(dialog.text, r'name="kept" value="([^"]+)"')
    fields = fields_of(dialog) | {"kept": kept}
    for _ in range(2):
        done(pages.post(path, data=fields))
        assert "1 job paused." in shown(pages, "/jobs")
    assert database.value("SELECT paused_until IS NOT NULL FROM jobs WHERE key = 'nightly'") is True


@pytest.mark.landing
def test_freeze_counts_what_it_stops_and_every_page_names_it_until_its_thaw(pages: ApiClient) -> None:
    pages.database.apply_batch(submission("other-hourly", schedule="@hourly", queue="reports", labels=LABELS))
    pages.database.trigger("other")
    shown(pages, "/jobs?label=team%3Dbilling", 'label=team%3Dbilling">Freeze all that match…</a>')
    for other in ("/jobs", "/jobs?label=team%3Dbilling&kind=manual"):
        assert "Freeze all that match" not in shown(pages, other)
    for scope, words, jobs in (
        ("scope=tenant", "tenant default", "1 job"),
        ("scope=fleet", "the fleet", "all jobs"),
        ("queue=reports", "queue reports", "1 job"),
        ("label=team%3Dbilling", "label team=billing", "1 job"),
        ("key_prefix=oth", "keys that begin with oth", "1 job"),
    ):
        freeze_and_thaw(pages, scope, words, jobs)


def freeze_and_thaw(pages: ApiClient, scope: str, words: str, jobs: str) -> None:
    """Freeze a scope, look at every page, and thaw it."""
    assert scope.partition("=")[0] in shown(pages, "/freeze")
    path = f"/freeze/scope?{scope}"
    dialog = re.sub(r"</?bdi>", "", shown(pages, path))
    assert f"Freeze {words}?" in dialog
    assert "1 open run, due now, will not start until the thaw: neither a first attempt nor a retry." in dialog
    assert f"Occurrences of {jobs} that come due meanwhile" in dialog, "the manual ones have none"
    assert "Triggers are still accepted. Their runs wait for the thaw." in dialog
    assert done(posted(pages, path, reason=REASON)) == "/"
    for place in ("/", "/runs", "/jobs/job", "/bulk", "/dead-letters", "/freeze", path):
        shown(pages, place, "Frozen: ", "&lt;script&gt;")
    shown(pages, path, "Nothing would change. It has been frozen since", without='<button class="primary">')
    thaw = link(shown(pages, "/runs"), "Thaw…")
    assert "1 open run, due now, may start again, not before its own start time." in shown(pages, thaw)
    assert "No occurrence came due during the freeze." in shown(pages, thaw)
    done(posted(pages, thaw))
    shown(pages, "/", "<bdi>Thawed: ", without="Frozen: ")
    assert "No freeze of exactly this scope is in force." in shown(pages, thaw)


def test_freeze_is_named_on_the_backfills_and_redrives_whose_runs_it_holds(pages: ApiClient) -> None:
    path = "/freeze/scope?scope=tenant"
    fail(pages.database)
    redrive = done(posted(pages, "/dead-letters/redrive?kind=run", **counted(pages, "/dead-letters/redrive?kind=run")))
    pages.database.submit("daily", schedule={"cron": "0 2 * * *", "timezone": "UTC"}, queue="reports")
    now = pages.database.now()
    made = pages.database.client.backfill("daily", now - timedelta(days=9), now, versions="current").backfill_id
    backfill = f"/bulk/backfill/{made}"
    frozen = "A freeze covers the runs that it creates: none of them starts before the thaw."
    assert frozen not in shown(pages, redrive) + shown(pages, backfill)
    done(posted(pages, "/freeze/scope?queue=reports"))
    assert frozen in shown(pages, backfill)
    assert frozen not in shown(pages, redrive), "its runs have another queue"
    done(posted(pages, path))
    assert frozen in shown(pages, redrive)


def test_freeze_of_a_queue_that_nothing_has_names_one_like_it_and_stays_possible(pages: ApiClient) -> None:
    executor(pages.database, queue="exports")
    path = "/freeze/scope?queue=report"
    dialog = shown(pages, path, "No job, no open run and no executor has queue report")
    assert "Did you mean exports? The freeze is for what comes later." in dialog
    assert '<option value="exports">' in shown(pages, "/freeze")
    pages.database.apply_batch(submission("manual", queue="calls"))
    assert "No job of this scope has an upcoming occurrence." in shown(pages, "/freeze/scope?queue=calls")
    for known in ("reports", "exports", "calls"):
        assert "no executor has queue" not in shown(pages, f"/freeze/scope?queue={known}")
    assert done(posted(pages, path)) == "/"
    assert pages.database.value("SELECT queue FROM freezes") == "report"


def test_freeze_and_thaw_lead_back_to_the_page_of_the_operator(pages: ApiClient) -> None:
    place = "/jobs?prefix=a%20b"
    choice = found_on(shown(pages, place), r'class="freeze" href="([^"]+)"')
    assert f'name="next" value="{place}"' in shown(pages, choice)
    path = "/freeze/scope?queue=default&next=/jobs%3Fprefix%3Da%2520b"
    assert done(posted(pages, path)) == place
    thaw = link(shown(pages, place), "Thaw…")
    assert f'href="{place}">Back</a>' in shown(pages, thaw)
    assert done(posted(pages, thaw)) == place
    assert done(posted(pages, "/freeze/scope?queue=default&next=//example.org/")) == "/"


def test_dialogs_of_a_narrower_freeze_name_the_wider_one(pages: ApiClient) -> None:
    pages.database.trigger("other")
    done(posted(pages, "/freeze/scope?queue=reports", reason="stock"))
    path = "queue=reports&label=team%3Dbilling"
    dialog = shown(pages, f"/freeze/scope?{path}", "A wider freeze covers all of it: frozen since")
    assert "A thaw of that freeze does not end this one." in dialog
    assert "A wider freeze" not in shown(pages, "/freeze/scope?key_prefix=oth")
    assert "A wider freeze" not in shown(pages, "/freeze/scope?scope=tenant")
    done(posted(pages, f"/freeze/scope?{path}"))
    thaw = shown(pages, f"/thaw?{path}", "1 open run, due now, will start only after a thaw of that one too.")
    assert "may start again" not in thaw
    done(posted(pages, "/thaw?queue=reports"))
    assert "1 open run, due now, may start again" in shown(pages, f"/thaw?{path}")


def test_operator_takes_a_pause_of_a_tenant_over_and_its_keys_do_not_end_it(pages: ApiClient) -> None:
    path = "/freeze/scope?scope=tenant"
    with signed_console(pages.database, "read", "operate", name="anna") as client:
        done(posted(client, path))
        assert '<button class="primary">' in shown(client, "/thaw?scope=tenant")
        assert "A key of the tenant began it. After your freeze" in shown(pages, path)
        done(posted(pages, path, reason="audit"))
        assert "Nothing would change." in shown(pages, path)
        dialog = shown(client, "/thaw?scope=tenant", "Only an operator, or a key of all tenants, can end it.")
        assert '<button class="primary">' not in dialog
        assert posted(client, "/thaw?scope=tenant").status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert pages.database.value("SELECT count(*) FROM freezes WHERE by_operator") == 1


def test_key_of_a_tenant_freezes_no_fleet(database: Database) -> None:
    with signed_console(database, "read", "operate") as client:
        assert "All tenants" not in client.get("/freeze").text
        assert client.get("/freeze/scope?scope=fleet").status_code == HTTPStatus.FORBIDDEN
        fields = fields_of(client.get("/freeze/scope?scope=tenant"))
        assert client.post("/freeze/scope?scope=fleet", data=fields).status_code == HTTPStatus.FORBIDDEN
    assert database.value("SELECT count(*) FROM freezes") == 0


def test_key_that_may_only_read_sees_pages_without_actions(database: Database) -> None:
    database.submit()
    fail(database)
    database.trigger()
    database.client.freezes.freeze(queue="default", reason="inventory", by="anna")
    cancelled = database.client.runs.cancel_matching(key="job").cancellation_id or 0
    with signed_console(database, "read") as client:
        letter = database.value("SELECT id FROM dead_letters")
        places = (
            "/dead-letters",
            f"/dead-letters/{letter}",
            "/bulk",
            f"/bulk/cancellation/{cancelled}",
            "/runs",
            "/freeze",
        )
        for path in places:
            text = client.get(path).text
            assert "by <bdi>anna</bdi>: <bdi>inventory</bdi>" in text, path
            assert "…</a>" not in re.sub(r'class="mono[^>]*>[^<]*</a>', "", text), path
            assert 'type="checkbox"' not in text
        fields = fields_of(client.get("/runs"))
        for path in (
            "/dead-letters/redrive?id=1",
            "/dead-letters/purge",
            "/runs/cancel-all?job=job",
            "/thaw?queue=default",
        ):
            assert client.get(path).status_code == HTTPStatus.FORBIDDEN
            assert client.post(path, data=fields).status_code == HTTPStatus.FORBIDDEN


def test_backfill_shows_its_progress_and_is_paused_and_cancelled(pages: ApiClient) -> None:
    pages.database.submit("daily", schedule={"cron": "0 2 * * *", "timezone": "UTC"})
    now = pages.database.now()
    made = pages.database.client.backfill("daily", now - timedelta(days=9), now, versions="current").backfill_id
    assert "1 in progress<" in shown(pages, "/bulk")
    place = f"/bulk/backfill/{made}"
    text = shown(pages, place, "None yet.", 'href="/jobs/daily"')
    assert "Each run gets version 1, in force when the backfill was accepted." in text
    pages.database.execute("UPDATE backfills SET versions = 'as_of'")
    assert "Each run gets the version in force at its scheduled time." in shown(pages, place)
    done(posted(pages, link(text, "Pause…"), reason="quiet hours"))
    assert "quiet hours" in shown(pages, place)
    done(posted(pages, link(shown(pages, place), "Cancel…")))
    shown(pages, place, "cancelled", without="Pause…")
    for verb in ("pause", "resume", "cancel"):
        assert "Nothing would change. Its state is cancelled." in shown(pages, f"{place}/{verb}")


def test_times_of_a_list_narrow_no_cancellation_of_all_and_both_say_so(pages: ApiClient) -> None:
    triggered(pages.database, "job", 3)
    day, since = "/runs?job=job&last=24h&status=queued", "since=2026-01-01T00:00:00Z"
    path = link(shown(pages, day), "Cancel all unstarted runs of this job, of any time…")
    dialog = re.sub(r"</?bdi>", "", shown(pages, path))
    assert_has(dialog, "Cancel 3 runs of job?", "The filter by time does not apply")
    done(posted(pages, path, counted="3"))
    work_off_cancellations(pages.database)
    assert "Nothing would change" in shown(pages, path)
    assert "/runs/cancel-all" not in shown(pages, f"/runs?{since}"), "a cancellation needs another filter"
    triggered(pages.database, "other", 3)
    shown(pages, f"/runs?limit=2&{since}", "To cancel all that match, filter by job, queue")
    assert "To cancel the others too, use" in shown(pages, f"/runs?job=other&limit=2&{since}")


def test_job_leads_to_the_cancellation_of_its_waiting_runs(pages: ApiClient) -> None:
    triggered(pages.database, "job", 3)
    path = link(shown(pages, "/jobs/job"), "Cancel waiting runs…")
    assert "Cancel 3 runs of job?" in re.sub(r"</?bdi>", "", shown(pages, path))


def test_unknown_bulk_work_and_empty_lists_say_so(pages: ApiClient) -> None:
    assert "Nothing in bulk." in shown(pages, "/bulk")
    assert "No dead letter. A run that fails" in shown(pages, "/dead-letters")
    unknown = ("bulk/backfill/x", "bulk/cancellation/7", "bulk/redrive/7", "bulk/nothing/7", "dead-letters/x")
    for path in (*unknown, "dead-letters/7", "dead-letters/99999999999999999999"):
        assert pages.get(f"/{path}").status_code == HTTPStatus.NOT_FOUND, path
    assert pages.get("/dead-letters?status=none").status_code == HTTPStatus.UNPROCESSABLE_ENTITY


def test_cancel_of_a_tab_keeps_its_filter_and_says_what_a_state_is_not(pages: ApiClient) -> None:
    database = pages.database
    database.begun("other")
    finish(database, "job", RunState.SUCCEEDED)
    triggered(database, "job", 2)
    path = link(shown(pages, "/runs?status=queued&job=job"), "Cancel all unstarted runs of this job…")
    dialog = re.sub(r"</?bdi>", "", shown(pages, path))
    assert_has(dialog, "Cancel 2 runs of job?", "Started runs continue.")
    assert 'href="/runs?status=queued&amp;job=job">Back' in dialog
    assert "/runs/cancel-all" not in shown(pages, "/runs?status=succeeded&job=job")
    assert "/runs/cancel-all" not in shown(pages, "/runs?status=running"), "a cancellation needs another filter"
    assert "Cancel all open runs that match…" in shown(pages, "/runs?job=job&lane=standard")
    assert 'name="next" value="/runs?status=queued&amp;job=job"' in shown(pages, "/runs?status=queued&job=job")
    for action in ("cancel", "retry"):
        text = shown(pages, f"/runs/{action}?next=%2Fruns%3Fstatus%3Dqueued%26job%3Djob", "No run is selected")
        assert '<a class="button" href="/runs?status=queued&amp;job=job">Back</a></p>' in text
    run = database.value("SELECT min(run_id::text) FROM job_runs")
    assert 'href="/runs?job=job">Back' in shown(pages, f"/runs/cancel?run={run}&next=%2Fruns%3Fjob%3Djob")


def test_wrong_address_of_a_freeze_lists_each_error_in_plain_words(pages: ApiClient) -> None:
    for path in ("/freeze/scope", "/freeze/scope?queue="):
        assert pages.get(path).status_code == HTTPStatus.UNPROCESSABLE_ENTITY, path
    wrong = pages.get("/freeze/scope?prefix=nightly&queue=").text
    assert_has(wrong, "2 errors:", without="U+000A")
    for path in ("/freeze/scope?key_prefix=a%0Ab", "/freeze/scope?label=a%0A=b"):
        refused = pages.get(path)
        assert refused.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
        assert "Has a line break</bdi>. <bdi>Write one line" in refused.text, refused.text
    assert "ids are UUIDs" not in pages.get("/thaw/scope").text
    assert 'href="/dead-letters">Dead letters</a>' in pages.get("/dead-letters/7").text.split("<main")[1]
