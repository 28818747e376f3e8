"""`client.works`: bulk work that schedulers do; its records, its reads, and the poll for its end.

A work is a row that schedulers work off at its rate, a batch a transaction. What a batch does is known to its kind.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Final, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID, uuid4

from pydantic import BeforeValidator, Field

from tidewheel.api_keys import Scope
from tidewheel.clock import monotonic_seconds
from tidewheel.control.reads.job_position import read_job_position
from tidewheel.control.reads.stored import rows_as
from tidewheel.errors import UnknownWork, refuse
from tidewheel.ids import hashed_id, run_range
from tidewheel.jobs.validation import shown
from tidewheel.jobs.values import Key, Reason
from tidewheel.nouns.operation import Call, InDoors, Noun, Page, Rows, as_id, operation, read_page, reads
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import Conn, read_row
from tidewheel.postgres.statements import Statements
from tidewheel.schedules.decision import BackfillState
from tidewheel.transitions.works import NewWork, add_work, lock_work, set_work_state

P = TypeVar("P")
S = TypeVar("S", bound="Started")
T = TypeVar("T")

_SQL = Statements("tidewheel.nouns.works")

POLL_SECONDS = 0.5  # each poll of a backfill counts the states of its runs
COUNTED = 10_000  # matches beyond this are not counted: no client pages through more
_SURVEYED = 25  # statements that count before a work starts: some seconds
INSTANTS = frozenset({"from", "to", "since", "until", "next_at"})
"""The instants of a filter and of facts, which are texts."""
ENDS = "ends with the job's deletion"
"""What becomes of a backfill of a deleted job, until a scheduler cancels it."""

WORKS = "/api/v1/works"
_WORK = f"{WORKS}/{{work_id:uuid}}"

WorkPlace = tuple[datetime, UUID]
"""The place of a work in a list: its creation and its id."""
_NEWEST: Final = "infinity", UUID(int=(1 << 128) - 1)  # behind each work, one with a damaged time among them
Rate = Annotated[float, Field(ge=0.000_001, le=1_000_000)]
WorkReason = Annotated[Reason | None, Field(description="Saved with the bulk work.")]
WorkId = Annotated[UUID, BeforeValidator(partial(as_id, name="work_id"))]
_OfJob = Annotated[Key | None, Field(description="Only bulk work of the job with this key."), InDoors("job")]
Kind = Literal["backfill", "redrive", "purge", "retry"]
"""What bulk work does."""


class Changes(NamedTuple):
    """The things of a kind of bulk work, the console's verb, and what else takes these things first."""

    noun: str
    verb: str
    others: str = ""
    creates_runs: bool = True


KINDS: Mapping[str, Changes] = {
    "backfill": Changes("occurrence", "backfill"),
    "redrive": Changes("dead letter", "retry", "Another retry or a purge"),
    "purge": Changes("dead letter", "purge", "A retry or another purge", creates_runs=False),
    "retry": Changes("run", "retry", "Another retry"),
}
"""The words of each kind."""

_OfKind = Annotated[Kind | None, Field(description="Only bulk work of this kind.")]


class Polling(Generic[T]):
    """One wait, of `timeout` seconds at most; `on_progress` gets each result of a poll before the last."""

    def __init__(
        self,
        name: str,
        work_id: UUID,
        timeout: timedelta | float | None,
        on_progress: Callable[[T], None] | None = None,
        *,
        first_pause: float = POLL_SECONDS,
    ) -> None:
        self._name, self._work_id, self._on_progress = name, work_id, on_progress
        self._timeout = None if timeout is None else _seconds(timeout)
        self._started, self._pause = monotonic_seconds(), first_pause

    def goes_on(self, found: T, state: str, finished_at: datetime | None) -> bool:
        """Return True if the work has not ended: then poll again."""
        if finished_at is not None:
            return False
        if self._on_progress is not None:
            self._on_progress(found)
        if self._timeout is not None and monotonic_seconds() - self._started > self._timeout:
            raise TimeoutError(f"{self._name} {self._work_id} is {state} after {self._timeout:g} s")
        return True

    def pause(self) -> float:
        """Return the seconds until the next poll, which grow to `POLL_SECONDS`; no more than are left."""
        pause, self._pause = self._pause, min(self._pause * 1.5, POLL_SECONDS)
        left = POLL_SECONDS if self._timeout is None else self._timeout - (monotonic_seconds() - self._started)
        return max(min(pause, left), 0.0)


