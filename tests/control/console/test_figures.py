"""Every figure of the overview is marked, is what the rows count, and contradicts no other one."""

import re
from collections.abc import Mapping
from datetime import timedelta
from html.parser import HTMLParser
from typing import LiteralString

from tests.control.api.answering import ApiClient
from tests.control.console.pages import HTML, shown
from tests.control.console.seeded import NOW, Ids

HOUR = NOW - timedelta(hours=1)
_ENDED: LiteralString = "SELECT count(*) FROM finished_runs WHERE tenant = 'default' AND finished_at >= %s"
_OPEN: LiteralString = "SELECT count(*) FROM job_runs WHERE tenant = 'default'"
_DUE: LiteralString = "(state IN ('queued', 'retrying') AND publish_at <= tidewheel_now() OR state = 'buffered')"
COUNTS: Mapping[str, LiteralString] = {
    "ended": _ENDED,
    "failed_of_all": f"{_ENDED} AND state IN ('failed', 'timed_out')",
    "ran": f"{_ENDED} AND state IN ('succeeded', 'failed', 'timed_out')",
    "drawn_succeeded": f"{_ENDED} AND state = 'succeeded'",
    "drawn_failed": f"{_ENDED} AND state IN ('failed', 'timed_out')",
    "drawn_skipped": f"{_ENDED} AND state = 'skipped'",
    "drawn_cancelled": f"{_ENDED} AND state = 'cancelled'",
    "bin_succeeded": f"{_ENDED} AND state = 'succeeded'",
    "bin_failed": f"{_ENDED} AND state = 'failed'",
    "bin_timed_out": f"{_ENDED} AND state = 'timed_out'",
    "bin_cancelled": f"{_ENDED} AND state = 'cancelled'",
    "bin_skipped": f"{_ENDED} AND state = 'skipped'",
    "running": f"{_OPEN} AND state IN ('running', 'cancelling')",
    "to_retry": f"{_OPEN} AND state = 'retrying'",
    "waiting_of_all": f"{_OPEN} AND {_DUE}",
    "on_silent": "SELECT count(*) FROM job_runs AS r JOIN executors AS e USING (executor_id) WHERE tenant = 'default'"
    " AND e.last_heartbeat_at <= tidewheel_now() - e.lease",
    "slots": "SELECT sum(slots) FROM executors WHERE last_heartbeat_at > tidewheel_now() - lease",
}
"""The figures that are sums of numbers on the page, or one number; the bins of a bar are summed."""
COMING: LiteralString = "SELECT count(*) FROM timers WHERE tenant = 'default' AND due_at >= %s AND due_at < %s"
FAILED: LiteralString = """
SELECT j.key, f.error_type, count(*)
  FROM failed_runs AS f
  JOIN jobs AS j USING (job_id)
 WHERE f.tenant = 'default' AND f.finished_at >= %s
 GROUP BY 1, 2
"""
_QUEUED: LiteralString = """
SELECT queue || ' ' || lane || ' ' || CASE state WHEN 'buffered' THEN state ELSE 'queued' END, count(*)
  FROM job_runs
 WHERE tenant = 'default'
"""
BACKLOG: LiteralString = f"{_QUEUED} AND {_DUE} GROUP BY 1"
FAILING_JOBS: LiteralString = """
SELECT f.job_id
  FROM failed_runs AS f
  LEFT JOIN (SELECT job_id, max(finished_at) AS at FROM finished_runs WHERE state = 'succeeded' GROUP BY 1) AS good
    USING (job_id)
 WHERE f.tenant = 'default'
 GROUP BY f.job_id
HAVING max(f.finished_at) >= %s OR count(*) FILTER (WHERE f.finished_at > coalesce(good.at, '-infinity')) >= 3
"""
FAILED_IN_A_ROW: LiteralString = """
SELECT j.key, f.error_type, count(*)
  FROM failed_runs AS f
  JOIN jobs AS j USING (job_id)
  LEFT JOIN (SELECT job_id, max(finished_at) AS at FROM finished_runs WHERE state = 'succeeded' GROUP BY 1) AS good
    USING (job_id)
 WHERE f.tenant = 'default' AND f.finished_at > coalesce(good.at, '-infinity')
 GROUP BY 1, 2
HAVING max(f.finished_at) < %s AND count(*) >= 3
"""
LETTERS: LiteralString = """
SELECT count(*) FROM dead_letters
 WHERE tenant = 'default' AND redriven_at IS NULL AND coalesce(job_id <> ALL (%s), true)
"""


