"""Serve running handlers: progress, earlier runs, runs added to a batch, completion.

A handler writes its progress from any thread and never waits. The completer takes it out and saves it. So a checkpoint
is saved before the end of its attempt, and no older one is saved after it.

The executor writes the runs itself, so that they are there before the handler goes on. The transaction locks the jobs,
the occurrence of the batch and then the run, whose row must still have the attempt: the attempt of another executor, or
a later one, finds its row changed. The refs make a repeated call harmless: what the batch has is not added again.
"""

import json
import threading
from collections.abc import Callable, Generator, Hashable, Iterable, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar, cast
from uuid import UUID

import psycopg

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import AttemptOver, InvalidInput, Refused, Unavailable, UndecodableMessage, UnknownBatch, refuse
from tidewheel.executor.complete_in import CompletionConfig, lock_attempt
from tidewheel.executor.context_parts import ADDERS, Parent, Previous
from tidewheel.jobs.parsing import parse_request
from tidewheel.jobs.payload import too_large
from tidewheel.jobs.requests import BatchAdd
from tidewheel.jobs.strict_json import read_object
from tidewheel.postgres.session import Conn, Session
from tidewheel.postgres.session_kinds import SessionPool
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Cause, RunState
from tidewheel.transitions.attempts import ProgressReport
from tidewheel.transitions.batch_writer import Origin, lock_jobs_for_share
from tidewheel.transitions.batches import add_to_batch, lock_batch, named_jobs
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.parents import read_parents
from tidewheel.turns import SharedPlaces

K = TypeVar("K", bound=Hashable)

Key = tuple[UUID, int]

_SQL = Statements("tidewheel.executor")

REFUSED_ALIKE = 3  # single writes: if none is accepted, the cause is the installation, and all wait
ASIDE_SECONDS = 1.0  # until the next try; doubled each time
_LONGEST_ASIDE_SECONDS = 15.0
SAVE_SECONDS = 1.0  # between two saves of progress: a crash loses at most this much of it
_MAX_RUNS = 1000  # of the job, searched backwards for one that succeeded


def pause_seconds(tries: int) -> float:
    """Return the seconds until the next try of a write that was set aside so often before."""
    return min(ASIDE_SECONDS * 2.0**tries, _LONGEST_ASIDE_SECONDS)


class SetAside(Generic[K]):
    """The keys of refused writes, each with the time of its next try."""

    def __init__(self) -> None:
        self._tries: dict[K, tuple[int, float]] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._tries

    def waits(self, key: K) -> bool:
        """Return True if the write must not be tried yet."""
        return key in self._tries and monotonic_seconds() < self._tries[key][1]

    def add(self, key: K) -> float:
        """Set a refused write aside; return the seconds until its next try."""
        tries = self._tries[key][0] if key in self._tries else 0
        seconds = pause_seconds(tries)
        self._tries[key] = tries + 1, monotonic_seconds() + seconds
        return seconds

    def drop(self, key: K) -> None:
        """Forget a write that was accepted."""
        self._tries.pop(key, None)

    def keep(self, keys: Set[K]) -> None:
        """Forget all other writes."""
        for key in self._tries.keys() - keys:
            del self._tries[key]


class BatchAdds:
    """Adds runs to batches; safe from every thread.

    It has several sessions, which tenants share: a call that waits for the lock of its batch keeps no other from
    adding. `on_added` is called after the commit: the outbox has messages.
    """

    def __init__(
        self, sessions: SessionPool, installation: Installation, executor_id: UUID, on_added: Callable[[], None]
    ) -> None:
        self._sessions, self._installation = sessions, installation
        self._executor_id, self._on_added = executor_id, on_added
        self._places = SharedPlaces(ADDERS)

    def add(self, tenant: str, run_id: UUID, attempt: int, document: bytes, traceparent: str | None) -> bool:
        """Add the `runs` of a JSON document to a run's batch; return False if it has all of them already."""
        request = parse_added_runs(run_id, document)
        try:
            with self._places.of(tenant), self._sessions.transaction() as connection:
                added = self._add(connection, run_id, attempt, request, traceparent)
        except Refused as refused:
            raise InvalidInput(refused.errors) from refused
        except psycopg.Error as error:
            raise Unavailable(str(error)) from error
        if added:
            self._on_added()
        return added

    def close(self) -> None:
        """Close the sessions."""
        self._sessions.close()

    def _add(self, connection: Conn, run_id: UUID, attempt: int, request: BatchAdd, traceparent: str | None) -> bool:
        row = connection.execute(_SQL["find_batch_of_run"], {"run_id": run_id}, binary=True).fetchone()
        if row is None:
            raise _over(run_id, attempt)
        tenant, batch_id, most = cast("tuple[str, UUID | None, int | None]", row)
        if batch_id is None:
            refuse("batch", "the run does not belong to a batch", "submit its job with batch.submit")
        if most is not None:
            for place, run in enumerate(request.runs):
                if error := too_large(f"runs.{place}.payload", run.carried, tenant, most):
                    raise error
        request = request.model_copy(update={"batch_id": str(batch_id)})
        jobs = lock_jobs_for_share(connection, named_jobs(tenant, request))
        try:
            lock_batch(connection, tenant, batch_id)
        except UnknownBatch as error:  # retention has deleted it: so the run has ended
            raise _over(run_id, attempt) from error
        if not lock_attempt(connection, run_id, attempt, self._executor_id):
            raise _over(run_id, attempt)
        origin = Origin(traceparent=traceparent)
        return add_to_batch(connection, self._installation, tenant, request, origin=origin, jobs=jobs)


def parse_added_runs(run_id: UUID, document: bytes) -> BatchAdd:
    """Return the request that runs to add are; its batch is not known yet."""
    try:
        given = read_object(document)
    except UndecodableMessage as error:
        refuse("runs", str(error), "add fewer runs per call")
    about = {"type": "batch.add", "batch_id": str(run_id), "from_run_id": str(run_id)}
    try:
        request = parse_request(given | about)
    except Refused as refused:
        raise InvalidInput(refused.errors) from refused
    assert isinstance(request, BatchAdd)  # noqa: S101 - by its type
    return request


def _over(run_id: UUID, attempt: int) -> AttemptOver:
    return AttemptOver(f"attempt {attempt} of run {run_id} is over; no run was added to its batch")


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
            row = connection.execute(_SQL["read_previous"], columns, binary=True).fetchone()
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
    """The services of one executor, shared by all its attempts."""

    progress: ProgressBuffer | None = None  # None drops progress
    earlier_runs: EarlierRuns | None = None  # None finds none
    completion: CompletionConfig | None = None  # None refuses `ctx.complete_in`
    batch_adds: BatchAdds | None = None  # likewise
    stream_output: bool = False  # to a topic


NO_SERVICES = HandlerServices()
