"""The page of a run: waterfall, log that follows, JSON, many attempts, chain, actions."""

import html
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from http import HTTPStatus
from uuid import UUID

import pytest

from tests.control.api.answering import ApiClient, answering
from tests.control.client.test_logs import flush
from tests.control.console.pages import HTML, assert_has, assert_refused, fields_of, found_on, posted, shown
from tests.control.reads.test_waits import executor
from tests.executor.test_context import wired
from tests.fixtures.acts import EXECUTOR, HANDLER, ending
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tidewheel.clock import SystemClock
from tidewheel.control.client.client import Client
from tidewheel.control.console.payloads import json_view
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.transitions.attempts import ProgressReport, save_progress
from tidewheel.transitions.claim import Started

_PAGE_BYTES = 300_000


def more_of(page: str) -> str:
    """Return the address of the lines that follow."""
    return found_on(page, r'data-more="([^"]+)"')


def test_log_follows_while_the_attempt_writes_and_ends_with_it(pages: ApiClient) -> None:
    pages.database.submit()
    started = pages.database.begun()
    flush(pages.database, started, b"first\n\x1b[31mred\x1b[0m <b>\npart")
    page = shown(pages, f"/runs/{started.run_id}")
    assert '<div class="line" id="a1-L1"><a href="#a1-L1">1</a><span>first</span></div>' in page
    assert_has(page, '<span class="ansi-red">red</span> &lt;b&gt;', '<div class="line open" id="a1-L3">', "log.js")
    more = more_of(page)
    assert "line=3" in more
    flush(pages.database, started, b"first\n\x1b[31mred\x1b[0m <b>\npart and whole\nnext\n")
    part = shown(pages, more, without="<html")
    assert re.findall(r'id="a1-L(\d+)"', part) == ["3", "4"]
    assert "part and whole" in part
    nothing = shown(pages, more_of(part), without="a1-L")
    pages.database.end(ending(started, RunState.SUCCEEDED))
    assert "data-more" not in shown(pages, more_of(nothing))
    assert "data-more" not in shown(pages, f"/runs/{started.run_id}")


def test_run_that_was_late_by_its_creation_has_the_possible_reasons(clocked: ClockedDatabase) -> None:
    clocked.submit("hourly", schedule={"interval": "1h"}, catch_up="fire_once")
    clocked.advance(timedelta(hours=1, minutes=10))
    fire_due(clocked)
    with answering(clocked) as client:
        client.headers.update(HTML)
        [missed] = [shown(client, f"/runs/{run.run_id}") for run in clocked.job_runs()]
        assert "<span>cause <b>timer</b>, caught up</span>" in missed
        assert re.search(r"This run was created [\w .]+ after its time: the occurrence was missed", missed)
        assert "caught up" not in shown(client, f"/runs/{clocked.trigger('hourly')}").lower()


def test_raw_log_is_a_file_of_the_bytes_that_were_written(pages: ApiClient) -> None:
    pages.database.submit()
    started = pages.database.begun()
    flush(pages.database, started, b"<script>\xff\x1b[31m\n")
    answer = pages.get(f"/runs/{started.run_id}/log?attempt=1")
    assert answer.content == b"<script>\xff\x1b[31m\n"
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"
    for path in (
        f"/runs/{started.run_id}/log?attempt=7",
        f"/runs/{started.run_id}/log",
        f"/runs/{UUID(int=1)}/log?attempt=1",
    ):
        assert pages.get(path).status_code in {HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.NOT_FOUND}, path


def test_log_of_long_lines_is_folded_and_says_what_is_no_longer_kept(pages: ApiClient) -> None:
    pages.database.submit()
    started = pages.database.begun()
    output = b"\n".join(b'<"&' * 3_333 for _ in range(7))[-65_536:]
    flush(pages.database, started, output, len(output) + 12_288)
    page = shown(pages, f"/runs/{started.run_id}", "12 KiB before this are no longer kept.", "+ 7,999 characters")
    assert len(page.encode()) < _PAGE_BYTES * 2  # every character of this log is written as an entity
    plain = b"\n".join(b"x" * 10_000 for _ in range(7))[-65_536:]
    flush(pages.database, started, plain, len(plain))
    assert len(shown(pages, f"/runs/{started.run_id}").encode()) < _PAGE_BYTES


