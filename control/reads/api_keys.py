"""Read keys of the HTTP API; their secrets are not stored."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from psycopg.rows import class_row

from tidewheel.api_keys import Scope
from tidewheel.errors import UnknownApiKey
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.control")
_LIST_API_KEYS = _SQL["list_api_keys"]
_SHOW_API_KEY = _SQL["show_api_key"]
_LATEST = datetime(9999, 12, 31, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ApiKeySummary:
    """A key of the HTTP API.

    Args:
        key_id: Its id, the part of the key after `tw_`.
        name: Its name, which the audit log shows.
        tenant: Its tenant; `*` for all.
        scopes: Its rights.
        rate: Its requests a second; None for the setting of the process.
        created_at: When it was created.
        expires_at: When it expires.
        revoked_at: When it was revoked.
        last_used_at: Its last use, which is recorded once a minute.
        queues: With the scope execute the queues of its executors, `*` for all; None without.
    """

    key_id: str
    name: str
    tenant: str
    scopes: tuple[Scope, ...]
    rate: float | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    queues: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Take the scopes as the database has them; a key with queues has `execute`."""
        scopes = (*map(Scope, self.scopes), *((Scope.EXECUTE,) if self.queues else ()))
        object.__setattr__(self, "scopes", tuple(dict.fromkeys(scopes)))


@dataclass(frozen=True, slots=True)
class ApiKeyPage:
    """A page of keys, the newest first.

    Args:
        next: The place behind the last one, if there may be more.
    """

    keys: Sequence[ApiKeySummary]
    next: tuple[datetime, str] | None


def show_api_key(connection: Conn, tenant: str | None, key_id: str) -> ApiKeySummary:
    """Return a key of a tenant, or of any; raise UnknownApiKey if there is none."""
    with connection.cursor(row_factory=class_row(ApiKeySummary), binary=True) as cursor:
        found = cursor.execute(_SHOW_API_KEY, {"tenant": tenant, "key_id": key_id}).fetchone()
    if found is None:
        raise UnknownApiKey(key_id)
    return found


def list_api_keys(
    connection: Conn, tenant: str | None, *, after: tuple[datetime, str] | None = None, limit: int = 50
) -> ApiKeyPage:
    """Return a page of the keys of a tenant, of `*` for those of all tenants, or of None for every key."""
    at, key_id = after or (_LATEST, "")
    columns: dict[str, object] = {"tenant": tenant, "before_at": at, "before_id": key_id, "limit": limit}
    with connection.cursor(row_factory=class_row(ApiKeySummary), binary=True) as cursor:
        keys = cursor.execute(_LIST_API_KEYS, columns).fetchall()
    more = len(keys) == limit
    return ApiKeyPage(tuple(keys), (keys[-1].created_at, keys[-1].key_id) if more else None)
