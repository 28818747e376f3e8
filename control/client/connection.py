"""The connection that every part of `Client` shares, and the results of its requests.

A request is applied by the code that intake uses, in a transaction of its own. A transaction acts for one tenant by a
role: row-level security hides all other rows. Sessions are used for one tenant after another. So the role, the tenant
and the search path end with the transaction. `migrations/row_security.py` makes the role and the policies.
"""

import logging
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import LiteralString, TypeVar

import psycopg
from psycopg.errors import InsufficientPrivilege

from tidewheel import task_token_keys
from tidewheel.audit import Actor, Change, process_actor, record_change
from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.enqueue import raise_if_rejected
from tidewheel.control.reads.stored import show_damaged
from tidewheel.errors import InstallationFault, Unavailable, UnknownJob, VersionConflict, refuse
from tidewheel.ids import RunId
from tidewheel.intake.apply import BLOCKS_CLAIMS, apply_requests
from tidewheel.intake.locks import RowLocked
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import own_request
from tidewheel.jobs.requests import Freeze, Request, RunComplete, RunHeartbeat, Thaw
from tidewheel.jobs.validation import ensure_text_names
from tidewheel.postgres.faults import first_line
from tidewheel.postgres.notify import Channel, Notifier
from tidewheel.postgres.session import FOR_LISTS, CommitUnknown, Conn, OwnConnection, RowsLocked, Session
from tidewheel.postgres.statements import Statements
from tidewheel.schemas.generated.records import Reply
from tidewheel.settings.connections import Connections
from tidewheel.transitions.installation import Installation, read_installation

T = TypeVar("T")

_SET_REPEATABLE_READ = Statements("tidewheel.control")["set_repeatable_read"]
_SQL = Statements("tidewheel")

_TRIES = 5
_LOCK_SECONDS = 10.0  # as `lock_timeout` of a session
_CREATES_RUNS = ("job.trigger", "job.backfill", "run.retry", "workflow.resume", "batch.submit")
_LOG = logging.getLogger("tidewheel.client")
_REMEDY = "create the role again, or run `tidewheel migrate` with TIDEWHEEL_TENANT_ROLE set to the role that exists"


