"""`client.works`: bulk work that operations of other nouns start, and schedulers do.

A work is a row that schedulers work off at its rate, a batch a transaction. What a batch does is known to its kind.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Annotated
from uuid import UUID, uuid4

from pydantic import BeforeValidator

from tidewheel.api_keys import Scope
from tidewheel.control.client.arguments import as_id
from tidewheel.control.client.polling import POLL_SECONDS, Polling
from tidewheel.errors import UnknownWork, refuse
from tidewheel.ids import hashed_id
from tidewheel.nouns.operation import Call, Noun, Rows, operation
from tidewheel.nouns.works.model import Work, WorkChange, WorkReason
from tidewheel.nouns.works.reads import list_works, show_work
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import Conn
from tidewheel.schedules.decision import BackfillState
from tidewheel.transitions.works import NewWork, add_work, lock_work, set_work_state

WORKS = "/api/v1/works"
_WORK = f"{WORKS}/{{work_id:uuid}}"

WorkId = Annotated[UUID, BeforeValidator(partial(as_id, name="work_id"))]


class Works(Noun):
    """Bulk work: redrives and purges of dead letters."""

    @operation(f"GET {WORKS}", "list_works", scope=Scope.READ)
    def list(self, *, limit: Rows = 50) -> list[Work]:
        """List bulk work, the newest first."""
        with self._call.snapshot() as connection:
            return list_works(connection, self._call.tenant, limit=limit)

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
        """Stop bulk work; what it has done stays."""
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

        done = self._call.write(change)
        self._call.notify(Channel.TIMERS)
        return done


def id_of_work(call: Call, kind: str, request_id: str | None) -> UUID:
    """Return the id of a new work; a repeated request gives the same."""
    return uuid4() if request_id is None else hashed_id(f"{kind}/{call.tenant}/{request_id}".encode())


def work_of_request(call: Call, work_id: UUID, rate: float | None) -> Work | None:
    """Return the work that an earlier request has started; None if none has."""
    with call.snapshot() as connection:
        try:
            first = show_work(connection, call.tenant, work_id)
        except UnknownWork:
            return None
    if first.rate != rate:
        problem = f"this request has made the {first.kind} {work_id}, with another rate"
        refuse("request_id", problem, "pause or cancel that one, or send a new request")
    return first


def start_work(call: Call, work: NewWork, action: str, objects: int) -> None:
    """Add a work, with its entry in the audit log, and wake schedulers."""

    def add(connection: Conn) -> None:
        if add_work(connection, work, read_now(connection)):
            changed = f"{work.kind}/{work.work_id}"
            call.record(connection, action, changed, objects=objects, reason=work.reason)

    call.write(add)
    call.notify(Channel.TIMERS)
