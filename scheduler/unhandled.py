"""Announce runs that no live executor can handle: all lack the handler, or none serves the queue.

Such runs have not failed and do not use up an attempt: in a rolling deploy the new job exists before the new executor.
Each tenant's queue and handler is announced at most every ten minutes, by whichever scheduler finds it. The gauge
always reports how many runs wait.
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
from tidewheel.jobs.values import RESERVED, format_timestamp
from tidewheel.outbox import OutboxRow, append
from tidewheel.postgres.low_water import FullScanPacer
from tidewheel.postgres.session import Conn, Session, readable_rows
from tidewheel.postgres.session_kinds import BackgroundQuery
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.runs import Move, sources
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_FIND_UNHANDLED = _SQL["find_unhandled"]
_ANNOUNCE_UNHANDLED = _SQL["announce_unhandled"]
_PURGE_UNHANDLED = _SQL["purge_unhandled"]
_READ_UNHANDLED_JOBS = _SQL["read_unhandled_jobs"]

_EVERY_SECONDS = 10.0
_MIN_AGE = timedelta(seconds=10)  # ten times as long as an executor that has the handler needs
_DEAD_AFTER = timedelta(seconds=60)  # an executor without a heartbeat for so long claims nothing
_ANNOUNCE_EVERY = timedelta(minutes=10)
_KEEP = timedelta(days=1)
_SCAN_RUNS = 10_000  # runs of each queue and lane that are checked


@dataclass(frozen=True, slots=True)
class Unhandled:
    """Runs of one tenant that no live executor can handle."""

    tenant: str
    queue: str
    handler: str  # or a capability
    runs: int  # among those checked
    run_id: UUID  # the run that has waited longest
    since: datetime

    @property
    def reason(self) -> str:
        """The reason for logs and events."""
        if self.handler.startswith(RESERVED):
            kind = self.handler.removeprefix(RESERVED)
            return f"no executor of queue {self.queue!r} runs {kind} targets (TIDEWHEEL_TARGETS)"
        return f"no executor of queue {self.queue!r} has the handler {self.handler!r}"


def find_unhandled(connection: Conn, *, min_age: timedelta = _MIN_AGE) -> list[Unhandled]:
    """Return the runs that are due for longer than `min_age` and that no live executor can handle."""
    columns = {"min_age": min_age, "silent_for": _DEAD_AFTER, "sources": sources(Move.CLAIM), "limit": _SCAN_RUNS}
    with connection.cursor(row_factory=class_row(Unhandled), binary=True) as cursor:
        return readable_rows(cursor.execute(_FIND_UNHANDLED, columns))


class UnhandledWatch:
    """Checks for unhandled runs, on its own thread and connection, which it closes."""

    def __init__(self, session: Session, installation: Installation, *, min_age: timedelta = _MIN_AGE) -> None:
        self._session, self._installation, self._min_age = session, installation, min_age
        self._background = BackgroundQuery[bool](session, "unhandled")
        self._pacer = FullScanPacer(_EVERY_SECONDS, at_once=False)  # executors that start at the same time get a moment

    def step(self) -> bool:
        """Start a check when one is due; return True if the last check has announced something.

        A check may meet all deleted entries of the open runs' index, and firing must not wait for that.
        """
        announced = self._background.take()
        if not self._background.busy and self._pacer.start():
            self._background.start(self._scan)
        return bool(announced)

    def close(self) -> None:
        """Cancel the check under way, and close the connection."""
        self._background.close()

    def _scan(self) -> bool:
        began, announced = monotonic_seconds(), False
        try:
            announced = bool(self.check())
        except (Unavailable, psycopg.Error) as error:
            _LOG.warning("the check for unhandled runs failed: %s; the scheduler repeats it later", error)
        self._pacer.record(monotonic_seconds() - began)
        return announced

    def check(self) -> list[Unhandled]:
        """Check now; return the announcements."""
        with self._session.transaction() as connection:
            found = find_unhandled(connection, min_age=self._min_age)
            announced = self._announce(connection, found) if found else []
        metrics.set("runs_without_executor", sum(each.runs for each in found))
        for each in announced:
            _LOG.warning("%s: %d runs wait and use up no attempt; start an executor for them", each.reason, each.runs)
        return announced

    def _announce(self, connection: Conn, found: Sequence[Unhandled]) -> list[Unhandled]:
        columns = {
            "tenants": [each.tenant for each in found],
            "queues": [each.queue for each in found],
            "handlers": [each.handler for each in found],
            "quiet_for": _ANNOUNCE_EVERY,
        }
        noted = connection.execute(_ANNOUNCE_UNHANDLED, columns, binary=True).fetchall()
        if not noted:
            return []
        connection.execute(_PURGE_UNHANDLED, {"kept_for": _KEEP})
        due = {(str(tenant), str(queue), str(handler)) for tenant, queue, handler, _ in noted}
        announced = [each for each in found if (each.tenant, each.queue, each.handler) in due]
        rows = self._events(connection, announced, cast("datetime", noted[0][3]))
        append(connection, rows, shards=self._installation.shards)
        return announced

    def _events(self, connection: Conn, announced: Sequence[Unhandled], now: datetime) -> list[OutboxRow]:
        runs = {"run_ids": [each.run_id for each in announced]}
        jobs = {row[0]: row[1:] for row in connection.execute(_READ_UNHANDLED_JOBS, runs, binary=True)}
        events: list[OutboxRow] = []
        for each in announced:
            if each.run_id not in jobs:
                continue  # its run has ended since
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
