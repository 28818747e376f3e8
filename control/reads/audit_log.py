"""Read the audit log: changes and operations with their actors, the newest first."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypedDict, Unpack

from tidewheel.audit import ActorKind
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.control")
_LIST_AUDIT_LOG = _SQL["list_audit_log"]
_LIST_AUDIT_LOG_OF_OBJECT = _SQL["list_audit_log_of_object"]
_LIST_AUDIT_LOG_OF_ALL = _SQL["list_audit_log_of_all"]

MAX_LOOK = 20_000
"""The rows that one page looks at: a rare actor needs several pages."""

_EARLIEST, _LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)

Place = tuple[datetime, int]
"""The place of an entry: its instant and its id."""


class AuditFilter(TypedDict, total=False):
    """The entries that fit all of these.

    Attributes:
        since: From this instant on.
        until: Before this instant.
        object: Of this object, such as `job/nightly`.
        action: Of this action, such as `job.submit`.
        door: By this door, such as `rest`.
    """

    since: datetime | None
    until: datetime | None
    actor: str | None
    object: str | None
    action: str | None
    door: str | None


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A change or an operation, or its refusal.

    Args:
        id: Its id.
        at: When it was written, by the database's clock.
        tenant: Its tenant; `*` for the whole installation.
        door: The way by which it came: rest, kafka, cli, client or console.
        actor_kind: The kind of the actor: key, local, user, message, role or system.
        actor: The name of the key, of the user, or the coordinates of the message.
        verified: True if Tidewheel or PostgreSQL has verified the actor.
        named: The person that the sender has named; nothing verifies it.
        key_id: The API key.
        action: The type of the request.
        object: The object.
        request_id: The request's id.
        version_before: The job's version before.
        version_after: The job's version after.
        objects: The number of objects that a batch has changed.
        result: `accepted`, or the code of the refusal.
        reason: The reason that the request gave.
    """

    id: int
    at: datetime
    tenant: str
    door: str
    actor_kind: str
    actor: str
    verified: bool
    named: str | None
    key_id: str | None
    action: str
    object: str
    request_id: str | None
    version_before: int | None
    version_after: int | None
    objects: int
    result: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class AuditPage:
    """A page of the audit log.

    Args:
        next: The place at which the next page begins; None at the end. A page may be empty and have one.
    """

    entries: Sequence[AuditEntry]
    next: Place | None


def list_audit_log(
    connection: Conn, tenant: str | None, *, after: Place | None = None, limit: int = 50, **fits: Unpack[AuditFilter]
) -> AuditPage:
    """Return a page of the audit log of a tenant, or of all for None, the newest first."""
    indexed = {"object"} if tenant is not None else set[str]()
    is_filtered = any(fits.get(name) for name in {"actor", "object", "action", "door"} - indexed)
    until = fits.get("until") or _LATEST
    at, number = after or (until, 0)
    columns: dict[str, object] = {
        "tenant": tenant, "since": fits.get("since") or _EARLIEST, "before_at": at, "before_id": number,
        "actor": fits.get("actor"), "object": fits.get("object"), "action": fits.get("action"),
        "door": fits.get("door"), "look": MAX_LOOK if is_filtered else limit, "limit": limit,
    }  # fmt: skip
    statement = _LIST_AUDIT_LOG_OF_OBJECT if fits.get("object") else _LIST_AUDIT_LOG
    rows = connection.execute(_LIST_AUDIT_LOG_OF_ALL if tenant is None else statement, columns, binary=True).fetchall()
    entries = [_entry(row[2:]) for row in rows if row[3] is not None]
    if len(entries) == limit:
        return AuditPage(tuple(entries), (entries[-1].at, entries[-1].id))
    end_at, end_id, *_ = rows[0]
    return AuditPage(tuple(entries), None if end_at is None else (end_at, end_id))  # type: ignore[arg-type]  # as in the statement


def _entry(row: Sequence[Any]) -> AuditEntry:
    number, at, tenant, door, kind, actor, *rest = row
    return AuditEntry(number, at, tenant, door, kind, actor, ActorKind(kind).is_verified, *rest)
