"""What the policies decide, without a database: one job's turn, whoever has it, and whoever comes."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.runs import OPEN, Overlap, RunState
from tidewheel.transitions.overlap import REPLACING, STARTED, Contender, HolderAction, decide

NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)
HOLDER = UUID(int=99)
NEEDING = sorted(set(Overlap) - {Overlap.ALLOW_ALL})


def run(number: int, overlap: str = Overlap.SKIP, *, attempt: int = 0, queued: bool = True) -> Contender:
    """The n-th run of the job, in the order of their instants."""
    return Contender(UUID(int=number), overlap, NOON + timedelta(seconds=number), attempt, queued)


def ids(*numbers: int) -> list[UUID]:
    return [UUID(int=number) for number in numbers]


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.RETRYING, None])
def test_skip_is_skipped_whatever_the_holder_does(state: RunState | None) -> None:
    decision = decide(HOLDER, state, [], [run(1)])
    assert (decision.active, decision.holder_action, decision.skipped) == (HOLDER, HolderAction.KEEP, ids(1))


def test_buffer_one_keeps_the_one_that_waits_already() -> None:
    first = decide(HOLDER, None, [], [run(1, "buffer_one")])
    later = decide(HOLDER, None, [run(5, "buffer_one")], [run(1, "buffer_one")])
    assert (first.buffered, first.skipped) == (ids(1), [])
    assert (later.buffered, later.skipped) == ([], ids(1))


def test_buffer_one_waits_behind_nobody_of_another_policy_either() -> None:
    assert decide(HOLDER, None, [run(5, "buffer_all")], [run(6, "buffer_one")]).skipped == ids(6)


def test_buffer_all_waits_however_many_wait() -> None:
    decision = decide(HOLDER, None, [run(1, "buffer_all")], [run(3, "buffer_all"), run(2, "buffer_all")])
    assert decision.buffered == ids(2, 3)


def test_cancel_other_asks_one_that_runs_and_waits_for_its_end() -> None:
    decision = decide(HOLDER, RunState.RUNNING, [], [run(1, "cancel_other")])
    assert (decision.active, decision.holder_action, decision.buffered) == (HOLDER, HolderAction.REQUEST_CANCEL, ids(1))


@pytest.mark.parametrize("state", sorted(OPEN - STARTED))
def test_cancel_other_has_the_turn_at_once_of_one_that_does_not_run(state: RunState) -> None:
    decision = decide(HOLDER, state, [], [run(1, "cancel_other")])
    assert (decision.active, decision.holder_action, decision.buffered) == (UUID(int=1), HolderAction.END, [])


@pytest.mark.parametrize("state", sorted(OPEN))
def test_terminate_other_ends_the_holder_whatever_it_does_and_starts(state: RunState) -> None:
    decision = decide(HOLDER, state, [], [run(1, "terminate_other")])
    assert (decision.active, decision.holder_action) == (UUID(int=1), HolderAction.END)


@pytest.mark.parametrize("policy", sorted(REPLACING))
def test_nothing_is_decided_against_a_holder_whose_row_somebody_has(policy: Overlap) -> None:
    decision = decide(HOLDER, None, [run(1, "cancel_other")], [run(2, policy)])
    assert (decision.active, decision.holder_action, decision.undecided) == (HOLDER, HolderAction.KEEP, ids(2))
    assert (decision.skipped, decision.buffered) == ([], [])


@pytest.mark.parametrize("policy", sorted(REPLACING))
def test_of_those_that_would_replace_the_newest_is_kept(policy: Overlap) -> None:
    newer = decide(HOLDER, RunState.RUNNING, [run(1, "cancel_other"), run(2, "buffer_all")], [run(3, policy)])
    older = decide(HOLDER, RunState.RUNNING, [run(3, "cancel_other")], [run(1, policy)])
    assert newer.skipped == ids(1)
    assert (older.active, older.skipped, older.buffered) == (HOLDER, ids(1), [])


@pytest.mark.parametrize("policy", sorted(REPLACING))
def test_about_to_start_together_the_newest_starts_and_nobody_begins_in_vain(policy: Overlap) -> None:
    oldest = run(1, policy)
    decision = decide(oldest.run_id, None, [], [run(3, policy), oldest, run(2, policy)])
    assert (decision.active, sorted(decision.skipped)) == (UUID(int=3), ids(1, 2))
    assert (decision.buffered, decision.cancelled, decision.holder_action) == ([], [], HolderAction.KEEP)


def test_a_run_that_has_begun_before_and_is_replaced_is_cancelled() -> None:
    again = run(1, attempt=2, queued=False)
    decision = decide(again.run_id, None, [], [again, run(2, "terminate_other")])
    assert (decision.active, decision.cancelled, decision.skipped) == (UUID(int=2), ids(1), [])


def test_a_run_between_attempts_whose_turn_was_taken_from_outside_is_left() -> None:
    decision = decide(HOLDER, RunState.RUNNING, [], [run(1, "terminate_other", attempt=1, queued=False)])
    assert (decision.active, decision.undecided) == (HOLDER, ids(1))


def test_each_is_judged_by_its_own_policy_oldest_first() -> None:
    arrivals = [run(4, "skip"), run(3, "buffer_one"), run(2, "cancel_other"), run(1, "buffer_one")]
    decision = decide(HOLDER, RunState.RUNNING, [], arrivals)
    assert (decision.buffered, decision.skipped, decision.holder_action) == (
        ids(1, 2),
        ids(3, 4),
        HolderAction.REQUEST_CANCEL,
    )


contenders = st.lists(
    st.builds(run, st.integers(1, 40), st.sampled_from(NEEDING), attempt=st.integers(0, 1)),
    unique_by=lambda each: each.run_id,
    max_size=8,
)


@given(contenders, contenders, st.sampled_from([None, *sorted(OPEN)]), st.booleans())
def test_everybody_gets_one_verdict_and_somebody_the_turn(
    arrivals: Sequence[Contender],
    waiting: Sequence[Contender],
    state: RunState | None,
    inside: bool,  # noqa: FBT001
) -> None:
    waiting = [each for each in waiting if each.run_id not in {arrival.run_id for arrival in arrivals}]
    holder = arrivals[0].run_id if inside and arrivals else HOLDER
    decision = decide(holder, state, waiting, arrivals)
    decided = [*decision.skipped, *decision.cancelled, *decision.buffered, *decision.undecided]
    concerned = {each.run_id for each in (*arrivals, *waiting)}
    assert len(set(decided)) == len(decided)
    assert set(decided) <= concerned
    assert {each.run_id for each in arrivals} - set(decided) == {decision.active} - {HOLDER}
    assert decision.active not in decided
    # Who waited before waits on, unless a newer one took its place.
    for each in waiting:
        if each.run_id in decided:
            assert each.replaces
            assert each.run_id in decision.skipped
    kept = [each for each in (*arrivals, *waiting) if each.replaces and each.run_id not in decided]
    kept += [each for each in arrivals if each.replaces and each.run_id in decision.buffered]
    if decision.holder_action is HolderAction.REQUEST_CANCEL:
        assert len({each.run_id for each in kept}) == 1
    if state is None:
        assert decision.holder_action is HolderAction.KEEP
