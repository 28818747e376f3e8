"""Submitting jobs from files: by the code of every other door, or by the millions through one of its own.

A batch is a transaction of its own. What is refused is told with its place and stops nothing.
"""

import signal
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from typing import NamedTuple

import psycopg

from tidewheel.control.client.connection import Door
from tidewheel.errors import FieldError, InvalidInput, Unavailable, UndecodableMessage
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.bulk import Loaded, load_jobs
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import parse_request
from tidewheel.jobs.strict_json import read_object
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import BY_KEY, Conn, Session, is_data_fault
from tidewheel.schemas.generated.records import Reply, ReplyStatus

APPLIED_AT_ONCE = 200  # submits in one transaction: a deploy's edits wait for firings, and firings for them
LOADED_AT_ONCE = 2000  # jobs in one transaction: more save nothing any more
MOST_BYTES_AT_ONCE = 16 << 20  # of a batch's JSON: 2,000 jobs of the longest kind would be 2 GB in each process
MOST_PROBLEMS = 100  # told in full; what is wrong with a million jobs is wrong with all of them alike

_AHEAD = 2  # batches per process that are read before they are asked for: what bounds the memory
_LOOK_SECONDS = 5.0  # longer than a batch takes

REMEDY = "write a job as an object: key, schedule, target"


class Given(NamedTuple):
    """One job to be submitted: where it stands, and what is written there, or why it is no job."""

    place: str
    content: bytes | dict[str, object] | FieldError


@dataclass(slots=True)
class Done:
    """What became of jobs.

    Args:
        created: How many were made.
        updated: How many have a new version.
        unchanged: How many were as they are already; of a bulk load, how many there were.
        refused: How many were refused.
        problems: Why, with the place of the job: of the first ones.
    """

    created: int = 0
    updated: int = 0
    unchanged: int = 0
    refused: int = 0
    problems: list[tuple[str, FieldError]] = field(default_factory=list[tuple[str, FieldError]])

    def refuse(self, place: str, errors: Iterable[FieldError]) -> None:
        """Count a job that was refused."""
        self.refused += 1
        self.problems += [(place, _beneath(error)) for error in errors]

    def add(self, other: "Done") -> None:
        """Count what became of others too."""
        self.created += other.created
        self.updated += other.updated
        self.unchanged += other.unchanged
        self.refused += other.refused
        self.problems += other.problems[: max(MOST_PROBLEMS - len(self.problems), 0)]


class Loading(Door):
    """A connection to submit jobs from files by; a context manager."""

    def __init__(self, database_url: str | None = None, *, tenant: str = "default") -> None:
        super().__init__(database_url, tenant=tenant)
        self._session.close()
        # The tables grow while a load looks keys up in them, and the planner's statistics lag behind.
        self._session = Session(self._url, "tidewheel-load", options=BY_KEY)

    def apply(self, given: Sequence[Given], *, dry_run: bool = False) -> Done:
        """Submit jobs; with `dry_run` all is done but kept."""
        done, placed = _read(given, self._tenant)
        batch = [received for _, received in placed]
        try:
            replies = self._submit(batch, dry_run=dry_run)
        except psycopg.Error as error:
            if not is_data_fault(error):
                raise
            replies = [self._submit_alone(received, dry_run=dry_run) for received in batch]
        for (place, _), reply in zip(placed, replies, strict=True):
            if isinstance(reply, FieldError):
                done.refuse(place, [reply])
            elif reply.status is not ReplyStatus.ACCEPTED:
                done.refuse(place, _errors(reply))
            else:
                done.unchanged += reply.unchanged
                done.created += not reply.unchanged and reply.job_version == 1
                done.updated += not reply.unchanged and reply.job_version != 1
        return done

    def load(self, given: Sequence[Given], *, told: bool = False) -> Done:
        """Make those jobs that there are not yet; with `told`, with an event each."""
        done, placed = _read(given, self._tenant)
        self._load(done, placed, told=told)
        for channel in (Channel.TIMERS, Channel.OUTBOX) if told else (Channel.TIMERS,):
            self._notifier.notify(channel)
        return done

    def _load(self, done: Done, placed: Sequence[tuple[str, ReceivedRequest]], *, told: bool) -> None:
        """Load jobs; those that the database refuses are found by halves, and the others loaded."""
        batch = [received for _, received in placed]
        try:
            loaded = self._write(lambda connection: load_jobs(connection, self._installation, batch, emit_events=told))
        except psycopg.Error as error:
            if not is_data_fault(error):
                raise
            if len(placed) == 1:
                done.refuse(placed[0][0], [_fault(error)])
                return
            middle = len(placed) // 2
            self._load(done, placed[:middle], told=told)
            self._load(done, placed[middle:], told=told)
        else:
            self._count(done, placed, loaded)

    def _submit(self, batch: Sequence[ReceivedRequest], *, dry_run: bool) -> Sequence[Reply | FieldError]:
        def work(connection: Conn) -> list[Reply]:
            replies = apply_requests(connection, self._installation, batch)
            if dry_run:
                connection.rollback()
            return replies

        replies = self._write(work)
        for channel in (Channel.TIMERS, Channel.OUTBOX):
            self._notifier.notify(channel)
        return replies

    def _submit_alone(self, received: ReceivedRequest, *, dry_run: bool) -> Reply | FieldError:
        try:
            return self._submit([received], dry_run=dry_run)[0]
        except psycopg.Error as error:
            if not is_data_fault(error):
                raise
            return _fault(error)

    @staticmethod
    def _count(done: Done, placed: Sequence[tuple[str, ReceivedRequest]], loaded: Loaded) -> None:
        done.created += loaded.created
        done.unchanged += loaded.existing
        for position, reply in loaded.refused.items():
            done.refuse(placed[position][0], _errors(reply))


