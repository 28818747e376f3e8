"""Do bulk work in batches, at the rate of each work.

A batch is one transaction: what it changes, and the cursor. After a crash the next batch begins where the last
committed one ended. The row has the time of its next batch, so that its rate holds over all schedulers. Any of them
takes the next batch. What a batch does is known to its kind alone.

Firing has the same thread: it waits 50 ms at most for a locked row, and the batch is tried later.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import FieldError, Refused, Unavailable
from tidewheel.jobs.values import parse_timestamp
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, RowsLocked, Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.scheduler.job_faults import describe, is_jobs_own
from tidewheel.scheduler.set_aside import SetAside
from tidewheel.schedules.decision import BackfillState
from tidewheel.transitions.dead_letters import (
    DeadLetterRef,
    LetterScan,
    lock_dead_letters,
    purge,
    republish,
    scan_dead_letters,
)
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.requested_changes import RetryRequest, find_retried, retry_runs, scan_failed_runs
from tidewheel.transitions.works import (
    Cursor,
    OpenWork,
    Rejections,
    adopt_redrives,
    advance_work,
    find_due_works,
    lock_due_work,
    set_work_state,
)

T = TypeVar("T")

_LOG = logging.getLogger("tidewheel.scheduler")

_SET_WAITS = Statements("tidewheel.transitions")["set_waits"]
_SQL = Statements("tidewheel.scheduler")

_LOOKED_AT = 2000  # dead letters of one batch: some milliseconds, where an error is rare
_LETTER_COLUMNS = ("ids", "kind", "job_id", "status", "error_type", "queue", "lane", "since", "until", "redriven")
_EVERY_SECONDS = 0.2  # between two steps
_SHARE_SECONDS = 0.05  # of each step; a batch that has begun by then is the last, since firing comes first
_BATCHES_PER_SECOND = 10.0  # with a rate, as long as each batch does something
_LOCK_TIMEOUT = "50ms"  # for a job, such as one that is being deleted: firing waits meanwhile
_LOCKED_SECONDS = 1.0  # until the next try: 5 % of the thread's time at most
_LONGEST_BURST = timedelta(seconds=1)  # of the rate, after a step that came late
_LONGEST_PAUSE_SECONDS = 86_400.0 * 365  # of the lowest rate


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """The next things of a work by their ids, and the cursor after them; None if nothing was looked at."""

    things: Mapping[int | str, T]
    cursor: Cursor | None
    is_last: bool


class Kind(Protocol[T]):
    """A kind of work: `batch` is its largest batch, `remedy` what helps a thing whose own data fail."""

    batch: int
    remedy: str

    def next(self, connection: Conn, work: OpenWork, limit: int) -> Batch[T] | None:
        """Find the next things, and lock them if that is needed; None if another transaction holds the first."""
        ...

    def apply(
        self, connection: Conn, installation: Installation, work: OpenWork, batch: Batch[T]
    ) -> tuple[int, Rejections]:
        """Change them; return how many it has changed, and the errors of the rejected ones."""
        ...


class Redrive:
    """New runs of dead runs, dead messages published again.

    A batch ends before a dead letter that another transaction holds, and the next one begins there: it may roll back.
    """

    batch = 50  # of one transaction: some tens of milliseconds
    remedy = "correct the job, or purge this dead letter"

    def next(self, connection: Conn, work: OpenWork, limit: int) -> Batch[DeadLetterRef] | None:
        """Find and lock the next dead letters."""
        found = _scan(connection, work, limit)
        numbers = [each.id for each in found.letters]
        locked = lock_dead_letters(connection, numbers) if numbers else set[int]()
        letters = list(takewhile(lambda each: each.id in locked, found.letters))
        if numbers and not letters:
            return None
        return _batch(letters, found.last if len(letters) == len(numbers) else letters[-1])

    def apply(
        self, connection: Conn, installation: Installation, work: OpenWork, batch: Batch[DeadLetterRef]
    ) -> tuple[int, Rejections]:
        """Redrive them."""
        letters = batch.things.values()
        runs = [(each.id, each.run_id) for each in letters if each.run_id is not None]
        done = retry_runs(connection, installation, [RetryRequest(work.tenant, run_id) for _, run_id in runs])
        rejected: dict[int | str, Sequence[FieldError]] = {
            number: each.errors for (number, _), each in zip(runs, done, strict=True) if isinstance(each, Refused)
        }
        redriven = len(runs) - len(rejected)
        messages = [each.id for each in letters if each.run_id is None]
        if messages:
            published, cut = republish(connection, installation, messages, read_now(connection))
            redriven += published
            for number, size in cut.items():
                problem = f"the message had {size} bytes, of which only the first are stored"
                rejected[number] = (FieldError("id", problem, "send a shorter message"),)
        return redriven, rejected


class Purge:
    """Deletions of dead letters.

    A batch waits for a redrive under way, and then leaves what no longer fits the filter by redrives.
    """

    batch = 1000  # of one transaction: some tens of milliseconds
    remedy = "give ids or a filter without this dead letter"

    def next(self, connection: Conn, work: OpenWork, limit: int) -> Batch[DeadLetterRef]:
        """Find the next dead letters."""
        found = _scan(connection, work, limit)
        return _batch(found.letters, found.last)

    def apply(
        self, connection: Conn, installation: Installation, work: OpenWork, batch: Batch[DeadLetterRef]
    ) -> tuple[int, Rejections]:
        """Delete them."""
        del installation
        return purge(connection, [each.id for each in batch.things.values()], redriven=work.filter.get("redriven")), {}


class Retry:
    """New runs of failed and timed-out ones. A run that has a retry when its turn comes is left out.

    A batch locks the failed runs and their dead letters, which excludes another retry and a redrive of the same runs.
    """

    batch = 50  # as of a redrive
    remedy = "correct the job, or leave its runs out by the filter"

    def next(self, connection: Conn, work: OpenWork, limit: int) -> Batch[UUID]:
        """Find the next failed runs."""
        until, after = parse_timestamp(work.filter["until"]), UUID(work.cursor["id"])
        found, last = scan_failed_runs(
            connection, work.tenant, _given(work), until=until, ended_until=work.created_at, after=after, limit=limit,
            look=_LOOKED_AT,
        )  # fmt: skip
        reached = last or next(reversed(found), None)
        cursor = None if reached is None else {"id": str(reached)}
        return Batch({str(each): each for each in found}, cursor, is_last=last is None)

    def apply(
        self, connection: Conn, installation: Installation, work: OpenWork, batch: Batch[UUID]
    ) -> tuple[int, Rejections]:
        """Retry them."""
        locked: dict[str, object] = {"run_ids": uuids(batch.things.values())}
        connection.execute(_SQL["lock_failed_runs"], locked)
        connection.execute(_SQL["lock_dead_letters_of"], locked)
        retried = find_retried(connection, batch.things.values())
        new = [each for each in batch.things.values() if each not in retried]
        requests = [RetryRequest(work.tenant, each) for each in new]
        done = retry_runs(connection, installation, requests, as_of=work.filter["versions"] == "as_of")
        rejected: dict[int | str, Sequence[FieldError]] = {
            str(run_id): each.errors for run_id, each in zip(new, done, strict=True) if isinstance(each, Refused)
        }
        return len(new) - len(rejected), rejected


def _given(work: OpenWork) -> dict[str, object]:
    """Return a work's filter with numbers and objects as text.

    PostgreSQL refuses such a text as data of this work, but another type as a statement of the wrong schema.
    """
    return {
        name: value if value is None or isinstance(value, bool | list) else str(value)
        for name, value in work.filter.items()
    }


def _scan(connection: Conn, work: OpenWork, limit: int) -> LetterScan:
    given = _given(work)
    columns = {name: given.get(name) for name in _LETTER_COLUMNS}
    place = {"after_at": str(work.cursor["at"]), "after_id": str(work.cursor["id"])}
    return scan_dead_letters(
        connection, {**columns, **place, "tenant": work.tenant, "limit": limit, "look": _LOOKED_AT}
    )


def _batch(letters: Sequence[DeadLetterRef], last: DeadLetterRef | None) -> Batch[DeadLetterRef]:
    reached = last or next(reversed(letters), None)
    cursor = None if reached is None else {"at": reached.created_at.isoformat(), "id": reached.id}
    return Batch({each.id: each for each in letters}, cursor, is_last=last is None)


KINDS: Mapping[str, Kind[Any]] = MappingProxyType({"redrive": Redrive(), "purge": Purge(), "retry": Retry()})


class WorkLoop:
    """Does the works that are due."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation
        self._next = 0.0
        self._has_adopted = False
        self._singly: set[UUID] = set()
        self._locked: dict[UUID, float] = {}  # works that met a locked row, and when they are tried again
        self._failed = SetAside[UUID]()  # works whose row cannot be read, or whose code is wrong

    def step(self) -> tuple[int, float]:
        """Do works for a while; return the number of processed things and the seconds until the next step."""
        now = monotonic_seconds()
        if now < self._next:
            return 0, self._next - now
        processed = 0
        with self._session.transaction() as connection:
            if not self._has_adopted:
                adopt_redrives(connection)
            found = find_due_works(connection, read_now(connection), KINDS)
        self._has_adopted = True
        self._locked = {work_id: until for work_id, until in self._locked.items() if until > now}
        left = self._failed.current()
        due = [work_id for work_id in found if work_id not in left]
        for work_id in due:
            done: int | None = 0
            while done is not None and work_id not in self._locked and monotonic_seconds() < now + _SHARE_SECONDS:
                done = None
                with self._failed.alone(work_id, "do a batch of work"):
                    done = self._batch(work_id)
                processed += done or 0
        self._next = monotonic_seconds() + _EVERY_SECONDS
        return processed, _EVERY_SECONDS if due else math.inf

    def _batch(self, work_id: UUID) -> int | None:
        """Do a batch, or one thing after a batch that failed; None if no batch is due."""
        singly = work_id in self._singly
        try:
            return do_batch(self._session, self._installation, work_id, most=1 if singly else None)
        except RowsLocked as error:
            _LOG.info("work %s continues in %.0f s: %s", work_id, _LOCKED_SECONDS, error)
            self._locked[work_id] = monotonic_seconds() + _LOCKED_SECONDS
            return None
        except Unavailable:
            raise
        except Exception as error:
            if not (is_jobs_own(error) or isinstance(error, ValueError | ArithmeticError)):
                raise  # its code is wrong, or its filter or cursor
            _LOG.warning(
                "a batch of work %s failed: %s; the scheduler does its objects one by one", work_id, describe(error)
            )
            if singly:
                self._reject_next(work_id, error)
                self._singly.discard(work_id)
            else:
                self._singly.add(work_id)
            return 0

    def _reject_next(self, work_id: UUID, error: Exception) -> None:
        with self._session.transaction() as connection:
            now = read_now(connection)
            work = lock_due_work(connection, work_id, now)
            found = None if work is None else KINDS[work.kind].next(connection, work, 1)
            if work is not None and found is not None and found.things and found.cursor is not None:
                problem = FieldError("id", describe(error)[:1000], KINDS[work.kind].remedy)
                rejected: Rejections = {next(iter(found.things)): (problem,)}
                advance_work(connection, work, found.cursor, done=0, rejected=rejected, next_at=_next_at(work, 1, now))


