"""The timeline of a job: runs one by one or by bins, skips, pauses, versions, bounds."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.control.api.answering import answering
from tests.control.explain.explaining import done, fire_all, t
from tests.fixtures.acts import ending
from tests.fixtures.database import ClockedDatabase, Database
from tidewheel.control.explain import operations as module
from tidewheel.control.explain.operations import (
    BinCount,
    JobTimeline,
    binned,
    equal_edges,
    job_timeline,
    joined_pauses,
)
from tidewheel.ids import job_id
from tidewheel.runs import RunState

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def timeline(database: Database, edges: Sequence[datetime]) -> JobTimeline:
    return database.within(job_timeline, "default", "job", edges)


def finished(database: Database, state: str, seconds: float, *, first: datetime, step: timedelta, runs: int) -> None:
    """Add ended runs of the job, one each step."""
    database.execute(
        """
        INSERT INTO finished_runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at,
                                   publish_at, created_at, started_at, finished_at, state, attempt)
        SELECT gen_random_uuid(), %(job)s, 'default', 1, 0, 'timer', 'default', 'standard', at, at, at, now(),
               now() + %(took)s, %(state)s, 1
          FROM (SELECT %(first)s::timestamptz + n * %(step)s::interval AS at FROM generate_series(0, %(runs)s - 1) AS n)
        """,
        {
            "job": job_id("default", "job"), "state": state, "took": timedelta(seconds=seconds), "first": first,
            "step": step, "runs": runs,
        },
    )  # fmt: skip


def test_runs_are_shown_one_by_one_with_their_ends(database: Database) -> None:
    database.submit(retry={"max_attempts": 1})
    database.succeed(database.begun())
    database.end(ending(database.begun(), RunState.FAILED, error_type="E"))
    now = database.now()
    found = timeline(database, equal_edges(now - timedelta(hours=1), now + timedelta(seconds=1), 12))
    assert (found.mode, found.bins, found.complete_since) == ("runs", (), None)
    assert [(run.state, run.error_type) for run in found.runs] == [("failed", "E"), ("succeeded", None)]
    assert found.took_p95 is not None
    assert [each.number for each in found.versions] == [1]


def test_more_runs_are_counted_by_bins(database: Database) -> None:
    database.submit()
    finished(database, "succeeded", 2, first=EPOCH, step=timedelta(minutes=1), runs=600)
    finished(database, "failed", 9, first=EPOCH + timedelta(hours=9), step=timedelta(minutes=1), runs=3)
    found = timeline(database, equal_edges(EPOCH, EPOCH + timedelta(hours=10), 10))
    assert (found.mode, found.runs, found.complete_since) == ("bins", (), None)
    assert [each.succeeded for each in found.bins] == [60] * 10
    assert (found.bins[9].failed, found.bins[9].longest) == (3, timedelta(seconds=9))
    assert found.took_p95 == timedelta(seconds=2)


def test_time_with_too_many_runs_names_the_begin_of_those_read(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOKED_AT", 500)
    database.submit()
    finished(database, "succeeded", 2, first=EPOCH, step=timedelta(minutes=20), runs=720)
    day = timedelta(days=1)
    short = timeline(database, equal_edges(EPOCH, EPOCH + 7 * day - timedelta(hours=1), 7))
    assert sum(each.succeeded for each in short.bins) == 500
    assert short.complete_since == EPOCH + timedelta(minutes=20)


def test_skips_and_pauses_are_part_of_it(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    clocked.submit(schedule={"cron": "0 * * * *"})
    done(clocked, "job.pause", reason="stock-taking")
    clocked.stop_clock(t("03-02T12:30"))
    edges = [t("03-02T00:00"), t("03-03T00:00")]
    [paused] = timeline(clocked, edges).pauses
    assert (paused.since, paused.until) == (t("03-02T08:00"), None)
    done(clocked, "job.resume")
    fire_all(clocked)
    found = timeline(clocked, edges)
    [skip] = found.skips
    assert (skip.reason, skip.occurrences, skip.at, skip.last_at) == ("paused", 4, t("03-02T09:00"), t("03-02T12:00"))
    assert "It came due during a pause" in skip.words
    assert timeline(clocked, [t("03-01T00:00"), t("03-02T00:00")]).skips == ()


@given(st.lists(st.booleans(), max_size=12))
def test_pauses_lie_in_order_and_end_by_a_resume(begins: list[bool]) -> None:
    entries = [(EPOCH + timedelta(hours=-at), each, "anna") for at, each in enumerate(begins)]
    found = list(joined_pauses(entries))
    resumes = {at for at, each, _ in entries if not each}
    assert all(each.until is not None and each.until in resumes and each.since < each.until for each in found)
    assert all(later.since >= earlier.until for later, earlier in pairwise(found) if earlier.until)


@given(
    st.lists(
        st.builds(
            BinCount, st.integers(0, 4), st.sampled_from(("succeeded", "failed", "running", "queued")),
            st.integers(1, 9), st.none() | st.timedeltas(timedelta(0), timedelta(hours=1)), st.just(EPOCH),
        ),
        max_size=20,
    )
)  # fmt: skip
def test_no_run_is_lost_between_bins(counts: list[BinCount]) -> None:
    bins = binned(equal_edges(EPOCH, EPOCH + timedelta(hours=1), 5), counts)
    assert sum(each.succeeded + each.failed + each.open for each in bins) == sum(each.runs for each in counts)
    longest = [each.longest for each in counts if each.longest is not None]
    assert max((each.longest for each in bins if each.longest is not None), default=None) == max(longest, default=None)


def test_routes_answer_and_refuse(database: Database) -> None:
    database.submit("a/b", schedule={"cron": "0 9 * * *", "timezone": "Europe/Berlin"})
    with answering(database) as client:
        path = "/api/v1/jobs/a%2Fb"
        found = client.get(f"{path}/timeline?from=2026-11-01T00:00:00Z&to=2026-11-02T00:00:00Z&bins=4").json()
        assert (found["key"], found["mode"], found["runs"]) == ("a/b", "runs", [])
        month = client.get(f"{path}/calendar?month=2027-03").json()
        assert (month["month"], len(month["days"]), month["days"][27]["fires"]) == ("2027-03-01", 31, 1)
        assert client.get(f"{path}/calendar").json()["zone"] == "Europe/Berlin"
        for query, at in (
            ("timeline?from=2026-11-02T00:00:00Z&to=2026-11-01T00:00:00Z", "to"),
            ("timeline?from=2020-11-02T00:00:00Z&to=2026-11-01T00:00:00Z", "to"),
            ("timeline?from=2026-11-02T00:00:00Z&to=2026-11-03T00:00:00Z&bins=401", "bins"),
            ("timeline", "from"),
            ("calendar?month=2027-13", "month"),
            ("calendar?month=1066-10", "month"),
        ):
            refused = client.get(f"{path}/{query}")
            assert refused.status_code == HTTPStatus.UNPROCESSABLE_ENTITY, query
            assert refused.json()["errors"][0]["path"] == at, refused.text
        missing = client.get("/api/v1/jobs/none/timeline?from=2026-11-01T00:00:00Z&to=2026-11-02T00:00:00Z")
        assert missing.status_code == HTTPStatus.NOT_FOUND
        assert client.get("/api/v1/jobs/none/calendar").status_code == 404
