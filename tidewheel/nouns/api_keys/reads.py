"""Reads of API keys."""

from datetime import datetime
from typing import Final

from psycopg.rows import class_row

from tidewheel.errors import UnknownApiKey
from tidewheel.nouns.api_keys.model import ApiKeySummary
from tidewheel.nouns.operation import Page
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.nouns.api_keys")
_LIST_API_KEYS = _SQL["list_api_keys"]
_SHOW_API_KEY = _SQL["show_api_key"]
_LATEST: Final = "infinity", "~"  # behind each key, one with a damaged time among them


def ensure_key_id(key_id: str) -> None:
    """Refuse a text that is the id of no key."""
    if not (key_id.isascii() and key_id.isalnum()):
        raise UnknownApiKey(key_id[:40])


def show_api_key(connection: Conn, tenant: str | None, key_id: str) -> ApiKeySummary:
    """Return a key of a tenant, or of any; raise UnknownApiKey if there is none."""
    ensure_key_id(key_id)
    with connection.cursor(row_factory=class_row(ApiKeySummary), binary=True) as cursor:
        found = cursor.execute(_SHOW_API_KEY, {"tenant": tenant, "key_id": key_id}).fetchone()
    if found is None:
        raise UnknownApiKey(key_id)
    return found


def list_api_keys(
    connection: Conn, tenant: str | None, *, after: tuple[datetime, str] | None = None, limit: int = 50
) -> Page[ApiKeySummary]:
    """Return a page of the keys of a tenant, of `*` for those of all tenants, or of None for every key."""
    at, key_id = after or _LATEST
    columns: dict[str, object] = {"tenant": tenant, "before_at": at, "before_id": key_id, "limit": limit + 1}
    with connection.cursor(row_factory=class_row(ApiKeySummary), binary=True) as cursor:
        found = cursor.execute(_LIST_API_KEYS, columns).fetchall()
    last = found[limit - 1] if len(found) > limit else None
    return Page(found[:limit], last and (last.created_at, last.key_id))
