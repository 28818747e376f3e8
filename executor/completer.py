"""Record outcomes of attempts in group commits, repeated until each one is written or superseded.

A second writer with its own connection takes a batch if half a batch is left after one was taken, or a whole batch
arrives while one is written: it prepares its batch while PostgreSQL works on the other. Only the first writer takes
attempts with unsaved progress.

At the start of a burst, claims come first: the first outcomes wait up to 0.4 s while the lanes claim many runs at once
(ADR 0026). That happens once per burst, so a lasting one is not delayed.

An end is idempotent: its open row is gone once it is committed. So after a lost COMMIT the batch is written again.
`record_outcomes.py` decides which rows an outcome changes.
"""

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

import psycopg

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.attempt_log import DEFAULT_LOG, EndLog, observe_ended
from tidewheel.executor.handler_services import ASIDE_SECONDS, REFUSED_ALIKE, ProgressBuffer, pause_seconds
from tidewheel.executor.outcome import Outcome, failed
from tidewheel.executor.record_outcomes import Recorded, record_outcomes
from tidewheel.postgres.session import RowsLocked, Session, is_data_fault, is_refused
from tidewheel.process.failpoint import failpoint
from tidewheel.process.fallbacks import Step, work
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Backoff, Shutdown
from tidewheel.transitions.attempts import ProgressReport, save_progress
from tidewheel.transitions.finish import allow_waits
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.executor")

# Outcomes in one transaction during a backlog: of 500 each costs 1 us more, of 2,000 nothing less.
_BATCH = 1000
_BATCH_BYTES = 8 << 20  # of their results, which rows, events and messages repeat
_LINGER_SECONDS = 0.002
# Between the starts of two batches that are not full; the first after a pause lingers only.
_MIN_ROUND_SECONDS = 0.025  # Source: bench/results/costs-by-change.md
_DEFER_SECONDS = 0.4  # the longest delay of the first outcomes of a burst. Source: docs/adr/0026
_BURST_STEP_SECONDS = 0.01  # between two checks while they are delayed
_CALM_SECONDS = 1.0  # without a burst, before another one begins
_MAX_DEFERRED = 5000  # outcomes that end the delay; a thousand more would stop the claims
_LOCKED_SECONDS = 0.05  # until the next try of a row that another transaction has locked
_HELD_SECONDS = 5.0  # after a batch that met a locked row, all are written by the statement that skips such rows

_REFUSALS = 2  # of one batch, before it is written in parts: the first may have created a missing partition

Item = tuple[Attempt, Outcome]


class _Aside(NamedTuple):
    """An outcome that is refused alone, the number of its tries, and the monotonic time of the next."""

    item: Item
    tries: int
    due: float


