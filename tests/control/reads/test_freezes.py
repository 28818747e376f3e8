"""Reads name the freeze for which a run or a job waits."""

from datetime import timedelta
from http import HTTPStatus
from typing import LiteralString

import pytest

from tests.control.api.answering import answer_of, answering
from tests.control.cli.command import tidewheel
from tests.fixtures.acts import about
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tidewheel.control.client.client import Client
from tidewheel.control.explain.explanation import OccurrenceOutcome
from tidewheel.nouns.freezes.model import FrozenScope
from tidewheel.nouns.freezes.reads import count_freezable
from tidewheel.nouns.jobs.reads import show_job
from tidewheel.scheduler.releases import Thaws

MINUTE = timedelta(minutes=1)
# Runs of the instants after a time, and skips by a freeze.
_DONE: LiteralString = """
SELECT j.key,
       (SELECT count(*) FROM job_runs AS r
          LEFT JOIN overrides AS m USING (job_id, scheduled_at)
         WHERE r.job_id = j.job_id AND coalesce(m.moved_to, r.scheduled_at) > %s),
       (SELECT coalesce(sum(s.occurrences), 0)::bigint
          FROM skips AS s
         WHERE s.job_id = j.job_id AND s.reason = 'frozen')
  FROM jobs AS j
"""
_TENANT = FrozenScope("default", None, None, None)


@pytest.fixture
def frozen(clocked: ClockedDatabase) -> ClockedDatabase:
    """A job whose last occurrence came due under a freeze, with a run that waits."""
    clocked.stop_clock()
    clocked.submit(schedule="@every 1m", labels={"team": "billing"})
    with Client(clocked.url) as client:
        client.freezes.freeze(labels={"team": "billing"}, reason="audit", by="anna")
    clocked.advance(2 * MINUTE)
    fire_due(clocked)
    return clocked


def test_run_job_and_occurrence_say_frozen(frozen: ClockedDatabase) -> None:
    words = "by anna (label team=billing of tenant default): audit"
    run_id = frozen.trigger()
    with Client(frozen.url) as client:
        why = client.runs.detail(run_id).summary.why
        assert why is not None
        [freeze] = why.freezes
        assert freeze.words.endswith(words)
        [found] = client.freezes.list()
        assert (found.freeze, found.waiting, found.held, found.jobs) == (freeze, 1, 1, 1)
        frozen.trigger(delay="1h")
        [found] = client.freezes.list()
        assert (found.open_runs, found.waiting) == (2, 1), "an instant equal to now is due"
        counted = count_freezable(frozen.connection(), _TENANT)
        assert (counted.open_runs, counted.waiting) == (2, 1)
        client.runs.cancel_all(key="job")
        [found] = client.freezes.list()
        assert (found.open_runs, found.waiting) == (0, 0), "a cancellation names both"
        counted = count_freezable(frozen.connection(), _TENANT)
        assert (counted.open_runs, counted.waiting) == (0, 0)
        held = client.explain("job", frozen.now())
        assert (held.outcome, held.reason) == (OccurrenceOutcome.PAUSED, "frozen")
        assert words in held.words
        ahead = client.explain("job", frozen.now() + MINUTE)
        assert "If the job is still frozen at 20" in ahead.words
        coming = client.next("job", 2)
        assert {each.outcome for each in coming.occurrences} == {OccurrenceOutcome.PAUSED}
        assert words in coming.words
    job = frozen.within(show_job, "default", "job")
    assert (job.summary.hold_reason, job.freezes) == ("freeze", (freeze,))


