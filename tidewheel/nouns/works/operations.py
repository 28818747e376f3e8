"""`client.works`: bulk work that operations of other nouns start, and schedulers do.

A work is a row that schedulers work off at its rate, a batch a transaction. What a batch does is known to its kind.
"""

from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Annotated, Literal, TypeVar
from uuid import UUID, uuid4

from pydantic import BeforeValidator, Field

from tidewheel.api_keys import Scope
from tidewheel.control.client.arguments import as_id
from tidewheel.control.client.polling import POLL_SECONDS, Polling
from tidewheel.errors import UnknownWork, refuse
from tidewheel.ids import hashed_id
from tidewheel.jobs.values import Key
from tidewheel.nouns.operation import Call, InDoors, Noun, Page, Rows, operation
from tidewheel.nouns.works.model import COUNTED, Started, Survey, Work, WorkChange, WorkPlace, WorkReason
from tidewheel.nouns.works.reads import list_works, show_work
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import Conn
from tidewheel.schedules.decision import BackfillState
from tidewheel.transitions.works import NewWork, add_work, lock_work, set_work_state

WORKS = "/api/v1/works"
_WORK = f"{WORKS}/{{work_id:uuid}}"

S = TypeVar("S", bound=Started)
T = TypeVar("T")
WorkId = Annotated[UUID, BeforeValidator(partial(as_id, name="work_id"))]
_OfJob = Annotated[Key | None, Field(description="Only works of the job with this key."), InDoors("job")]
Kind = Literal["backfill", "redrive", "purge", "retry"]
"""What bulk work does."""
"""What work does."""
_OfKind = Annotated[Kind | None, Field(description="Only works of this kind.")]


class Works(Noun):
    """Bulk work: redrives and purges of dead letters, retries of failed runs, backfills."""

    @operation(f"GET {WORKS}", "list_works", scope=Scope.READ)
    def list(
        self, *, key: _OfJob = None, kind: _OfKind = None, after: WorkPlace | None = None, limit: Rows = 50
    ) -> Page[Work]:
        """List bulk work, the newest first."""
        with self._call.snapshot() as connection:
            return list_works(connection, self._call.tenant, key, kind=kind, after=after, limit=limit)

    @operation(f"GET {_WORK}", "get_work", scope=Scope.READ)
    def get(self, work_id: WorkId) -> Work:
        """Show bulk work: its filter, its progress, and what could not be done.

        Raises:
            UnknownWork: The tenant has no work of this id.
        """
        with self._call.snapshot() as connection:
            return show_work(connection, self._call.tenant, work_id)

    def wait(
        self, work_id: UUID, *, timeout: float | None = None, on_progress: Callable[[Work], None] | None = None
    ) -> Work:
        """Wait until a work is finished or cancelled; return it.

        Args:
            work_id: The work.
            timeout: The most seconds to wait.
            on_progress: Called with the work twice a second.

        Raises:
            UnknownWork: The tenant has no work of this id.
            TimeoutError: It has not ended in time.
        """
        polling = Polling("work", work_id, timeout, on_progress)
        while polling.goes_on(found := self.get(work_id), found):
            self._call.sleep(POLL_SECONDS)
        return found

    @operation(f"POST {_WORK}:pause", "pause_work", scope=Scope.OPERATE)
    def pause(self, work_id: WorkId, *, reason: WorkReason = None) -> WorkChange:
        """Pause bulk work until it is resumed; what it has done stays."""
        return self._change("pause", work_id, (BackfillState.RUNNING,), BackfillState.PAUSED, reason)

    @operation(f"POST {_WORK}:resume", "resume_work", scope=Scope.OPERATE)
    def resume(self, work_id: WorkId) -> WorkChange:
        """Resume bulk work."""
        return self._change("resume", work_id, (BackfillState.PAUSED,), BackfillState.RUNNING, None)

    @operation(f"POST {_WORK}:cancel", "cancel_work", scope=Scope.OPERATE)
    def cancel(self, work_id: WorkId, *, reason: WorkReason = None) -> WorkChange:
        """Stop bulk work; what it has done stays. Runs of a backfill that have not started are cancelled."""
        sources = (BackfillState.RUNNING, BackfillState.PAUSED)
        return self._change("cancel", work_id, sources, BackfillState.CANCELLED, reason)

    def _change(
        self, verb: str, work_id: UUID, sources: Collection[BackfillState], target: BackfillState, reason: str | None
    ) -> WorkChange:
        def change(connection: Conn) -> WorkChange:
            found = lock_work(connection, self._call.tenant, work_id)
            if found is None:
                raise UnknownWork(str(work_id))
            kind, state = found
            if state not in sources:
                return WorkChange(state, unchanged=True)
            set_work_state(connection, work_id, target, read_now(connection), reason=reason)
            self._call.record(connection, f"{kind}.{verb}", f"{kind}/{work_id}", reason=reason)
            return WorkChange(target, unchanged=False)

        try:
            done = self._call.write(change)
        except UnknownWork:  # nothing was written, so a request that meets a lock may be repeated
            return self._change_backfill(verb, work_id, reason)
        self._call.notify(Channel.TIMERS)
        return done

    def _change_backfill(self, verb: str, work_id: UUID, reason: str | None) -> WorkChange:
        """Have intake change a backfill."""
        self.get(work_id)  # no work has this id: an error
        sent = {"type": f"backfill.{verb}", "backfill_id": str(work_id), "reason": reason}
        reply = self._call.request(sent)
        return WorkChange(str(reply.backfill_status), reply.unchanged)


