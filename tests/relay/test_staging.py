"""The order in which held runs leave: tenants by weight, priority with ageing, their own order inside."""

from collections import Counter
from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.relay.staging import STEP_SECONDS, Staging, id_of, position_in

SECOND = 1_000_000


def entry(number: int, at: int = 0) -> bytes:
    """The entry of a row of this id that is due at this microsecond."""
    return pack(">q6xq", at, number)


def staged(*rows: tuple[str, int, bytes]) -> Staging:
    staging = Staging()
    staging.add(rows)
    return staging


def numbers(entries: list[bytes]) -> list[int]:
    return [int.from_bytes(id_of(each)) for each in entries]


def test_tenants_take_turns_by_weight() -> None:
    """Also while they are taken a few at a time."""
    tenants = ["a", "b", "c"]
    staging = staged(
        *((tenant, 5, entry(place * 1000 + each)) for place, tenant in enumerate(tenants) for each in range(500))
    )
    taken = [each // 1000 for _ in range(100) for each in numbers(staging.take(7, {"b": 2, "c": 4}, room=1))]
    counts = Counter(taken[:700])
    assert [counts[place] for place in range(3)] == [100, 200, 400]


def test_newcomer_is_next_but_one() -> None:
    staging = staged(*(("a", 5, entry(each)) for each in range(1000)))
    staging.take(10, {}, room=1)
    staging.add([("b", 5, entry(5000, at=99))])
    assert 5000 in numbers(staging.take(2, {}, room=1))


def test_priority_goes_first_among_thousands() -> None:
    staging = staged(*(("a", 0, entry(each, at=each)) for each in range(5000)))
    staging.add([("a", 9, entry(9999, at=6000))])
    assert numbers(staging.take(1, {}, room=1)) == [9999]


def test_run_of_lowest_priority_ages() -> None:
    """It goes before each run of priority 9 that is due 270 s later, however many come."""
    staging = staged(("a", 0, entry(1, at=0)))
    staging.add(("a", 9, entry(10 + each, at=each * SECOND)) for each in range(600))
    order = numbers(staging.take(601, {}, room=1))
    assert order.index(1) == 9 * STEP_SECONDS + 1


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 600))),
    st.integers(1, 5),
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 4)),
)
def test_each_run_leaves_once_and_in_its_order(
    rows: list[tuple[str, int, int]], most: int, weights: dict[str, int]
) -> None:
    """Never behind a run of its tenant that ranks after it."""
    rows = sorted(rows, key=lambda row: row[2])
    staging = staged(
        *((tenant, priority, entry(number, at * SECOND)) for number, (tenant, priority, at) in enumerate(rows))
    )
    assert len(staging) == len(rows)
    taken: list[int] = []
    while len(staging):
        part = staging.take(most, weights, room=1)
        assert 0 < len(part) <= most
        taken.extend(position_in(each)[1] for each in part)
    assert sorted(taken) == list(range(len(rows)))
    place = {number: position for position, number in enumerate(taken)}
    for number, (tenant, priority, at) in enumerate(rows):
        for other in range(number):
            if rows[other][0] == tenant and rows[other][2] - 30 * rows[other][1] < at - 30 * priority:
                assert place[other] < place[number]


def test_bytes_bound_what_leaves() -> None:
    """The last run may exceed the room, or a run larger than all room would never leave."""
    staging = staged(*(("a", 5, entry(number) + pack(">i", 400)) for number in range(5)))
    assert numbers(staging.take(10, {}, room=1000)) == [0, 1, 2]
    assert numbers(staging.take(10, {}, room=1)) == [3]
    assert len(staging) == 1
