"""Reads of limits of concurrency keys, of the keys in use, and of ordering keys that are blocked."""

from datetime import datetime

from psycopg.rows import class_row

from tidewheel.ids import order_id
from tidewheel.nouns.limits.model import COUNTED, BlockedKey, KeyInUse, LimitSummary
from tidewheel.nouns.operation import Page
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.nouns.limits")
_LIST_KEY_LIMITS = _SQL["list_key_limits"]
_LIST_KEYS_IN_USE = _SQL["list_keys_in_use"]
_LIST_BLOCKED_KEYS = _SQL["list_blocked_keys"]
_READ_BLOCKED_KEY = _SQL["read_blocked_key"]


def list_limits(connection: Conn, tenant: str, *, after: str | None = None, limit: int = 50) -> Page[LimitSummary]:
    """Return a page of a tenant's limits: those of keys by key, then those of prefixes."""
    require_tenant(connection, tenant)
    last = after or ""
    columns: dict[str, object] = {
        "tenant": tenant, "is_prefix": last.endswith("*"), "after": last.removesuffix("*"), "limit": limit + 1,
        "counted": COUNTED,
    }  # fmt: skip
    with connection.cursor(row_factory=class_row(LimitSummary), binary=True) as cursor:
        found = cursor.execute(_LIST_KEY_LIMITS, columns).fetchall()
    return Page(found[:limit], found[limit - 1].key if len(found) > limit else None)


def list_keys(
    connection: Conn, tenant: str, *, prefix: str = "", after: str | None = None, limit: int = 50
) -> Page[KeyInUse]:
    """Return a page of a tenant's keys in use, by key."""
    require_tenant(connection, tenant)
    columns: dict[str, object] = {
        "tenant": tenant, "after": after or "", "first": prefix, "last": prefix + "\U0010ffff", "limit": limit + 1,
        "counted": COUNTED,
    }  # fmt: skip
    with connection.cursor(row_factory=class_row(KeyInUse), binary=True) as cursor:
        found = cursor.execute(_LIST_KEYS_IN_USE, columns).fetchall()
    return Page(found[:limit], found[limit - 1].key if len(found) > limit else None)


def list_blocked_keys(
    connection: Conn, tenant: str, *, after: tuple[datetime, str] | None = None, limit: int = 50
) -> Page[BlockedKey]:
    """Return a page of blocked keys, the longest first, after `blocked_at` and `key` of the page before."""
    at, key = after or (None, None)
    columns: dict[str, object] = {
        "tenant": tenant, "after": at, "after_id": None if key is None else order_id(tenant, key), "limit": limit + 1,
        "counted": COUNTED,
    }  # fmt: skip
    with connection.cursor(row_factory=class_row(BlockedKey), binary=True) as cursor:
        found = cursor.execute(_LIST_BLOCKED_KEYS, columns).fetchall()
    last = found[limit - 1] if len(found) > limit else None
    return Page(found[:limit], last and (last.blocked_at, last.key))


def read_blocked_key(connection: Conn, tenant: str, key: str) -> BlockedKey | None:
    """Return a key if it is blocked."""
    columns: dict[str, object] = {"key_id": order_id(tenant, key), "counted": COUNTED}
    with connection.cursor(row_factory=class_row(BlockedKey), binary=True) as cursor:
        return cursor.execute(_READ_BLOCKED_KEY, columns).fetchone()