def _seconds(timeout: timedelta | float) -> float:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if type(seconds) not in {int, float} or not (0 <= seconds < math.inf):
        refuse("timeout", f"{shown(seconds)} is not a timeout", "pass a number of seconds, 0 or more")
    return seconds


@dataclass(frozen=True, slots=True)
class Work:
    """Bulk work with its progress."""

    work_id: Annotated[UUID, Field(description="Its id.")]
    kind: Annotated[str, Field(description="What it does, such as `redrive`.")]
    state: Annotated[str, Field(description="`running`, `paused`, `finished` or `cancelled`.")]
    filter: Annotated[Mapping[str, object], Field(description="The filter of its request, by field name.")]
    rate: Annotated[float | None, Field(description="The maximum number of things per second; null if unlimited.")]
    matched_count: Annotated[
        int,
        Field(description="How many matched at its acceptance, counted to 10,001; then there may be more."),
    ]
    done_count: Annotated[int, Field(description="How many are done so far.")]
    rejected_count: Annotated[int, Field(description="How many were rejected so far.")]
    rejections: Annotated[
        Sequence[Mapping[str, object]], Field(description="The first hundred rejections: `id` and `errors` of each.")
    ]
    reason: Annotated[str | None, Field(description="The reason of its request, pause or cancellation.")]
    created_at: Annotated[datetime, Field(description="When it was accepted.")]
    finished_at: Annotated[datetime | None, Field(description="When it was finished or cancelled.")]
    facts: Annotated[
        Mapping[str, object],
        Field(
            description="For a backfill: how many runs it `needed` at first and has `created`, its next instant,"
            " whether it is `ending` with its job, and, if shown alone, `runs`: how many are in each state."
        ),
    ]

    @property
    def is_counted(self) -> bool:
        """True if no more than `matched_count` matched: of a backfill, each occurrence is counted."""
        return self.matched_count <= COUNTED or self.kind == "backfill"

    @property
    def processed(self) -> int:
        """Things that were done or rejected, of `matched_count`."""
        return self.done_count + self.rejected_count


def list_works(
    connection: Conn, tenant: str, *, key: _OfJob = None, kind: _OfKind = None, after: WorkPlace | None = None,
    limit: Rows = 50,
) -> Page[Work]:  # fmt: skip
    """List bulk work, newest first."""
    require_tenant(connection, tenant)
    job_id = None if key is None else read_job_position(connection, tenant, key).job_id
    at, before = after or _NEWEST
    columns = {"tenant": tenant, "job_id": job_id, "kind": kind, "before_at": at, "before_id": before}
    return read_page(
        connection,
        rows_as(Work),
        _SQL["list_works"],
        columns,
        lambda last: (last.created_at, last.work_id),
        limit=limit,
        after=after,
    )


def show_work(connection: Conn, tenant: str, work_id: WorkId) -> Work:
    """Show bulk work: its filter, its progress and its rejections."""
    found = read_row(connection, rows_as(Work), _SQL["show_work"], {"tenant": tenant, "work_id": work_id})
    if found is None:
        raise UnknownWork(str(work_id))
    if found.kind != "backfill":
        return found
    job_id = UUID(str(found.filter["job_id"]))
    first, last = run_range(job_id, found.created_at)
    columns = {"job_id": job_id, "first_run_id": first, "last_run_id": last}
    runs = {str(state): count for state, count in connection.execute(_SQL["count_backfilled"], columns).fetchall()}
    return replace(found, facts={**found.facts, "runs": runs})


