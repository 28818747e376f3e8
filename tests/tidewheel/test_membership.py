"""Membership: everything has one owner, and only the share of a member that leaves moves."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import LiteralString
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.examples import examples
from tests.fixtures.services import until
from tidewheel.membership import Membership, rendezvous
from tidewheel.outbox import SLICES
from tidewheel.process.clock_skew import ClockSkew

TIMEOUT = timedelta(seconds=1)
FOREVER = timedelta(minutes=30)  # for tests in which silence is not what is waited for

ENTER: LiteralString = """
INSERT INTO members (member_id, role, name, last_heartbeat_at, started_at)
VALUES (%s, 'relay', 'silent', tidewheel_now() - %s::interval, tidewheel_now())
"""
CUT: LiteralString = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'tidewheel-relay-membership'
"""

members = st.lists(st.uuids(), min_size=1, max_size=8, unique=True)
Enter = Callable[..., Membership]


@pytest.fixture
def enter(database: Database) -> Iterator[Enter]:
    """Enters members, which leave with the test."""
    with ExitStack() as leaving:

        def entered(role: str = "relay", timeout: timedelta = TIMEOUT) -> Membership:
            member = Membership(database.url, role=role, name="test", timeout=timeout, skew=ClockSkew(timeout))
            member.start()
            leaving.callback(member.leave)
            return member

        yield entered


def listed(database: Database) -> set[UUID]:
    return {member for (member,) in database.rows("SELECT member_id FROM members")}


def ids(*some: Membership) -> tuple[UUID, ...]:
    return tuple(sorted(member.member_id for member in some))


@examples(100)
@given(members, st.integers(0, 64))
def test_every_item_has_exactly_one_owner(members: list[UUID], things: int) -> None:
    shares = [rendezvous(things, members, me) for me in members]
    assert sorted(thing for share in shares for thing in share) == list(range(things))


@examples(100)
@given(members, st.integers(0, 300))
def test_shares_differ_by_one_at_most(members: list[UUID], things: int) -> None:
    sizes = [len(rendezvous(things, members, me)) for me in members]
    assert set(sizes) <= {things // len(members), -(-things // len(members))}


@pytest.mark.landing
@pytest.mark.parametrize("things", [SLICES, 64, 1024])
@pytest.mark.parametrize("count", [2, 3, 5, 8, 20])
def test_join_or_leave_moves_little_more_than_one_share(things: int, count: int) -> None:
    more: list[int] = []
    for first in range(0, 10 * count, count):
        members = [UUID(int=first + number) for number in range(count)]
        staying = members[1:]
        moved = sum(len(set(rendezvous(things, staying, me)) - set(rendezvous(things, members, me))) for me in staying)
        more.append(moved - len(rendezvous(things, members, members[0])))
    assert min(more) >= 0
    assert sum(more) / len(more) <= max(things / 8, 2)
    assert max(more) <= max(things / 5, 4)


@examples(50)
@given(members, st.data())
def test_order_of_members_changes_no_assignment(members: list[UUID], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(members))
    for me in members:
        assert rendezvous(SLICES, members, me) == rendezvous(SLICES, shuffled, me)


def test_unlisted_member_owns_nothing() -> None:
    assert rendezvous(64, [UUID(int=1), UUID(int=2)], UUID(int=3)) == []


def test_members_are_visible_within_their_role_only(enter: Enter, database: Database) -> None:
    first, scheduler = enter(), enter("scheduler")
    assert first.live() == ids(first)
    second = enter()
    until(lambda: second.live() == ids(first, second), "the second has seen the first")
    until(lambda: first.live() == ids(first, second), "the first has seen the second")
    assert scheduler.live() == ids(scheduler)
    assert listed(database) == {first.member_id, second.member_id, scheduler.member_id}


def test_leaving_member_is_removed_at_once(enter: Enter, database: Database) -> None:
    first, second = enter(timeout=FOREVER), enter(timeout=FOREVER)
    second.leave()
    assert listed(database) == {first.member_id}
    assert enter(timeout=FOREVER).live() != ids(first, second)


def test_silent_member_is_listed_until_its_lease_ends(enter: Enter, database: Database) -> None:
    lately, long_ago = uuid4(), uuid4()
    database.execute(ENTER, [lately, FOREVER - timedelta(minutes=1)])
    database.execute(ENTER, [long_ago, FOREVER])
    member = enter(timeout=FOREVER)
    assert member.live() == tuple(sorted([lately, member.member_id]))
    assert long_ago in listed(database)


def test_member_silent_for_an_hour_is_deleted(enter: Enter, database: Database) -> None:
    gone, there = uuid4(), uuid4()
    database.execute(ENTER, [gone, timedelta(hours=1)])
    database.execute(ENTER, [there, timedelta(minutes=59)])
    member = enter()
    assert listed(database) == {there, member.member_id}


def test_lease_of_a_member_uses_the_databases_clock(clocked: ClockedDatabase) -> None:
    clocked.stop_clock()
    silent = uuid4()
    clocked.execute(ENTER, [silent, timedelta(0)])
    member = Membership(clocked.url, role="relay", name="test", timeout=TIMEOUT, skew=ClockSkew(TIMEOUT))
    member.start()
    try:
        assert silent in member.live()
        clocked.advance(TIMEOUT)
        until(lambda: member.live() == (member.member_id,), "the silent one is no longer counted")
    finally:
        member.leave()


def test_member_rejoins_after_a_lost_connection(enter: Enter, database: Database) -> None:
    member = enter()
    database.execute("DELETE FROM members")
    assert database.value(CUT) == 1
    until(lambda: listed(database) == {member.member_id}, "it has entered again")
    assert member.live() == ids(member)


def test_member_counts_itself_before_its_first_list() -> None:
    member = Membership(
        "postgresql://127.0.0.1:1/none", role="relay", name="test", timeout=TIMEOUT, skew=ClockSkew(TIMEOUT)
    )
    assert member.live() == (member.member_id,)
