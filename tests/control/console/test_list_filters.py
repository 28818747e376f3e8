"""Filters of lists: what does not fit is named with its field and its remedy, above an empty list."""

import html
import re
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from tests.control.api.answering import ApiClient
from tests.control.console.pages import every_row, found_on, posted, shown
from tests.control.explain.explaining import t
from tests.fixtures.acts import ending
from tests.fixtures.database import ClockedDatabase
from tidewheel.ids import job_id
from tidewheel.nouns.runs import reads
from tidewheel.runs import RunState

_BAND = re.compile(r'<p class="band trouble" role="alert">.*?</p>')
_REFUSED: Mapping[str, tuple[str, ...]] = {
    "job": ("/runs?job=none", "/dead-letters?job=none", "/workflows?job=none"),
    "label": ("/runs?label=team%3Da", "/runs?label=team"),
    "since": ("/runs?since=soon", "/runs?since=2026-03-29T02:30&tz=Europe/Berlin", "/admin/audit?since=soon"),
    "until": ("/runs?since=today&until=yesterday", "/dead-letters?until=never"),
    "last": ("/runs?last=1y",),
    "ordering_key": ("/runs?status=failed&ordering_key=a",),
    "lane": ("/jobs?lane=slow",),
    "show": ("/dead-letters?show=some",),
    "door": ("/admin/audit?door=back",),
    "cursor": tuple(
        f"{path}?cursor=MQ"
        for path in ("/runs", "/jobs", "/dead-letters", "/admin/audit", "/admin/keys", "/admin/tenants")
    ),
}
"""Addresses by the field that does not fit."""


def test_refused_filter_is_named_once_with_its_remedy_and_one_by_labels_has_a_link(pages: ApiClient) -> None:
    pages.database.submit("nightly", labels={"team": "a"})
    pages.database.trigger("nightly")
    for field, path in ((field, path) for field, paths in _REFUSED.items() for path in paths):
        answer = pages.get(path)
        assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY, path
        [band] = _BAND.findall(answer.text)
        assert re.fullmatch(rf"{field}: .+\. .+\.", html.unescape(re.sub(r"<[^>]+>", "", band))), (path, band)
        for wrong in ("could not be read", "<tbody", "fits the filters"):
            assert wrong not in answer.text, path
    refused = pages.get("/runs?label=team%3Da&status=queued")
    assert refused.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    found = found_on(refused.text, r'href="([^"]+)">Runs of the last 24 h that match</a>')
    assert "1 run matches." in pages.get(found).text
    assert "of the last 24 h" not in pages.get("/runs?label=team").text
    assert 'name="until" value="never"' in pages.get("/dead-letters?until=never").text, "it is there to be corrected"


@pytest.mark.parametrize("of_job", ["", "&job=job"])
def test_backlog_leaves_out_the_runs_that_are_being_cancelled(pages: ApiClient, of_job: str) -> None:
    pages.database.submit("job", labels={"team": "a"})
    for _ in range(3):
        pages.database.trigger("job")
    pages.database.client.runs.cancel_matching(key="job")
    left = pages.database.trigger("job")
    found = every_row(pages, f"/runs?group=due&limit=2{of_job}", r'<tr data-key="([^"]+)"')
    assert found == [str(left)]


@pytest.mark.parametrize("of_job", ["", "&job=job"])
def test_runs_of_a_range_are_those_of_its_days_in_the_zone_of_the_page(
    clocked: ClockedDatabase, pages: ApiClient, of_job: str
) -> None:
    clocked.stop_clock(t("03-01T08:00"))
    clocked.submit("job")
    run_ids: dict[str, str] = {}
    for at in ("03-01T12:00", "03-01T23:30", "03-02T00:30", "03-02T12:00"):
        clocked.stop_clock(t(at))
        run_ids[str(clocked.trigger("job"))] = at
    clocked.stop_clock(t("03-02T12:30"))
    for given, expected in {
        "since=yesterday&until=yesterday": ["03-01T12:00", "03-01T23:30"],
        "since=yesterday&until=yesterday&tz=Europe/Berlin": ["03-01T12:00"],
        "since=1h": ["03-02T12:00"],
        "since=2026-03-01T23:30&until=2+Mar": ["03-01T23:30", "03-02T00:30", "03-02T12:00"],
        "until=00:30&last=24h": ["03-01T23:30", "03-02T00:30"],
        "since=2+Mar&last=30d": ["03-02T00:30", "03-02T12:00"],
    }.items():
        found = every_row(pages, f"/runs?{given}{of_job}&limit=1", r'<tr data-key="([^"]+)"')
        assert sorted(run_ids[each] for each in found) == expected, given
    page = shown(pages, f"/runs?since=yesterday&until=2+Mar{of_job}")
    assert ('name="since" value="yesterday"' in page, 'name="until" value="2 Mar"' in page) == (True, True)


def counts(client: ApiClient, path: str) -> dict[str, str]:
    """Return the states that a list of runs offers, each with its number of runs."""
    [tabs] = re.findall(r'<ul class="tabs" aria-label="States">.*?</ul>', shown(client, path), re.DOTALL)
    found: list[tuple[str, str]] = re.findall(r"<a [^>]*>([^<]+?)(?: <span[^>]*>([^<]*)</span>)?</a>", tabs)
    return {state: number for state, number in found if state != "Slowest"}


