"""Previews of a thaw and of a resume."""

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
        assert found.words[0] == "23 occurrences came due during the freeze: 8 fire at once, 15 are skipped."
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
