"""The state machine is one table: what it promises, written by hand beside it.

That it holds on real rows is in tests/transitions/test_state_machine.py, that the database's constraints say the same
in tests/migrations/test_schema.py, that docs/run-states.md does in tests/docs.
"""

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.runs import DEAD_LETTERED, FINAL, MOVES, OPEN, Move, RunState, end_of, sequence_of

S = RunState

# What may follow each state: the promise, written by hand and not derived.
MAY_BECOME = {
    S.QUEUED: {S.RUNNING, S.BUFFERED, S.SKIPPED, S.CANCELLED, S.TIMED_OUT},
    S.BUFFERED: {S.QUEUED, S.SKIPPED, S.CANCELLED, S.TIMED_OUT},
    S.RUNNING: {S.SUCCEEDED, S.FAILED, S.TIMED_OUT, S.RETRYING, S.WAITING, S.CANCELLING, S.QUEUED},
    S.WAITING: {S.SUCCEEDED, S.FAILED, S.RETRYING, S.TIMED_OUT, S.CANCELLED},
    S.RETRYING: {S.RUNNING, S.BUFFERED, S.CANCELLED, S.TIMED_OUT},
    S.CANCELLING: {S.CANCELLED},
    S.BLOCKED: {S.QUEUED, S.SKIPPED, S.CANCELLED},
}


def test_transitions_equal_the_documented_ones() -> None:
    found = {state: {MOVES[move].target for move in Move if state in MOVES[move].sources} for state in OPEN}
    assert found == MAY_BECOME


def test_terminal_states_have_no_transition() -> None:
    assert not any(MOVES[move].sources & FINAL for move in Move)
    assert {S.SUCCEEDED, S.FAILED, S.TIMED_OUT, S.CANCELLED, S.SKIPPED} == FINAL
    assert set(RunState) == FINAL | OPEN
    assert DEAD_LETTERED < FINAL


def test_every_state_is_reachable_and_every_open_one_can_end() -> None:
    reached = {S.QUEUED, S.BLOCKED}
    while more := {MOVES[move].target for move in Move if MOVES[move].sources & reached} - reached:
        reached |= more
    assert reached == set(RunState)
    ending = set(FINAL)
    while more := {state for move in Move if MOVES[move].target in ending for state in MOVES[move].sources} - ending:
        ending |= more
    assert ending == set(RunState)


@given(st.sampled_from(sorted(OPEN)), st.sampled_from(sorted(FINAL)))
def test_end_is_the_reported_state_cancelled_or_superseded(state: RunState, wanted: RunState) -> None:
    found = end_of(state, wanted)
    if state is S.CANCELLING:
        assert found is S.CANCELLED
    else:
        assert found in {wanted, None}
        assert (found is not None) == (wanted in MAY_BECOME[state])


@given(st.integers(0, 10_000))
def test_event_sequence_of_a_run_increases_strictly(attempts: int) -> None:
    """Start and end of each attempt, then an end between attempts; or none at all."""
    walked: list[int] = []
    for attempt in range(max(1, attempts - 3), attempts + 1):
        walked += [sequence_of(attempt, ended_running=None), sequence_of(attempt, ended_running=True)]
    walked.append(sequence_of(attempts, ended_running=False))
    assert walked == sorted(set(walked))
    assert walked[0] >= 1