def batches(given: Iterable[Given], most: int) -> Iterator[list[Given]]:
    """Jobs in their order, at most so many at once, and no more of them once they have MOST_BYTES_AT_ONCE."""
    batch, size = list[Given](), 0
    for one in given:
        batch.append(one)
        size += len(one.content) if isinstance(one.content, bytes) else 0
        if len(batch) == most or size >= MOST_BYTES_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def load_in_processes(
    given: Iterable[Given], *, processes: int, database_url: str, tenant: str, told: bool = False
) -> Iterator[Done]:
    """Load jobs, each batch in one of several processes; yields what became of each batch, in their order.

    Raises:
        Unavailable: The database does not answer, or one of the processes was killed: load the same again. What was
            yielded is the least that was made: a batch may stand in part, or whole where its COMMIT was not answered.
    """
    context = get_context("spawn")  # a fork would share connections and threads
    with ProcessPoolExecutor(processes, context, _leave_interrupts) as pool:
        waiting: deque[Future[Done]] = deque()
        try:
            for batch in batches(given, LOADED_AT_ONCE):
                waiting.append(pool.submit(_load, batch, database_url, tenant, told))
                if len(waiting) >= processes * _AHEAD:
                    yield _first(pool, waiting)
            while waiting:
                yield _first(pool, waiting)
        except (Exception, KeyboardInterrupt) as error:
            # What a process has begun it ends, unless it died: that counts too.
            pool.shutdown(wait=True, cancel_futures=True)
            yield from (future.result() for future in waiting if _is_loaded(future))
            if isinstance(error, BrokenProcessPool):
                message = "a loading process died; load the same files again"
                raise Unavailable(message) from error
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _first(pool: ProcessPoolExecutor, waiting: deque[Future[Done]]) -> Done:
    while not wait([waiting[0]], _LOOK_SECONDS).done:
        # Raises where a process has died. One that dies just as a batch is given out leaves that batch to nobody, and
        # nobody would ever answer (CPython 3.11, `ProcessPoolExecutor.submit` beside `terminate_broken`).
        pool.submit(_nothing)
    done = waiting[0].result()  # where it stays until it has come: waiting may be interrupted
    waiting.popleft()
    return done


def _is_loaded(batch: Future[Done]) -> bool:
    return batch.done() and not batch.cancelled() and batch.exception() is None


def _nothing() -> None:
    """What a process that lives does at once."""


def _leave_interrupts() -> None:
    """Leave Ctrl+C, which a terminal sends to all, to the process that gives the batches out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _load(batch: list[Given], database_url: str, tenant: str, told: bool) -> Done:  # noqa: FBT001 - as the pool calls it
    return _door(database_url, tenant).load(batch, told=told)


@cache
def _door(database_url: str, tenant: str) -> Loading:
    """The connection of this process; opened with its first batch, whose answer says why it cannot be."""
    return Loading(database_url, tenant=tenant)


def _read(given: Sequence[Given], tenant: str) -> tuple[Done, list[tuple[str, ReceivedRequest]]]:
    """The jobs that can be read, and what is wrong with the others."""
    done, placed = Done(), list[tuple[str, ReceivedRequest]]()
    for place, content in given:
        if isinstance(content, FieldError):
            done.refuse(place, [content])
            continue
        try:
            placed.append((place, _incoming(content, tenant)))
        except InvalidInput as refused:
            done.refuse(place, refused.errors)
        except UndecodableMessage as error:
            why = str(error).replace("at line 1, column", "at column")  # the line is the place's
            done.refuse(place, [FieldError("", why, REMEDY)])
    return done, placed


def _incoming(content: bytes | Mapping[str, object], tenant: str) -> ReceivedRequest:
    job = read_object(content) if isinstance(content, bytes) else content
    received = ReceivedRequest(parse_request({"type": "job.submit", "tenant": tenant, "job": job}))
    if received.key is None:
        raise InvalidInput([FieldError("key", "is missing", "name each job, so that it is the same one the next time")])
    return received


def _fault(error: psycopg.Error) -> FieldError:
    problem = f"it could not be applied: {error.diag.message_primary or type(error).__name__}"
    return FieldError("", problem, "correct the job, or report this")


def _errors(reply: Reply) -> Iterable[FieldError]:
    return (FieldError(error.path, error.problem, error.remedy) for error in reply.errors)


def _beneath(error: FieldError) -> FieldError:
    """An error with its path from the job, which is all that a file holds."""
    return FieldError(error.path.removeprefix("job").removeprefix("."), error.problem, error.remedy)
