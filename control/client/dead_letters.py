"""`client.dead_letters`: list, redrive and purge dead letters.

Each dead letter is redriven once: its new run is written in the transaction that locks and marks it. So an interrupted
call can be repeated, and so can one whose dead letters were rejected for a reason that is corrected now. A redriven run
that fails again is a new dead letter, which the same call does not redrive.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Unpack

from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.connection import Connection
from tidewheel.control.reads.dead_letters import (
    COUNTED,
    DeadLetterDetail,
    DeadLetterFilter,
    DeadLetterKind,
    DeadLetterPage,
    DeadLetterRef,
    DeadLetterSummary,
    count_dead_letters,
    list_dead_letters,
    oldest_dead_letters,
    scan_dead_letters,
    show_dead_letter,
)
from tidewheel.errors import FieldError
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import parse_request
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import Conn
from tidewheel.schemas.generated.records import Reply, ReplyStatus
from tidewheel.transitions.dead_letters import lock_dead_runs, purge, republish
from tidewheel.transitions.installation import Installation

_REDRIVE_BATCH = 50  # dead letters redriven in one transaction: some tens of milliseconds
_BATCHES_PER_SECOND = 10.0  # with a rate, as long as each batch has a dead letter
_PURGE_BATCH = 1000
_SHOWN = 10  # of a dry run
_MAX_REJECTIONS = 100  # listed one by one

OnProgress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Rejection:
    """A dead letter that could not be redriven.

    Args:
        id: Its id.
        errors: The reasons.
    """

    id: int
    errors: tuple[FieldError, ...]


@dataclass(slots=True)
class RedriveResult:
    """Result of a redrive.

    Args:
        matched: How many matching dead letters had not been redriven before; counted to 10,000.
        at_least: True if there were more than `matched`.
        first: Of a dry run: the first ten.
        redriven: How many were redriven.
        rejected: How many could not be.
        rejections: The first hundred of these.
    """

    matched: int
    at_least: bool
    first: tuple[DeadLetterSummary, ...] = ()
    redriven: int = 0
    rejected: int = 0
    rejections: list[Rejection] = field(default_factory=list[Rejection])


@dataclass(frozen=True, slots=True)
class PurgeResult:
    """Result of a purge.

    Args:
        matched: How many dead letters matched; counted to 10,000.
        at_least: True if there were more than `matched`.
        first: Of a dry run: the first ten.
        purged: How many were deleted.
    """

    matched: int
    at_least: bool
    first: tuple[DeadLetterSummary, ...] = ()
    purged: int = 0


class DeadLetters:
    """Reads and requests about dead letters."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self, *, after: int | None = None, limit: int = 50, **filters: Unpack[DeadLetterFilter]) -> DeadLetterPage:
        """List a page of dead letters, the newest first.

        Args:
            after: Begin after the dead letter of this id.
            limit: How many at most.
            **filters: Only those that match all of these.

        Raises:
            Refused: A filter does not fit, or there is no such job.
        """
        with self._connection.snapshot() as connection:
            return list_dead_letters(connection, self._connection.tenant, filters, after=after, limit=limit)

    def get(self, number: int) -> DeadLetterDetail:
        """Return a dead letter, with its run's attempts and retry chain.

        Raises:
            UnknownDeadLetter: The tenant has no dead letter of this id.
        """
        with self._connection.snapshot() as connection:
            return show_dead_letter(connection, self._connection.tenant, number)

    def redrive(
        self,
        *,
        rate: float | None = None,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
        **filters: Unpack[DeadLetterFilter],
    ) -> RedriveResult:
        """Create new runs of dead runs, and publish dead messages to their topic again; the oldest first.

        Redriven dead letters are skipped, so that an interrupted call can be repeated.

        Args:
            rate: How many a second at most.
            dry_run: Only count them, and return the first ten.
            on_progress: Called after each batch with the number done.
            **filters: Only those that match all of these.

        Raises:
            Refused: A filter does not fit, or there is no such job. A single dead letter that cannot be redriven is
                listed in the result.
            Unavailable: The database does not answer; repeat the call to continue.
        """
        filters = {**filters, "redriven": False}
        counted, first, newest = self._survey(filters)
        result = RedriveResult(*_capped(counted))
        if dry_run or newest is None:
            result.first = first
            return result
        # A run that is redriven now and fails again is a dead letter of a later time.
        filters["until"] = newest.created_at
        size = _REDRIVE_BATCH if rate is None else max(1, min(_REDRIVE_BATCH, int(rate / _BATCHES_PER_SECOND)))
        started, done = monotonic_seconds(), 0
        for batch in self._scan(filters, size):
            if rate is not None:
                self._connection.sleep(max(started + done / rate - monotonic_seconds(), 0.0))
            self._redrive(batch, result)
            done += len(batch)
            if on_progress is not None:
                on_progress(done)
        return result

    def purge(
        self, *, dry_run: bool = False, on_progress: OnProgress | None = None, **filters: Unpack[DeadLetterFilter]
    ) -> PurgeResult:
        """Delete dead letters; their runs stay until their retention ends.

        Args:
            dry_run: Only count them, and return the first ten.
            on_progress: Called after each batch with the number done.
            **filters: Only those that match all of these.

        Raises:
            Refused: A filter does not fit, or there is no such job.
            Unavailable: The database does not answer; repeat the call to continue.
        """
        counted, first, newest = self._survey(filters)
        if dry_run or newest is None:
            return PurgeResult(*_capped(counted), first=first)
        filters = {**filters, "until": newest.created_at}
        purged = 0
        for batch in self._scan(filters, _PURGE_BATCH):
            purged += self._connection.write(partial(_purge, [each.id for each in batch]))
            if on_progress is not None:
                on_progress(purged)
        return PurgeResult(*_capped(counted), purged=purged)

    def _survey(self, filters: DeadLetterFilter) -> tuple[int, tuple[DeadLetterSummary, ...], DeadLetterSummary | None]:
        """Return the number of matching dead letters, the first ten, and the newest."""
        tenant = self._connection.tenant
        with self._connection.snapshot() as connection:
            for number in filters.get("ids") or ():
                show_dead_letter(connection, tenant, number)
            newest = list_dead_letters(connection, tenant, filters, limit=1).dead_letters
            return (
                count_dead_letters(connection, tenant, filters),
                oldest_dead_letters(connection, tenant, filters, limit=_SHOWN),
                newest[0] if newest else None,
            )

    def _scan(self, filters: DeadLetterFilter, limit: int) -> Generator[Sequence[DeadLetterRef]]:
        last: DeadLetterRef | None = None
        while True:
            with self._connection.snapshot() as connection:
                batch = scan_dead_letters(connection, self._connection.tenant, filters, after=last, limit=limit)
            if not batch:
                return
            last = batch[-1]
            yield batch

    def _redrive(self, batch: Sequence[DeadLetterRef], result: RedriveResult) -> None:
        runs = [each.id for each in batch if each.kind == DeadLetterKind.RUN]
        if runs:
            self._retry(runs, result)
        messages = [each.id for each in batch if each.kind == DeadLetterKind.MESSAGE]
        if messages:
            published, cut = self._republish(messages)
            result.redriven += len(published)
            for number, size in cut.items():
                problem = f"the message had {size} bytes, of which only the first are stored"
                _reject(result, number, (FieldError("id", problem, "send a shorter message"),))

    def _retry(self, ids: Sequence[int], result: RedriveResult) -> None:
        # Repeated after a lost COMMIT, this finds the dead letters marked with their new runs.
        connection = self._connection
        replies = connection.write(partial(_retry, connection.installation, connection.tenant, ids))
        connection.notify(Channel.TIMERS, Channel.OUTBOX)
        for number, reply in replies:
            if reply is None or reply.status is ReplyStatus.ACCEPTED:
                result.redriven += 1
                continue
            _reject(result, number, tuple(FieldError(each.path, each.problem, each.remedy) for each in reply.errors))

    def _republish(self, ids: Sequence[int]) -> tuple[set[int], dict[int, int]]:
        installation = self._connection.installation
        published = self._connection.write(
            lambda connection: republish(connection, installation, ids, read_now(connection))
        )
        self._connection.notify(Channel.OUTBOX)
        return published


