"""Reads name the freeze for which a run or a job waits."""

from datetime import timedelta

import pytest

from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tests.transitions.acts import submit, trigger
from tidewheel.control.client.client import Client
from tidewheel.control.explain.explanation import OccurrenceOutcome
from tidewheel.control.reads.jobs import show_job
from tidewheel.scheduler.freezing import Thaws

MINUTE = timedelta(minutes=1)


@pytest.fixture
def frozen(clocked: ClockedDatabase) -> ClockedDatabase:
    """A job whose last occurrence came due under a freeze, with a run that waits."""
    clocked.stop_clock()
    submit(clocked, schedule="@every 1m", labels={"team": "billing"})
    with Client(clocked.url) as client:
        client.freezes.freeze(labels={"team": "billing"}, reason="audit", by="anna")
    clocked.advance(2 * MINUTE)
    fire_due(clocked)
    return clocked


def test_run_job_and_occurrence_say_frozen(frozen: ClockedDatabase) -> None:
    words = "by anna (tenant default, label team=billing): audit"
    run_id = trigger(frozen)
    with Client(frozen.url) as client:
        why = client.runs.detail(run_id).summary.why
        assert why is not None
        [freeze] = why.freezes
        assert freeze.words.endswith(words)
        [found] = client.freezes.list()
        assert (found.freeze, found.waiting, found.held, found.jobs) == (freeze, 1, 1, 1)
        held = client.explain("job", frozen.now())
        assert (held.outcome, held.reason) == (OccurrenceOutcome.PAUSED, "frozen")
        assert words in held.words
        ahead = client.explain("job", frozen.now() + MINUTE)
        assert "If it is still frozen then" in ahead.words
    with frozen.transaction() as connection:
        job = show_job(connection, "default", "job")
    assert (job.summary.hold_reason, job.freezes) == ("freeze", (freeze,))


def test_skipped_occurrence_says_frozen_after_the_thaw(frozen: ClockedDatabase) -> None:
    at = frozen.now()
    with Client(frozen.url) as client:
        client.freezes.thaw(labels={"team": "billing"})
        thaws = Thaws(frozen.session(), frozen.installation)
        while thaws.step():
            pass
        skipped = client.explain("job", at)
        assert (skipped.outcome, skipped.reason) == (OccurrenceOutcome.SKIPPED, "frozen")
        assert skipped.words.startswith("It was in a freeze, one of 2 occurrences")
        why = client.runs.detail(trigger(frozen)).summary.why
        assert why is not None
        assert why.freezes == ()
        assert client.freezes.list() == []
