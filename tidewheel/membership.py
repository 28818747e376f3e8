"""The live members of a role, and the division of work among them.

Membership only makes work efficient. When two members disagree about ownership, row locks and primary keys keep
the results correct.
"""

import math
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import shake_128
from itertools import repeat
from typing import cast
from uuid import UUID, uuid4

import psycopg

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.postgres.session import Conn, connect
from tidewheel.postgres.statements import Statements
from tidewheel.process.clock_skew import ClockSkew
from tidewheel.process.service import Backoff, Shutdown

_SQL = Statements("tidewheel")

_HEARTBEATS_PER_TIMEOUT = 5  # a member may lose four heartbeats before it counts as dead


class Membership:
    """This process's membership of a role; a thread sends heartbeats, which also measure the clock skew."""

    def __init__(self, url: str, *, role: str, name: str, timeout: timedelta, skew: ClockSkew) -> None:
        self.member_id = uuid4()
        self._url, self._role, self._name, self._timeout, self._skew = url, role, name, timeout, skew
        self._live: tuple[UUID, ...] = ()
        self._beaten = -math.inf
        self._stop = Shutdown()
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)

    def start(self) -> None:
        """Join, and wait for the first list of members."""
        self._thread.start()
        self._first.wait(timeout=10)

    def live(self) -> tuple[UUID, ...]:
        """Return the members last seen alive, including this one, in the order of their ids."""
        return self._live or (self.member_id,)

    def is_overdue(self) -> bool:
        """Return True if the others may count this member as dead; one that has not joined is alone."""
        is_late = monotonic_seconds() - self._beaten > self._timeout.total_seconds()
        return is_late and self._thread.ident is not None

    def leave(self) -> None:
        """Leave the role; never raises."""
        self._stop.request()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _run(self) -> None:
        backoff = Backoff(self._stop, f"{self._role} membership")
        pause = self._timeout.total_seconds() / _HEARTBEATS_PER_TIMEOUT
        while not self._stop.requested():
            try:
                self._heartbeat_until_stopped(pause, backoff)
            except (Unavailable, psycopg.Error) as error:
                backoff.wait(error)

    def _heartbeat_until_stopped(self, pause: float, backoff: Backoff) -> None:
        columns = {"member_id": self.member_id, "role": self._role, "name": self._name, "timeout": self._timeout}
        with connect(self._url, f"tidewheel-{self._role}-membership", autocommit=True) as connection:
            while not self._stop.requested():
                self._heartbeat(connection, columns)
                rows = connection.execute(_SQL["live_members"], columns, binary=True).fetchall()
                self._live = tuple(member for (member,) in rows if isinstance(member, UUID))
                self._first.set()
                backoff.reset()
                self._stop.wait(pause)
            connection.execute(_SQL["delete_member"], columns)

    def _heartbeat(self, connection: Conn, columns: Mapping[str, object]) -> None:
        sent = monotonic_seconds()
        row = connection.execute(_SQL["heartbeat_member"], columns, binary=True).fetchone()
        assert row is not None  # noqa: S101 - entered or beaten
        self._beaten = sent
        self._skew.record(cast("datetime", row[0]), since=sent)


def rendezvous(things: int, members: Sequence[UUID], me: UUID) -> list[int]:
    """Return the numbers of 0 to things - 1 that `me` owns: to each member equally many, or one more.

    A member that joins or leaves moves little more than its own share. A process that is not listed owns nothing.

    Source: Thaler and Ravishankar, "A Name-Based Mapping Scheme for Rendezvous", 1996; with bounded loads after
    Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2018.
    """
    return [thing for thing, owner in enumerate(_owners(things, tuple(sorted(members)))) if owner == me]


@lru_cache(maxsize=8)  # a relay calls it every second: 1,024 things and 20 members take 15 ms
def _owners(things: int, members: tuple[UUID, ...]) -> Sequence[UUID | None]:
    """Return the owner of each thing; None if no member is listed.

    Pairs of a thing and a member are visited by hash, highest first. A pair makes the member the thing's owner unless
    the thing has one or the member's share is full. Visiting pairs instead of things moves the fewest things when a
    share changes.
    """
    owners: list[UUID | None] = [None] * things
    share, larger = divmod(things, len(members) or 1)
    owned = dict.fromkeys(members, 0)
    for _, member, thing in sorted(_weighed(things, members), reverse=True):
        if owners[thing] is not None or owned[member] > share or (owned[member] == share and not larger):
            continue
        larger -= owned[member] == share
        owners[thing] = member
        owned[member] += 1
    return owners


def _weighed(things: int, members: Sequence[UUID]) -> Iterator[tuple[int, UUID, int]]:
    for member in members:
        hashes = struct.unpack(f">{things}Q", shake_128(member.bytes).digest(8 * things))
        yield from zip(hashes, repeat(member), range(things))
