"""Submit many jobs from files: by the code of every submit, or by a bulk load of new jobs.

Each batch is one transaction. A rejected job is reported with its place in the file; the rest are applied.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self, TypeAlias

import psycopg

from tidewheel.audit import Door, process_actor
from tidewheel.control.client.connection import Connection
from tidewheel.errors import FieldError, InvalidInput, UndecodableMessage, UnknownJob, refuse
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.new_jobs import load_jobs
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import own_request
from tidewheel.jobs.strict_json import read_object
from tidewheel.jobs.validation import place_of
from tidewheel.nouns.jobs.model import Change
from tidewheel.nouns.jobs.versions import versions
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import BY_KEY, Conn, is_data_fault
from tidewheel.schemas.generated.records import Reply, ReplyStatus

SUBMIT_BATCH = 200  # changes in one transaction: edits and firings wait for each other's row locks
LOAD_BATCH = 2000  # jobs in one transaction: larger batches are no faster
BATCH_BYTES = 16 << 20  # of a batch's JSON: 2,000 jobs of the largest size would take 2 GB
MAX_PROBLEMS = 100  # reported in full; a million jobs mostly share one problem

_ELSEWHERE = {"tenant": "give the command --tenant", "request_id": "leave it out"}  # of a file of jobs

REMEDY = "write a job as an object: key, schedule, target"


class JobText(NamedTuple):
    """One job of a file."""

    place: str  # `file:line`
    content: bytes | dict[str, object] | FieldError  # its JSON text, its YAML mapping, or why it is unreadable
    bytes_read: int = 0  # of the file up to the end of this job
    notes: Sequence[str] = ()  # what a job of another scheduler was read as


_Placed: TypeAlias = tuple[str, ReceivedRequest]


class Pending(NamedTuple):
    """Change that a dry run finds: `create`, or `update` with the fields that differ."""

    key: str
    change: str
    fields: Sequence[Change] = ()


@dataclass(slots=True)
class LoadResult:
    """Result of submitting jobs."""

    created: int = 0
    updated: int = 0
    unchanged: int = 0  # of a bulk load: how many existed
    rejected: int = 0
    problems: list[tuple[str, FieldError]] = field(default_factory=list[tuple[str, FieldError]])  # the first hundred
    keys: set[str] = field(default_factory=set[str])  # those of the jobs; empty of a bulk load
    pending: list[Pending] = field(default_factory=list[Pending])

    def reject(self, place: str, errors: Iterable[FieldError]) -> None:
        """Count a rejected job."""
        self.rejected += 1
        self.problems += [(place, _beneath(error)) for error in errors]

    def add(self, other: "LoadResult") -> None:
        """Add the counts of another result."""
        self.created += other.created
        self.updated += other.updated
        self.unchanged += other.unchanged
        self.rejected += other.rejected
        self.problems += other.problems[: max(MAX_PROBLEMS - len(self.problems), 0)]
        self.keys |= other.keys
        self.pending += other.pending


class BulkLoader:
    """A connection that submits jobs from files and deletes jobs by the batch; a context manager.

    One loader refuses a key that two of its submitted jobs have, in one batch or in two.
    """

    def __init__(self, database_url: str | None = None, *, tenant: str = "default") -> None:
        # The tables grow while a load looks up keys in them, and the planner's statistics lag behind.
        self._connection = Connection(
            database_url, tenant=tenant, application="tidewheel-load", options=BY_KEY, actor=process_actor(Door.CLI)
        )
        self._places: dict[str, str] = {}  # of the submitted jobs, by key

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def apply(self, given: Sequence[JobText], *, dry_run: bool = False) -> LoadResult:
        """Submit jobs; with `dry_run`, roll back at the end."""
        done, read = _read(given, self._connection.tenant)
        placed = list(self._distinct(read, done))
        done.keys.update(received.key for _, received in placed if received.key is not None)

        def submit(some: Sequence[_Placed]) -> None:
            for (place, _), reply in zip(some, self._submit(some, done.pending, dry_run=dry_run), strict=True):
                if reply.status is not ReplyStatus.ACCEPTED:
                    done.reject(place, _errors(reply))
                    continue
                done.unchanged += reply.unchanged
                done.created += not reply.unchanged and reply.job_version == 1
                done.updated += not reply.unchanged and reply.job_version != 1

        _isolate(placed, submit, done)
        return done

    def _distinct(self, placed: Iterable[_Placed], done: LoadResult) -> Iterator[_Placed]:
        """Yield the jobs whose key no job before them has; reject the others, with both places."""
        for place, received in placed:
            first = self._places.setdefault(received.key or "", place)
            if first == place:
                yield place, received
            else:
                problem = f"{received.key!r} is also the key of the job at {first}"
                done.reject(place, [FieldError("key", problem, "remove one, or change its key")])

    def delete(self, keys: Sequence[str]) -> LoadResult:
        """Delete jobs; its `keys` are those that existed."""
        done, tenant = LoadResult(), self._connection.tenant

        def delete(some: Sequence[_Placed]) -> None:
            for (key, _), reply in zip(some, self._submit(some, [], dry_run=False), strict=True):
                if reply.status is ReplyStatus.ACCEPTED:
                    done.keys.add(key)
                elif reply.code != UnknownJob.code:  # deleted by another client meanwhile
                    done.reject(key, _errors(reply))

        requests = (own_request({"type": "job.delete", "tenant": tenant, "key": key}) for key in keys)
        _isolate(list(zip(keys, map(ReceivedRequest, requests), strict=True)), delete, done)
        return done

    def load(self, given: Sequence[JobText], *, emit_events: bool = False) -> LoadResult:
        """Create the jobs that do not exist; with `emit_events`, publish an event for each."""
        done, placed = _read(given, self._connection.tenant)
        own = self._connection

        def load(some: Sequence[_Placed]) -> None:
            batch = [received for _, received in some]
            loaded = own.write(
                lambda writing: load_jobs(writing, own.installation, batch, emit_events=emit_events, actor=own.actor),
                all_tenants=True,  # to COPY, which row-level security refuses
            )
            done.created += loaded.created
            done.unchanged += loaded.existing
            for position, reply in loaded.refused.items():
                done.reject(some[position][0], _errors(reply))

        _isolate(placed, load, done)
        own.notify(Channel.TIMERS, *([Channel.OUTBOX] if emit_events else []))
        return done

    def _submit(self, placed: Sequence[_Placed], pending: list[Pending], *, dry_run: bool) -> Sequence[Reply]:
        """Apply requests in one transaction; a dry run adds what it would change to `pending`."""
        own, batch = self._connection, [received for _, received in placed]

        def work(connection: Conn) -> tuple[list[Reply], list[Pending]]:
            replies = apply_requests(connection, own.installation, batch, actor=own.actor)
            found: list[Pending] = []
            if dry_run:
                found += _pending(connection, replies)
                connection.rollback()
            return replies, found

        replies, found = own.write(work, all_tenants=True)  # as above
        pending += found
        own.notify(Channel.TIMERS, Channel.OUTBOX)
        return replies


def _isolate(placed: Sequence[_Placed], act: Callable[[Sequence[_Placed]], None], done: LoadResult) -> None:
    """Act on a batch; halve one that the database rejects, until the bad jobs are isolated."""
    try:
        act(placed)
    except psycopg.Error as error:
        if not is_data_fault(error):
            raise
        if len(placed) == 1:
            done.reject(placed[0][0], [_fault(error)])
            return
        middle = len(placed) // 2
        _isolate(placed[:middle], act, done)
        _isolate(placed[middle:], act, done)


def _pending(connection: Conn, replies: Iterable[Reply]) -> Iterator[Pending]:
    """Yield what a transaction has changed, which its caller rolls back."""
    for reply in replies:
        if reply.status is not ReplyStatus.ACCEPTED or reply.unchanged or reply.key is None:
            continue
        if reply.job_version == 1:
            yield Pending(reply.key, "create")
        else:
            [newest] = versions(connection, reply.tenant, reply.key, limit=1)
            yield Pending(reply.key, "update", newest.changes)


def batches(given: Iterable[JobText], limit: int) -> Iterator[list[JobText]]:
    """Divide jobs into batches of at most `most` jobs and about BATCH_BYTES."""
    batch, size = list[JobText](), 0
    for one in given:
        batch.append(one)
        size += len(one.content) if isinstance(one.content, bytes) else 0
        if len(batch) == limit or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read(given: Sequence[JobText], tenant: str) -> tuple[LoadResult, list[_Placed]]:
    """Return a result with the unreadable jobs, and the readable ones with their places."""
    done, placed = LoadResult(), list[_Placed]()
    for place, content, *_ in given:
        if isinstance(content, FieldError):
            done.reject(place, [content])
            continue
        try:
            placed.append((place, _incoming(content, tenant)))
        except InvalidInput as refused:
            done.reject(place, refused.errors)
        except UndecodableMessage as error:
            why = str(error).replace("at line 1, column", "at column")  # the line is the place's
            done.reject(place, [FieldError("", why, REMEDY)])
    return done, placed


def _incoming(content: bytes | Mapping[str, object], tenant: str) -> ReceivedRequest:
    job = read_object(content) if isinstance(content, bytes) else content
    if isinstance(job.get("jobs"), list) and "key" not in job:
        remedy = "write the list itself, without `jobs:`: each element is a job with its key, schedule and target"
        refuse("job.jobs", "a file of jobs is a list", remedy)
    received = ReceivedRequest(own_request({"type": "job.submit", "tenant": tenant, "job": job}))
    if received.key is None:
        refuse("key", "is missing", "add a key, so that the job is recognized next time")
    return received


def _fault(error: psycopg.Error) -> FieldError:
    problem = f"the job could not be applied: {error.diag.message_primary or type(error).__name__}"
    return FieldError("", problem, "correct the job, or report this")


def _errors(reply: Reply) -> Iterable[FieldError]:
    return (FieldError(error.path, error.problem, error.remedy) for error in reply.errors)


def _beneath(error: FieldError) -> FieldError:
    """Return an error with its path below the job."""
    path = error.path.removeprefix("job").removeprefix(".")
    return FieldError(path, error.problem, place_of(path, _ELSEWHERE) or error.remedy)
