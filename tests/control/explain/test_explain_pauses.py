"""`explain` and `next` of what a pause holds, decides about, or has left out."""

from datetime import timedelta

from tests.control.explain.explaining import coming, done, explanation_of, fire_all, t
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.backfills import accept
from tidewheel.control.explain.explanation import OccurrenceOutcome

DAILY = {"cron": "0 9 * * *"}
NINE = t("03-02T09:00")


def moved_into_a_pause(clocked: ClockedDatabase, on_resume: str = "skip") -> None:
    """The occurrence of nine was moved to half past eight, and a pause ends a quarter later."""
    clocked.stop_clock(t("03-02T08:00"))
    clocked.submit(schedule=DAILY, on_resume=on_resume)
    done(clocked, "job.move", at="2026-03-02T09:00:00Z", to="2026-03-02T08:30:00Z")
    done(clocked, "job.pause", until="2026-03-02T08:45:00Z")


def test_occurrence_moved_into_a_pause_is_paused_before_and_after_its_time(clocked: ClockedDatabase) -> None:
    moved_into_a_pause(clocked)
    for clock in ("03-02T08:10", "03-02T08:40"):
        clocked.stop_clock(t(clock))
        held = explanation_of(clocked, NINE)
        assert (held.outcome, held.moved_to) == (OccurrenceOutcome.PAUSED, t("03-02T08:30"))
        assert "It was moved to 2026-03-02T08:30:00Z, by request" in held.words
        assert "When the pause ends, on_resume is skip" in held.words
        line = coming(clocked, 1).occurrences[0]
        assert (line.at, line.outcome, line.leaves_at) == (NINE, OccurrenceOutcome.PAUSED, t("03-02T08:30"))
    clocked.stop_clock(t("03-02T08:46"))
    fire_all(clocked)
    over = explanation_of(clocked, NINE)
    assert (over.outcome, over.reason) == (OccurrenceOutcome.SKIPPED, "paused")
    assert over.words.startswith("It was moved to 2026-03-02T08:30:00Z, by request at ")
    assert over.words.endswith("Trigger the job to run it.")
    clocked.stop_clock(t("03-02T09:01"))
    assert explanation_of(clocked, NINE).words.endswith("A backfill of that time runs it.")
    backfill = accept(clocked, NINE, NINE)
    assert explanation_of(clocked, NINE).words.endswith(f"Backfill {backfill} is under way and includes it.")
    done(clocked, "job.delete")
    assert explanation_of(clocked, NINE).words.endswith("The job was deleted later: no backfill runs it.")


def test_occurrence_moved_into_a_pause_fires_after_it_unless_skipped(clocked: ClockedDatabase) -> None:
    moved_into_a_pause(clocked, "fire_once")
    words = explanation_of(clocked, NINE).words
    assert "It fires when the pause ends." in words
    clocked.stop_clock(t("03-02T08:46"))
    fire_all(clocked)
    assert explanation_of(clocked, NINE).outcome is OccurrenceOutcome.FIRED


def test_occurrence_moved_behind_a_pause_is_not_held(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    clocked.submit(schedule=DAILY)
    done(clocked, "job.move", at="2026-03-02T09:00:00Z", to="2026-03-02T11:00:00Z")
    done(clocked, "job.pause", until="2026-03-02T10:00:00Z")
    assert explanation_of(clocked, NINE).outcome is OccurrenceOutcome.WILL_BE_MOVED
    assert coming(clocked, 1).occurrences[0].outcome is OccurrenceOutcome.WILL_BE_MOVED


def test_pause_counts_its_occurrences_and_names_its_cause(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    clocked.submit(schedule=DAILY, on_resume="fire_once")
    done(clocked, "job.pause")
    clocked.execute("UPDATE jobs SET paused_by = 'failures'")
    assert " by pause_on_failure. It stays paused until it is resumed." in explanation_of(clocked, NINE).words
    clocked.stop_clock(t("03-05T10:00"))
    done(clocked, "job.resume")
    fire_all(clocked)
    words = explanation_of(clocked, NINE).words
    assert words.startswith("It came due during a pause. It was skipped at 2026-03-05T10:00:00Z, when the pause ended")
    assert "one of 3 occurrences from 2026-03-02T09:00:00Z to 2026-03-04T09:00:00Z." in words
    assert "on_resume is fire_once: only the latest occurrence fires." in words
    caught_up = explanation_of(clocked, t("03-05T09:00"))
    assert caught_up.words.startswith("It fired 1 h late, caught up after downtime, a pause or ")
    assert caught_up.run is not None
    assert caught_up.run.late == timedelta(hours=1)


def test_skip_in_a_pause_has_whether_the_pause_ended_or_the_job_changed(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    clocked.submit(schedule=DAILY)
    done(clocked, "job.pause")
    clocked.stop_clock(t("03-02T10:00"))
    clocked.submit(schedule={"cron": "0 7 * * *"})
    clocked.stop_clock(t("03-03T10:00"))
    done(clocked, "job.resume")
    fire_all(clocked)
    changed, ended = explanation_of(clocked, NINE).words, explanation_of(clocked, t("03-03T07:00")).words
    assert "It was skipped at 2026-03-02T10:00:00Z, when the job changed." in changed
    assert "It was skipped at 2026-03-03T10:00:00Z, when the pause ended." in ended
