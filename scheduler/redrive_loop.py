"""Work off redrives: new runs of dead runs, dead messages published again, at the rate of each.

A batch is one transaction: new runs, marks in the dead letters, messages and the cursor. After a crash the next batch
begins where the last committed one ended. The row has the time of its next batch, so that its rate holds over all
schedulers. Any of them takes the next batch.

Firing has the same thread: it waits 50 ms at most for a locked job, and the batch is tried later.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from uuid import UUID

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import FieldError, Refused, Unavailable
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn, RowsLocked, Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.scheduler.job_faults import describe, is_jobs_own
from tidewheel.schedules.decision import BackfillState
from tidewheel.transitions.dead_letters import lock_dead_letters, republish
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.manual_retry import RetryRequest, retry_runs
from tidewheel.transitions.redrives import (
    DeadLetterRef,
    Redrive,
    advance_redrive,
    find_due_redrives,
    lock_due_redrive,
    next_letters,
    set_redrive_state,
)

_SET_WAITS = Statements("tidewheel.transitions")["set_waits"]
_LOG = logging.getLogger("tidewheel.scheduler")

_EVERY_SECONDS = 0.2  # between two steps
_SHARE_SECONDS = 0.05  # of each step; a batch that has begun by then is the last, since firing comes first
_BATCH = 50  # dead letters of one transaction: some tens of milliseconds
_BATCHES_PER_SECOND = 10.0  # with a rate, as long as each batch has a dead letter
_LOCK_TIMEOUT = "50ms"  # for a job, such as one that is being deleted: firing waits meanwhile
_LOCKED_SECONDS = 1.0  # until the next try: 5 % of the thread's time at most
_LONGEST_BURST = timedelta(seconds=1)  # of the rate, after a step that came late

Rejections = Mapping[int, Sequence[FieldError]]


class RedriveLoop:
    """Works off the redrives that are due."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation
        self._next = 0.0
        self._singly: set[UUID] = set()
        self._locked: dict[UUID, float] = {}  # redrives that met a locked row, and when they are tried again

    def step(self) -> tuple[int, float]:
        """Redrive for up to `_SHARE_SECONDS`, every `_EVERY_SECONDS`.

        Returns:
            The number of processed dead letters, and the seconds until the next step.

        Raises:
            Unavailable: The database does not answer.
        """
        now = monotonic_seconds()
        if now < self._next:
            return 0, self._next - now
        processed = 0
        with self._session.transaction() as connection:
            due = find_due_redrives(connection, read_now(connection))
        self._locked = {redrive_id: until for redrive_id, until in self._locked.items() if until > now}
        for redrive_id in due:
            while redrive_id not in self._locked and monotonic_seconds() < now + _SHARE_SECONDS:
                done = self._batch(redrive_id)
                if done is None:
                    break
                processed += done
        self._next = monotonic_seconds() + _EVERY_SECONDS
        return processed, _EVERY_SECONDS if due else math.inf

    def _batch(self, redrive_id: UUID) -> int | None:
        """Redrive a batch, or one letter after a batch that failed; None if no batch is due."""
        singly = redrive_id in self._singly
        try:
            return redrive_batch(self._session, self._installation, redrive_id, most=1 if singly else _BATCH)
        except RowsLocked as error:
            _LOG.info("redrive %s is tried again in %.0f s: %s", redrive_id, _LOCKED_SECONDS, error)
            self._locked[redrive_id] = monotonic_seconds() + _LOCKED_SECONDS
            return None
        except Unavailable:
            raise
        except Exception as error:
            if not (is_jobs_own(error) or isinstance(error, ValueError | ArithmeticError)):
                raise  # code is wrong: every redrive may fail alike
            _LOG.warning("redrive %s failed: %s; its dead letters are redriven one by one", redrive_id, describe(error))
            if singly:
                self._reject_next(redrive_id, error)
                self._singly.discard(redrive_id)
            else:
                self._singly.add(redrive_id)
            return 0

    def _reject_next(self, redrive_id: UUID, error: Exception) -> None:
        with self._session.transaction() as connection:
            now = read_now(connection)
            redrive = lock_due_redrive(connection, redrive_id, now)
            if redrive is not None and (letters := _lock(connection, next_letters(connection, redrive, 1).letters)):
                problem = FieldError("id", describe(error)[:1000], "correct the job, or purge this dead letter")
                rejected = {letters[0].id: (problem,)}
                next_at = _next_at(redrive, 1, now)
                advance_redrive(connection, redrive, letters[0], redriven=0, rejected=rejected, next_at=next_at)


