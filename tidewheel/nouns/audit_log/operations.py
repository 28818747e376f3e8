"""`client.audit_log`: list changes and operations with their actors, newest first."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, TypedDict, Unpack

from pydantic import AfterValidator, Field

from tidewheel.api_keys import Scope
from tidewheel.audit import MAX_OBJECT, ActorKind
from tidewheel.jobs.values import Instant, one_line
from tidewheel.nouns.operation import Noun, Place, Rows, operation
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.nouns.audit_log")

MAX_LOOK = 20_000
"""The rows that one page looks at: a rare actor needs several pages."""

_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
_LATEST: Final = "infinity", (1 << 63) - 1  # behind each entry, one with a damaged time among them

_Text = Annotated[str, AfterValidator(one_line(255))]
_Object = Annotated[str, AfterValidator(one_line(MAX_OBJECT))]
_Door = Literal["rest", "kafka", "cli", "client", "console"]

_AllTenants = Annotated[bool, Field(description="The entries of every tenant and of the whole installation.")]


class AuditFilter(TypedDict, total=False):
    """Filter of the audit log, whose entries match all of its fields."""

    since: Annotated[Instant | None, Field(description="Only entries at this instant or later.")]
    until: Annotated[Instant | None, Field(description="Only entries before this instant.")]
    actor: Annotated[_Text | None, Field(description="Only entries of this key, user, message or named person.")]
    object: Annotated[_Object | None, Field(description="Only entries of this object, such as job/nightly.")]
    action: Annotated[_Text | None, Field(description="Only this action, such as job.submit.")]
    door: Annotated[_Door | None, Field(description="Only entries by this door.")]


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A change or an operation, or its refusal."""

    id: int
    at: Annotated[datetime, Field(description="When it was written, by the database's clock.")]
    tenant: Annotated[str, Field(description="Its tenant; `*` for the whole installation.")]
    door: Annotated[str, Field(description="The door by which it came: rest, kafka, cli, client or console.")]
    actor_kind: Annotated[str, Field(description="key, local, user, message, role or system.")]
    actor: Annotated[str, Field(description="The name of the key, of the user, or the coordinates of the message.")]
    verified: Annotated[bool, Field(description="True if Tidewheel or PostgreSQL has verified the actor.")]
    named: Annotated[str | None, Field(description="The person that the sender named, unverified.")]
    key_id: Annotated[str | None, Field(description="The API key.")]
    action: Annotated[str, Field(description="The type of the request.")]
    object: str
    request_id: str | None
    version_before: Annotated[int | None, Field(description="The job's version before.")]
    version_after: Annotated[int | None, Field(description="The job's version after.")]
    objects: Annotated[int, Field(description="The number of objects that a batch changed.")]
    result: Annotated[str, Field(description="`accepted`, or the code of the refusal.")]
    reason: Annotated[str | None, Field(description="The reason that the request gave.")]


@dataclass(frozen=True, slots=True)
class AuditLogPage:
    """Entries of the audit log, newest first. A page may be empty and have a cursor."""

    entries: Sequence[AuditEntry]
    next_cursor: Place | None


def list_audit_log(
    connection: Conn, tenant: str | None, *, after: Place | None = None, limit: int = 50, **fits: Unpack[AuditFilter]
) -> AuditLogPage:
    """Return a page of the audit log of a tenant, or of all for None, newest first."""
    indexed = {"since", "until"} if tenant is None else {"since", "until", "object"}
    is_filtered = any(value for name, value in fits.items() if name not in indexed)
    until = fits.get("until")
    at, number = after or (_LATEST if until is None else (until, 0))
    columns: dict[str, object] = {
        **dict.fromkeys(AuditFilter.__annotations__), **fits, "tenant": tenant,
        "since": fits.get("since") or _EARLIEST, "before_at": at, "before_id": number,
        "look": MAX_LOOK if is_filtered else limit, "limit": limit,
    }  # fmt: skip
    statement = _SQL["list_audit_log_of_object"] if fits.get("object") else _SQL["list_audit_log"]
    rows = connection.execute(
        _SQL["list_audit_log_of_all"] if tenant is None else statement, columns, binary=True
    ).fetchall()
    entries = [_entry(row[2:]) for row in rows if row[3] is not None]
    if len(entries) == limit:
        return AuditLogPage(tuple(entries), (entries[-1].at, entries[-1].id))
    end_at, end_id, *_ = rows[0]
    return AuditLogPage(tuple(entries), None if end_at is None else (end_at, end_id))  # type: ignore[arg-type]  # as in the statement


def _entry(row: Sequence[Any]) -> AuditEntry:
    number, at, tenant, door, kind, actor, *rest = row
    return AuditEntry(number, at, tenant, door, kind, actor, ActorKind(kind).is_verified, *rest)


class AuditLog(Noun):
    """Reads of the audit log."""

    @operation(
        "GET /api/v1/audit-log",
        "list_audit_log",
        scope=Scope.ADMIN,
        authorize=lambda given: Scope.ADMIN if given.get("all_tenants") else None,
    )
    def list(
        self,
        *,
        after: Place | None = None,
        all_tenants: _AllTenants = False,
        limit: Rows = 50,
        **fits: Unpack[AuditFilter],
    ) -> AuditLogPage:
        """List changes and operations with actor, door, result and reason, newest first.

        Accepted triggers and unchanged submits are not recorded. An actor with a question mark is not verified.
        """
        with self._call.snapshot(all_tenants=all_tenants) as connection:
            tenant = None if all_tenants else self._call.tenant
            return list_audit_log(connection, tenant, after=after, limit=limit, **fits)
