"""The order in which held runs leave: tenants by weight, priority with ageing, their own order inside."""

from datetime import timedelta
from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.relay.staging import Lead, Staging, id_of, position_in

SECOND = 1_000_000


def entry(number: int, at: int = 0) -> bytes:
    """The entry of a row of this id that is due at this microsecond."""
    return pack(">q6xq", at, number)


def staged(*rows: tuple[str, int, bytes]) -> Staging:
    staging = Staging()
    staging.add(rows)
    return staging


def numbers(taken: tuple[list[bytes], int]) -> list[int]:
    entries, _ = taken
    return [int.from_bytes(id_of(each)) for each in entries]


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
        part, _ = staging.take(most, weights, room=1)
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


LEAD = Lead("a", 5)


def led(staging: Staging, *, due: int, lead: Lead | None = LEAD) -> Staging:
    staging.lead(lead, timedelta(seconds=due))
    return staging


def test_lead_takes_the_turns_of_its_tenant() -> None:
    """However few leave at a time."""
    staging = staged(
        *(("b", 5, entry(each)) for each in range(200)), *(("c", 5, entry(each)) for each in range(300, 500))
    )
    of_lead = 0
    for _ in range(100):
        of_lead += led(staging, due=0).take(1, {"b": 2}, room=1)[1]
    assert of_lead == 25
    assert staging.counts() == {"b": 150, "c": 175, "a": 0}


def test_lead_alone_leaves_all_room_to_the_reader() -> None:
    assert led(Staging(), due=0).take(7, {}, room=1) == ([], 7)
    assert led(Staging(), due=0, lead=None).take(7, {}, room=1) == ([], 0)


def test_priority_passes_the_lead_of_its_tenant_as_far_as_it_ages() -> None:
    urgent = ("a", 9, entry(1, at=119 * SECOND))
    assert numbers(led(staged(urgent), due=0).take(1, {}, room=1)) == [1]
    aged = ("a", 9, entry(1, at=121 * SECOND))
    assert led(staged(aged), due=0).take(1, {}, room=1) == ([], 1)


def test_late_run_of_the_lead_goes_before_those_that_are_read() -> None:
    staging = led(Staging(), due=5)
    staging.add([("a", 5, entry(1)), ("a", 5, entry(2))])
    assert numbers(staging.take(1, {}, room=1)) == [1]
    assert numbers(led(staging, due=6).take(3, {}, room=2)) == [2]
    assert len(staging) == 0


def test_lead_that_ends_leaves_its_tenant_the_staged_runs() -> None:
    staging = led(staged(("a", 5, entry(1)), ("a", 4, entry(2)), ("b", 5, entry(3))), due=0)
    assert sorted(numbers(led(staging, due=0, lead=None).take(9, {}, room=9))) == [1, 2, 3]
    assert staging.counts() == {}
