"""Whose turn it is while more is due than a batch takes: everybody's, soon; and all at once when it is over."""

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.scheduler.rush import Rush

SHARDS = 64
BATCH = 100


def a_round(rush: Rush, backlog: dict[int, int]) -> list[int]:
    """One look and one batch, shared out evenly, as the scheduler does it; returns the shards it took from."""
    some = rush.next()
    due = [shard for shard in some or range(SHARDS) if backlog.get(shard, 0)]
    if not due:
        rush.saw(len(some), full=False)
        return []
    taken = list(rush.take(due))
    share = -(-BATCH // len(taken))
    fired = 0
    for shard in taken:
        fired += min(share, backlog[shard])
        backlog[shard] -= min(share, backlog[shard])
    rush.saw(len(taken), full=fired >= BATCH)
    return taken


def test_while_little_is_due_all_shards_share_each_batch() -> None:
    rush = Rush()
    for _ in range(5):
        assert a_round(rush, dict.fromkeys(range(SHARDS), 1)) == list(range(SHARDS))
        assert not rush.on


def test_in_a_rush_few_shards_fill_a_batch() -> None:
    rush, backlog = Rush(), dict.fromkeys(range(SHARDS), 10_000)
    taken = [len(a_round(rush, backlog)) for _ in range(30)]
    assert taken[0] == SHARDS
    assert set(taken[10:]) == {4}


@given(st.dictionaries(st.integers(0, SHARDS - 1), st.integers(1, 400), min_size=1))
def test_everything_due_is_fired_and_then_all_are_looked_at(backlog: dict[int, int]) -> None:
    rush, due = Rush(), sum(backlog.values())
    rounds = 0
    while any(backlog.values()):
        a_round(rush, backlog)
        rounds += 1
        assert rounds <= 4 * (due // BATCH) + 4 * SHARDS
    for _ in range(SHARDS):
        a_round(rush, backlog)
    assert not rush.on
    assert rush.next() == []


@given(st.lists(st.integers(0, 2_000), min_size=SHARDS, max_size=SHARDS))
def test_nobody_waits_longer_than_until_all_others_had_a_turn(backlogs: list[int]) -> None:
    rush, backlog = Rush(), dict(enumerate(backlogs))
    waited = dict.fromkeys(backlog, 0)
    while any(backlog.values()):
        taken = a_round(rush, backlog)
        waited = {shard: 0 if shard in taken or not backlog[shard] else waited[shard] + 1 for shard in backlog}
        assert max(waited.values()) <= SHARDS // 4
