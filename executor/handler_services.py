"""Services of an executor for running handlers: progress, earlier runs, completion in a transaction.

A handler writes its progress from any thread and never waits. The completer takes it out and saves it. So a checkpoint
is saved before the end of its attempt, and no older one is saved after it.
"""

import json
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import cast
from uuid import UUID

import psycopg

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.executor.batch_adds import BatchAdds
from tidewheel.executor.complete_in import CompletionConfig
from tidewheel.executor.handler_channel import Parent, Previous
from tidewheel.executor.set_aside import SetAside
from tidewheel.postgres.session import Conn, Session
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Cause, RunState
from tidewheel.transitions.attempts import ProgressReport
from tidewheel.transitions.parents import read_parents

SAVE_SECONDS = 1.0  # between two saves of progress: a crash loses at most this much of it

_READ_PREVIOUS = Statements("tidewheel.executor")["read_previous"]
_MAX_RUNS = 1000  # of the job, searched backwards for one that succeeded

Key = tuple[UUID, int]


@dataclass(slots=True, eq=False)
class _Awaited:
    """A wait for a save: of the report itself, or of the newest one, which has its values too."""

    report: ProgressReport
    newest: ProgressReport
    saved: threading.Event


class ProgressBuffer:
    """Progress and checkpoints that are not saved yet, the newest of each attempt; safe from every thread."""

    def __init__(self, executor_id: UUID, wake: Callable[[], None]) -> None:
        self._executor_id, self._wake = executor_id, wake
        self._unsaved: dict[Key, ProgressReport] = {}
        self._aside = SetAside[Key]()
        self._awaited: dict[Key, list[_Awaited]] = {}
        self._lock = threading.Lock()
        self._next_save = 0.0

    def put(self, key: Key, progress: bytes | None, checkpoint: bytes | None) -> None:
        """Keep the progress of an attempt; None leaves the value that was put before."""
        with self._lock:
            first, before = not self._unsaved, self._unsaved.get(key)
            if before is not None:
                progress = before.progress if progress is None else progress
                checkpoint = before.checkpoint if checkpoint is None else checkpoint
            self._unsaved[key] = report = ProgressReport(*key, self._executor_id, progress, checkpoint)
            for awaited in self._awaited.get(key, ()):
                awaited.newest = report
        if first:
            self._wake()

    def save_now(self, key: Key) -> threading.Event:
        """Request a save without a pause; return an event that is set when the values are saved."""
        saved = threading.Event()
        with self._lock:
            report = self._unsaved.get(key)
            if report is None:
                saved.set()
                return saved
            self._awaited.setdefault(key, []).append(_Awaited(report, report, saved))
            self._next_save = 0.0
        self._wake()
        return saved

    def seconds_until_save(self) -> float | None:
        """Return the seconds until the next save; None while nothing is unsaved."""
        return max(self._next_save - monotonic_seconds(), 0.0) if self._unsaved else None

    def take_all(self) -> list[ProgressReport]:
        """Return everything that is unsaved and not set aside, and set the next save to one second from now."""
        self._next_save = monotonic_seconds() + SAVE_SECONDS
        with self._lock:
            return [report for key, report in self._unsaved.items() if not self._aside.waits(key)]

    def unsaved_of(self, keys: Iterable[Key]) -> list[ProgressReport]:
        """Return the unsaved progress of these attempts, without what was set aside."""
        if not self._unsaved:  # nearly always, and then no lock is needed
            return []
        with self._lock:
            return [self._unsaved[key] for key in keys if key in self._unsaved and key not in self._aside]

    def set_aside(self, report: ProgressReport) -> float:
        """Keep progress that the database refuses alone for a later try; return the seconds until then."""
        with self._lock:
            return self._aside.add((report.run_id, report.attempt))

    def mark_saved(self, reports: Iterable[ProgressReport]) -> None:
        """Drop what was saved; progress that was put since stays."""
        with self._lock:
            for report in reports:
                key = report.run_id, report.attempt
                self._aside.drop(key)
                if self._unsaved.get(key) is report:
                    del self._unsaved[key]
                if key in self._awaited:
                    self._end_waits(key, report)

    def _end_waits(self, key: Key, report: ProgressReport) -> None:
        left: list[_Awaited] = []
        for awaited in self._awaited.pop(key):
            if report is awaited.report or report is awaited.newest:
                awaited.saved.set()
            else:
                left.append(awaited)
        if left:
            self._awaited[key] = left


class EarlierRuns:
    """Look up a job's earlier runs, and a run's parents, over one session; safe from every thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()

    def before(self, job_id: UUID, scheduled_at: datetime) -> Previous:
        """Return the runs of a job before an instant."""
        columns: dict[str, object] = {
            "job_id": job_id,
            "at": scheduled_at,
            "causes": [Cause.TIMER, Cause.BACKFILL],
            "skipped": RunState.SKIPPED,
            "succeeded": RunState.SUCCEEDED,
            "limit": _MAX_RUNS,
        }
        with self._reading() as connection:
            row = connection.execute(_READ_PREVIOUS, columns, binary=True).fetchone()
        at, result_at, result = cast("tuple[datetime | None, datetime | None, bytes | None]", row)
        return Previous(scheduled_at=at, result=None if result is None else json.loads(result), result_at=result_at)

    def parents(self, run_id: UUID, key: str | None) -> dict[str, Parent]:
        """Return the parents' runs in the occurrence of a run, or that of one parent."""
        with self._reading() as connection:
            found = read_parents(connection, run_id, key=key)
        return {
            one.key: Parent(
                one.run_id,
                one.status,
                None if one.result is None else json.loads(one.result),
                expired=one.expired,
                left_out_bytes=one.result_bytes if one.left_out else 0,
            )
            for one in found
        }

    @contextmanager
    def _reading(self) -> Generator[Conn]:
        try:
            with self._lock, self._session.transaction() as connection:
                yield connection
        except psycopg.Error as error:
            raise Unavailable(str(error)) from error

    def close(self) -> None:
        """Close the session."""
        self._session.close()


@dataclass(frozen=True, slots=True)
class HandlerServices:
    """The services of one executor, shared by all its attempts.

    Args:
        progress: Keeps heartbeats' progress until it is saved; None drops it.
        earlier_runs: Looks up earlier and parents' runs; None finds none.
        completion: For `ctx.complete_in`; None refuses it.
        batch_adds: For `ctx.batch.add`, likewise.
        stream_output: True if all output goes to a topic too.
    """

    progress: ProgressBuffer | None = None
    earlier_runs: EarlierRuns | None = None
    completion: CompletionConfig | None = None
    batch_adds: BatchAdds | None = None
    stream_output: bool = False


NO_SERVICES = HandlerServices()
