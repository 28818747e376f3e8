"""Read the limits of concurrency keys, the keys in use, and the ordering keys that are blocked."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.reads.tenants import require_tenant
from tidewheel.ids import order_id
from tidewheel.jobs.concurrency import rate_words
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.control")
_LIST_KEY_LIMITS = _SQL["list_key_limits"]
_LIST_KEYS_IN_USE = _SQL["list_keys_in_use"]
COUNTED = 1000
"""The keys of a prefix that are looked at, and the waiting runs that are counted, for each line."""
_LIST_BLOCKED_KEYS = _SQL["list_blocked_keys"]
_READ_BLOCKED_KEY = _SQL["read_blocked_key"]
"""Waiting runs are counted up to this many for each key."""


@dataclass(frozen=True, slots=True)
class LimitSummary:
    """The limit of a key or a prefix that an operator has set.

    Args:
        key: The key, or the prefix with its asterisk.
        at_once: The places of each key; None for no bound.
        rate: The starts of each key in a time, such as `100/min`; None for no rate.
        burst: The starts at once after a rest.
        set_by: The actor and the door.
        set_at: When it was set.
        keys: The number of its keys in use, of at most 1,000.
        running: The places that runs of these keys hold.
        waiting: The runs that wait for these keys, of at most 1,000.
    """

    key: str
    at_once: int | None
    rate: str | None
    burst: int
    set_by: str
    set_at: datetime
    keys: int
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class KeyInUse:
    """A key whose runs have been claimed within the last ten minutes, hold places, or wait.

    Args:
        key: The key.
        at_once: Its places; None for no bound.
        rate: Its starts in a time; None for no rate.
        burst: The starts at once after a rest.
        running: The places that runs hold.
        waiting: The runs that wait, of at most 1,000.
        next_at: When the scheduler looks for room again; None if an end gives the next place.
    """

    key: str
    at_once: int | None
    rate: str | None
    burst: int
    running: int
    waiting: int
    next_at: datetime | None


@dataclass(frozen=True, slots=True)
class _LimitRow:
    is_prefix: bool
    key: str
    at_once: int | None
    every_us: int | None
    burst: int
    set_by: str
    set_at: datetime
    keys: int
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class _KeyRow:
    key: str
    at_once: int | None
    every_us: int | None
    burst: int
    running: int
    waiting: int
    next_at: datetime | None


def list_limits(connection: Conn, tenant: str, *, after: str | None = None, limit: int = 50) -> Sequence[LimitSummary]:
    """Return a page of a tenant's limits: those of keys by key, then those of prefixes."""
    columns: dict[str, object] = {
        "tenant": tenant, "is_prefix": (after or "").endswith("*"), "after": (after or "").removesuffix("*"),
        "limit": limit, "counted": COUNTED,
    }  # fmt: skip
    require_tenant(connection, tenant)
    with connection.cursor(row_factory=class_row(_LimitRow), binary=True) as cursor:
        found = cursor.execute(_LIST_KEY_LIMITS, columns).fetchall()
    return [
        LimitSummary(
            row.key + "*" * row.is_prefix, row.at_once, _rate(row.every_us), row.burst, row.set_by, row.set_at,
            row.keys, row.running, row.waiting,
        )
        for row in found
    ]  # fmt: skip


def list_keys(
    connection: Conn, tenant: str, *, prefix: str = "", after: str = "", limit: int = 50
) -> Sequence[KeyInUse]:
    """Return a page of a tenant's keys in use, by key."""
    columns: dict[str, object] = {
        "tenant": tenant, "after": after, "first": prefix, "last": prefix + "\U0010ffff", "limit": limit,
        "counted": COUNTED,
    }  # fmt: skip
    require_tenant(connection, tenant)
    with connection.cursor(row_factory=class_row(_KeyRow), binary=True) as cursor:
        found = cursor.execute(_LIST_KEYS_IN_USE, columns).fetchall()
    return [
        KeyInUse(row.key, row.at_once, _rate(row.every_us), row.burst, row.running, row.waiting, row.next_at)
        for row in found
    ]


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """A blocked key.

    Args:
        key: The ordering key.
        blocked_by: The run that failed.
        blocked_at: The time from which the runs behind it wait.
        retried_by: The open retry of that run.
        waiting: The number of runs that wait, up to 1,000.
    """

    key: str
    blocked_by: UUID
    blocked_at: datetime
    retried_by: UUID | None
    waiting: int


def list_blocked_keys(
    connection: Conn, tenant: str, *, after: tuple[datetime, str] | None = None, limit: int = 50
) -> Sequence[BlockedKey]:
    """Return a page of blocked keys, the longest first, after `blocked_at` and `key` of the page before."""
    columns: dict[str, object] = {
        "tenant": tenant,
        "after": None if after is None else after[0],
        "after_id": None if after is None else order_id(tenant, after[1]),
        "limit": limit,
        "counted": COUNTED,
    }
    with connection.cursor(row_factory=class_row(BlockedKey), binary=True) as cursor:
        return cursor.execute(_LIST_BLOCKED_KEYS, columns).fetchall()


def read_blocked_key(connection: Conn, tenant: str, key: str) -> BlockedKey | None:
    """Return a key if it is blocked."""
    columns: dict[str, object] = {"key_id": order_id(tenant, key), "counted": COUNTED}
    with connection.cursor(row_factory=class_row(BlockedKey), binary=True) as cursor:
        return cursor.execute(_READ_BLOCKED_KEY, columns).fetchone()


def _rate(every_us: int | None) -> str | None:
    return None if every_us is None else rate_words(every_us)
