"""The decisions of the overlap policies for one job, without a database."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.runs import OPEN, Overlap, RunState
from tidewheel.transitions.overlap import STARTED, Contender, HolderAction, decide

NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)
HOLDER = UUID(int=99)
NEEDING = sorted(set(Overlap) - {Overlap.ALLOW_ALL})


def run(number: int, overlap: str = Overlap.SKIP, *, attempt: int = 0, queued: bool = True) -> Contender:
    return Contender(UUID(int=number), overlap, NOON + timedelta(seconds=number), attempt, queued)


def ids(*numbers: int) -> list[UUID]:
    return [UUID(int=number) for number in numbers]


def test_buffer_one_is_skipped_behind_a_run_of_another_policy() -> None:
    assert decide(HOLDER, None, [run(5, "buffer_all")], [run(6, "buffer_one")]).skipped == ids(6)


@pytest.mark.parametrize(
    ("state", "policy"),
    [*product(sorted(OPEN - STARTED), ["cancel_other"]), *product(sorted(OPEN), ["terminate_other"])],
)
def test_active_run_that_is_replaced_at_once_ends(state: RunState, policy: str) -> None:
    decision = decide(HOLDER, state, [], [run(1, policy)])
    assert (decision.active, decision.holder_action, decision.buffered) == (UUID(int=1), HolderAction.END, [])


def test_run_between_attempts_is_left_undecided() -> None:
    decision = decide(HOLDER, RunState.RUNNING, [], [run(1, "terminate_other", attempt=1, queued=False)])
    assert (decision.active, decision.undecided) == (HOLDER, ids(1))


def test_each_run_is_decided_by_its_own_policy_oldest_first() -> None:
    arrivals = [run(4, "skip"), run(3, "buffer_one"), run(2, "cancel_other"), run(1, "buffer_one")]
    decision = decide(HOLDER, RunState.RUNNING, [], arrivals)
    assert (decision.buffered, decision.skipped) == (ids(1, 2), ids(3, 4))
    assert decision.holder_action is HolderAction.REQUEST_CANCEL


contenders = st.lists(
    st.builds(run, st.integers(1, 40), st.sampled_from(NEEDING), attempt=st.integers(0, 1)),
    unique_by=lambda each: each.run_id,
    max_size=8,
)


@given(arrivals=contenders, waiting=contenders, state=st.sampled_from([None, *sorted(OPEN)]), inside=st.booleans())
def test_each_run_gets_one_decision_and_one_run_is_active(
    *, arrivals: Sequence[Contender], waiting: Sequence[Contender], state: RunState | None, inside: bool
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
