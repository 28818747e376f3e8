"""`client.dead_letters`: list, redrive and purge dead letters.

A redrive is a row that schedulers work off at its rate; `client.redrives` follows it. Each dead letter is redriven
once: its new run is written in the transaction that locks and marks it. A redriven run that fails again is a new dead
letter, which the same redrive leaves alone.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Unpack, cast
from uuid import UUID, uuid4

from tidewheel.control.client.connection import Connection
from tidewheel.control.client.redrives import checked_reason
from tidewheel.control.reads.dead_letter_groups import DeadLetterGroups, group_dead_letters
from tidewheel.control.reads.dead_letters import (
    COUNTED,
    EARLIEST,
    DeadLetterDetail,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLetterSummary,
    DeadLetterSurvey,
    Place,
    filter_columns,
    kind_to_redrive,
    list_dead_letters,
    require_dead_letters,
    scan_dead_letters,
    show_dead_letter,
    survey_dead_letters,
)
from tidewheel.control.reads.redrives import redrive
from tidewheel.errors import UnknownRedrive, refuse
from tidewheel.ids import hashed_id
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import Conn
from tidewheel.schedules.decision import BackfillState
from tidewheel.transitions.dead_letters import purge
from tidewheel.transitions.redrives import DeadLetterRef, Redrive, add_redrive

MAX_RATE = 1_000_000
_PURGE_BATCH = 1000

OnProgress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class RedriveResult:
    """Result of a request to redrive.

    Args:
        redrive_id: The redrive's id; None of a dry run, and if nothing matched.
        matched: How many matching dead letters had not been redriven before; counted to 10,000.
        at_least: True if there may be more than `matched`: of many only the oldest half a million are counted.
        first: Of a dry run: the first ten.
    """

    redrive_id: UUID | None
    matched: int
    at_least: bool
    first: tuple[DeadLetterSummary, ...] = ()


@dataclass(frozen=True, slots=True)
class PurgeResult:
    """Result of a purge.

    Args:
        matched: How many dead letters matched; counted to 10,000.
        at_least: True if there may be more than `matched`: of many only the oldest half a million are counted.
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

    def list(
        self, *, after: Place | None = None, limit: int = 50, **filters: Unpack[DeadLetterFilter]
    ) -> DeadLetterPage:
        """List a page of dead letters, the newest first.

        Args:
            after: The `next_cursor` of the page before.
            limit: How many at most.
            **filters: Only those that match all of these.

        Raises:
            Refused: A filter does not fit, or there is no such job.
        """
        with self._connection.snapshot() as connection:
            return list_dead_letters(connection, self._connection.tenant, filters, after=after, limit=limit)

    def groups(self, *, since: datetime | None = None, redriven: bool | None = None) -> DeadLetterGroups:
        """Group the newest 10,000 dead letters by job, error type and final state, the largest group first.

        Args:
            since: Only those created at this instant or later.
            redriven: True for redriven ones only, False for all others.
        """
        with self._connection.snapshot() as connection:
            return group_dead_letters(connection, self._connection.tenant, since=since, redriven=redriven)

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
        reason: str | None = None,
        request_id: str | None = None,
        **filters: Unpack[DeadLetterFilter],
    ) -> RedriveResult:
        """Request new runs of dead runs, and that dead messages are published again; the oldest first.

        Schedulers do the work, also if this process ends. Runs are redriven unless `kind` or `ids` name messages.
        Redriven dead letters are skipped, and those of a later time are not redriven.

        Args:
            rate: How many a second at most.
            dry_run: Only count them, and return the first ten.
            reason: Stored with the redrive.
            request_id: The id of the request: a repeat of it with the same rate returns the first redrive.
            **filters: Only those that match all of these.

        Raises:
            Refused: A filter does not fit, or there is no such job.
            Unavailable: The database does not answer.
        """
        if rate is not None and not 0 < rate <= MAX_RATE:
            refuse("rate", f"{rate} is not a rate", f"write a number of dead letters a second, at most {MAX_RATE}")
        tenant, reason = self._connection.tenant, checked_reason(reason)
        redrive_id = uuid4() if request_id is None else hashed_id(f"redrive/{tenant}/{request_id}".encode())
        if request_id is not None and not dry_run:
            with self._connection.snapshot() as connection, suppress(UnknownRedrive):
                first = redrive(connection, tenant, redrive_id)
                if first.rate != rate:
                    problem = f"this request has made the redrive {redrive_id}, with another rate"
                    refuse("request_id", problem, "pause or cancel that one, or send a new request")
                return RedriveResult(redrive_id, min(first.matched_count, COUNTED), first.matched_count > COUNTED)
        filters = {**filters, "redriven": False, "kind": kind_to_redrive(filters)}
        found = self._survey(filters)
        until = found.newest_at
        if dry_run or until is None:
            return RedriveResult(None, found.counted, found.at_least, found.first)

        def add(connection: Conn) -> None:
            columns = filter_columns(connection, tenant, filters)
            now = read_now(connection)
            new = Redrive(
                redrive_id=redrive_id,
                tenant=tenant,
                state=BackfillState.RUNNING,
                kind=filters.get("kind"),
                ids=filters.get("ids"),
                job_id=cast("UUID | None", columns["job_id"]),
                status=filters.get("status"),
                error_type=filters.get("error_type"),
                queue=filters.get("queue"),
                lane=filters.get("lane"),
                since_at=cast("datetime", columns["since"]),
                until_at=until,  # a run that is redriven now and fails again is a dead letter of a later time
                rate=rate,
                matched_count=COUNTED + 1 if found.at_least else found.counted,
                after_at=EARLIEST,
                after_id=0,
                next_at=now,
                reason=reason,
                created_at=now,
            )
            if add_redrive(connection, new):
                self._connection.record(
                    connection, "dlq.redrive", f"redrive/{redrive_id}", objects=found.counted, reason=reason
                )

        self._connection.write(add)
        self._connection.notify(Channel.TIMERS)
        return RedriveResult(redrive_id, found.counted, found.at_least)

    def purge(
        self, *, dry_run: bool = False, on_progress: OnProgress | None = None, reason: str | None = None,
        **filters: Unpack[DeadLetterFilter],
    ) -> PurgeResult:  # fmt: skip
        """Delete dead letters; their runs stay until their retention ends.

        Args:
            dry_run: Only count them, and return the first ten.
            on_progress: Called after each batch with the number done.
            reason: Stored in the audit log.
            **filters: Only those that match all of these.

        Raises:
            Refused: A filter does not fit, or there is no such job.
            Unavailable: The database does not answer; repeat the call to continue.
        """
        reason, found = checked_reason(reason), self._survey(filters)
        if dry_run or found.newest_at is None:
            return PurgeResult(found.counted, found.at_least, found.first)
        filters = {**filters, "until": found.newest_at}
        redriven, purged = filters.get("redriven"), 0
        for batch in self._scan(filters, _PURGE_BATCH):
            ids = [each.id for each in batch]
            record = partial(
                self._connection.record, action="dlq.purge", changed="dead-letters", adds_up=purged > 0, reason=reason
            )
            purged += self._connection.write(partial(_purge, ids, record, redriven=redriven))
            if on_progress is not None:
                on_progress(purged)
        return PurgeResult(found.counted, found.at_least, purged=purged)

    def _survey(self, filters: DeadLetterFilter) -> DeadLetterSurvey:
        """Return the number of matching dead letters, the first ten, and the newest."""
        tenant = self._connection.tenant
        with self._connection.snapshot() as connection:
            require_dead_letters(connection, tenant, filters.get("ids") or ())
            return survey_dead_letters(connection, tenant, filters)

    def _scan(self, filters: DeadLetterFilter, limit: int) -> Generator[Sequence[DeadLetterRef]]:
        last: DeadLetterRef | None = None
        while True:
            with self._connection.snapshot() as connection:
                found = scan_dead_letters(connection, self._connection.tenant, filters, after=last, limit=limit)
            if found.letters:
                yield found.letters
            last = found.last
            if last is None:
                return


def _purge(ids: Sequence[int], record: Callable[..., None], connection: Conn, *, redriven: bool | None) -> int:
    purged = purge(connection, ids, redriven=redriven)
    if purged:  # the first batch of a purge has an entry of its own, in which the others are counted
        record(connection, objects=purged)
    return purged