def test_preview_of_a_thaw_and_of_a_resume_counts_what_they_do(frozen: ClockedDatabase) -> None:
    for key, policy in (("once", "fire_once"), ("all", "fire_all")):
        frozen.submit(key, schedule="@every 1m", labels={"team": "billing"}, on_resume=policy)
    frozen.submit("paused", schedule="@every 1m", on_resume="fire_once")
    frozen.apply_batch(about("job.skip", "paused", at=(frozen.now() + 6 * MINUTE).isoformat()))
    frozen.advance(4 * MINUTE)
    with Client(frozen.url) as client, answering(frozen) as api:
        client.pause("paused")
        fire_due(frozen)
        frozen.advance(3 * MINUTE)
        found = client.freezes.preview_thaw(labels={"team": "billing"})
        assert {each.key: (each.fires, each.skips) for each in found.jobs} == {
            "job": (0, 9), "once": (1, 6), "all": (7, 0),
        }  # fmt: skip
        assert found.words[0] == "23 occurrences came due during the freeze."
        assert found.words[1] == "8 fire at once, and 15 of 2 jobs are skipped."
        shown = answer_of(api.get("/api/v1/freezes/thaw-preview?label=team%3Dbilling"))
        assert (shown["fires"], shown["skips"], shown["at_least"]) == (8, 15, False)
        resumed = answer_of(api.get("/api/v1/jobs/paused/resume-preview"))
        assert (resumed["fires"], resumed["skips"]) == (1, 1), "one of three was left out by request"
        assert tidewheel(frozen, "thaw", "--label", "team=billing", "--dry-run").lines[0] == found.words[0]
        client.freezes.freeze(queue="default")
        assert client.freezes.preview_thaw(labels={"team": "billing"}).jobs == ()
        assert api.get("/api/v1/freezes/thaw-preview?queue=other").status_code == HTTPStatus.NOT_FOUND
        client.freezes.thaw(queue="default")
        client.freezes.thaw(labels={"team": "billing"})
        thaws = Thaws(frozen.session(), frozen.installation)
        while thaws.step():
            pass
        fire_due(frozen)
    fired = "SELECT count(*) FROM job_runs AS r JOIN jobs AS j USING (job_id) WHERE j.key = %s"
    assert [frozen.value(fired, [key]) for key in ("job", "once", "all")] == [0, 1, 7]


def test_preview_that_no_scheduler_has_prepared_counts_what_the_thaw_does(clocked: ClockedDatabase) -> None:
    """Rows decide which instants were frozen, so a preview beside a stopped scheduler knows them too (F2)."""
    clocked.stop_clock()
    for policy in ("skip", "fire_once", "fire_all"):
        clocked.submit(policy, schedule="@every 1m", on_resume=policy)
    for key, minutes in (("once-before", 1), ("once-under", 3), ("once-after", 9)):
        clocked.submit(key, schedule={"once": (clocked.now() + minutes * MINUTE).isoformat()})
    clocked.submit("moved", schedule={"interval": "10m", "anchor": (clocked.now() - 9 * MINUTE).isoformat()})
    to = (clocked.now() + 3 * MINUTE).isoformat()
    clocked.apply_batch(about("job.move", "moved", at=(clocked.now() + MINUTE).isoformat(), to=to))
    clocked.advance(2 * MINUTE)
    began = clocked.now()
    with Client(clocked.url) as client:
        client.freezes.freeze(queue="default")
        clocked.advance(3 * MINUTE)
        found = client.freezes.preview_thaw(queue="default")
        client.freezes.thaw(queue="default")
    thaws = Thaws(clocked.session(), clocked.installation)
    while fire_due(clocked) or thaws.step():
        pass
    assert {each.key: (each.fires, each.skips) for each in found.jobs} == {
        key: (fires, skips) for key, fires, skips in clocked.rows(_DONE, [began]) if fires or skips
    }
    assert (found.fires, found.skips) == (1 + 3 + 1, 3 + 2 + 1)


def test_skipped_occurrence_says_frozen_after_the_thaw(frozen: ClockedDatabase) -> None:
    at = frozen.now()
    with Client(frozen.url) as client:
        client.freezes.thaw(labels={"team": "billing"})
        thaws = Thaws(frozen.session(), frozen.installation)
        while thaws.step():
            pass
        skipped = client.explain("job", at)
        assert (skipped.outcome, skipped.reason) == (OccurrenceOutcome.SKIPPED, "frozen")
        assert skipped.words.startswith("It came due during a freeze and was skipped")
        why = client.runs.detail(frozen.trigger()).summary.why
        assert why is not None
        assert why.freezes == ()
        assert client.freezes.list() == []
