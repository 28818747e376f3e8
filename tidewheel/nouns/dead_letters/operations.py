"""`client.dead_letters` and `client.redrives`: the operations from which all doors are derived.

A redrive is a row that schedulers work off at its rate. Each dead letter is redriven once: its new run is written in
the transaction that locks and marks it. A redriven run that fails again is a new dead letter, which the same redrive
leaves alone.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal, Unpack
from uuid import UUID, uuid4

from pydantic import BeforeValidator, Field

from tidewheel.api_keys import Scope
from tidewheel.control.client.arguments import as_id
from tidewheel.control.client.polling import POLL_SECONDS, Polling
from tidewheel.errors import UnknownRedrive, refuse
from tidewheel.ids import hashed_id
from tidewheel.jobs.values import Instant, Reason
from tidewheel.nouns.dead_letters.model import (
    COUNTED,
    DeadLetterDetail,
    DeadLetterFilter,
    DeadLetterGroups,
    DeadLettersPage,
    DeadLetterSurvey,
    Number,
    PurgeResult,
    Rate,
    RedriveChange,
    RedriveResult,
    Redriving,
)
from tidewheel.nouns.dead_letters.reads import (
    EARLIEST,
    filter_columns,
    group_dead_letters,
    list_dead_letters,
    list_redrives,
    scan_dead_letters,
    show_dead_letter,
    show_redrive,
    survey_dead_letters,
)
from tidewheel.nouns.operation import DryRun, InDoors, Noun, Place, Rows, operation
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import Conn
from tidewheel.schedules.decision import BackfillState
from tidewheel.transitions.dead_letters import purge
from tidewheel.transitions.redrives import DeadLetterRef, Redrive, add_redrive, lock_redrive, set_redrive_state

_LETTERS = "/api/v1/dead-letters"
_REDRIVES = "/api/v1/redrives"
_REDRIVE = f"{_REDRIVES}/{{redrive_id:uuid}}"
_PURGE_BATCH = 1000

RedriveId = Annotated[UUID, BeforeValidator(partial(as_id, name="redrive_id"))]
Everything = Annotated[bool, InDoors("all"), Field(description="All dead letters; needed without an id or a filter.")]
RedriveReason = Annotated[Reason | None, Field(description="Stored with the redrive.")]


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
        python_only=("redriven", "request_id"), starts=_REDRIVES,
    )  # fmt: skip
    def redrive(
        self,
        *,
        rate: Annotated[
            Rate | None, Field(description="Maximum dead letters per second; unlimited by default.")
        ] = None,
        dry_run: DryRun = False,
        everything: Everything = False,
        reason: RedriveReason = None,
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
        tenant = self._call.tenant
        redrive_id = uuid4() if request_id is None else hashed_id(f"redrive/{tenant}/{request_id}".encode())
        if request_id is not None and not dry_run and (first := self._first(redrive_id, rate)) is not None:
            return first
        filters = {**filters, "redriven": False, "kind": _kind_to_redrive(filters)}
        found = self._survey(filters)
        until = found.newest_at  # a run that is redriven now and fails again is a dead letter of a later time
        if dry_run or until is None:
            return RedriveResult(None, found.counted, found.at_least, found.first)

        def add(connection: Conn) -> None:
            columns, now = filter_columns(connection, tenant, {**filters, "until": until}), read_now(connection)
            new = _new_redrive(
                columns, found, redrive_id=redrive_id, tenant=tenant, rate=rate, reason=reason, next_at=now,
                created_at=now,
            )  # fmt: skip
            if add_redrive(connection, new):
                changed = f"redrive/{redrive_id}"
                self._call.record(connection, "dlq.redrive", changed, objects=found.counted, reason=reason)

        self._call.write(add)
        self._call.notify(Channel.TIMERS)
        return RedriveResult(redrive_id, found.counted, found.at_least)

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

    def _first(self, redrive_id: UUID, rate: float | None) -> RedriveResult | None:
        """Return the result of the request that has made this redrive; None if none has."""
        with self._call.snapshot() as connection, suppress(UnknownRedrive):
            first = show_redrive(connection, self._call.tenant, redrive_id)
            if first.rate != rate:
                problem = f"this request has made the redrive {redrive_id}, with another rate"
                refuse("request_id", problem, "pause or cancel that one, or send a new request")
            return RedriveResult(redrive_id, min(first.matched_count, COUNTED), first.matched_count > COUNTED)
        return None

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


class Redrives(Noun):
    """Redrives of dead letters."""

    @operation(f"GET {_REDRIVES}", "list_redrives", scope=Scope.READ)
    def list(self, *, limit: Rows = 50) -> list[Redriving]:
        """List redrives, the newest first."""
        with self._call.snapshot() as connection:
            return list_redrives(connection, self._call.tenant, limit=limit)

    @operation(f"GET {_REDRIVE}", "get_redrive", scope=Scope.READ)
    def get(self, redrive_id: RedriveId) -> Redriving:
        """Show a redrive: its filter, progress and rejected dead letters.

        Raises:
            UnknownRedrive: The tenant has no redrive of this id.
        """
        with self._call.snapshot() as connection:
            return show_redrive(connection, self._call.tenant, redrive_id)

    def wait(
        self,
        redrive_id: UUID,
        *,
        timeout: float | None = None,
        on_progress: Callable[[Redriving], None] | None = None,
    ) -> Redriving:
        """Wait until a redrive is finished or cancelled; return it.

        Args:
            redrive_id: The redrive.
            timeout: The most seconds to wait.
            on_progress: Called with the redrive twice a second.

        Raises:
            UnknownRedrive: The tenant has no redrive of this id.
            TimeoutError: It has not ended in time.
        """
        polling = Polling("redrive", redrive_id, timeout, on_progress)
        while polling.goes_on(found := self.get(redrive_id), found):
            self._call.sleep(POLL_SECONDS)
        return found

    @operation(f"POST {_REDRIVE}:pause", "pause_redrive", scope=Scope.OPERATE)
    def pause(self, redrive_id: RedriveId, *, reason: RedriveReason = None) -> RedriveChange:
        """Redrive no further dead letter until the redrive is resumed."""
        return self._change("pause", redrive_id, (BackfillState.RUNNING,), BackfillState.PAUSED, reason)

    @operation(f"POST {_REDRIVE}:resume", "resume_redrive", scope=Scope.OPERATE)
    def resume(self, redrive_id: RedriveId) -> RedriveChange:
        """Resume a redrive."""
        return self._change("resume", redrive_id, (BackfillState.PAUSED,), BackfillState.RUNNING, None)

    @operation(f"POST {_REDRIVE}:cancel", "cancel_redrive", scope=Scope.OPERATE)
    def cancel(self, redrive_id: RedriveId, *, reason: RedriveReason = None) -> RedriveChange:
        """Stop a redrive; the runs that it has created go on."""
        sources = (BackfillState.RUNNING, BackfillState.PAUSED)
        return self._change("cancel", redrive_id, sources, BackfillState.CANCELLED, reason)

    def _change(
        self,
        verb: str,
        redrive_id: UUID,
        sources: tuple[BackfillState, ...],
        target: BackfillState,
        reason: str | None,
    ) -> RedriveChange:
        def change(connection: Conn) -> RedriveChange:
            state = lock_redrive(connection, self._call.tenant, redrive_id)
            if state is None:
                raise UnknownRedrive(str(redrive_id))
            if state not in sources:
                return RedriveChange(state, unchanged=True)
            set_redrive_state(connection, redrive_id, target, read_now(connection), reason=reason)
            self._call.record(connection, f"redrive.{verb}", f"redrive/{redrive_id}", reason=reason)
            return RedriveChange(target, unchanged=False)

        done = self._call.write(change)
        self._call.notify(Channel.TIMERS)
        return done


def _ensure_selected(filters: DeadLetterFilter, *, chosen: bool) -> None:
    if not chosen and all(value is None for value in filters.values()):
        refuse("ids", "no dead letter is selected", "give ids, a filter, or `all` (`everything` in Python)")


def _kind_to_redrive(filters: DeadLetterFilter) -> Literal["run", "message"] | None:
    """Return the kind of a redrive by a filter: runs, unless `kind` or `ids` name messages."""
    return filters.get("kind") or (None if filters.get("ids") else "run")


def _new_redrive(filters: Mapping[str, Any], found: DeadLetterSurvey, **own: Any) -> Redrive:  # noqa: ANN401 - columns
    """Return the row of a redrive by a filter in SQL; `own` has its other columns."""
    given = {name: filters[name] for name in ("kind", "ids", "job_id", "status", "error_type", "queue", "lane")}
    return Redrive(
        **given,
        **own,
        state=BackfillState.RUNNING,
        since_at=filters["since"],
        until_at=filters["until"],
        matched_count=COUNTED + 1 if found.at_least else found.counted,
        after_at=EARLIEST,
        after_id=0,
    )


def _purge(ids: Sequence[int], record: Callable[..., None], connection: Conn, *, redriven: bool | None) -> int:
    purged = purge(connection, ids, redriven=redriven)
    if purged:  # the first batch of a purge has an entry of its own, in which the others are counted
        record(connection, objects=purged)
    return purged
