"""Fences: against an old primary, and against processes of an epoch before a restore.

A standby that is promoted begins a timeline, with a higher number. Of all servers of a cluster that accept writes, the
one on the highest timeline is the primary. A process that has seen it uses no other: `admit` refuses their connections,
and those that are open are shut down. A COMMIT that waits there for a standby that has left ends with them.

A service notes the epoch when it starts. Each connection that it opens later compares it once, so no statement pays
for it. A restore of the database ends all connections, so every process of the old epoch opens new ones.
"""

import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, cast

import psycopg
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from tidewheel.errors import Unavailable
from tidewheel.postgres.statements import Statements

_LOG = logging.getLogger("tidewheel.postgres")
_WATCH_SECONDS = 3.0  # between two looks; each opens a connection to each server
_CONNECT_SECONDS = 2
_READ_PLACE = "SELECT system_identifier, pg_walfile_name(pg_current_wal_lsn()) FROM pg_control_system()"

_READ_EPOCH = Statements("tidewheel")["read_epoch"]
_NEVER = threading.Event()


class Place(NamedTuple):
    """The identifier of a cluster, and the timeline on which one of its servers writes."""

    cluster: int
    timeline: int


def named_servers(url: str) -> Sequence[str]:
    """Return a connection string for each server that one names.

    >>> [conninfo_to_dict(server)["host"] for server in named_servers("host=db1,db2 dbname=app")]
    ['db1', 'db2']
    """
    defaults = {each.keyword.decode(): (each.val or b"").decode() for each in Conninfo.get_defaults()}
    named = conninfo_to_dict(url)
    lists = {part: str(named.get(part) or defaults[part]) for part in ("host", "hostaddr", "port")}
    split = {part: text.split(",") for part, text in lists.items() if text}
    count = max((len(split.get(part, ())) for part in ("host", "hostaddr")), default=1)
    if count <= 1:
        return [url]
    each = [{part: texts[i % len(texts)] for part, texts in split.items()} for i in range(count)]
    return [make_conninfo(url, **server) for server in each]


def read_place(connection: psycopg.Connection[tuple[object, ...]]) -> Place:
    """Read the cluster and the timeline of a server that accepts writes."""
    row = connection.execute(_READ_PLACE).fetchone()
    assert row is not None  # noqa: S101 - a function's row
    return Place(int(str(row[0])), int(str(row[1])[:8], 16))  # a segment's name begins with the timeline


def find_primaries(url: str) -> dict[str, Place | psycopg.Error]:
    """Return the place of each named server that accepts writes, and the error of each other."""
    found: dict[str, Place | psycopg.Error] = {}
    for server in named_servers(url):
        try:
            with psycopg.connect(
                server,
                autocommit=True,
                application_name="tidewheel-watch",
                connect_timeout=_CONNECT_SECONDS,
                target_session_attrs="read-write",
                options="-c statement_timeout=2s",
            ) as connection:
                found[server] = read_place(connection)
        except psycopg.Error as error:
            found[server] = error
    return found


class Primaries:
    """The highest timeline of each cluster that this process has seen, and its open connections."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._newest: dict[int, int] = {}
        self._watched = set[str]()
        self._open = weakref.WeakKeyDictionary[psycopg.Connection[tuple[object, ...]], tuple[Place, int]]()

    def watch(self, url: str) -> None:
        """Record the primaries among the named servers, now and as long as this process is connected to one.

        Before the first connection, for the string may name an old primary first.
        """
        with self._changing:
            if url in self._watched:
                return
            self._watched.add(url)
        self._look(url)
        threading.Thread(target=self._run, args=[url], name="primaries", daemon=True).start()

    def admit(self, connection: psycopg.Connection[tuple[object, ...]], url: str) -> bool:
        """Watch the servers of a connection to the newest primary seen, and return True; close an older one's."""
        place = read_place(connection)
        if not connection.autocommit:
            connection.rollback()
        self.note(place)
        with self._changing:
            is_newest = place.timeline >= self._newest[place.cluster]
            if is_newest:
                # A copy of the descriptor: the number may belong to another file once psycopg has closed its own.
                copy = os.dup(connection.fileno())
                weakref.finalize(connection, os.close, copy)
                self._open[connection] = (place, copy)
        if is_newest:
            self.watch(url)  # which ends where it finds no open connection, such as while this one was being opened
        else:
            connection.close()
        return is_newest

    def note(self, place: Place) -> None:
        """Record a primary; shut down the connections to older ones."""
        with self._changing:
            if place.timeline <= self._newest.get(place.cluster, 0):
                return
            self._newest[place.cluster] = place.timeline
            old = [(c, copy) for c, (at, copy) in self._open.items() if at < place and at.cluster == place.cluster]
            for connection, _ in old:
                del self._open[connection]
        for _, copy in old:
            with suppress(OSError), socket.socket(fileno=os.dup(copy)) as line:
                line.shutdown(socket.SHUT_RDWR)
        if old:
            _LOG.warning(
                "a promoted server accepts writes on timeline %d: closed %d connections to the old primary",
                place.timeline,
                len(old),
            )

    def _run(self, url: str) -> None:
        while True:
            _NEVER.wait(_WATCH_SECONDS)
            with self._changing:
                if all(connection.closed for connection in self._open):
                    self._watched.discard(url)
                    return
            self._look(url)

    def _look(self, url: str) -> None:
        for found in find_primaries(url).values():
            if isinstance(found, Place):
                self.note(found)


primaries = Primaries()


class EpochOver(Unavailable):
    """The database was restored, or is being restored: this process must not read or write it."""


class Epoch:
    """The epoch in which a service has started; other processes note none."""

    def __init__(self) -> None:
        self._noted: int | None = None
        self._on_end: Callable[[], None] = lambda: None

    def note(self, connection: Connection[tuple[object, ...]], on_end: Callable[[], None]) -> None:
        """Note the epoch of the database.

        Args:
            on_end: Called when a later connection finds another epoch.

        Raises:
            EpochOver: A restore is under way: try again later.
        """
        noted, restoring = _read(connection)
        if restoring:
            raise EpochOver(
                "the database is being restored; `tidewheel admin restore` continues it, and services start afterwards"
            )
        self._noted, self._on_end = noted, on_end

    def check(self, connection: Connection[tuple[object, ...]]) -> None:
        """Raise EpochOver if a new connection has another epoch: this process ends."""
        if self._noted is None:
            return
        found, restoring = _read(connection)
        if found == self._noted and not restoring:
            return
        self._on_end()
        message = f"the database was restored: its epoch is {found}, and this process began in {self._noted}; it ends"
        _LOG.error(message)
        raise EpochOver(message)


def _read(connection: Connection[tuple[object, ...]]) -> tuple[int, bool]:
    row = connection.execute(_READ_EPOCH).fetchone()
    return cast("tuple[int, bool]", row)


epoch: Final = Epoch()
