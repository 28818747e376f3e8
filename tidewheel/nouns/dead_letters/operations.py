"""`client.dead_letters`: the operations from which all doors are derived.

A redrive is a work. Each dead letter is redriven once: its new run is written in
the transaction that locks and marks it. A redriven run that fails again is a new dead letter, which the same redrive
leaves alone.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Literal, Unpack
from uuid import UUID

from pydantic import Field

from tidewheel.api_keys import Scope
from tidewheel.errors import refuse
from tidewheel.jobs.values import Instant, Reason
from tidewheel.nouns.dead_letters.model import (
    DeadLetterDetail,
    DeadLetterFilter,
    DeadLetterGroups,
    DeadLettersPage,
    DeadLetterSurvey,
    Number,
    PurgeResult,
    RedriveResult,
)
from tidewheel.nouns.dead_letters.reads import (
    EARLIEST,
    filter_columns,
    group_dead_letters,
    list_dead_letters,
    scan_dead_letters,
    show_dead_letter,
    survey_dead_letters,
)
from tidewheel.nouns.operation import DryRun, InDoors, Noun, Place, Rows, operation
from tidewheel.nouns.works.model import COUNTED, Rate, WorkReason
from tidewheel.nouns.works.operations import WORKS, id_of_work, start_work, work_of_request
from tidewheel.postgres.session import Conn
from tidewheel.transitions.dead_letters import DeadLetterRef, purge
from tidewheel.transitions.works import NewWork

_LETTERS = "/api/v1/dead-letters"
_PURGE_BATCH = 1000

Everything = Annotated[bool, InDoors("all"), Field(description="All dead letters; needed without an id or a filter.")]


class DeadLetters(Noun):
    """Dead letters: failed runs, and messages that are not requests."""

    @operation(f"GET {_LETTERS}", "list_dead_letters", scope=Scope.READ, python_only=("ids",))
    def list(
        self, *, after: Place | None = None, limit: Rows = 50, **filters: Unpack[DeadLetterFilter]
    ) -> DeadLettersPage:
        """List dead letters, the newest first."""
        with self._call.snapshot() as connection:
            return list_dead_letters(connection, self._call.tenant, filters, after=after, limit=limit)

    @operation(f"GET {_LETTERS}/groups", "group_dead_letters", scope=Scope.READ)
    def groups(
        self,
        *,
        since: Annotated[Instant | None, Field(description="Created at this instant or later.")] = None,
        redriven: Annotated[
            bool | None, Field(description="True for redriven ones only, false for all others.")
        ] = None,
    ) -> DeadLetterGroups:
        """Group the newest 10,000 dead letters by job, error type and final state, the largest group first."""
        with self._call.snapshot() as connection:
            return group_dead_letters(connection, self._call.tenant, since=since, redriven=redriven)

    @operation(f"GET {_LETTERS}/{{number}}", "get_dead_letter", scope=Scope.READ)
    def get(self, number: Annotated[Number, Field(description="The dead letter's id.")]) -> DeadLetterDetail:
        """Show a dead letter: its run with attempts and retry chain, or its message.

        Raises:
            UnknownDeadLetter: The tenant has no dead letter of this id.
        """
        with self._call.snapshot() as connection:
            return show_dead_letter(connection, self._call.tenant, number)

    @operation(
        f"POST {_LETTERS}:redrive", "redrive_dead_letters", scope=Scope.OPERATE,
        python_only=("redriven", "request_id"), starts=WORKS,
    )  # fmt: skip
    def redrive(
        self,
        *,
        rate: Annotated[
            Rate | None, Field(description="Maximum dead letters per second; unlimited by default.")
        ] = None,
        dry_run: DryRun = False,
        everything: Everything = False,
        reason: WorkReason = None,
        request_id: str | None = None,
        **filters: Unpack[DeadLetterFilter],
    ) -> RedriveResult:
        """Redrive dead letters, the oldest first: schedulers create new runs, or publish messages again.

        Runs are redriven unless a kind or ids name messages. The work continues when the caller has ended. It leaves
        out redriven dead letters, and those of a later time.

        Raises:
            Refused: A filter does not fit, or there is no such job.
            Unavailable: The database does not answer.
        """
        _ensure_selected(filters, chosen=everything or dry_run)
        work_id = id_of_work(self._call, "redrive", request_id)
        if request_id is not None and not dry_run and (first := work_of_request(self._call, work_id, rate)) is not None:
            return RedriveResult(work_id, min(first.matched_count, COUNTED), first.matched_count > COUNTED)
        filters = {**filters, "redriven": False, "kind": _kind_to_redrive(filters)}
        found = self._survey(filters)
        until = found.newest_at  # a run that is redriven now and fails again is a dead letter of a later time
        if dry_run or until is None:
            return RedriveResult(None, found.counted, found.at_least, found.first)
        work = self._work({**filters, "until": until}, found, work_id=work_id, rate=rate, reason=reason)
        start_work(self._call, work, "dlq.redrive", found.counted)
        return RedriveResult(work_id, found.counted, found.at_least)

    @operation(
        f"POST {_LETTERS}:purge", "purge_dead_letters", scope=Scope.OPERATE, python_only=("on_progress",),
        danger="a deleted dead letter cannot be redriven",
    )  # fmt: skip
    def purge(
        self,
        *,
        dry_run: DryRun = False,
        everything: Everything = False,
        on_progress: Annotated[
            Callable[[int], None] | None, Field(description="Called after each batch with the number done.")
        ] = None,
        reason: Annotated[Reason | None, Field(description="Stored in the audit log.")] = None,
        **filters: Unpack[DeadLetterFilter],
    ) -> PurgeResult:
        """Delete dead letters; their runs stay.

        A repeat deletes what is left.

        Raises:
            Refused: A filter does not fit, or there is no such job.
            Unavailable: The database does not answer; repeat the call to continue.
        """
        _ensure_selected(filters, chosen=everything or dry_run)
        found = self._survey(filters)
        if dry_run or found.newest_at is None:
            return PurgeResult(found.counted, found.at_least, found.first)
        until, purged, last = found.newest_at, 0, None
        while True:
            batch, last = self._batch({**filters, "until": until}, last)
            record = partial(
                self._call.record, action="dlq.purge", changed="dead-letters", adds_up=purged > 0, reason=reason
            )
            if batch:
                purged += self._call.write(partial(_purge, batch, record, redriven=filters.get("redriven")))
                if on_progress is not None:
                    on_progress(purged)
            if last is None:
                return PurgeResult(found.counted, found.at_least, purged=purged)

    def _work(
        self,
        filters: DeadLetterFilter,
        found: DeadLetterSurvey,
        *,
        work_id: UUID,
        rate: float | None,
        reason: str | None,
    ) -> NewWork:
        """Return the work of a redrive."""
        tenant = self._call.tenant
        with self._call.snapshot() as connection:
            columns = filter_columns(connection, tenant, filters)
        stored = {name: value for name, value in columns.items() if name not in {"tenant", "key"}}
        matched = COUNTED + 1 if found.at_least else found.counted
        cursor = {"at": EARLIEST.isoformat(), "id": 0}
        return NewWork(
            work_id=work_id, tenant=tenant, kind="redrive", filter=stored, cursor=cursor, rate=rate, matched=matched,
            reason=reason,
        )  # fmt: skip

    def _survey(self, filters: DeadLetterFilter) -> DeadLetterSurvey:
        with self._call.snapshot() as connection:
            return survey_dead_letters(connection, self._call.tenant, filters)

    def _batch(
        self, filters: DeadLetterFilter, last: DeadLetterRef | None
    ) -> tuple[Sequence[int], DeadLetterRef | None]:
        """Return the ids of the next dead letters, and the one after which to go on; None at the end."""
        with self._call.snapshot() as connection:
            columns = filter_columns(connection, self._call.tenant, filters)
            found = scan_dead_letters(connection, columns, last, _PURGE_BATCH)
        return [each.id for each in found.letters], found.last


def _ensure_selected(filters: DeadLetterFilter, *, chosen: bool) -> None:
    if not chosen and all(value is None for value in filters.values()):
        refuse("ids", "no dead letter is selected", "give ids, a filter, or `all` (`everything` in Python)")


def _kind_to_redrive(filters: DeadLetterFilter) -> Literal["run", "message"] | None:
    """Return the kind of a redrive by a filter: runs, unless `kind` or `ids` name messages."""
    return filters.get("kind") or (None if filters.get("ids") else "run")


def _purge(ids: Sequence[int], record: Callable[..., None], connection: Conn, *, redriven: bool | None) -> int:
    purged = purge(connection, ids, redriven=redriven)
    if purged:  # the first batch of a purge has an entry of its own, in which the others are counted
        record(connection, objects=purged)
    return purged
