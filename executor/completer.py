"""Recording how attempts ended: group-committed, tried again until it is written or seen to be superseded.

Where half a batch is left after one was taken, or a whole one comes while one is written, a second writer takes it, on
a connection of its own: while PostgreSQL works on one, the other is prepared. What an attempt has told and is not
written yet is the first one's alone.

In a burst beginnings come first: while the lanes claim as much as they can, ends that have begun to come wait a moment
before the first of them is written (ADR 0026), once in a flood: one that lasts is not held up.

An end is idempotent (the row is gone when it stands), so a lost COMMIT is answered by doing it again. What an outcome
means is decided in `record.py`.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from uuid import UUID

import psycopg

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.outcome import Outcome, failed
from tidewheel.executor.progress_buffer import Beats
from tidewheel.executor.record import record
from tidewheel.postgres.session import Session, is_data_fault
from tidewheel.process.failpoint import failpoint
from tidewheel.process.service import Backoff, Shutdown
from tidewheel.transitions.attempts import save_progress
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.executor")

# Completions in one transaction, where so many wait: of 500 each costs 1 us more, of 2,000 nothing less.
_BATCH = 1000
_GATHER_SECONDS = 0.002
_BUSY_GATHER_SECONDS = 0.01  # after a batch of some size: as many again come within this
_MANY = 100
_YIELD_SECONDS = 0.3  # for so long the first ends of a flood wait for beginnings. Source: docs/adr/0026
_FLOOD_SECONDS = 1.0  # so often it is looked whether the flood is over, where no outcome comes
_MOST_YIELDING = 3000  # so many ends wait no longer; a thousand more would stop the claims
_BUSY_SECONDS = 0.05  # a row that somebody else has locked is looked at again this soon

Item = tuple[Attempt, Outcome]


class Finisher:
    """The threads that write outcomes.

    Args:
        session: The first writer's.
        helping: The second one's; None where one is enough.
        installation: What ends are written with.
        executor_id: Whose attempts they are.
        poke: Told of each batch that is written.
        flooded: Whether more is claimed at this moment than this executor can keep up with.
    """

    def __init__(
        self,
        session: Session,
        installation: Installation,
        executor_id: UUID,
        poke: Callable[[], None],
        *,
        flooded: Callable[[], bool],
        helping: Session | None = None,
    ) -> None:
        self._session, self._helping, self._installation = session, helping, installation
        self._executor_id, self._poke, self._flooded = executor_id, poke, flooded
        self._items: deque[Item] = deque()
        self._wake = threading.Event()
        self.beats = Beats(executor_id, self._wake.set)
        self._written = threading.Condition()
        self._in_hand = 0  # taken from `_items` and not written yet
        self._stop = Shutdown()
        self._stop.wakes(self._wake)
        self._much = threading.Event()  # there is work for two
        self._stop.wakes(self._much)
        self._yielding = self._has_yielded = False  # now; since the flood began
        self._threads = [threading.Thread(target=self._run, name="finisher", daemon=True)]
        if helping is not None:
            second = threading.Thread(target=self._help, args=[helping], name="finisher-2", daemon=True)
            self._threads.append(second)
        for thread in self._threads:
            thread.start()

    def add(self, attempt: Attempt, outcome: Outcome) -> None:
        """Record an outcome soon."""
        self._items.append((attempt, outcome))
        if not self._wake.is_set():  # the writer looks at the items after it has cleared this
            self._wake.set()
        if len(self._items) >= _BATCH and not self._yielding and not self._much.is_set():
            self._much.set()  # the first writer has its hands full, perhaps for long

    def backlog(self) -> int:
        """How many outcomes are not written yet."""
        with self._written:
            return len(self._items) + self._in_hand

    def drain(self, seconds: float) -> bool:
        """Wait until everything is written; returns whether that came about in time."""
        with self._written:
            return self._written.wait_for(lambda: self.backlog() == 0, timeout=seconds)

    def close(self) -> None:
        """Stop writing; what is left is found by the reaper when the lease ends."""
        self._stop.request()
        for thread in self._threads:
            thread.join(timeout=10)
        self._session.close()
        if self._helping is not None:
            self._helping.close()

    def _run(self) -> None:
        backoff = Backoff(self._stop, "recording outcomes")
        busy: list[Item] = []
        last = 0
        while not self._stop.requested():
            self._wake.wait(_BUSY_SECONDS if busy else self._seconds())
            # A moment's company: a transaction costs as much for one outcome as for a dozen.
            if len(self._items) < _BATCH:
                self._stop.wait(_BUSY_GATHER_SECONDS if last >= _MANY else _GATHER_SECONDS)
                self._yield()
            self._wake.clear()
            # A user's transaction may have a row for minutes (`complete_in`): nobody waits for that here.
            self._put_back(busy)
            busy = []
            last = len(self._items)
            while self._items and not self._stop.requested():
                batch = self._take()
                if len(self._items) >= _BATCH // 2:
                    self._much.set()
                busy += self._write_with_backoff(self._session, batch, backoff)
            if self.beats.seconds() == 0.0:
                self._write_beats(backoff)

    def _seconds(self) -> float | None:
        """How long to sleep where no outcome comes: until a beat is due, or a flood may be over."""
        beat = self.beats.seconds()
        if not self._has_yielded:
            return beat
        return _FLOOD_SECONDS if beat is None else min(beat, _FLOOD_SECONDS)

    def _yield(self) -> None:
        """Leave PostgreSQL and the processor to beginnings, while there are more than can be kept up with."""
        if not self._flooded():
            self._has_yielded = False
        elif self._items and not self._has_yielded:
            until = monotonic_seconds() + _YIELD_SECONDS
            self._yielding = self._has_yielded = True
            while len(self._items) < _MOST_YIELDING and self._flooded() and monotonic_seconds() < until:
                if self._stop.wait(_BUSY_GATHER_SECONDS):
                    break
            self._yielding = False

    def _help(self, session: Session) -> None:
        backoff = Backoff(self._stop, "recording outcomes beside")
        while not self._stop.requested():
            self._much.wait()
            self._much.clear()
            while len(self._items) >= _BATCH // 2 and not self._yielding and not self._stop.requested():
                if not self._help_once(session, backoff):
                    self._wake.set()
                    break

    def _help_once(self, session: Session, backoff: Backoff) -> bool:
        """Write one batch; returns whether nothing of it is left to the first writer."""
        batch = self._take()
        # A checkpoint is written before the end of its attempt, and never after it: by the thread that writes them.
        mine = [] if self.beats.of(item[0].key for item in batch) else batch
        left = self._write_with_backoff(session, mine, backoff) if mine else batch
        self._put_back(left)
        return not left

    def _take(self) -> list[Item]:
        with self._written:
            batch = [self._items.popleft() for _ in range(min(len(self._items), _BATCH))]
            self._in_hand += len(batch)
            return batch

    def _put_back(self, items: Sequence[Item]) -> None:
        with self._written:
            self._items.extend(items)
            self._in_hand -= len(items)

    def _write_beats(self, backoff: Backoff) -> None:
        """Write what attempts under way have told; while the database is away it waits, and only the newest is kept."""
        beats = self.beats.all()
        try:
            with self._session.transaction() as connection:
                save_progress(connection, beats)
        except Unavailable as error:
            backoff.wait(error)
            return
        except Exception:  # noqa: BLE001 - this thread must not end; attempts go on without it
            _LOG.exception("what %d attempts tell of themselves cannot be stored", len(beats))
        else:
            backoff.reset()
        self.beats.wrote(beats)

    def _write_with_backoff(self, session: Session, batch: list[Item], backoff: Backoff) -> list[Item]:
        """Write a batch, as soon as the database takes it; returns what somebody has locked, to be tried again."""
        batch = self._newest(batch)
        while batch and not self._stop.requested():
            try:
                left = self._write(session, batch) if len(batch) > 1 else self._write_alone(session, batch[0])
            except Unavailable as error:
                backoff.wait(error)
                continue
            except Exception as error:  # noqa: BLE001 - this thread must not end; one by one tells which item it is
                if len(batch) == 1:
                    backoff.wait(error)
                    continue
                _LOG.warning("a batch of %d outcomes failed (%s); recording them one by one", len(batch), error)
                return [left for item in batch for left in self._write_with_backoff(session, [item], backoff)]
            backoff.reset()
            if len(left) < len(batch):
                self._count_written(len(batch) - len(left))
                self._poke()
            return left
        return []

    def _newest(self, batch: Sequence[Item]) -> list[Item]:
        """One outcome per run, of its newest attempt: what an older one still has to say is superseded."""
        if len({item[0].started.run_id.int for item in batch}) == len(batch):
            return list(batch)
        newest: dict[UUID, Item] = {}
        for item in batch:
            known = newest.get(item[0].run_id)
            if known is None or known[0].started.attempt < item[0].started.attempt:
                newest[item[0].run_id] = item
        self._count_written(len(batch) - len(newest))
        return list(newest.values())

    def _count_written(self, count: int) -> None:
        with self._written:
            self._in_hand -= count
            self._written.notify_all()

    def _write(self, session: Session, batch: Sequence[Item]) -> list[Item]:
        """Write a batch in one transaction; returns what must be tried again.

        Raises:
            Unavailable: The database does not take it now, whatever it is.
            psycopg.Error: An outcome's data does not fit.
        """
        try:
            return self._write_once(session, batch)
        except psycopg.Error as error:
            if is_data_fault(error):
                raise
            # A database that is read-only, or half restored, is no fault of an outcome.
            raise Unavailable(str(error)) from error

    def _write_once(self, session: Session, batch: Sequence[Item]) -> list[Item]:
        beats = self.beats.of(item[0].key for item in batch)
        with session.transaction() as connection:
            # Before the end of their attempts: the message of the next attempt carries the checkpoint.
            save_progress(connection, beats)
            done = record(connection, self._installation, batch, self._executor_id)
            failpoint("completion.before_commit")
            if done.requeued:
                failpoint("retry.before_commit")
        self.beats.wrote(beats)
        failpoint("completion.after_commit")
        if done.requeued:
            failpoint("retry.after_commit")
        for run_id in done.superseded:
            _LOG.info("a late report changes nothing", extra={"run_id": str(run_id)})
        return [item for item in batch if item[0].run_id in done.busy] if done.busy else []

    def _write_alone(self, session: Session, item: Item) -> list[Item]:
        """Write one outcome; one that cannot be stored is recorded as a failure that says so."""
        try:
            return self._write(session, [item])
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the run must not stay open for it
            _LOG.exception("an outcome cannot be stored", extra={"run_id": str(item[0].run_id)})
            message = f"the outcome could not be stored: {type(error).__name__}"
            return self._write(session, [(item[0], failed("UnrecordableOutcome", message, permanent=True))])
