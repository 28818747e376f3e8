"""Recording how attempts ended: group-committed, tried again until it is written or seen to be superseded.

An end is idempotent (the row is gone when it stands), so a lost COMMIT is answered by doing it again. Whether a failed
attempt is followed by another is decided here, by the pure `next_attempt`.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

import psycopg

from tidewheel.db import Session, is_data_fault
from tidewheel.errors import Unavailable
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.outcome import Outcome, failed
from tidewheel.failpoint import failpoint
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.service import Patience, Stop
from tidewheel.transitions.end import RunEnd, end_runs
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.requeue import Requeue, requeue_runs
from tidewheel.transitions.retry import UNKNOWN_OUTCOME, Failure, next_attempt
from tidewheel.transitions.signal import start_cancelling
from tidewheel.transitions.waiting import Wait, wait_runs

_LOG = logging.getLogger("tidewheel.executor")

_BATCH = 500  # completions in one transaction: enough to share its cost, small enough to stay within milliseconds
_GATHER_SECONDS = 0.002
_BUSY_SECONDS = 0.05  # a row that somebody else has locked is looked at again this soon

Item = tuple[Attempt, Outcome]


class Finisher:
    """The thread that writes outcomes."""

    def __init__(
        self, session: Session, installation: Installation, executor_id: UUID, poke: Callable[[], None]
    ) -> None:
        self._session, self._installation = session, installation
        self._executor_id, self._poke = executor_id, poke
        self._items: deque[Item] = deque()
        self._wake = threading.Event()
        self._written = threading.Condition()
        self._unwritten = 0
        self._stop = Stop()
        self._stop.wakes(self._wake)
        self._thread = threading.Thread(target=self._run, name="finisher", daemon=True)
        self._thread.start()

    def add(self, attempt: Attempt, outcome: Outcome) -> None:
        """Record an outcome soon."""
        with self._written:
            self._unwritten += 1
        self._items.append((attempt, outcome))
        self._wake.set()

    def backlog(self) -> int:
        """How many outcomes are not written yet."""
        return self._unwritten

    def drain(self, seconds: float) -> bool:
        """Wait until everything is written; returns whether that came about in time."""
        with self._written:
            return self._written.wait_for(lambda: self._unwritten == 0, timeout=seconds)

    def close(self) -> None:
        """Stop writing; what is left is found by the reaper when the lease ends."""
        self._stop.ask()
        self._thread.join(timeout=10)
        self._session.close()

    def _run(self) -> None:
        patience = Patience(self._stop, "recording outcomes")
        while not self._stop.asked():
            self._wake.wait()
            # A moment's company: a transaction costs as much for one outcome as for a dozen.
            if len(self._items) < _BATCH:
                self._stop.wait(_GATHER_SECONDS)
            self._wake.clear()
            while self._items and not self._stop.asked():
                batch = [self._items.popleft() for _ in range(min(len(self._items), _BATCH))]
                self._write_patiently(batch, patience)

    def _write_patiently(self, batch: list[Item], patience: Patience) -> None:
        batch = self._newest(batch)
        while batch and not self._stop.asked():
            try:
                left = self._write(batch) if len(batch) > 1 else self._write_alone(batch[0])
            except Unavailable as error:
                patience.wait(error)
                continue
            except Exception as error:  # noqa: BLE001 - this thread must not end; one by one tells which item it is
                if len(batch) == 1:
                    patience.wait(error)
                    continue
                _LOG.warning("a batch of %d outcomes failed (%s); recording them one by one", len(batch), error)
                for item in batch:
                    self._write_patiently([item], patience)
                return
            patience.over()
            self._count_written(len(batch) - len(left))
            self._poke()
            batch = left
            if batch:
                self._stop.wait(_BUSY_SECONDS)

    def _newest(self, batch: Sequence[Item]) -> list[Item]:
        """One outcome per run, of its newest attempt: what an older one still has to say is superseded."""
        newest: dict[UUID, Item] = {}
        for item in batch:
            known = newest.get(item[0].run_id)
            if known is None or known[0].started.attempt < item[0].started.attempt:
                newest[item[0].run_id] = item
        self._count_written(len(batch) - len(newest))
        return list(newest.values())

    def _count_written(self, count: int) -> None:
        with self._written:
            self._unwritten -= count
            self._written.notify_all()

    def _write(self, batch: Sequence[Item]) -> list[Item]:
        """Write a batch in one transaction; returns what must be tried again.

        Raises:
            Unavailable: The database does not take it now, whatever it is.
            psycopg.Error: An outcome's data does not fit.
        """
        try:
            return self._write_once(batch)
        except psycopg.Error as error:
            if is_data_fault(error):
                raise
            # A database that is read-only, or half restored, is no fault of an outcome.
            raise Unavailable(str(error)) from error

    def _write_once(self, batch: Sequence[Item]) -> list[Item]:
        waits = [wait for item in batch if (wait := run_wait(*item, self._executor_id)) is not None]
        ends = [end for item in batch if (end := run_end(*item, self._executor_id)) is not None]
        settled = {end.run_id for end in ends} | {wait.run_id for wait in waits}
        requeues = [requeue(*item, self._executor_id) for item in batch if item[0].run_id not in settled]
        cancelled = [(end.run_id, end.attempt) for end in ends if end.state is RunState.CANCELLED]
        with self._session.transaction() as connection:
            if cancelled:
                start_cancelling(connection, cancelled, self._executor_id)
            done = end_runs(connection, self._installation, ends)
            busy = (
                done.busy | requeue_runs(connection, self._installation, requeues).busy | wait_runs(connection, waits)
            )
            failpoint("completion.before_commit")
            if requeues:
                failpoint("retry.before_commit")
        failpoint("completion.after_commit")
        if requeues:
            failpoint("retry.after_commit")
        for run_id in done.superseded:
            _LOG.info("a late report changes nothing", extra={"run_id": str(run_id)})
        return [item for item in batch if item[0].run_id in busy]

    def _write_alone(self, item: Item) -> list[Item]:
        """Write one outcome; one that cannot be stored is recorded as a failure that says so."""
        try:
            return self._write([item])
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the run must not stay open for it
            _LOG.exception("an outcome cannot be stored", extra={"run_id": str(item[0].run_id)})
            message = f"the outcome could not be stored: {type(error).__name__}"
            return self._write([(item[0], failed("UnrecordableOutcome", message, permanent=True))])


def run_wait(attempt: Attempt, outcome: Outcome, executor_id: UUID) -> Wait | None:
    """The wait that an outcome means; None where it means none."""
    if outcome.waits is None:
        return None
    beats = attempt.heartbeat_seconds
    heartbeat = None if beats is None else timedelta(seconds=beats)
    return Wait(attempt.run_id, attempt.started.attempt, executor_id, outcome.waits, heartbeat)


def run_end(attempt: Attempt, outcome: Outcome, executor_id: UUID) -> RunEnd | None:
    """The end of the run that an outcome means; None where the run goes on."""
    if outcome.waits is not None:
        return None
    outcome = _known(attempt, outcome)
    states = {
        AttemptOutcome.SUCCEEDED: RunState.SUCCEEDED,
        AttemptOutcome.CANCELLED: RunState.CANCELLED,
        AttemptOutcome.FAILED: RunState.FAILED,
        AttemptOutcome.TIMED_OUT: RunState.TIMED_OUT,
    }
    state = states.get(outcome.kind)
    if state is None or next_delay(attempt, outcome) is not None:
        return None
    return RunEnd(
        run_id=attempt.run_id,
        attempt=attempt.started.attempt,
        state=state,
        executor_id=executor_id,
        reason=UNKNOWN_OUTCOME if outcome.error_type == UNKNOWN_OUTCOME else outcome.timeout,
        error_type=outcome.error_type,
        error_message=outcome.error_message,
        trace=outcome.trace,
        result=outcome.result,
        output=attempt.output.tail() if attempt.output else None,
        request=attempt.request,
        definition=attempt.definition,
    )


def requeue(attempt: Attempt, outcome: Outcome, executor_id: UUID) -> Requeue:
    """How a run goes on after an outcome that does not end it."""
    delay = next_delay(attempt, outcome)
    return Requeue(
        run_id=attempt.run_id,
        attempt=attempt.started.attempt,
        executor_id=executor_id,
        outcome=outcome.kind,
        delay=outcome.snooze if delay is None else delay,
        error_type=outcome.error_type,
        error_message=outcome.error_message,
        trace=outcome.trace,
        output=attempt.output.tail() if attempt.output else None,
    )


def next_delay(attempt: Attempt, outcome: Outcome) -> timedelta | None:
    """The delay before a retry; None where the outcome is no failure or the last one."""
    if outcome.kind not in {AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT}:
        return None
    failure = Failure(outcome.error_type or "", outcome.permanent, outcome.retry_after, outcome.not_begun)
    started = attempt.started
    return next_attempt(
        attempt.definition, failure, run_id=started.run_id, attempt=started.attempt, charged=started.charged
    )


def _known(attempt: Attempt, outcome: Outcome) -> Outcome:
    """Of a run that may begin once: one that is handed back after it has begun has an end that nobody knows."""
    if outcome.kind is not AttemptOutcome.HANDED_BACK or outcome.not_begun or not attempt.definition.at_most_once:
        return outcome
    return failed(UNKNOWN_OUTCOME, "the executor stopped before the attempt ended; it may have had its effect")