class Connection:
    """A connection to Tidewheel for one thread.

    Args:
        shared: The installation whose rates of tenants and task tokens threads share: their owner keeps them.
        lock_seconds: How long it waits for rows that another transaction has locked; then the caller decides.

    Attributes:
        before_blocking: Called before a request is applied that blocks claims.
        on_block: Called when claims begin to wait for such a request.
        traceparent: The trace context of the requests that have none of their own.
        replica: The session of a read replica, for snapshots; None: they read the primary.
        replica_problem: Why the read replica is not used; empty if it is used, None if none is set.
    """

    def __init__(
        self,
        database_url: str | None = None,
        *,
        tenant: str = "default",
        application: str = "tidewheel-client",
        options: str = "",
        settings: Connections | None = None,
        actor: Actor | None = None,
        shared: Installation | None = None,
        lock_seconds: float = _LOCK_SECONDS,
    ) -> None:
        settings = settings or Connections.load(database_url=database_url)
        self.url = settings.database()
        self.tenant, self.actor = tenant, actor or process_actor()
        self.traceparent: str | None = None
        self.writes, self._lock_seconds = 0, lock_seconds
        self.before_blocking: Callable[[], None] = lambda: None
        self.on_block: Callable[[], None] | None = None
        self.replica: Session | None = None
        self.replica_problem: str | None = None
        self.archive = settings.archive
        self._session = Session(self.url, application, options=f"{FOR_LISTS} {options}", renews=True, pooled=True)
        try:
            with self._session.transaction() as connection:
                self.installation = read_installation(connection, settings)
                self._search_path = read_search_path(connection)
        except BaseException:
            self._session.close()
            raise
        self._own_rates = self.installation.rates
        if shared is not None:
            self.installation = replace(self.installation, rates=shared.rates, task_tokens=shared.task_tokens)
        self._notifier = Notifier(self.url, f"{application}-notify")
        self._never = threading.Event()

    @property
    def all_tenants(self) -> bool:
        """True if its actor may see all tenants."""
        return self.actor.tenant is None

    def close(self) -> None:
        """Close its sessions."""
        self._notifier.close()
        self._session.close()
        self._own_rates.close()

    def refresh_task_tokens(self) -> None:
        """Read the keys of task tokens again, as the client's own role."""
        try:
            with self._session.transaction() as connection:
                task_token_keys.refresh(self.installation.task_tokens, connection)
        except InsufficientPrivilege:
            problem = "the database role of this client may not check task tokens"
            refuse("token", problem, "use the HTTP API or a message, or connect as another role")

    @contextmanager
    def transaction(self, *, all_tenants: bool = False) -> Generator[Conn]:
        """Open a transaction that acts for the tenant, or for all; each statement sees the latest commits."""
        with self._session.transaction() as connection:
            self._begin(connection, None if all_tenants else self.tenant)
            show_damaged(connection, shows=False)
            yield connection

    @contextmanager
    def snapshot(self, *, all_tenants: bool = False) -> Generator[Conn]:
        """Open a transaction in which every statement reads the same snapshot."""
        with (self.replica or self._session).transaction() as connection:
            self._begin(connection, None if all_tenants else self.tenant, _SET_REPEATABLE_READ)
            show_damaged(connection, shows=True)
            yield connection

    @contextmanager
    def acting_for(self, tenant: str) -> Generator[None]:
        """Act for another tenant meanwhile."""
        own, self.tenant = self.tenant, tenant
        try:
            yield
        finally:
            self.tenant = own

    def request(self, document: Mapping[str, object], request_id: str | None = None) -> Reply:
        """Apply one request; fields that are None are left out."""
        [reply] = self.request_all([{**document, "request_id": request_id}])
        raise_rejection(reply, document.get("if_version"))
        return reply

    def request_with_job(self, trigger: Mapping[str, object], submit: Mapping[str, object]) -> Reply:
        """Apply a trigger and create the job that it lacks, both in one transaction or neither."""
        wanted, new = (ReceivedRequest(_own_request(document, self.tenant)) for document in (trigger, submit))

        def work(connection: Conn, *first: ReceivedRequest) -> Reply:
            *before, reply = apply_requests(connection, self.installation, [*first, wanted], actor=self.actor)
            for each in before:
                if each.code != VersionConflict.code:  # another client has created it meanwhile
                    raise_if_rejected(each)
            raise_if_rejected(reply)  # rolls back: no reply is stored for the request_id
            return reply

        once = wanted.request.request_id is None
        try:
            reply = self.write(work, once=once)
        except UnknownJob:
            reply = self.write(lambda connection: work(connection, new), once=once)
        self.notify(Channel.TIMERS, Channel.OUTBOX)
        return reply

    def request_all(self, documents: Sequence[Mapping[str, object]]) -> list[Reply]:
        """Apply several requests in one transaction; return their replies in order, rejections among them."""
        batch = [
            ReceivedRequest(_own_request(document, self.tenant), sent_traceparent=self.traceparent)
            for document in documents
        ]
        if any(isinstance(one.request, BLOCKS_CLAIMS) for one in batch):
            self.before_blocking()
        # A request that creates runs and has no id would create them twice if it were repeated.
        once = any(one.request.request_id is None and one.request.type in _CREATES_RUNS for one in batch)
        replies = self.write(
            lambda connection: apply_requests(connection, self.installation, batch, actor=self.actor),
            once=once,
            all_tenants=any(_names_all_tenants(one.request) for one in batch),
        )
        self.notify(Channel.TIMERS, Channel.OUTBOX, Channel.SIGNALS)
        return replies

    def write(self, work: Callable[[Conn], T], *, once: bool = False, all_tenants: bool = False) -> T:
        """Write in one transaction; repeat it while the database does not answer, up to five times.

        Args:
            once: Do not repeat after a COMMIT that was not answered, which may have succeeded.
            all_tenants: Write as the owner of the tables, which row-level security does not bind.
        """
        until = monotonic_seconds() + self._lock_seconds
        tries = 1
        while True:
            try:
                with self.transaction(all_tenants=all_tenants) as connection:
                    result = work(connection)
                self.writes += 1
                return result
            except CommitUnknown:
                if once or tries >= _TRIES:
                    raise
            except (RowLocked, RowsLocked):
                # This wait was for a lock already.
                if monotonic_seconds() >= until:
                    raise
                continue
            except Unavailable as error:
                if tries >= _TRIES:
                    raise
                _LOG.info("retrying: %s", error)
            tries += 1

    def record(
        self, connection: Conn, action: str, changed: str, *,
        objects: int = 1, adds_up: bool = False, reason: str | None = None,
    ) -> None:  # fmt: skip
        """Append a change of this tenant to the audit log, in the caller's transaction."""
        change = Change(self.tenant, action, changed, objects=objects, adds_up=adds_up, reason=reason)
        record_change(connection, self.actor, change)

    def notify(self, *channels: Channel) -> None:
        """Wake the services that listen on these channels."""
        for channel in channels:
            self._notifier.notify(channel)

    def sleep(self, seconds: float) -> None:
        """Wait for that long."""
        self._never.wait(seconds)

    def _begin(self, connection: Conn, tenant: str | None, *first: LiteralString) -> None:
        """Begin a transaction that acts for a tenant, or as the owner of the tables."""
        role = self.installation.tenant_role
        if isinstance(connection, OwnConnection):
            connection.tenant = role and tenant
            connection.on_block = self.on_block
        if role is not None and tenant is not None:
            begin_for_tenant(connection, role, tenant, self._search_path, first=first)
            return
        for statement in first:
            connection.execute(statement)