def first_matches(scan: Callable[[P | None, int], tuple[Sequence[P], P | None]], limit: int) -> tuple[list[P], bool]:
    """Return the first things that match, and True if it looked at all of them.

    Args:
        scan: Returns so many of those after one of them, and the last one looked at; None at the end.
    """
    found: list[P] = []
    after: P | None = None
    for _ in range(_SURVEYED):
        more, after = scan(after, limit - len(found))
        found += more
        if after is None or len(found) == limit:
            break
    return found, after is None


@dataclass(frozen=True, slots=True)
class Survey(Generic[T]):
    """Things that match before a work starts, and the filter and the cursor that it starts with."""

    matched: int  # `COUNTED` at most
    at_least: bool
    first: tuple[T, ...]
    filter: Mapping[str, object]
    cursor: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Started:
    """A work that a call has started, or that its dry run would. Each noun adds the first things."""

    work_id: Annotated[UUID | None, Field(description="The work's id; null of a dry run, and if nothing matched.")]
    matched: Annotated[int, Field(description="How many match; counted to 10,000.")]
    at_least: Annotated[
        bool, Field(description="True if there may be more than `matched`; only the first are counted.")
    ]


@dataclass(frozen=True, slots=True)
class WorkChange:
    """Result of a pause, a resume or a cancellation."""

    status: Annotated[str, Field(description="The work's state.")]
    unchanged: Annotated[
        bool, Field(description="True if its state did not allow the change, or if the change was already made.")
    ]


class Works(Noun):
    """Bulk work: redrives and purges of dead letters, retries of failed runs, backfills."""

    list = operation(f"GET {WORKS}", "list_works", scope=Scope.READ)(reads(list_works))
    get = operation(f"GET {_WORK}", "get_work", scope=Scope.READ)(reads(show_work))

    def wait(
        self, work_id: UUID, *, timeout: float | None = None, on_progress: Callable[[Work], None] | None = None
    ) -> Work:
        """Wait until a work has ended, and return it; raise TimeoutError after this many seconds.

        `on_progress` gets the work twice a second.
        """
        polling = Polling("work", work_id, timeout, on_progress)
        while polling.goes_on(found := self.get(work_id), found.state, found.finished_at):
            self._call.sleep(POLL_SECONDS)
        return found

    @operation(f"POST {_WORK}:pause", "pause_work", scope=Scope.OPERATE, sent={"reason": "maintenance"})
    def pause(self, work_id: WorkId, *, reason: WorkReason = None) -> WorkChange:
        """Pause bulk work until you resume it; work already done is kept."""
        return self._change("pause", work_id, (BackfillState.RUNNING,), BackfillState.PAUSED, reason)

    @operation(f"POST {_WORK}:resume", "resume_work", scope=Scope.OPERATE)
    def resume(self, work_id: WorkId) -> WorkChange:
        """Resume bulk work."""
        return self._change("resume", work_id, (BackfillState.PAUSED,), BackfillState.RUNNING, None)

    @operation(f"POST {_WORK}:cancel", "cancel_work", scope=Scope.OPERATE, sent={"reason": "maintenance"})
    def cancel(self, work_id: WorkId, *, reason: WorkReason = None) -> WorkChange:
        """Stop bulk work; work already done is kept. A backfill's unstarted runs are cancelled."""
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
    of_request = None if asked.request_id is None else f"{kind}/{call.tenant}/{asked.request_id}".encode()
    work_id = uuid4() if of_request is None else hashed_id(of_request)
    if of_request is not None and not asked.dry_run:
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


def _work_of_request(call: Call, work_id: UUID, rate: float | None) -> Work | None:
    """Return the work that an earlier request has started, also by a process of 0.1; None if none has."""
    call.write(lambda connection: lock_work(connection, call.tenant, work_id))
    with call.snapshot() as connection:
        try:
            first = show_work(connection, call.tenant, work_id)
        except UnknownWork:
            return None
    if first.rate != rate:
        problem = f"this request already created the {first.kind} {work_id}, with another rate"
        refuse("request_id", problem, "pause or cancel that work, or send a new request")
    return first