class _Figures(HTMLParser):
    """The marked figures of a page: meaning, what it is of, error, text."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str, str | None, str]] = []
        self.unmarked: list[str] = []
        self._open: tuple[str, str, str | None] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name = given.get("data-figure")
        self._open = (name, given.get("data-of") or "", given.get("data-error")) if name else None
        if tag == "b" and not name:
            self.unmarked.append(str(self.getpos()))

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self.found.append((*self._open, data.strip()))
        self._open = None


def _number(text: str) -> int:
    return int(re.sub(r"[^0-9].*", "", text.replace(",", "")))


def test_every_figure_of_the_overview_is_what_the_rows_count(seeded: tuple[ApiClient, Ids]) -> None:
    client, _ = seeded
    database = client.database
    page = client.get("/", headers=HTML).text
    reader = _Figures()
    reader.feed(page[page.index("<main") :])
    assert not reader.unmarked
    found: dict[str, list[tuple[str, str | None, str]]] = {}
    for name, of, error, text in reader.found:
        found.setdefault(name, []).append((of, error, text))
    sums = {name: sum(_number(text) for _, _, text in rows) for name, rows in found.items() if name in COUNTS}
    for name, number in sums.items():
        statement = COUNTS[name]
        assert (name, database.value(statement, [HOUR] if "%s" in statement else [])) == (name, number)

    def texts(name: str) -> list[str]:
        return [text for _, _, text in found.pop(name, [])]

    failed = {(of, error): _number(text) for of, error, text in found.pop("failed")}
    assert failed == {(key, error): count for key, error, count in database.rows(FAILED, [HOUR])}
    assert sum(failed.values()) == sums["failed_of_all"], "the causes of the hour have all of its failures"
    before = {(of, error): _number(text) for of, error, text in found.pop("failed_in_a_row")}
    assert before == {(key, error): count for key, error, count in database.rows(FAILED_IN_A_ROW, [HOUR])}
    backlog = {of: _number(text) for of, _, text in found.pop("backlog")}
    assert backlog == dict(database.rows(BACKLOG))
    assert sum(map(_number, texts("waiting"))) <= sums["waiting_of_all"] == sum(backlog.values())
    failing = [job_id for (job_id,) in database.rows(FAILING_JOBS, [HOUR])]
    assert [_number(text) for text in texts("not_redriven")] == [database.value(LETTERS, [failing])]
    [coming] = texts("coming")
    end = NOW + timedelta(minutes=13)
    assert _number(coming) == database.value(COMING, [NOW, end]) == sum(map(_number, texts("bin_coming")))
    assert texts("failed_share") == [f"{100 * sums['failed_of_all'] / sums['ran']:.1f}%"]
    [words] = texts("in_words")
    for name, word in (("drawn_succeeded", "succeeded"), ("drawn_failed", "failed")):
        assert f"{sums[name]:,} {word}" in words
    [on_time] = texts("on_time")
    assert re.fullmatch(r"\d+\.\d%", on_time)
    rows = page.count('<div class="what">')
    smaller = sum(map(_number, texts("smaller")))
    assert _number(texts("problems")[0]) == rows + smaller
    assert set(found) <= set(COUNTS), "a figure without a statement"


def test_window_of_a_week_has_the_figures_of_the_hour_in_its_tiles(seeded: tuple[ApiClient, Ids]) -> None:
    client, _ = seeded
    tiles = [
        re.findall(r'data-figure="(ended|failed_of_all|ran|on_time)">([^<]+)<', shown(client, f"/?window={window}"))
        for window in ("1h", "7d")
    ]
    assert len(tiles[0]) == 4
    assert tiles[0] == tiles[1]
