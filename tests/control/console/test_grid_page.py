"""The grid of jobs as a page: order, window, samples of busy jobs, cells by pointer and by keys."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape

import pytest
from playwright.sync_api import Browser, expect

from tests.control.api.answering import ApiClient
from tests.control.client.test_dead_letters import fail
from tests.control.console.browser import needs_chromium, tab
from tests.control.console.pages import assert_has, assert_refused, shown
from tests.fixtures.acts import about
from tests.fixtures.database import ClockedDatabase
from tidewheel.control.console.axis import GRID, Window, axis
from tidewheel.ids import job_id
from tidewheel.nouns.runs import reads

NOW = datetime(2026, 11, 21, 12, 0, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def pages(pages: ApiClient, clocked: ClockedDatabase) -> ApiClient:
    clocked.stop_clock(NOW)
    return pages


def test_grid_has_the_worst_jobs_first_and_links_keep_its_window(pages: ApiClient, clocked: ClockedDatabase) -> None:
    clocked.submit("a-well")
    clocked.submit("b-failing", retry={"max_attempts": 1})
    clocked.submit("c-failing-more", retry={"max_attempts": 1})
    clocked.succeed(clocked.begun("a-well"))
    for key in ("b-failing", "c-failing-more", "c-failing-more"):
        fail(clocked, key)
    page = shown(pages, "/jobs?view=grid&window=6h")
    places = [page.index(f'data-job="{key}"') for key in ("c-failing-more", "b-failing", "a-well")]
    assert places == sorted(places)
    assert_has(page, 'href="/jobs?status=paused&amp;view=grid&amp;window=6h"', 'data-cells="-*60 b2 -*12"')
    assert 'href="/api/v1/jobs"' in page, "a view is no filter of REST"
    assert_refused(pages.get("/jobs?view=grid&window=5m"), "window")


def test_overview_has_the_jobs_with_runs_those_that_fail_first(pages: ApiClient, clocked: ClockedDatabase) -> None:
    assert "data-job=" not in shown(pages, "/")
    keys = [f"job-{number:02}" for number in range(20)]
    for key in keys:
        clocked.submit(key, retry={"max_attempts": 1})
    for key in ("job-18", "job-19", "job-19"):
        fail(clocked, key)
    page = shown(pages, "/?window=6h")
    assert re.findall(r'<tr data-key="[^"]+" data-job="([^"]+)"', page) == ["job-19", "job-18"]
    assert_has(page, "18 jobs without a run in the last 6 hours", 'data-cells="-*60 b2 -*12"')
    assert 'href="/jobs?view=grid&amp;window=6h"' in page


def test_jobs_that_never_ran_are_one_line_and_leave_room_to_others(pages: ApiClient, clocked: ClockedDatabase) -> None:
    for number in range(9):
        clocked.submit(f"idle-{number}", labels={"team": "a"})
    for key in ("ran-1", "ran-2"):
        clocked.submit(key)
        clocked.succeed(clocked.begun(key))
    page = shown(pages, "/jobs?limit=9&sort=-key")
    assert re.findall(r'data-job="([^"]+)"', page) == ["ran-2", "ran-1"]
    assert "9 more never ran" in page
    [opened] = re.findall(r'href="([^"]+)">show</a>', page)
    assert shown(pages, unescape(opened)).count('data-job="') == 11
    assert shown(pages, "/jobs?prefix=idle").count("data-job=") == 9, "a page of such jobs alone has their rows"


def test_bins_ahead_are_due_unless_the_timer_skips_them_or_rests(pages: ApiClient, clocked: ClockedDatabase) -> None:
    cron = {"cron": "*/4 * * * *"}
    clocked.apply_batch({"type": "calendar.put", "name": "closed", "days": ["2026-11-22"]})
    for key, more in (("plain", {}), ("calendar", {"exclude_calendars": ["closed"]}), ("paused", {})):
        clocked.submit(key, schedule=cron, **more)
    clocked.apply_batch(about("job.pause", "paused"))
    page = shown(pages, "/jobs?view=grid")
    row = {key: page.partition(f'data-job="{key}"')[2].partition("data-cells=")[2].partition(">")[0] for key in
           ("plain", "calendar", "paused")}  # fmt: skip
    assert row["plain"] == '"-*64 d1 -*3 d1 -*3 d1"'
    assert row["calendar"] == '"-*64 d1 -*8"'
    assert row["paused"] == '"-*73"'


def test_busy_job_is_a_sample_of_each_bin_and_others_are_whole(
    pages: ApiClient, clocked: ClockedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocked.stop_clock(NOW - HOUR)
    clocked.submit("busy", overlap="allow_all")
    clocked.submit("calm", overlap="allow_all")
    delays = [*range(1, 3001, 30), *range(600, 610)]
    clocked.apply_batch(*({"type": "job.trigger", "key": "busy", "delay": f"{each}s"} for each in delays))
    clocked.apply_batch(*({"type": "job.trigger", "key": "calm", "delay": f"{each}s"} for each in range(1, 61)))
    clocked.stop_clock(NOW)
    clocked.succeed(clocked.begun("calm"))
    along = axis(Window.HOUR, NOW, windows=GRID)
    ids = {key: job_id("default", key) for key in ("busy", "calm")}

    def counted() -> dict[str, tuple[list[int], bool]]:
        found = clocked.within(reads.count_runs_of_jobs, list(ids.values()), along.edges[: along.behind + 1])
        return {key: ([sum(each.values()) for each in found[ids[key]].bins], found[ids[key]].is_sample) for key in ids}

    by_bin = [0] * along.behind
    for each in delays:
        place = along.bin_of(NOW - HOUR + timedelta(seconds=each))
        if place is not None:
            by_bin[place] += 1
    whole = counted()
    assert whole["busy"] == (by_bin, False)
    assert whole["calm"][0][-1] == 1
    monkeypatch.setattr(reads, "_BINNED", 0)
    sample = counted()
    assert sample["busy"] == ([min(each, 3) for each in by_bin], True)
    assert sample["calm"] == whole["calm"]
    assert "Showing a sample of the runs of <bdi>busy</bdi>." in shown(pages, "/jobs?view=grid")


@pytest.mark.slow
@needs_chromium
def test_keys_and_pointer_name_the_runs_of_a_cell_and_open_them(
    pages: ApiClient, clocked: ClockedDatabase, browser: Browser
) -> None:
    clocked.submit("a/charge", retry={"max_attempts": 1})
    clocked.submit("well")
    for _ in range(3):
        fail(clocked, "a/charge")
    with tab(browser, str(pages.base_url)) as here:
        here.open("/jobs?view=grid")
        words, strip = here.page.locator(".cell-words"), here.page.locator("svg.strip").first
        box = strip.bounding_box()
        assert box is not None
        here.page.mouse.move(box["x"] + box["width"] * 60.5 / 73, box["y"] + 8)
        expect(words).to_have_text("12:00 · 3 failed")
        strip.focus()
        here.page.keyboard.press("ArrowLeft")
        expect(words).to_have_text("11:59 · no run")
        here.page.keyboard.press("ArrowDown")
        here.page.keyboard.press("ArrowRight")
        expect(words).to_have_text("12:00 · no run")
        here.page.keyboard.press("ArrowUp")
        here.page.keyboard.press("Enter")
        here.page.wait_for_url("**/runs?job=a%2Fcharge&since=2026-11-21T12%3A00*")
        expect(here.page.locator("tbody tr")).to_contain_text("3 runs")
        assert not here.faults
