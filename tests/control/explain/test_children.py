"""Explain a job with parents: by its run in the occurrence of its root, else by what it waits for."""

from datetime import timedelta

from tests.control.explain.explaining import explanation_of
from tests.fixtures.database import ClockedDatabase
from tests.transitions.graphs import after, change, end_and_drain, play, put, scheduled_at
from tidewheel.runs import RunState

GRAPH = {"a": [], "b": after("a"), "c": [("a", "always")], "d": [("b", "success"), ("c", "always")]}


def test_child_is_explained_by_its_runs_in_each_generation(clocked: ClockedDatabase) -> None:
    clocked.stop_clock()
    put(clocked, GRAPH)
    clocked.advance(timedelta(seconds=1))
    root = clocked.trigger("a")
    at = scheduled_at(clocked, root)
    waiting = explanation_of(clocked, at, "d")
    assert (waiting.outcome, waiting.words) == (
        "waiting", "It waits for 2 of 2 parents, first for 'b', which has no run yet.",
    )  # fmt: skip
    assert waiting.workflow is not None
    assert (waiting.workflow.root_run_id, waiting.workflow.root_state) == (root, "queued")
    end_and_drain(clocked)
    end_and_drain(clocked, limit=1)
    blocked = explanation_of(clocked, at, "d")
    assert (blocked.outcome, blocked.run is not None and blocked.run.state) == ("waiting", "blocked")
    assert "It waits for 1 of 2 parents, first for " in blocked.words
    assert blocked.words.endswith("whose run is queued.")
    play(clocked, lambda key: RunState.FAILED)
    missed = clocked.rows("SELECT reason FROM finished_runs JOIN jobs USING (job_id) WHERE key = 'd'")
    failed = explanation_of(clocked, at, "d")
    if missed == [("parents",)]:
        assert (failed.outcome, failed.reason) == ("skipped", "parents")
        assert failed.words == "Its run was skipped: the parent 'b' ended as failed, but the condition is success."
    change(clocked, "resume", root)
    play(clocked)
    again = explanation_of(clocked, at, "d")
    assert again.workflow is not None
    assert again.workflow.state == "succeeded"
    assert (again.workflow.runs[0].generation, again.workflow.runs[0].state) == (1, "succeeded")
    assert (again.outcome, again.workflow.root_key) == ("fired", "a")
    assert "Its run succeeded in attempt 1" in again.words


def test_child_without_an_occurrence_is_explained_by_its_root(clocked: ClockedDatabase) -> None:
    clocked.stop_clock()
    put(clocked, GRAPH, schedule="@every 1h", overlap="allow_all")
    [(due,)] = clocked.rows("SELECT scheduled_at FROM timers")
    ahead = explanation_of(clocked, due, "d")
    assert (ahead.outcome, ahead.workflow, ahead.after) == ("scheduled", None, due + timedelta(hours=1))
    assert ahead.words.startswith("The job follows its parents in a workflow. For its root 'a': ")
    assert explanation_of(clocked, due + timedelta(seconds=1), "d").outcome == "no_occurrence"


def test_parents_that_came_later_do_not_count(clocked: ClockedDatabase) -> None:
    clocked.stop_clock()
    put(clocked, {"a": [], "b": after("a"), "c": after("a")})
    clocked.advance(timedelta(seconds=1))
    root = clocked.trigger("a")
    clocked.advance(timedelta(seconds=1))
    put(clocked, {"a": [], "b": after("a"), "c": after("a", "b")})
    play(clocked, lambda key: RunState.FAILED if key == "b" else RunState.SUCCEEDED)
    found = explanation_of(clocked, scheduled_at(clocked, root), "c")
    assert found.outcome == "fired"
    assert found.workflow is not None
    assert [(parent.key, parent.state) for parent in found.workflow.parents] == [("a", "succeeded")]


def test_root_that_was_skipped_or_cancelled_reaches_no_child(clocked: ClockedDatabase) -> None:
    clocked.stop_clock()
    put(clocked, {"a": [], "b": after("a"), "c": after("b")})
    clocked.advance(timedelta(seconds=1))
    root = clocked.trigger("a")
    at = scheduled_at(clocked, root)
    clocked.apply_batch({"type": "run.cancel", "run_id": str(root)})
    play(clocked)
    found = explanation_of(clocked, at, "c")
    assert (found.outcome, found.reason) == ("skipped", "root")
    assert found.words == "The run of its root 'a' was cancelled before it began. No job below that root runs."
    clocked.advance(timedelta(seconds=1))
    root = clocked.trigger("a")
    end_and_drain(clocked)
    change(clocked, "pause", root)
    paused = explanation_of(clocked, scheduled_at(clocked, root), "c")
    assert paused.words == (
        "It waits for its parent 'b', whose run is queued. The occurrence is paused: resume it to continue."
    )
