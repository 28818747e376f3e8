"""Read the audit log: changes and operations with their actors, the newest first."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, Unpack

from tidewheel.audit import ActorKind
from tidewheel.nouns.audit_log.model import AuditEntry, AuditFilter, AuditLogPage
from tidewheel.nouns.operation import Place
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.nouns.audit_log")
_LIST_AUDIT_LOG = _SQL["list_audit_log"]
_LIST_AUDIT_LOG_OF_OBJECT = _SQL["list_audit_log_of_object"]
_LIST_AUDIT_LOG_OF_ALL = _SQL["list_audit_log_of_all"]

MAX_LOOK = 20_000
"""The rows that one page looks at: a rare actor needs several pages."""

_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
_LATEST: Final = "infinity", (1 << 63) - 1  # behind each entry, one with a damaged time among them


def list_audit_log(
    connection: Conn, tenant: str | None, *, after: Place | None = None, limit: int = 50, **fits: Unpack[AuditFilter]
) -> AuditLogPage:
    """Return a page of the audit log of a tenant, or of all for None, the newest first."""
    indexed = {"object"} if tenant is not None else set[str]()
    is_filtered = any(fits.get(name) for name in {"actor", "object", "action", "door"} - indexed)
    until = fits.get("until")
    at, number = after or (_LATEST if until is None else (until, 0))
    columns: dict[str, object] = {
        "tenant": tenant, "since": fits.get("since") or _EARLIEST, "before_at": at, "before_id": number,
        "actor": fits.get("actor"), "object": fits.get("object"), "action": fits.get("action"),
        "door": fits.get("door"), "look": MAX_LOOK if is_filtered else limit, "limit": limit,
    }  # fmt: skip
    statement = _LIST_AUDIT_LOG_OF_OBJECT if fits.get("object") else _LIST_AUDIT_LOG
    rows = connection.execute(_LIST_AUDIT_LOG_OF_ALL if tenant is None else statement, columns, binary=True).fetchall()
    entries = [_entry(row[2:]) for row in rows if row[3] is not None]
    if len(entries) == limit:
        return AuditLogPage(tuple(entries), (entries[-1].at, entries[-1].id))
    end_at, end_id, *_ = rows[0]
    return AuditLogPage(tuple(entries), None if end_at is None else (end_at, end_id))  # type: ignore[arg-type]  # as in the statement


def _entry(row: Sequence[Any]) -> AuditEntry:
    number, at, tenant, door, kind, actor, *rest = row
    return AuditEntry(number, at, tenant, door, kind, actor, ActorKind(kind).is_verified, *rest)