def redrive_batch(session: Session, installation: Installation, redrive_id: UUID, *, most: int = _BATCH) -> int | None:
    """Redrive the next dead letters of a redrive, or finish it.

    A batch ends before a dead letter that another transaction holds, and the next one begins there: it may roll back.

    Returns:
        The number of processed dead letters; None if no batch is due, or another transaction holds its first one.

    Raises:
        RowsLocked: Another transaction holds a row; nothing happened.
        Unavailable: The database was lost. The batch happened wholly or not at all.
    """
    with session.transaction() as connection:
        connection.execute(_SET_WAITS, {"lock_timeout": _LOCK_TIMEOUT})
        now = read_now(connection)
        redrive = lock_due_redrive(connection, redrive_id, now)
        if redrive is None:
            return None
        found = next_letters(connection, redrive, min(_size(redrive), most))
        letters = _lock(connection, found.letters)
        if found.letters and not letters:
            return None
        last = found.last if len(letters) == len(found.letters) else letters[-1]
        if reached := last or next(reversed(letters), None):
            redriven, rejected = _redrive(connection, installation, redrive.tenant, letters, now)
            next_at = _next_at(redrive, len(letters), now)
            advance_redrive(connection, redrive, reached, redriven=redriven, rejected=rejected, next_at=next_at)
        if last is None:
            set_redrive_state(connection, redrive_id, BackfillState.FINISHED, now)
        failpoint("redriving.before_commit")
    failpoint("redriving.after_commit")
    return len(letters)


def _lock(connection: Conn, letters: Sequence[DeadLetterRef]) -> list[DeadLetterRef]:
    """Lock dead letters; return them up to the first that another transaction holds or has changed."""
    locked = lock_dead_letters(connection, [each.id for each in letters]) if letters else set[int]()
    return list(takewhile(lambda each: each.id in locked, letters))


def _size(redrive: Redrive) -> int:
    return _BATCH if redrive.rate is None else max(1, min(_BATCH, int(redrive.rate / _BATCHES_PER_SECOND)))


def _next_at(redrive: Redrive, processed: int, now: datetime) -> datetime:
    pause = timedelta(seconds=processed / redrive.rate) if redrive.rate else timedelta(0)
    return max(redrive.next_at, now - _LONGEST_BURST) + pause


def _redrive(
    connection: Conn, installation: Installation, tenant: str, letters: Sequence[DeadLetterRef], now: datetime
) -> tuple[int, Rejections]:
    """Return the number of redriven dead letters, and the errors of the others."""
    if not letters:
        return 0, {}
    runs = [(each.id, each.run_id) for each in letters if each.run_id is not None]
    done = retry_runs(connection, installation, [RetryRequest(tenant, run_id) for _, run_id in runs])
    rejected: dict[int, Sequence[FieldError]] = {
        number: each.errors for (number, _), each in zip(runs, done, strict=True) if isinstance(each, Refused)
    }
    redriven = len(runs) - len(rejected)
    messages = [each.id for each in letters if each.run_id is None]
    if messages:
        published, cut = republish(connection, installation, messages, now)
        redriven += published
        for number, size in cut.items():
            problem = f"the message had {size} bytes, of which only the first are stored"
            rejected[number] = (FieldError("id", problem, "send a shorter message"),)
    return redriven, rejected
