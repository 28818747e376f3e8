"""Who else of a role is alive, for dividing work among them.

Membership is for efficiency alone: row locks, advisory locks and primary keys keep it right when two members disagree
about who owns what.
"""

import threading
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import cast
from uuid import UUID, uuid4

import psycopg

from tidewheel.clock import monotonic_seconds
from tidewheel.db import Conn, connect
from tidewheel.errors import Unavailable
from tidewheel.service import Patience, Stop
from tidewheel.skew import Skew
from tidewheel.sql import Statements

_SQL = Statements("tidewheel")
_BEAT = _SQL["beat_member"]
_LIVE = _SQL["live_members"]
_LEAVE = _SQL["leave"]

_BEATS_PER_TIMEOUT = 5  # four may be lost before a live member is taken for dead


class Membership:
    """This process's membership of a role, kept alive by a thread of its own, whose beats also measure the skew."""

    def __init__(self, url: str, *, role: str, name: str, timeout: timedelta, skew: Skew) -> None:
        self.member_id = uuid4()
        self._url, self._role, self._name, self._timeout, self._skew = url, role, name, timeout, skew
        self._live: tuple[UUID, ...] = ()
        self._stop = Stop()
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)

    def start(self) -> None:
        """Enter, and wait until the first list of members is there."""
        self._thread.start()
        self._first.wait(timeout=10)

    def live(self) -> tuple[UUID, ...]:
        """The members last seen alive, this one among them, in the order of their ids."""
        return self._live or (self.member_id,)

    def leave(self) -> None:
        """Say goodbye; never raises."""
        self._stop.ask()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _run(self) -> None:
        patience = Patience(self._stop, f"{self._role} membership")
        pause = self._timeout.total_seconds() / _BEATS_PER_TIMEOUT
        while not self._stop.asked():
            try:
                self._beat_until_stopped(pause, patience)
            except (Unavailable, psycopg.Error) as error:
                patience.wait(error)

    def _beat_until_stopped(self, pause: float, patience: Patience) -> None:
        columns = {"member_id": self.member_id, "role": self._role, "name": self._name, "timeout": self._timeout}
        with connect(self._url, f"tidewheel-{self._role}-membership", autocommit=True) as connection:
            while not self._stop.asked():
                self._beat(connection, columns)
                rows = connection.execute(_LIVE, columns, binary=True).fetchall()
                self._live = tuple(member for (member,) in rows if isinstance(member, UUID))
                self._first.set()
                patience.over()
                self._stop.wait(pause)
            connection.execute(_LEAVE, columns)

    def _beat(self, connection: Conn, columns: Mapping[str, object]) -> None:
        asked = monotonic_seconds()
        row = connection.execute(_BEAT, columns, binary=True).fetchone()
        assert row is not None  # noqa: S101 - entered or beaten
        self._skew.saw(cast("datetime", row[0]), since=asked)


def rendezvous(things: int, members: Sequence[UUID], me: UUID) -> list[int]:
    """Which of the numbers 0 to things - 1 fall to `me`: each goes to the member with the highest hash of the pair.

    A member that comes or goes moves only its own share.

    Source: Thaler and Ravishankar, "A Name-Based Mapping Scheme for Rendezvous", 1996.
    """
    return [thing for thing in range(things) if max(members, key=lambda member: _weight(thing, member)) == me]


def _weight(thing: int, member: UUID) -> tuple[bytes, bytes]:
    return blake2b(thing.to_bytes(4) + member.bytes, digest_size=8).digest(), member.bytes