class Completer:
    """The threads that write outcomes: without a second session one writer alone.

    `on_released` is called after a batch whose ends release children of workflows. `in_burst` returns True while the
    lanes claim many runs at once.
    """

    def __init__(
        self,
        session: Session,
        installation: Installation,
        executor_id: UUID,
        on_written: Callable[[Sequence[Attempt]], None],
        *,
        in_burst: Callable[[], bool],
        on_released: Callable[[], None] = lambda: None,
        second_session: Session | None = None,
        log: EndLog = DEFAULT_LOG,
    ) -> None:
        self._session, self._second_session, self._installation = session, second_session, installation
        self._executor_id, self._on_written, self._in_burst = executor_id, on_written, in_burst
        self._on_released, self._log = on_released, log
        self._items: deque[Item] = deque()
        self._wake = threading.Event()
        self.progress = ProgressBuffer(executor_id, self._wake.set)
        self._changed = threading.Condition()
        self._being_written = 0  # taken from `_items` and not written yet
        self._stop = Shutdown()
        self._stop.wakes(self._wake)
        self._backlog_event = threading.Event()  # there is work for two writers
        self._stop.wakes(self._backlog_event)
        self._deferring = False
        self._in_burst_at = float("-inf")  # the last time that a burst was seen
        self._aside: dict[tuple[UUID, int], _Aside] = {}  # counted in `_being_written`
        self._careful_until = 0.0
        self._threads = [threading.Thread(target=self._run, name="completer", daemon=True)]
        if second_session is not None:
            second = threading.Thread(
                target=self._second_writer, args=[second_session], name="completer-2", daemon=True
            )
            self._threads.append(second)
        for thread in self._threads:
            thread.start()

    def add(self, attempt: Attempt, outcome: Outcome) -> None:
        """Queue an outcome for the next batch."""
        self._items.append((attempt, outcome))
        if not self._wake.is_set():  # the writer reads the items after it has cleared this
            self._wake.set()
        if len(self._items) >= _BATCH and not self._deferring and not self._backlog_event.is_set():
            self._backlog_event.set()  # the first writer may be busy with a batch for long

    def backlog(self) -> int:
        """Return the number of outcomes that are not written yet."""
        with self._changed:
            return len(self._items) + self._being_written

    def drain(self, seconds: float) -> bool:
        """Wait until everything is written; return False after a timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self.backlog() == 0, timeout=seconds)

    def close(self) -> None:
        """Stop writing; a reaper ends what is left when the lease is over."""
        self._stop.request()
        for thread in self._threads:
            thread.join(timeout=10)
        self._log.unrecorded([*self._items, *(aside.item for aside in self._aside.values())])
        self._session.close()
        if self._second_session is not None:
            self._second_session.close()

    def _run(self) -> None:
        backoff = Backoff(self._stop, "recording outcomes")
        left: list[Item] = []
        began = 0.0
        while not self._stop.requested():
            self._wake.wait(_LOCKED_SECONDS if left else self._idle_seconds())
            # A transaction costs as much for one outcome as for a dozen.
            if len(self._items) < _BATCH:
                self._stop.wait(max(_LINGER_SECONDS, began + _MIN_ROUND_SECONDS - monotonic_seconds()))
            if self._items and self._burst_begins():
                self._defer_to_claims()
            began = monotonic_seconds()
            self._wake.clear()
            # A user's transaction may lock a row for minutes (`complete_in`); this thread does not wait for it.
            self._put_back(left)
            batch = self._take_batch()
            if self._items:
                self._wake.set()
            if len(self._items) >= _BATCH // 2:
                self._backlog_event.set()
            left = self._write_with_retries(self._session, batch, backoff)
            if due := self._due_aside():
                self._keep_aside(self._write_with_retries(self._session, due, backoff, retried=True))
            if self.progress.seconds_until_save() == 0.0:
                self._save_progress(backoff)
        self._put_back(left)

    def _idle_seconds(self) -> float | None:
        """Return how long to sleep without outcomes: until progress or an outcome that was set aside is due."""
        waits = [] if (due := self.progress.seconds_until_save()) is None else [due]
        if self._aside:
            with self._changed:
                waits.append(min(one.due for one in self._aside.values()) - monotonic_seconds())
        return max(min(waits), 0.0) if waits else None

    def _burst_begins(self) -> bool:
        """Return True if the lanes claim many runs at once, and did not for a second before."""
        if not self._in_burst():
            return False
        before, self._in_burst_at = self._in_burst_at, monotonic_seconds()
        return self._in_burst_at - before > _CALM_SECONDS

    def _defer_to_claims(self) -> None:
        """Leave PostgreSQL and the processor to claims while a burst lasts."""
        until = monotonic_seconds() + _DEFER_SECONDS
        self._deferring = True
        while len(self._items) < _MAX_DEFERRED and self._in_burst() and monotonic_seconds() < until:
            if self._stop.wait(_BURST_STEP_SECONDS):
                break
        self._deferring, self._in_burst_at = False, monotonic_seconds()

    def _second_writer(self, session: Session) -> None:
        backoff = Backoff(self._stop, "recording outcomes on the second connection")
        while not self._stop.requested():
            self._backlog_event.wait()
            self._backlog_event.clear()
            while len(self._items) >= _BATCH // 2 and not self._deferring and not self._stop.requested():
                if not self._write_second_batch(session, backoff):
                    self._wake.set()
                    break

    def _write_second_batch(self, session: Session, backoff: Backoff) -> bool:
        """Write one batch; return True if none of it is left for the first writer."""
        batch = self._take_batch()
        # Only the first writer saves checkpoints, and only before the end of their attempts.
        writable = [] if self.progress.unsaved_of(item[0].key for item in batch) else batch
        left = self._write_with_retries(session, writable, backoff) if writable else batch
        self._put_back(left)
        return not left

    def _take_batch(self) -> list[Item]:
        with self._changed:
            batch, room = list[Item](), _BATCH_BYTES
            while self._items and len(batch) < _BATCH and room > 0:
                batch.append(item := self._items.popleft())
                room -= len(item[1].result or b"")
            self._being_written += len(batch)
            return batch

    def _put_back(self, items: Sequence[Item]) -> None:
        with self._changed:
            self._items.extend(items)
            self._being_written -= len(items)

    def _save_progress(self, backoff: Backoff) -> None:
        if not (reports := self.progress.take_all()):
            return
        try:
            self._save(reports)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - this thread must not end, and one report must not stop the others
            if _is_away(error):
                backoff.wait(error)
            else:
                self._save_apart(reports, backoff)
        else:
            backoff.reset()

    def _save_apart(self, reports: Sequence[ProgressReport], backoff: Backoff) -> None:
        """Save refused reports one by one; what is refused alone is set aside."""
        refused: list[tuple[ProgressReport, Exception]] = []
        # In random order: refused ones side by side do not look like a fault of the installation.
        for number, report in enumerate(random.sample(reports, len(reports)), start=1):
            try:
                self._save([report])
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                refused.append((report, error))
                if _is_away(error) or number == len(refused) == REFUSED_ALIKE:
                    backoff.wait(error)
                    return
        for report, reason in refused:
            seconds = self.progress.set_aside(report)
            text = "saving the progress of run %s failed (%s); retrying in %.0f s"
            _LOG.warning(text, report.run_id, reason, seconds)

    def _save(self, reports: Sequence[ProgressReport]) -> None:
        busy = self._session.within(save_progress, reports).busy
        self._mark_saved(reports, busy)

    def _mark_saved(self, reports: Sequence[ProgressReport], busy: set[UUID]) -> None:
        self.progress.mark_saved(report for report in reports if report.run_id not in busy)

    def _write_with_retries(
        self, session: Session, batch: list[Item], backoff: Backoff, *, retried: bool = False
    ) -> list[Item]:
        """Write a batch as soon as the database accepts it; return the items to be tried again with others.

        Their rows are locked, or the database refuses all alike. An item that it refuses alone is set aside.
        """
        batch, refusals = self._latest_per_run(batch), 0
        while batch and not self._stop.requested():
            try:
                left = self._write(session, batch) if len(batch) > 1 else self._write_alone(session, batch[0])
            except Unavailable as error:
                refusals += is_refused(error)
                if refusals >= _REFUSALS:
                    return self._write_parts(session, batch, error, backoff, retried=retried)
                backoff.wait(error)
                continue
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - this thread must not end; writes of parts find the faulty item
                return self._write_parts(session, batch, error, backoff, retried=retried)
            backoff.reset()
            work.count(Step.RECORD, len(batch))
            self._note_written(batch, left)
            return left
        return batch

    def _write_parts(
        self, session: Session, batch: list[Item], error: Exception, backoff: Backoff, *, retried: bool
    ) -> list[Item]:
        """Write a refused batch in halves of halves; return the items to be tried again with others."""
        if len(batch) == 1:
            self._set_aside(batch[0], error)
            return []
        _LOG.warning("recording %d outcomes failed (%s); the executor records them in parts", len(batch), error)
        batch = random.sample(batch, len(batch))  # faulty ones side by side do not look like a faulty database
        parts, left, refused, accepted = [batch], list[Item](), list[tuple[Item, Exception]](), retried
        while parts and not self._stop.requested() and (accepted or len(refused) < REFUSED_ALIKE):
            part = parts.pop()
            try:
                locked = self._write(session, part) if len(part) > 1 else self._write_alone(session, part[0])
            except MemoryError:
                raise
            except Exception as failure:  # noqa: BLE001 - as in `_write_with_retries`
                if _is_away(failure):  # each further part would wait for it
                    parts.append(part)
                    break
                middle = len(part) // 2
                if middle:
                    parts += [part[middle:], part[:middle]]
                else:
                    refused.append((part[0], failure))
            else:
                accepted = True
                work.count(Step.RECORD, len(part), fallback=True)
                self._note_written(part, locked)
                left += locked
        left += [item for part in parts for item in part]
        if accepted:
            for item, reason in refused:
                self._set_aside(item, reason)
        else:  # the cause is the installation, not an outcome
            left += [item for item, _ in refused]
            backoff.wait(error)
        return left

    def _set_aside(self, item: Item, error: Exception) -> None:
        """Keep an outcome that is refused alone, to be tried again later; the lease is kept meanwhile."""
        metrics.count("outcomes_set_aside")
        with self._changed:
            tries = self._aside[item[0].key].tries if item[0].key in self._aside else 0
            seconds = pause_seconds(tries)
            self._aside[item[0].key] = _Aside(item, tries + 1, monotonic_seconds() + seconds)
        self._wake.set()
        about = {"run_id": str(item[0].run_id), "attempt": item[0].started.attempt}
        text = "recording the outcome of run %s failed (%s); retrying in %.0f s, after the outcomes of other runs"
        _LOG.error(text, item[0].run_id, error, seconds, extra=about)

    def _keep_aside(self, items: Sequence[Item]) -> None:
        """Try these again in a second: their rows are locked. Queued too, each would be counted twice."""
        due = monotonic_seconds() + ASIDE_SECONDS
        with self._changed:
            self._aside |= {item[0].key: self._aside[item[0].key]._replace(due=due) for item in items}

    def _due_aside(self) -> list[Item]:
        if not self._aside:
            return []
        now = monotonic_seconds()
        with self._changed:
            return [one.item for one in self._aside.values() if one.due <= now][:_BATCH]

    def _latest_per_run(self, batch: Sequence[Item]) -> list[Item]:
        """Return one outcome per run, of its latest attempt; outcomes of earlier ones are superseded."""
        if len({item[0].started.run_id.int for item in batch}) == len(batch):
            return list(batch)
        latest: dict[UUID, Item] = {}
        for item in batch:
            known = latest.get(item[0].run_id)
            if known is None or known[0].started.attempt < item[0].started.attempt:
                latest[item[0].run_id] = item
        superseded = [item for item in batch if latest[item[0].run_id] is not item]
        self._log.ends(superseded, Recorded(superseded={attempt.run_id for attempt, _ in superseded}))
        self._note_written(superseded, ())
        return list(latest.values())

    def _note_written(self, batch: Sequence[Item], left: Sequence[Item]) -> None:
        if len(left) == len(batch):
            return
        stays = {item[0].key for item in left}
        written = [attempt for attempt, _ in batch if not stays or attempt.key not in stays]
        observe_ended(written)
        with self._changed:
            self._being_written -= len(batch) - len(left)
            if self._aside:
                for item in batch:
                    if item[0].key not in stays:
                        self._aside.pop(item[0].key, None)
            self._changed.notify_all()
        self._on_written(written)

    def _write(self, session: Session, batch: Sequence[Item]) -> list[Item]:
        """Write a batch in one transaction; return the items whose rows are locked."""
        try:
            if monotonic_seconds() >= self._careful_until:
                try:
                    left = self._write_once(session, batch, uniform=True)
                except RowsLocked:
                    self._careful_until = monotonic_seconds() + _HELD_SECONDS
                except psycopg.errors.UniqueViolation:
                    pass  # a run that had ended before: the other statement announces it
                else:
                    work.count(Step.FINISH, len(batch))
                    return left
            left = self._write_once(session, batch, uniform=False)
            work.count(Step.FINISH, len(batch), fallback=True)
            return left
        except psycopg.Error as error:
            if is_data_fault(error):
                raise
            # A database that is read-only, or half restored, is no fault of an outcome.
            raise Unavailable(str(error)) from error

    def _write_once(self, session: Session, batch: Sequence[Item], *, uniform: bool) -> list[Item]:
        reports = self.progress.unsaved_of(item[0].key for item in batch)
        with session.transaction() as connection:
            if not uniform:
                allow_waits(connection)
            # Before the end of their attempts: the message of the next attempt carries the checkpoint.
            busy = save_progress(connection, reports).busy
            free = [item for item in batch if item[0].run_id not in busy] if busy else batch
            done = record_outcomes(connection, self._installation, free, self._executor_id, uniform=uniform)
            failpoint("completion.before_commit")
            if done.requeued:
                failpoint("retry.before_commit")
        self._mark_saved(reports, busy)
        failpoint("completion.after_commit")
        if done.released:
            self._on_released()
        if done.requeued:
            failpoint("retry.after_commit")
        self._log.ends(free, done)
        busy |= done.busy
        return [item for item in batch if item[0].run_id in busy] if busy else []

    def _write_alone(self, session: Session, item: Item) -> list[Item]:
        """Write one outcome; one that cannot be stored becomes the failure `UnrecordableOutcome`."""
        try:
            return self._write(session, [item])
        except (Unavailable, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - for any fault: the run must not stay open
            run_id = item[0].run_id
            _LOG.exception(
                "the outcome of run %s cannot be stored; the run fails with UnrecordableOutcome",
                run_id,
                extra={"run_id": str(run_id)},
            )
            message = f"the outcome could not be stored: {type(error).__name__}"
            return self._write(session, [(item[0], failed("UnrecordableOutcome", message, permanent=True))])


def _is_away(error: Exception) -> bool:
    """Return True if the database cannot be reached, in contrast to one that refuses a write."""
    return isinstance(error, Unavailable) and not is_refused(error)