def _own_request(document: Mapping[str, object], tenant: str) -> Request:
    """Return the request of a program, without None; refuse names that are not text."""
    for name, value in document.items():
        ensure_text_names(value, name)
    return own_request(drop_none({**document, "tenant": tenant}))


def _names_all_tenants(request: object) -> bool:
    """Return True for a request about rows of any tenant: with a task token, or with the fleet as scope."""
    return isinstance(request, RunComplete | RunHeartbeat) or (
        isinstance(request, Freeze | Thaw) and request.scope == "fleet"
    )


def raise_rejection(reply: Reply, expected: object) -> None:
    """Raise the error of a rejected request, which expected this version of its job."""
    if reply.code == VersionConflict.code and isinstance(expected, int):
        raise VersionConflict.from_problem(reply.errors[0].problem, expected)
    raise_if_rejected(reply)


def drop_none(document: Mapping[str, object]) -> dict[str, object]:
    """Return a document without the fields that are None."""
    return {name: value for name, value in document.items() if value is not None}


def read_search_path(connection: Conn) -> str:
    """Return the schemas of the session, whose `"$user"` a change of the role would change."""
    [(path,)] = connection.execute(_SQL["read_search_path"]).fetchall()
    return str(path)


def begin_for_tenant(
    connection: Conn, role: str, tenant: str, search_path: str, *, first: Sequence[LiteralString] = ()
) -> None:
    """Begin a transaction that acts as the role for a tenant, in one round trip."""
    try:
        with connection.pipeline():
            for statement in first:
                connection.execute(statement)
            connection.execute(_SQL["act_for_tenant"], {"role": role, "tenant": tenant, "search_path": search_path})
    except psycopg.errors.InvalidParameterValue as error:
        raise InstallationFault(first_line(error), _REMEDY, error.sqlstate or "") from error


@dataclass(frozen=True, slots=True)
class Triggered:
    """The answer to a trigger with dedupe.

    Args:
        run_id: The trigger's run: its own, or that of an earlier trigger.
        outcome: `accepted` for a new run; `deduplicated`, `replaced` or `debounced` for an earlier one.
        runs_at: When the run is due; of a deduplicated trigger this may have passed.
    """

    run_id: RunId
    outcome: str
    runs_at: datetime
