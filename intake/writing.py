"""The transaction that applies requests, with its audit entries and what is settled at its end.

The audit log has a row for each request that changes or operates, accepted or refused, and none for unchanged ones.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import LiteralString, NamedTuple, TypeVar, cast
from uuid import UUID

from psycopg import Cursor
from psycopg.rows import class_row

from tidewheel.audit import ACCEPTED, ALL_TENANTS, Actor, ActorKind, Change, Door, process_actor, record
from tidewheel.errors import Refused
from tidewheel.intake.request import ReceivedRequest, rejected
from tidewheel.jobs.requests import Freeze, JobDelete, JobRollback, JobSubmit, Thaw
from tidewheel.outbox import OutboxRow, append
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState
from tidewheel.schemas.generated.records import Reply, ReplyStatus, RequestType
from tidewheel.transitions.after_end import is_pause_on_failure
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.places import FreedPlace
from tidewheel.transitions.run_keys import settle_keys

Row = TypeVar("Row")

_RESET_PLAN_MODE = Statements("tidewheel.intake")["reset_plan_mode"]

# By the first part of a request's type: the field that names its object.
_NAMED_BY = {"run": "run_id", "workflow": "run_id", "calendar": "name", "backfill": "backfill_id", "batch": "batch_id"}
_SYSTEM = Actor(Door.KAFKA, ActorKind.SYSTEM, "pause_on_failure")


class Graphs(NamedTuple):
    """The tenants whose graphs a transaction has locked, and the jobs whose edges it may change."""

    tenants: Collection[str] = ()
    jobs: Collection[UUID] = ()


_NO_GRAPHS = Graphs()


@dataclass(slots=True, eq=False)
class Writing:
    """A transaction that applies requests."""

    connection: Conn
    installation: Installation
    actor: Actor | None = None  # the origin of requests that did not come by Kafka; None for the user of this process
    written: set[RequestType] | None = None  # gets the types of requests that change rows; None if no caller reads it
    together: Sequence[ReceivedRequest] = ()  # that are applied by one call, in their order
    zones: Mapping[str, str] = field(default_factory=dict[str, str])  # of those of its tenants that have one
    graphs: Graphs = _NO_GRAPHS  # locked before any timer
    freed: list[FreedPlace] = field(default_factory=list[FreedPlace])
    woken: set[int] = field(default_factory=set[int])  # keys whose limit an edit has changed

    @property
    def may_block_claims(self) -> bool:
        """True if the transaction holds no lock that a claim waits for.

        A direct caller's batch is not applied again: it may meet a claim, and PostgreSQL resolves the deadlock.
        """
        return len(self.together) == 1 or all(received.origin is None for received in self.together)

    def origin_of(self, received: ReceivedRequest) -> Actor:
        """Return the origin of a request, for the audit log."""
        if received.origin is None:
            return self.actor or process_actor()
        if is_pause_on_failure(received.request.request_id):
            return _SYSTEM
        request = received.request
        named = received.named or (request.by if isinstance(request, Freeze) else None)
        return Actor(Door.KAFKA, ActorKind.MESSAGE, received.requested_from or "", named)

    def now(self) -> datetime:
        """Read the time by the database's clock."""
        return read_now(self.connection)

    def execute(self, statement: LiteralString, **columns: object) -> Cursor[tuple[object, ...]]:
        """Run a statement."""
        return self.connection.execute(statement, columns)

    def read(self, statement: LiteralString, **columns: object) -> list[tuple[object, ...]]:
        """Return the rows of a statement."""
        return self.connection.execute(statement, columns, binary=True).fetchall()

    def read_as(self, row: type[Row], statement: LiteralString, **columns: object) -> list[Row]:
        """Return the rows of a statement as objects, by the names of their columns."""
        return read_rows(self.connection, class_row(row), statement, columns)

    def read_unindexed(self, statement: LiteralString, **columns: object) -> list[tuple[object, ...]]:
        """Return the rows of a statement that finds jobs by labels, which have no index.

        Under `BY_KEY`, intake's plan mode, a tenant's jobs are read one by one in key order: with 10,000,000 jobs the
        statement times out.
        """
        with self.connection.transaction(force_rollback=True):  # a savepoint: the plan mode is restored
            self.connection.execute(_RESET_PLAN_MODE)
            return self.read(statement, **columns)

    def append(self, rows: Iterable[OutboxRow]) -> None:
        """Append rows to the outbox."""
        append(self.connection, rows, shards=self.installation.shards)

    def finish(self, ends: Sequence[RunEnd]) -> Mapping[UUID, RunState]:
        """End runs, as `finish_runs` does; return their states."""
        return finish_runs(self.connection, self.installation, ends, freed_keys=self.freed).states

    def settle(self) -> None:
        """Pass on the places of keys: with a key locked no statement of the transaction waits."""
        settle_keys(self.connection, self.installation, freed=self.freed, woken=self.woken)


def one_by_one(batch: Iterable[ReceivedRequest], act: Callable[[ReceivedRequest], Reply]) -> list[Reply]:
    """Apply requests one after another, each of which is refused before it has written anything."""
    replies: list[Reply] = []
    for received in batch:
        try:
            replies.append(act(received))
        except Refused as refused:
            replies.append(rejected(received, refused))
    return replies


def singly(
    act: Callable[[Writing, ReceivedRequest], Reply],
) -> Callable[[Writing, Sequence[ReceivedRequest]], list[Reply]]:
    """Return the function that applies requests one after another by this one."""
    return lambda writing, batch: one_by_one(batch, partial(act, writing))


def record_requests(writing: Writing, changes: Iterable[tuple[ReceivedRequest, Reply]]) -> None:
    """Record requests that were accepted and change rows, or were refused."""
    record(writing.connection, ((writing.origin_of(received), _change(received, reply)) for received, reply in changes))


def _change(received: ReceivedRequest, reply: Reply) -> Change:
    request = received.request
    is_accepted = reply.status is ReplyStatus.ACCEPTED
    before = after = reply.job_version if is_accepted else None
    if isinstance(request, JobSubmit | JobRollback) and after is not None:
        before = after - 1 or None
    elif isinstance(request, JobDelete):
        after = None
    of_fleet = isinstance(request, Freeze | Thaw) and request.scope == "fleet"
    return Change(
        ALL_TENANTS if of_fleet else received.tenant,
        request.type,
        _object(received, reply),
        request.request_id,
        before,
        after,
        result=ACCEPTED if is_accepted else reply.code or "rejected",
        reason=cast("str | None", getattr(request, "reason", None)),
    )


def _object(received: ReceivedRequest, reply: Reply) -> str:
    request = received.request
    if isinstance(request, Freeze | Thaw):
        return f"freeze/{_scope(request)}"
    kind = request.type.partition(".")[0]
    if kind == "runs":
        return "runs" if reply.cancellation_id is None else f"cancellation/{reply.cancellation_id}"
    return f"{kind}/{received.key or '' if kind == 'job' else getattr(request, _NAMED_BY[kind])}"


def _scope(request: Freeze | Thaw) -> str:
    parts: list[str] = [request.scope] if request.scope else []
    parts += [f"queue={request.queue}"] if request.queue else []
    parts += [f"label={name}={value}" for name, value in (request.labels or {}).items()]
    parts += [f"key_prefix={request.key_prefix}"] if request.key_prefix else []
    return ",".join(parts)