def test_each_state_with_runs_has_their_number_under_the_other_filters(
    pages: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages.database.submit("a", retry={"max_attempts": 1})
    pages.database.submit("b", queue="reports")
    for _ in range(3):
        pages.database.end(ending(pages.database.begun("a"), RunState.FAILED, error_type="E"))
    for _ in range(2):
        pages.database.succeed(pages.database.begun("b"))
    pages.database.begun("b")
    pages.database.trigger("b")
    every = {"All": "7", "Waiting": "1", "Running": "1", "Succeeded": "2", "Failed": "3"}
    assert counts(pages, "/runs") == every
    assert counts(pages, "/runs?status=failed") == every | {"All": ""}
    for path in ("/runs?job=b", "/runs?queue=reports"):
        assert counts(pages, path) == {"All": "4", "Waiting": "1", "Running": "1", "Succeeded": "2"}
    assert counts(pages, "/runs?job=a&status=running&last=1h") == {"All": "", "Running": "0", "Failed": "3"}
    assert counts(pages, "/runs?ended_since=2026-01-01T00:00:00Z") == {"All": "5", "Succeeded": "2", "Failed": "3"}
    narrowed = shown(pages, "/runs?queue=reports&last=7d&status=failed")
    assert 'href="/runs?status=succeeded&amp;queue=reports&amp;last=7d"' in narrowed
    monkeypatch.setattr(reads, "_LOOKED_AT_FOR_STATES", 2)
    assert counts(pages, "/runs") == {
        "All": "7", "Scheduled": "", "Waiting": "", "Buffered": "", "Running": "", "Awaiting completion": "",
        "Retrying": "", "Cancelling": "", "Succeeded": "", "Failed": "", "Timed out": "", "Cancelled": "",
        "Skipped": "",
    }, "a lower bound beside the total would contradict it"  # fmt: skip


_HEAD = re.compile(r'<th aria-sort="(ascending|descending)"[^>]*><a href="([^"]+)">([^<]+)</a></th>')


def turned(client: ApiClient, path: str, column: str, orders: tuple[str, str]) -> list[str]:
    """Turn a list by the only link in its heads; return the keys of the rows of all its pages."""
    [(order, there, name)] = _HEAD.findall(shown(client, path))
    address = html.unescape(there)
    [(turned_order, back, _)] = _HEAD.findall(shown(client, address))
    assert (name, order, turned_order) == (column.capitalize(), *orders)
    kept, given = (sorted(parse_qsl(urlsplit(each).query)) for each in (html.unescape(back), path))
    assert kept == given
    boxes = every_row(client, f"{address}&limit=2", r'"checkbox" name="(?:run|job)" value="([^"]+)"')
    return [each for box in boxes for each in box.split()]


def test_list_of_runs_is_turned_by_the_column_that_an_index_serves(clocked: ClockedDatabase, pages: ApiClient) -> None:
    clocked.stop_clock(t("03-01T08:00"))
    for key in ("a", "b"):
        clocked.submit(key, labels={"team": "x"}, retry={"max_attempts": 1})
    made: list[tuple[str, str]] = []  # the earliest first: its id, and its job with its state
    for hour in range(9, 14):
        clocked.stop_clock(t(f"03-01T{hour:02}:00"))
        failed = clocked.begun("a")
        clocked.end(ending(failed, RunState.FAILED, error_type="E"))
        made.append((str(failed.run_id), "a failed"))
        clocked.stop_clock(t(f"03-01T{hour:02}:30"))
        made.append((str(clocked.trigger("b")), "b queued"))
    for hour in (20, 21):
        run_id = clocked.trigger("a", run_at=t(f"03-01T{hour}:00").isoformat())
        made.append((str(run_id), "a scheduled"))
    for query, expected in {
        "": made,
        "?status=failed": [each for each in made if each[1] == "a failed"],
        "?status=queued": [each for each in made if each[1] == "b queued"],
        "?status=scheduled": [each for each in made if each[1] == "a scheduled"],
        "?job=a": [each for each in made if each[1] in {"a failed", "a scheduled"}],
        "?status=queued&job=b": [each for each in made if each[1] == "b queued"],
        "?label=team%3Dx&since=2026-03-01T11%3A00%3A00Z": made[4:],
    }.items():
        found = turned(pages, f"/runs{query}", "scheduled", ("descending", "ascending"))
        assert found == [run_id for run_id, _ in expected], query


def test_list_of_jobs_is_turned_by_their_keys(pages: ApiClient) -> None:
    keys = ["Z", "a", "a-1", "a-2", "a-3", "b", "\u00fc"]
    for key in keys:
        pages.database.submit(key)
    for query, expected in {"": keys, "&prefix=a-&window=24h": keys[2:5], "&status=active&prefix=a": keys[1:5]}.items():
        found = turned(pages, f"/jobs?sort=key{query}", "job", ("ascending", "descending"))
        assert found == [str(job_id("default", key)) for key in reversed(expected)], query


def test_equal_neighbours_are_one_row_with_one_box_until_it_is_opened(pages: ApiClient) -> None:
    pages.database.submit(overlap="allow_all")
    runs = {str(pages.database.trigger("job")) for _ in range(6)}
    [fold] = every_row(pages, "/runs?limit=3", r'name="run" value="([^"]+)"')
    assert set(fold.split()) == runs, "a folded page reads on"
    [opened] = re.findall(r'href="([^"]+)">show 6</a>', shown(pages, "/runs?limit=3"))
    found = re.findall(r'name="run" value="([^"]+)"', shown(pages, html.unescape(opened)))
    assert found == fold.split(), "of the same page of the list"
    posted(pages, f"/runs/cancel?{urlencode({'run': ' '.join(fold.split()[:3])})}")
    assert counts(pages, "/runs") == {"All": "6", "Waiting": "3", "Cancelled": "3"}
