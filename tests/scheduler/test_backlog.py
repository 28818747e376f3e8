"""Rotation through the shards while more is due than one batch takes."""

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.database import Database
from tests.scheduler.test_firing import scheduler_of
from tidewheel.scheduler.backlog import BatchWidth, ShardRotation


@given(st.lists(st.integers(0, 4095), unique=True), st.lists(st.integers(1, 64), min_size=1))
def test_rotation_takes_each_shard_once_in_order(due: list[int], bites: list[int]) -> None:
    rotation, taken = ShardRotation(), list[int]()
    rotation.start(due)
    while rotation.active:
        taken += rotation.take(bites[len(taken) % len(bites)])
    assert taken == due
    assert rotation.take(1) == []


def test_two_threads_never_take_the_same_shard() -> None:
    rotation, due = ShardRotation(), list(range(50_000))
    rotation.start(due)
    both = Barrier(2)

    def take() -> list[int]:
        taken = rotation.take(3)  # so that both have some, however long one of them is kept waiting afterwards
        both.wait()
        while some := rotation.take(3):
            taken += some
        return taken

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as threads:
            first, second = threads.submit(take), threads.submit(take)
            assert first.result()
            assert second.result()
            assert sorted(first.result() + second.result()) == due
    finally:
        sys.setswitchinterval(before)


def test_batch_width_grows_until_batches_are_full() -> None:
    width = BatchWidth()
    fewest = width.shards
    for _ in range(3):
        width.adjust(full=False)
    assert width.shards == 8 * fewest
    for _ in range(10):
        width.adjust(full=True)
    assert width.shards == fewest


def test_backlog_in_few_and_many_shards_is_fired(database: Database) -> None:
    """Batches of four: shards of which each has one due, and one job that has several."""
    at = database.now().isoformat()
    for number in range(150):
        database.submit(f"once-{number}", schedule={"once": at})
    database.submit("often", schedule="@every 1s", overlap="allow_all")
    database.execute(
        "UPDATE timers SET due_at = due_at - interval '40 s', scheduled_at = scheduled_at - interval '40 s'"
    )
    with scheduler_of(database, fire_batch=4) as scheduler:
        while scheduler.step() == 0.0:
            pass
    assert database.value("SELECT count(*) FROM timers WHERE due_at <= now()") == 0
    fired = "SELECT count(*), count(DISTINCT (job_id, scheduled_at)) FROM runs AS r JOIN jobs AS j USING (job_id)"
    assert database.rows(f"{fired} WHERE j.key <> 'often'") == [(150, 150)]
    [(often, instants)] = database.rows(f"{fired} WHERE j.key = 'often'")
    assert often == instants > 0
