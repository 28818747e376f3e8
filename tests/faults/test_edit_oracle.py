"""The oracle of random edits flags every altered history, and not the real one."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.faults.edit_model import SECOND, Act, Fired, Grid
from tests.faults.edit_oracle import Verdict

EACH = Grid(0, SECOND)
HALF = Grid(SECOND // 2, SECOND)
START = 1_800_000_000 * SECOND
LATENCY = SECOND // 20

Doctor = Callable[[list[Act], list[Fired]], None]


def at(seconds: float) -> int:
    return START + int(seconds * SECOND)


def act(kind: str, seconds: float, version: int | None, **fields: object) -> Act:
    """A request whose answer came a twentieth of a second later."""
    return replace(Act(kind, at(seconds), at(seconds) + LATENCY, version=version), **fields)  # type: ignore[arg-type]


def fired(seconds: float, version: int, token: int) -> Fired:
    return Fired(at(seconds), f"run-{seconds}", version, "succeeded", token, done=at(seconds) + LATENCY)


def history() -> tuple[list[Act], list[Fired]]:
    """Every kind of request, some of them right at an instant of the job."""
    acts = [
        act("pause", 0.1, None, accepted=False),
        act("submit", 0.2, 1, token=1, grid=EACH, next_run_at=at(1)),
        act("submit", 2.98, 2, token=2, grid=HALF, next_run_at=at(3.5)),
        act("submit", 4.4, 2, token=2, grid=HALF, unchanged=True),
        act("submit", 4.7, None, token=3, grid=EACH, fits=False, accepted=False),
        act("pause", 6.48, 2),
        act("pause", 7.0, 2, unchanged=True),
        act("submit", 7.3, 3, token=4, grid=EACH),
        act("resume", 8.1, 3, next_run_at=at(9)),
        act("delete", 10.99, 3),
        act("submit", 12.1, 4, token=4, grid=EACH, paused=True),
        act("resume", 12.2, 4, next_run_at=at(13)),
        act("skip", 12.3, 4, at=at(14)),
        act("skip", 12.4, 4, at=at(15)),
        act("unskip", 12.5, 4, at=at(15)),
        act("move", 12.6, 4, at=at(16), to=at(17.5)),
        act("move", 12.7, 4, at=at(18), to=at(14.2)),
        act("move", 12.8, 4, at=at(17), to=at(30)),
        act("unskip", 15.2, 4, at=at(17)),
        act("delete", 18.3, 4),
    ]
    runs = [
        *(fired(seconds, 1, 1) for seconds in (1, 2, 3)),
        *(fired(seconds, 2, 2) for seconds in (3.5, 4.5, 5.5, 6.5)),
        *(fired(seconds, 3, 4) for seconds in (9, 10)),
        replace(fired(11, 3, 4), status="cancelled", reason="job_deleted", token=None),
        *(fired(seconds, 4, 4) for seconds in (13, 15, 17)),
        replace(fired(16, 4, 4), done=at(17.51)),
        replace(fired(18, 4, 4), done=at(14.21)),
    ]
    return acts, runs


def drop(runs: list[Fired], seconds: float) -> None:
    runs[:] = [run for run in runs if run.at != at(seconds)]


def change(runs: list[Fired], seconds: float, **fields: object) -> None:
    runs[:] = [replace(run, **fields) if run.at == at(seconds) else run for run in runs]  # type: ignore[arg-type]


def answer(acts: list[Act], seconds: float, **fields: object) -> None:
    acts[:] = [replace(one, **fields) if one.sent == at(seconds) else one for one in acts]  # type: ignore[arg-type]


DOCTORED: dict[str, tuple[Doctor, str]] = {
    "an instant is lost": (lambda _, runs: drop(runs, 2), "is lost"),
    "the first instant after an edit is lost": (lambda _, runs: drop(runs, 3.5), "is lost"),
    "an instant fires twice": (lambda _, runs: runs.append(replace(runs[1], run_id="other")), "fired 2 times"),
    "an old definition fires": (lambda _, runs: runs.append(fired(4, 1, 1)), "does not belong"),
    "an old definition fires in place of the new": (
        lambda _, runs: change(runs, 9, version=2, token=2),
        "does not belong",
    ),
    "an old definition fires right after the edit": (
        lambda _, runs: change(runs, 3.5, version=1, token=1),
        "does not belong",
    ),
    "a new definition fires before its time": (lambda _, runs: runs.append(fired(2.5, 2, 2)), "does not belong"),
    "something fires in a pause": (lambda _, runs: runs.append(fired(7.5, 2, 2)), "does not belong"),
    "both sides of a pause's edge": (
        lambda _, runs: (drop(runs, 6.5), runs.append(fired(6.52, 2, 2)))[0],
        "no moment of this change",
    ),
    "something fires after the deletion": (lambda _, runs: runs.append(fired(11.9, 3, 4)), "does not belong"),
    "something fires at the very end": (lambda _, runs: runs.append(fired(19, 4, 4)), "does not belong"),
    "something fires before the beginning": (lambda _, runs: runs.append(fired(0, 1, 1)), "before the job was there"),
    "what was skipped fires": (lambda _, runs: runs.append(fired(14, 4, 4)), "does not belong"),
    "what is not skipped any more is lost": (lambda _, runs: drop(runs, 15), "is lost"),
    "what was moved is lost": (lambda _, runs: drop(runs, 18), "is lost"),
    "what was moved fires at its own instant": (lambda _, runs: change(runs, 16, done=at(16.01)), "does not belong"),
    "a run is done before its time": (lambda _, runs: change(runs, 5.5, done=at(5.49)), "done before its time"),
    "what was moved fires twice": (lambda _, runs: runs.append(fired(18, 4, 4)), "fired 2 times"),
    "what was moved back is lost": (lambda _, runs: drop(runs, 17), "is lost"),
    "a run was given another payload": (lambda _, runs: change(runs, 5.5, token=1), "was given 1, not 2"),
    "a run failed": (lambda _, runs: change(runs, 5.5, status="failed"), "failed was given"),
    "a run was cancelled long after": (
        lambda _, runs: change(runs, 16, status="cancelled", reason="request"),
        "cancelled was given",
    ),
    "a version of nobody's": (lambda _, runs: change(runs, 16, version=9), "no reply has named"),
    "a request is refused for nothing": (lambda acts, _: answer(acts, 6.48, accepted=False), "must be accepted"),
    "a bad request is accepted": (lambda acts, _: answer(acts, 4.7, accepted=True), "must be rejected"),
    "a change is said to be none": (lambda acts, _: answer(acts, 6.48, unchanged=True), "must be accepted"),
    "no change is said to be one": (lambda acts, _: answer(acts, 4.4, unchanged=False), "must be unchanged"),
    "a version is left out": (lambda acts, _: answer(acts, 7.3, version=4), "names version 4, not 3"),
    "the next instant is none": (
        lambda acts, _: answer(acts, 0.2, next_run_at=at(1.5)),
        "does not name the next instant",
    ),
    "the next instant is not told": (lambda acts, _: answer(acts, 8.1, next_run_at=None), "does not name the next"),
    "the next instant is one too late": (lambda acts, _: answer(acts, 8.1, next_run_at=at(10)), "do not follow"),
}


def test_unaltered_history_is_not_flagged() -> None:
    verdict = Verdict("job", *history()).judge()
    assert not verdict.problems, "\n".join(verdict.problems)
    assert len(verdict.changes) == 16
    assert verdict.missing() == []


@pytest.mark.parametrize("name", DOCTORED)
def test_altered_history_is_flagged(name: str) -> None:
    doctor, said = DOCTORED[name]
    acts, runs = history()
    doctor(acts, runs)
    assert said in "\n".join(Verdict("job", acts, runs).judge().problems)


def test_pending_occurrences_are_expected() -> None:
    acts, runs = history()
    edges = {at(3), at(6.5), at(11)}
    assert set(Verdict("job", acts, runs[:2]).missing()) == {run.at for run in runs[2:]} - edges


def test_occurrence_at_an_edge_has_one_of_two_outcomes() -> None:
    """The instant lies between the sending of a pause and its answer."""
    acts, runs = history()
    drop(runs, 6.5)
    assert not Verdict("job", acts, runs).judge().problems


@pytest.mark.parametrize(("following", "lost"), [(2, False), (3, True)])
def test_instant_named_by_a_reply_decides_the_edge(following: int, lost: bool) -> None:  # noqa: FBT001
    acts = [
        act("submit", 0.2, 1, token=1, grid=EACH, next_run_at=at(1)),
        act("submit", 1.98, 2, token=2, grid=EACH, next_run_at=at(following)),
        act("pause", 3.5, 2),
    ]
    runs = [fired(1, 1, 1), *(fired(seconds, 2, 2) for seconds in range(following, 4))]
    problems = Verdict("job", acts, runs).judge().problems
    assert [problem.splitlines()[0] for problem in problems] == (["job: 08:00:02.000000 is lost"] if lost else [])


@pytest.mark.parametrize("fires_again", [False, True])
def test_edit_does_not_reopen_an_occurrence_moved_into_a_pause(fires_again: bool) -> None:  # noqa: FBT001
    """The time it was moved to has passed, though its own instant is ahead."""
    acts = [
        act("submit", 0.2, 1, token=1, grid=EACH, next_run_at=at(1)),
        act("move", 0.4, 1, at=at(5), to=at(2.5)),
        act("pause", 1.5, 1),
        act("resume", 3.2, 1, next_run_at=at(4)),
        act("submit", 3.5, 2, token=2, grid=EACH, next_run_at=at(4)),
        act("delete", 6.5, 2),
    ]
    runs = [fired(1, 1, 1), *(fired(seconds, 2, 2) for seconds in (4, 6))]
    if fires_again:
        runs.append(replace(fired(5, 2, 2), left=at(3.52), done=at(3.55)))
    assert bool(Verdict("job", acts, runs).judge().problems) == fires_again