def _reject(result: RedriveResult, number: int, errors: tuple[FieldError, ...]) -> None:
    result.rejected += 1
    if len(result.rejections) < _MAX_REJECTIONS:
        result.rejections.append(Rejection(number, errors))


def _capped(counted: int) -> tuple[int, bool]:
    return min(counted, COUNTED), counted > COUNTED


def _retry(
    installation: Installation, tenant: str, ids: Sequence[int], connection: Conn
) -> Sequence[tuple[int, Reply | None]]:
    """Create new runs of dead runs that have none; return each id with its reply, None if redriven.

    Without a request_id, which would repeat a rejection for as long as replies are stored, though its reason may have
    been corrected. The row locks ensure that each dead letter gets one new run.
    """
    dead = lock_dead_runs(connection, ids)
    pending = [each for each in dead if each.redriven_run_id is None]
    documents = ({"type": "run.retry", "tenant": tenant, "run_id": str(each.run_id)} for each in pending)
    requests = [ReceivedRequest(parse_request(document)) for document in documents]
    replies = apply_requests(connection, installation, requests)
    by_id = {each.id: reply for each, reply in zip(pending, replies, strict=True)}
    return [(each.id, by_id.get(each.id)) for each in dead]


def _purge(ids: Sequence[int], connection: Conn) -> int:
    return purge(connection, ids)