@pytest.mark.landing
def test_page_with_a_hundred_attempts_folds_the_older_and_stays_small(pages: ApiClient) -> None:
    pages.database.submit(retry={"max_attempts": 200})
    run = pages.database.trigger()
    for _ in range(100):
        started = pages.database.begin(run)
        flush(pages.database, started, b"x" * 65_536)
        pages.database.requeue(started, AttemptOutcome.FAILED)
    page = shown(pages, f"/runs/{run}", "95 earlier attempts</summary>")
    assert page.count("ValueError") >= 100
    assert len(page.encode()) < _PAGE_BYTES
    assert 'Log <span class="caption">attempt 100<' in page
    assert 'Log <span class="caption">attempt 7<' in shown(pages, f"/runs/{run}?attempt=7")


def test_waterfall_is_true_to_its_axis_and_marks_the_slowest_stage(pages: ApiClient) -> None:
    pages.database.submit(retry={"max_attempts": 3})
    run = pages.database.trigger()
    pages.database.requeue(pages.database.begin(run), AttemptOutcome.FAILED)
    pages.database.execute(
        "UPDATE attempts SET started_at = started_at - interval '1 hour', finished_at = finished_at - interval '1 hour'"
    )
    pages.database.execute(
        "UPDATE job_runs SET created_at = created_at - interval '1 hour',"
        " scheduled_at = scheduled_at - interval '1 hour'"
    )
    page = shown(pages, f"/runs/{run}")
    [marked] = re.findall(r'<tr class="bar slowest">.*?</tr>', page, re.DOTALL)
    assert '<td class="nowrap">back-off</td>' in marked
    assert float(re.findall(r'width="([\d.]+)%" height', marked)[0]) > 99
    assert "to also record: sent to Kafka, handler&#39;s start" in page
    pages.database.execute("UPDATE job_runs SET publish_at = publish_at - interval '20 min'")
    page = shown(pages, f"/runs/{run}")
    [marked] = re.findall(r'<tr class="bar slowest">.*?</tr>', page, re.DOTALL)
    assert '<td class="nowrap">back-off</td>' in marked
    assert "40 min" in marked
    assert re.search(r">wait</td>.*?>20 min( \d+ s)? so far<", page, re.DOTALL), "its time has come"


def rows_of(page: str) -> list[tuple[str, str, str]]:
    """Return the shape, the name and the words of each stage of the waterfall."""
    table = page.partition('<table class="timing">')[2].partition("</table>")[0]
    rows = re.findall(
        r'<tr class="(\w+)[^"]*"><td class="nowrap">(.*?)</td>.*?<td class="number words">(.*?)</td>', table, re.DOTALL
    )
    plain = [[html.unescape(re.sub("<[^>]+>", "", str(each))) for each in row] for row in rows]
    return [(shape, name, words) for shape, name, words in plain]