@dataclass(frozen=True, slots=True)
class Asked:
    """Parameters of each operation that starts a work."""

    rate: float | None
    reason: str | None
    request_id: str | None
    _: KW_ONLY
    dry_run: bool


def start(
    call: Call, action: str, asked: Asked, survey: Callable[[Conn], Survey[T]],
    made: Callable[[UUID | None, int, bool, tuple[T, ...]], S],
) -> S:  # fmt: skip
    """Start a work, with an entry in the audit log; start none of a dry run, or if nothing matches.

    The kind of the work is the last part of `action`. A repeated `request_id` returns the first work.
    """
    kind = action.rpartition(".")[2]
    work_id = _id_of(call, kind, asked.request_id)
    if asked.request_id is not None and not asked.dry_run:
        first = _work_of_request(call, work_id, asked.rate)
        if first is not None:
            return made(work_id, min(first.matched_count, COUNTED), first.matched_count > COUNTED, ())
    with call.snapshot() as connection:
        found = survey(connection)
    if asked.dry_run or not (found.matched or found.at_least):
        return made(None, found.matched, found.at_least, found.first)
    work = NewWork(
        work_id=work_id, tenant=call.tenant, kind=kind, filter=found.filter, cursor=found.cursor, rate=asked.rate,
        matched=COUNTED + 1 if found.at_least else found.matched, reason=asked.reason,
    )  # fmt: skip

    def add(connection: Conn) -> None:
        if add_work(connection, work, read_now(connection)):
            call.record(connection, action, f"{kind}/{work_id}", objects=found.matched, reason=asked.reason)

    call.write(add)
    call.notify(Channel.TIMERS)
    return made(work_id, found.matched, found.at_least, ())


def _id_of(call: Call, kind: str, request_id: str | None) -> UUID:
    """Return the id of a new work; a repeated request gives the same."""
    return uuid4() if request_id is None else hashed_id(f"{kind}/{call.tenant}/{request_id}".encode())


def _work_of_request(call: Call, work_id: UUID, rate: float | None) -> Work | None:
    """Return the work that an earlier request has started, also by a process of 0.1; None if none has."""
    call.write(lambda connection: lock_work(connection, call.tenant, work_id))
    with call.snapshot() as connection:
        try:
            first = show_work(connection, call.tenant, work_id)
        except UnknownWork:
            return None
    if first.rate != rate:
        problem = f"this request has made the {first.kind} {work_id}, with another rate"
        refuse("request_id", problem, "pause or cancel that one, or send a new request")
    return first
