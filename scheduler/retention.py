"""Remove what is old, table by table, as `retention_rules.py` has it (docs/adr/0075-retention.md).

A partition is dropped when its whole day is older than its period. The inputs of a run that ends within a day of its
creation lie in the partition of its creation, so inputs are kept a day longer. So are attempts, which lie in the
partition of their start. What live runs need stays: days on which open runs were created, or started their attempts,
and the days that `find_needed_since` names.

Detaching waits for transactions that have used the table, so this is a thread of its own. A process that dies, or
waits for too long, leaves a partition that is detached, or about to be: the next pass drops it.

Figures of activity are merged by slices of time. Those that a process writes late become a row of their own, with the
next pass.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Final, LiteralString, NamedTuple, cast

import psycopg

from tidewheel.activity import GRAINS
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.held_lock import HeldLock, held_lock
from tidewheel.postgres.partitions import StoredDay, day_of, drop_day, start_of, stored_days
from tidewheel.postgres.session import Conn, Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Shutdown, run_loop
from tidewheel.scheduler.removals import (
    Pace,
    count_days,
    lock_kept_since,
    remove_by_tenant,
    remove_ended_jobs,
)
from tidewheel.scheduler.retention_rules import RULES, Days, Period, Periods, Rows

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")

# A wait for another transaction holds back the next partitions of the table: so it is short. A later pass tries again.
_LOCK_TIMEOUT: LiteralString = "SET lock_timeout = '2s'"

_EVERY_SECONDS = 3600.0
_PAGE = 10_000  # rows that one statement deletes: some tens of milliseconds
_TENANTS = 200  # in one statement that merges: some 50,000 rows if each has two classes
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = timedelta(days=1)
_ATTEMPTS = ("attempts", "attempt_outputs")  # cut by the start of an attempt


class _Merge(NamedTuple):
    """Rows of a grain that become rows of the next one, from the age `after` on."""

    grain: int
    after: timedelta
    slice: timedelta


MERGES: Final = (
    _Merge(0, timedelta(hours=2), timedelta(minutes=10)),
    _Merge(1, timedelta(hours=48), timedelta(hours=6)),
)
"""Plots of an hour need half minutes, those of two days quarters of an hour."""


def merge_activity(connection: Conn, now: datetime, pace: Pace) -> None:
    """Merge the rows that are old enough, on a connection with autocommit."""
    for each in MERGES:
        into = GRAINS[each.grain + 1]
        before = now - each.after
        before -= (before - _EPOCH) % into
        while (first := _oldest(connection, each.grain)) is not None and first < before:
            end = min(first - (first - _EPOCH) % each.slice + each.slice, before)
            columns = {"grain": each.grain, "into": into, "first": first, "end": end}
            tenants = [tenant for (tenant,) in connection.execute(_SQL["find_tenants_of_activity"], columns)]
            for at in range(0, len(tenants), _TENANTS):
                connection.execute(_SQL["merge_activity"], columns | {"tenants": tenants[at : at + _TENANTS]})
                if pace.rest():
                    return


def _oldest(connection: Conn, grain: int) -> datetime | None:
    row = connection.execute(_SQL["find_oldest_activity"], {"grain": grain}, binary=True).fetchone()
    return cast("tuple[datetime | None]", row)[0]


@dataclass(frozen=True, slots=True)
class _Needs:
    """The old partitions that live runs and requests need."""

    created: Collection[date]  # days on which open runs were created
    started: Collection[date]  # days on which their attempts started
    occurrences_since: date | None  # the first day that open occurrences need
    runs_since: date | None  # the first day whose finished runs open backfills need
    counted: Collection[date]
    unarchived: Collection[date]  # days that the archive lacks; none without an archive

    def holder(self, stored: StoredDay) -> str | None:
        """Return the cause for which a partition stays; None if it may be dropped."""
        day, table = stored.day, stored.table
        is_readable = stored.attached and not stored.pending
        causes = {
            "open runs were created on this day": table == "run_inputs" and day in self.created,
            "open runs started attempts on this day": table in _ATTEMPTS and day in self.started,
            # Attempts too: an audit compares their number with the runs'.
            "open occurrences of workflows need this day": (
                self.occurrences_since is not None and day >= self.occurrences_since
            ),
            "an open backfill of missing occurrences needs its runs": (
                table == "finished_runs" and self.runs_since is not None and day >= self.runs_since
            ),
            "its runs are not counted yet": table == "finished_runs" and is_readable and day not in self.counted,
            # Runs that end on the next day have their inputs and attempts here.
            "the archive lacks this day": not {day, day + _DAY}.isdisjoint(self.unarchived),
        }
        return next((cause for cause, holds in causes.items() if holds), None)


class Retention:
    """The thread of a scheduler that removes what is old."""

    def __init__(self, url: str, periods: Periods, stop: Shutdown) -> None:
        self._session, self._url = Session(url, "tidewheel-scheduler-retention", autocommit=True), url
        self._periods, self._stop = periods, stop
        loop = partial(run_loop, stop, "scheduler: removing what is old", self._round, longest_pause=_EVERY_SECONDS)
        self._thread = threading.Thread(target=loop, name="retention", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def step(self) -> list[StoredDay]:
        """Remove what is old; return the dropped partitions, none if another scheduler removes.

        A table or a partition that cannot be removed delays no other one: its error is raised at the end.
        """
        with held_lock(self._url, "tidewheel-retention-lock", _SQL["lock_retention"], old="retention") as lock:
            if not lock.is_alone:
                return []
            with self._session.transaction() as connection:
                connection.execute(_LOCK_TIMEOUT)
                return self._pass(connection, lock)

    def close(self) -> None:
        """Close the session."""
        self._session.close()

    def _round(self) -> float:
        try:
            self.step()
        finally:
            self.close()
        return _EVERY_SECONDS

    def _pass(self, connection: Conn, lock: HeldLock) -> list[StoredDay]:
        failures: list[psycopg.Error] = []
        try_step = partial(_try, connection, lock, failures)
        pace, now = Pace(self._stop), read_now(connection)
        stored = stored_days(connection)
        try_step(partial(_close_days, connection, stored))
        try_step(partial(_measure_archive, connection, stored, now))
        try_step(partial(count_days, connection, pace))
        try_step(partial(merge_activity, connection, now, pace))
        before = self._facts_before(connection, stored, now)
        for rule in RULES.values():
            if isinstance(rule, Rows):
                ended = before if rule.period is Period.RUNS else now - self._periods.of(rule.period)
                try_step(partial(_delete_rows, connection, rule, ended, pace))
        try_step(partial(_remove_jobs, connection, before, pace))
        lock.check()
        dropped = self._drop(connection, stored, now, try_step)
        try_step(partial(self._remove_early, connection, stored, now, pace))
        if failures:
            raise failures[0]
        return dropped

    def _facts_before(self, connection: Conn, stored: Iterable[StoredDay], now: datetime) -> datetime:
        """Return the instant before which no stored day of runs needs a fact."""
        begins = (start_of(day) for day in _days_of_runs(connection, stored))
        return min([now - self._periods.runs, *begins])

    def _remove_early(self, connection: Conn, stored: Iterable[StoredDay], now: datetime, pace: Pace) -> None:
        oldest = self._first_kept(now)["finished_runs"]
        days = {each.day for each in stored if each.table == "finished_runs" and each.day >= oldest}
        ready = _days(connection, _SQL["find_counted_days"]) - _unarchived(connection, stored)
        if removed := remove_by_tenant(connection, days, ready, now, pace):
            _LOG.info("removed %d runs that were older than their tenants' retention", removed)

    def _drop(
        self,
        connection: Conn,
        stored: Iterable[StoredDay],
        now: datetime,
        try_step: Callable[[Callable[[], None]], bool],
    ) -> list[StoredDay]:
        """Drop the partitions whose period is over, and that nothing needs."""
        first_kept = self._first_kept(now)
        old = [each for each in stored if each.day < first_kept[each.table]]
        if not old:
            self._record(connection, now, {})
            return []
        in_use = cast("list[tuple[date, date | None]]", connection.execute(_SQL["find_days_in_use"]).fetchall())
        with connection.transaction():
            # So a request either is among the needs, or finds the days dropped.
            if not lock_kept_since(connection):
                self._record(connection, now, dict.fromkeys(old, "an audit or a backfill reads old runs"))
                return []
            occurrences, backfills = _needed_since(connection)
            needs = _Needs(
                created={day for day, _ in in_use},
                started={day for _, day in in_use if day is not None},
                occurrences_since=None if occurrences is None else day_of(occurrences),
                runs_since=None if backfills is None else day_of(backfills),
                counted=_days(connection, _SQL["find_counted_days"]),
                unarchived=_unarchived(connection, stored),
            )
            kept = {each: cause for each in old if (cause := needs.holder(each)) is not None}
            # An audit compares a run with its attempts, of which the first may lie on the day before.
            runs = {each.day: cause for each, cause in kept.items() if each.table == "finished_runs"}
            for each in old:
                cause = runs.get(each.day) or runs.get(each.day + _DAY)
                if each.table == "attempts" and cause is not None:
                    kept.setdefault(each, cause)
            days = {each.day for each in old if each.table == "finished_runs" and each not in kept}
            connection.execute(_SQL["begin_drops"], {"days": sorted(days)})
        dropped: list[StoredDay] = []
        for each in old:
            if each in kept or self._stop.requested():
                continue
            if try_step(partial(drop_day, connection, each)):
                dropped.append(each)
                _LOG.info("dropped the partition of %s for %s", each.table, each.day)
            else:
                kept[each] = "another transaction uses the table"
        self._record(connection, now, kept)
        return dropped

    def _first_kept(self, now: datetime) -> Mapping[str, date]:
        days = {
            table: day_of(now - self._periods.of(rule.period))
            for table, rule in RULES.items()
            if isinstance(rule, Days)
        }
        return {**days, "run_inputs": days["run_inputs"] - _DAY, "attempts": days["attempts"] - _DAY}

    def _record(self, connection: Conn, now: datetime, kept: Mapping[StoredDay, str]) -> None:
        """Record how much older than its period the oldest partition is that stays, and its cause."""
        behind, held_by = timedelta(0), None
        for stored, cause in kept.items():
            over = start_of(stored.day + _DAY)
            rule = RULES[stored.table]
            period = self._periods.of(rule.period if isinstance(rule, Days) else Period.RUNS)
            if now - period - over > behind:
                behind, held_by = now - period - over, f"{stored.table} of {stored.day}: {cause}"
        metrics.set("retention_behind_seconds", behind.total_seconds())
        connection.execute(_SQL["record_pass"], {"behind": behind if held_by else None, "held_by": held_by})


def _try(connection: Conn, lock: HeldLock, failures: list[psycopg.Error], work: Callable[[], None]) -> bool:
    """Do work under the lock; keep an error of the database for the end of the pass, and return False."""
    lock.check()
    try:
        work()
    except psycopg.Error as error:
        if connection.closed:
            raise
        failures.append(error)
        return False
    return True


def _delete_rows(connection: Conn, rule: Rows, before: datetime, pace: Pace) -> None:
    columns: dict[str, object] = {"before": before, "limit": _PAGE}
    while connection.execute(rule.statement, columns).rowcount == _PAGE:
        if pace.rest():
            return


def _remove_jobs(connection: Conn, before: datetime, pace: Pace) -> None:
    occurrences, _ = _needed_since(connection)
    if removed := remove_ended_jobs(connection, min(before, occurrences or before), pace):
        _LOG.info("removed %d deleted or finished jobs with their versions", removed)


def _close_days(connection: Conn, stored: Iterable[StoredDay]) -> None:
    """Close the days to which no run can be added: they may be counted, archived and dropped."""
    days = {each.day for each in stored if each.table == "finished_runs"}
    connection.execute(_SQL["begin_days"], {"days": sorted(days)})
    # Two statements: a transaction that is prepared between them is seen by the second one.
    ended = _days(connection, _SQL["find_ended_waits"])
    connection.execute(_SQL["close_days"], {"days": sorted(ended)})


def _measure_archive(connection: Conn, stored: Iterable[StoredDay], now: datetime) -> None:
    ages = (now - start_of(day + _DAY) for day in _unarchived(connection, stored))
    metrics.set("archive_behind_seconds", max([timedelta(0), *ages]).total_seconds())


def _needed_since(connection: Conn) -> tuple[datetime | None, datetime | None]:
    row = connection.execute(_SQL["find_needed_since"], binary=True).fetchone()
    return cast("tuple[datetime | None, datetime | None]", row)


def _days(connection: Conn, statement: LiteralString) -> set[date]:
    return {day for (day,) in cast("list[tuple[date]]", connection.execute(statement).fetchall())}


def _unarchived(connection: Conn, stored: Iterable[StoredDay]) -> set[date]:
    """Return the days of runs that the archive lacks, and can still take; none without an archive."""
    archived = _days(connection, _SQL["find_archived_days"])
    return _days_of_runs(connection, stored) - archived if archived else set()


def _days_of_runs(connection: Conn, stored: Iterable[StoredDay]) -> set[date]:
    """Return the stored days of finished runs that are not marked as dropped."""
    return {each.day for each in stored if each.table == "finished_runs"} - _days(connection, _SQL["find_dropped_days"])