def in_thread(act: Callable[[], None]) -> None:
    """Act on a thread of its own: a browser that runs has a loop on this one, which steps must not block."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(act).result()


def test_steps_and_log_lines_are_at_their_times_in_their_attempts(pages: ApiClient) -> None:
    pages.database.submit(retry={"max_attempts": 3})
    first = pages.database.begun()

    def act(started: Started, checkpoint: bytes | None, name: str, *, fails: bool) -> bytes:
        context, wire = wired(attempt=started.attempt, _checkpoint=checkpoint)

        def steps() -> None:
            with suppress(ZeroDivisionError):
                context.step("<b>charge", dict)
                context.step(name, lambda: 1 // (not fails))

        in_thread(steps)
        saved = [each for _, each in wire.told if each is not None][-1]
        with pages.database.transaction() as connection:
            save_progress(connection, [ProgressReport(started.run_id, started.attempt, EXECUTOR, checkpoint=saved)])
        return saved

    kept = act(first, None, "label", fails=True)
    pages.database.requeue(first, AttemptOutcome.FAILED)
    second = pages.database.begin(first.run_id)
    act(second, kept, "label", fails=False)
    now = SystemClock().now()
    lines = [f"{now:%Y-%m-%dT%H:%M:%S.%f}Z INFO a: <i>one", f"{now:%Y-%m-%d %H:%M:%S},{now:%f} ERROR a: two", "printed"]
    lines += ["2001-13-41T10:00:00Z no time", "2001-01-01T10:00:00Z INFO a: of another day"]
    flush(pages.database, second, "\n".join(lines).encode())
    page = shown(pages, f"/runs/{first.run_id}")
    found = rows_of(page)
    kinds = [(shape, name, words.partition(", ")[2] if shape == "step" else "") for shape, name, words in found]
    inside = [each for each in kinds if each[0] in {"step", "marks"} or each[1].startswith("attempt")]
    assert [each[:2] for each in inside if each[0] != "step"][-1] == ("marks", "log")
    assert [each[1:] for each in inside if each[0] == "step"] == [
        ("<b>charge", ""), ("label", "ZeroDivisionError"), ("label", ""),
    ]  # fmt: skip
    assert [name for _, name, _ in inside].index("attempt 2") == 3
    [mark] = re.findall(r'<a class="(\w+)" href="#(a2-L\d)" aria-label="([^"]*)"', page)
    assert mark == ("bad", "a2-L2", "ERROR a: two and 1 more line")
    assert f'id="{mark[1]}"' in page
    assert page.count("tidewheel.steps") == 1, "in the raw checkpoint"
    assert "by the executor's clock" in page


def test_long_wait_beside_steps_is_drawn_shorter_and_many_steps_are_one_row(pages: ApiClient) -> None:
    pages.database.submit(retry={"max_attempts": 3})
    first = pages.database.begun()
    context, wire = wired()

    def steps() -> None:
        for number in range(30):
            context.step(f"page-{number}", dict)

    in_thread(steps)
    with pages.database.transaction() as connection:
        report = ProgressReport(first.run_id, 1, EXECUTOR, checkpoint=wire.told[-2][1])
        save_progress(connection, [report])
    pages.database.requeue(first, AttemptOutcome.FAILED)
    pages.database.execute(
        "UPDATE job_runs SET scheduled_at = scheduled_at - interval '1 h', created_at = created_at - interval '1 h'"
    )
    page = shown(pages, f"/runs/{first.run_id}")
    found = rows_of(page)
    assert ("cut", "wait") in [row[:2] for row in found]
    assert next(row[1:] for row in found if row[0] == "step") == ("18 earlier steps", "18 saved")
    assert len([row for row in found if row[0] == "step"]) == 13
    [cut] = re.findall(r'<tr class="cut[^"]*">.*?</tr>', page, re.DOTALL)[:1]
    assert re.search(r'width="6.0%" height', cut)
    assert "Dashed: a wait, drawn shorter" in page


def test_attempt_of_an_http_target_has_its_status_and_one_of_a_kafka_target_its_record(pages: ApiClient) -> None:
    results = {"http": b'{"status":204,"body":""}', "kafka": b'{"topic":"orders","partition":3,"offset":88}'}
    targets = {"http": {"type": "http", "url": "https://example.org/a"}, "kafka": {"type": "kafka", "topic": "orders"}}
    words = dict[str, str]()
    for kind, target in targets.items():
        pages.database.submit(kind, target=target)
        started = pages.database.begun(kind)
        pages.database.end(ending(started, RunState.SUCCEEDED, result=results[kind]))
        words[kind] = next(
            words for _, name, words in rows_of(shown(pages, f"/runs/{started.run_id}")) if name == "attempt 1"
        )
    assert words["http"].endswith("succeeded, 204")
    assert words["kafka"].endswith("succeeded, orders/3/88")


def test_retry_is_not_late_by_the_time_before_it_was_requested(pages: ApiClient) -> None:
    pages.database.submit(retry={"max_attempts": 1})
    first = pages.database.begun()
    pages.database.end(ending(first, RunState.FAILED))
    second = pages.database.client.runs.retry(first.run_id)
    pages.database.begin(second)
    assert ", the time of the run that it repeats" in shown(pages, f"/runs/{second}")
    earlier = pages.database.now() - timedelta(minutes=9)
    pages.database.execute("UPDATE job_runs SET scheduled_at = %s", [earlier])
    pages.database.execute("UPDATE finished_runs SET scheduled_at = %s", [earlier])
    late = re.findall(r'<td class="right number nowrap less">([^<]*)</td>', shown(pages, "/jobs/job"))
    assert sorted(late)[0] == ""
    assert re.match(r"[89] min", sorted(late)[1])


def test_run_that_waits_for_a_slot_names_the_slots_in_use(pages: ApiClient) -> None:
    pages.database.submit(overlap="allow_all")
    executor(pages.database, HANDLER, executor_id=EXECUTOR)
    pages.database.begin(pages.database.trigger())
    waiting = pages.database.trigger()
    page = shown(pages, f"/runs/{waiting}")
    assert_has(page, "<bdi>3 of 4 slots are free</bdi>.", '<a href="/fleet?find=default">Executors of this queue</a>')
    assert_has(page, f'read the log of <a href="/fleet?executor={EXECUTOR}">', without="tidewheel status")


def test_wait_under_a_freeze_that_is_over_names_it(pages: ApiClient) -> None:
    pages.database.submit("nightly", queue="reports")
    run_id = pages.database.trigger("nightly")
    with Client(pages.database.url) as client:
        client.freezes.freeze(queue="reports")
        client.freezes.freeze(queue="default")
        assert f'<a href="/freeze?next=%2Fruns%2F{run_id}">Freezes</a>' in shown(pages, f"/runs/{run_id}")
        client.freezes.thaw(queue="reports")
        client.freezes.thaw(queue="default")
    earlier = pages.database.now() - timedelta(hours=1)
    pages.database.execute("UPDATE job_runs SET created_at = %s, scheduled_at = %s", [earlier, earlier])
    pages.database.begin(run_id)
    assert "A freeze of <bdi>queue reports</bdi> held this run until the thaw by" in shown(pages, f"/runs/{run_id}")
    assert '1 h <span class="caption">frozen</span>' in shown(pages, "/jobs/nightly")
    other = pages.database.begun("nightly")
    assert "A freeze (" not in shown(pages, f"/runs/{other.run_id}")


def test_chain_of_retries_is_links_and_one_with_a_delay_is_scheduled(pages: ApiClient) -> None:
    pages.database.submit(retry={"max_attempts": 1})
    first = pages.database.begun()
    pages.database.end(ending(first, RunState.FAILED, error_type="E", error_message="<i>no", trace="a\nb"))
    page = shown(pages, f"/runs/{first.run_id}", without="Cancel…")
    answer = posted(pages, f"/runs/{first.run_id}/retry", reason="<script>x")
    assert answer.status_code == HTTPStatus.SEE_OTHER
    second = answer.headers["location"]
    after = shown(pages, second, f'<a href="/runs/{first.run_id}">1st failed</a> → <strong>2nd, this</strong>')
    assert_has(after, "is created.", f'action="{second}/cancel"')
    assert f'→ <a href="{second}">2nd' in shown(pages, f"/runs/{first.run_id}")
    assert '<details class="trace" open><summary>Trace, 2 lines' in page
    first = pages.database.begun()
    pages.database.end(ending(first, RunState.FAILED))
    second = posted(pages, f"/runs/{first.run_id}/retry", delay="1h").headers["location"]
    assert '<span class="word">scheduled</span>' in shown(pages, second)
    assert f'→ <a href="{second}">2nd scheduled</a>' in shown(pages, f"/runs/{first.run_id}")
    number = pages.database.value("SELECT id FROM dead_letters WHERE run_id = %s", [first.run_id])
    retried = shown(pages, f"/dead-letters/{number}").partition("<span>retried by ")[2]
    assert ">scheduled</span>" in retried.partition("</p>")[0]
    chain = pages.get(f"/api/v1/runs/{first.run_id}").json()["retry_chain"]
    assert [each["state"] for each in chain["next"]] == ["scheduled"]


def test_refused_delay_of_a_retry_is_at_its_field(pages: ApiClient) -> None:
    pages.database.submit()
    started = pages.database.begun()
    pages.database.end(ending(started, RunState.SUCCEEDED))
    answer = posted(pages, f"/runs/{started.run_id}/retry", delay="soon", reason="kept")
    assert_refused(answer, 'value="soon" aria-invalid="true"', 'value="kept"')
    assert "without a delay it starts now." in answer.text
    posted(pages, "/freeze/scope?scope=tenant")
    shown(pages, f"/runs/{started.run_id}/retry", "without a delay it starts after the thaw: a freeze covers the job.")


def test_next_attempt_of_a_retrying_run_starts_now_once(pages: ApiClient) -> None:
    pages.database.submit(retry={"max_attempts": 4})
    run = pages.database.begun()
    pages.database.requeue(run, AttemptOutcome.FAILED, timedelta(minutes=7))
    path = f"/runs/{run.run_id}"
    assert "Retry now…" in shown(pages, path)
    dialog = pages.get(f"{path}/retry")
    assert re.search(r"Attempt 2 of 4 is due now rather than in [67] min\.", dialog.text)
    assert "Start attempt 2 now" in dialog.text
    with Client(pages.database.url) as client:
        client.freezes.freeze(queue="default")
        assert "the attempt starts after the thaw" in shown(pages, f"{path}/retry")
        client.freezes.thaw(queue="default")
    fields = fields_of(dialog)
    answer = pages.post(f"{path}/retry", data=fields | {"reason": "the disk has room again"})
    assert answer.headers["location"] == path
    assert "Attempt 2 is due now." in shown(pages, path)
    shown(pages, f"{path}/retry", "Nothing would change: ", without="Start attempt")
    pages.database.succeed(pages.database.begin(run.run_id))
    late = pages.post(f"{path}/retry", data=fields | {"request_id": "of-another-tab"})
    assert late.headers["location"] == path
    assert "attempt 2 was due, has started, or the run has ended. Its state: succeeded." in shown(pages, path)
    assert pages.database.value("SELECT count(*) FROM runs") == 1
    [entry] = pages.database.client.audit_log.list().entries[:1]
    assert (entry.action, entry.object, entry.door) == ("run.retry", f"run/{run.run_id}", "console")


def test_cancel_names_what_is_under_way_and_is_done_once(pages: ApiClient) -> None:
    pages.database.submit()
    queued, started = pages.database.trigger(), pages.database.begun()
    assert "Attempt 1 is under way" in shown(pages, f"/runs/{started.run_id}/cancel")
    answer = posted(pages, f"/runs/{queued}/cancel", reason="no longer needed")
    assert answer.headers["location"] == f"/runs/{queued}"
    assert pages.database.final_state(queued) == ("cancelled", "no longer needed")
    assert "The run of job is cancelled." in shown(pages, f"/runs/{queued}")
    assert_refused(pages.get(f"/runs/{queued}/cancel"))
    assert pages.database.open_run(started.run_id).state == "running"


def test_payload_may_be_bytes(pages: ApiClient) -> None:
    pages.database.submit(payload_base64="/wD+")
    started = pages.database.begun()
    shown(pages, f"/runs/{started.run_id}", "ff 00 fe", "3 bytes")


def test_json_keeps_numbers_order_and_repeated_names_and_folds_what_is_deep() -> None:
    tree = str(json_view(b'{"b": 120.10, "a": 1e400, "b": [[["deep"]]], "n": null, "s": "<x>\xe2\x80\xae"}'))
    text = html.unescape(re.sub(r"<[^>]+>", "", tree))
    assert [text.index(each) for each in ('"b": 120.10', '"a": 1e400', "deep", "null")] == sorted(
        text.index(each) for each in ('"b": 120.10', '"a": 1e400', "deep", "null")
    )
    assert text.count('"b":') == 2
    assert "&lt;x&gt;" in tree
    assert "\u202e" not in tree
    assert tree.count("<details open>") == 2
    assert json_view(b"not json") is None
    assert json_view(b"[" * 100_000) is None
    assert json_view(b"[" + b"1," * 5_000 + b"1]") is None


def test_page_of_an_ended_run_has_the_latest_runs_of_its_job_with_their_errors(pages: ApiClient) -> None:
    database = pages.database
    database.submit("a", retry={"max_attempts": 1})
    first = database.begun("a")
    database.succeed(first)
    assert "Latest runs of this job" not in shown(pages, f"/runs/{first.run_id}")
    second = database.begun("a")
    database.end(ending(second, RunState.FAILED, error_type="KeyError", error_message="no price\nat all"))
    database.submit("b")
    other = database.trigger("b")
    latest = shown(pages, f"/runs/{first.run_id}").partition("Latest runs of this job")[2]
    newest, own = latest.split("<tr ")[1:]
    assert "failed" in newest
    assert "KeyError</bdi>: <bdi>no price</bdi>" in newest
    assert "succeeded" in own
    assert "this run" in own
    assert str(other) not in latest
