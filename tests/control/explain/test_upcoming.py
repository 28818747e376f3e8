"""`next` shows the coming occurrences of a saved job with what was said about them."""

from datetime import timedelta

from tests.control.explain.explaining import coming, done, fire_all, t
from tests.fixtures.database import ClockedDatabase
from tests.transitions.acts import submit
from tidewheel.control.explain.explanation import OccurrenceOutcome


def test_author_of_a_skip_or_move_is_named_with_the_reason(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    submit(clocked, schedule={"cron": "0 9 * * *"})
    done(clocked, "job.skip", at="2026-03-02T09:00:00Z", reason="closed")
    done(clocked, "job.move", at="2026-03-03T09:00:00Z", to="2026-03-03T08:30:00Z")
    skipped, moved, plain = coming(clocked, 2).occurrences
    assert (skipped.outcome, moved.outcome, plain.outcome) == (
        OccurrenceOutcome.WILL_BE_SKIPPED,
        OccurrenceOutcome.WILL_BE_MOVED,
        OccurrenceOutcome.SCHEDULED,
    )
    assert skipped.notes == ("skipped by request at 2026-03-02T08:00:00Z: closed",)
    assert (moved.notes, plain.notes) == (("moved by request at 2026-03-02T08:00:00Z",), ())
    clocked.stop_clock(t("03-03T08:29:58"))
    fire_all(clocked, lookahead=timedelta(seconds=5))
    written = coming(clocked, 1).occurrences[0]
    assert written.run_id is not None
    assert written.notes == moved.notes