def do_batch(session: Session, installation: Installation, work_id: UUID, *, most: int | None = None) -> int | None:
    """Do the next batch of a work, or finish it.

    Returns:
        The number of processed things; None if no batch is due, or another transaction holds its first thing.

    Raises:
        RowsLocked: Another transaction holds a row; nothing happened.
        Unavailable: The database was lost. The batch happened wholly or not at all.
    """
    with session.transaction() as connection:
        connection.execute(_SET_WAITS, {"lock_timeout": _LOCK_TIMEOUT})
        now = read_now(connection)
        work = lock_due_work(connection, work_id, now)
        if work is None:
            return None
        kind = KINDS[work.kind]
        found = kind.next(connection, work, min(_size(work, kind.batch), most or kind.batch))
        if found is None:
            return None
        if found.cursor is not None:
            nothing: tuple[int, Rejections] = (0, {})
            done, rejected = kind.apply(connection, installation, work, found) if found.things else nothing
            next_at = _next_at(work, done + len(rejected), now)
            advance_work(connection, work, found.cursor, done=done, rejected=rejected, next_at=next_at)
        if found.is_last:
            set_work_state(connection, work_id, BackfillState.FINISHED, now)
        failpoint("working.before_commit")
    failpoint("working.after_commit")
    return len(found.things)


def _size(work: OpenWork, batch: int) -> int:
    return batch if work.rate is None else max(1, min(batch, int(work.rate / _BATCHES_PER_SECOND)))


def _next_at(work: OpenWork, processed: int, now: datetime) -> datetime:
    pause = timedelta(seconds=min(processed / work.rate, _LONGEST_PAUSE_SECONDS)) if work.rate else timedelta(0)
    return max(work.next_at, now - _LONGEST_BURST) + pause
