"""Announces runs that wait for what no live executor of their queue has: a handler, or any executor at all.

They are not failed and not charged: in a rolling deploy the new job is there before the new executor. Each tenant's
queue and handler is told at most every ten minutes, whichever scheduler looks; the gauge always says how many wait.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.jobs.values import format_timestamp
from tidewheel.outbox import OutboxRow, append
from tidewheel.postgres.background import BackgroundQuery
from tidewheel.postgres.low_water import FullScanPacer
from tidewheel.postgres.session import Conn, Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.runs import Move, sources
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_FIND_UNHANDLED = _SQL["find_unhandled"]
_NOTE_UNHANDLED = _SQL["note_unhandled"]
_FORGET_UNHANDLED = _SQL["forget_unhandled"]
_READ_UNHANDLED_JOBS = _SQL["read_unhandled_jobs"]

_EVERY_SECONDS = 10.0
_DUE_FOR = timedelta(seconds=10)  # ten times what an executor that has the handler needs
_SILENT_FOR = timedelta(seconds=60)  # an executor that has not beaten for so long takes nothing
_QUIET_FOR = timedelta(minutes=10)
_KEPT_FOR = timedelta(days=1)
_MOST = 10_000  # runs of a queue and lane that are looked at


@dataclass(frozen=True, slots=True)
class Unhandled:
    """What runs of one tenant wait for.

    Args:
        tenant: Whose they are.
        queue: Whose executors could take them.
        handler: What none of those has; empty where the queue has no executor.
        runs: How many wait, of those looked at.
        run_id: The one that has waited longest.
        since: Since when that one is due.
    """

    tenant: str
    queue: str
    handler: str
    runs: int
    run_id: UUID
    since: datetime

    @property
    def reason(self) -> str:
        """For people."""
        if self.handler:
            return f"no executor of queue {self.queue!r} has the handler {self.handler!r}"
        return f"no executor serves the queue {self.queue!r}"


class UnhandledWatch:
    """The duty of looking for them, of one scheduler; on a thread and a connection of its own, which it closes."""

    def __init__(self, session: Session, installation: Installation, *, due_for: timedelta = _DUE_FOR) -> None:
        self._session, self._installation, self._due_for = session, installation, due_for
        self._background = BackgroundQuery[bool](session, "unhandled")
        self._full_scans = FullScanPacer(_EVERY_SECONDS, at_once=False)  # executors that start with it come first

    def step(self) -> bool:
        """Begin to look, when it is time to; returns whether the last look has announced something.

        It may meet all that has gone from the open runs, and firing is not to wait for that.
        """
        told = self._background.take()
        if not self._background.busy and self._full_scans.start():
            self._background.start(self._walk)
        return bool(told)

    def close(self) -> None:
        """Give up the look that is under way, and close the connection."""
        self._background.close()

    def _walk(self) -> bool:
        began, told = monotonic_seconds(), False
        try:
            told = bool(self.look())
        except (Unavailable, psycopg.Error) as error:
            _LOG.warning("what runs wait for could not be looked at: %s", error)
        self._full_scans.record(monotonic_seconds() - began)
        return told

    def look(self) -> list[Unhandled]:
        """Look now; returns what was announced.

        Raises:
            Unavailable: The database does not answer.
        """
        with self._session.transaction() as connection:
            found = self._find(connection)
            told = self._announce(connection, found) if found else []
        metrics.set("runs_without_executor", sum(each.runs for each in found))
        for each in told:
            _LOG.warning("%s: %d runs wait, uncharged", each.reason, each.runs)
        return told

    def _find(self, connection: Conn) -> list[Unhandled]:
        columns = {
            "due_for": self._due_for,
            "silent_for": _SILENT_FOR,
            "sources": sources(Move.CLAIM),
            "most": _MOST,
        }
        with connection.cursor(row_factory=class_row(Unhandled), binary=True) as cursor:
            return cursor.execute(_FIND_UNHANDLED, columns).fetchall()

    def _announce(self, connection: Conn, found: Sequence[Unhandled]) -> list[Unhandled]:
        columns = {
            "tenants": [each.tenant for each in found],
            "queues": [each.queue for each in found],
            "handlers": [each.handler for each in found],
            "quiet_for": _QUIET_FOR,
        }
        noted = connection.execute(_NOTE_UNHANDLED, columns, binary=True).fetchall()
        if not noted:
            return []
        connection.execute(_FORGET_UNHANDLED, {"kept_for": _KEPT_FOR})
        due = {(str(tenant), str(queue), str(handler)) for tenant, queue, handler, _ in noted}
        told = [each for each in found if (each.tenant, each.queue, each.handler) in due]
        rows = self._events(connection, told, cast("datetime", noted[0][3]))
        append(connection, rows, shards=self._installation.shards)
        return told

    def _events(self, connection: Conn, told: Sequence[Unhandled], now: datetime) -> list[OutboxRow]:
        runs = {"run_ids": [each.run_id for each in told]}
        jobs = {row[0]: row[1:] for row in connection.execute(_READ_UNHANDLED_JOBS, runs, binary=True)}
        events: list[OutboxRow] = []
        for each in told:
            if each.run_id not in jobs:
                continue  # its run has ended meanwhile
            job_id, key, shard, version = jobs[each.run_id]
            event = lifecycle_row(
                self._installation,
                kind="job.no_executor",
                tenant=each.tenant,
                job_id=cast("UUID", job_id),
                job_key=str(key),
                job_version=cast("int", version),
                shard=cast("int", shard),
                now=now,
                reason=each.reason,
                detail={
                    "queue": each.queue,
                    "handler": each.handler,
                    "runs": str(each.runs),
                    "run_id": str(each.run_id),
                    "due_since": format_timestamp(each.since),
                },
            )
            events.append(event)
        return events
