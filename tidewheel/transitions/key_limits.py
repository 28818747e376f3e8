"""Set limits of concurrency keys, and apply changed ones to the runs that wait.

A limit of an operator is one row, of a key or of a prefix. `settle_keys` reads it with the key locked. So a claim
applies the limit that is committed, whatever it read before. A key without waiting runs needs no change: its next claim
applies the limit. A lower limit ends no run: places drain. Keys are locked after the row of the limit.
"""

from collections.abc import Collection
from typing import NamedTuple, cast
from uuid import UUID

from tidewheel.postgres.pg_binary import integers, uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.places import Limit
from tidewheel.transitions.run_keys import settle_keys

_SQL = Statements("tidewheel.transitions")

MOST_PREFIXES = 1000
"""Prefixes of a tenant with a limit: each claim of a key compares it with all of them, in a tenth of a millisecond."""

_STEP = 500  # keys in one transaction: about twenty milliseconds
_HIGHEST = "\U0010ffff"  # sorts behind every character of a key
_LOWEST = "\x01"  # no key has it


class KeyPattern(NamedTuple):
    """A key, or a prefix of keys without its asterisk."""

    tenant: str
    key: str
    is_prefix: bool

    @classmethod
    def of(cls, tenant: str, text: str) -> "KeyPattern":
        """Return the pattern of a text.

        >>> KeyPattern.of("default", "api/*")
        KeyPattern(tenant='default', key='api/', is_prefix=True)
        """
        return cls(tenant, text.removesuffix("*"), text.endswith("*"))

    def __str__(self) -> str:
        return self.key + "*" * self.is_prefix


class Step(NamedTuple):
    """The result of a step: the runs that got a place, and the key to go on after; None at the end."""

    promoted: int
    after: str | None


def set_limit(connection: Conn, pattern: KeyPattern, limit: Limit, set_by: str) -> bool:
    """Write the limit of a key or a prefix; return False for one prefix too many."""
    columns = {**pattern._asdict(), **limit._asdict(), "set_by": set_by}
    if pattern.is_prefix:
        found = connection.execute(_SQL["count_prefixes"], columns).fetchone()
        if found is not None and cast("int", found[0]) >= MOST_PREFIXES:
            return False
    connection.execute(_SQL["set_key_limit"], columns)
    return True


def remove_limit(connection: Conn, pattern: KeyPattern) -> bool:
    """Delete the limit of a key or a prefix, in the caller's transaction; return False if there is none."""
    return connection.execute(_SQL["remove_key_limit"], pattern._asdict()).rowcount > 0


def apply_limit(connection: Conn, installation: Installation, pattern: KeyPattern, after: str | None = None) -> Step:
    """Apply a changed limit to some keys for which runs wait; the last statements of a transaction.

    Args:
        after: The key after which to go on; by default all keys are ahead.
    """
    columns: dict[str, object] = {
        "tenant": pattern.tenant,
        "first": pattern.key if after is None else after + _LOWEST,
        "last": pattern.key + _HIGHEST * pattern.is_prefix,
        "limit": _STEP,
    }
    row = connection.execute(_SQL["find_waiting_keys"], columns, binary=True).fetchone()
    assert row is not None  # noqa: S101 - an aggregate
    last, waiting, looked_at = cast("tuple[str | None, list[int], int]", row)
    promoted = settle_keys(connection, installation, woken=waiting).promoted
    return Step(promoted, last if looked_at == _STEP else None)


def edited_keys(connection: Conn, versions: Collection[tuple[UUID, int]]) -> set[int]:
    """Return up to 500 keys for which runs of jobs wait whose new version has another limit."""
    if not versions:
        return set()
    columns: dict[str, object] = {
        "job_ids": uuids(job for job, _ in versions),
        "versions": integers(version for _, version in versions),
        "limit": _STEP,
    }
    return {cast("int", row[0]) for row in connection.execute(_SQL["find_edited_keys"], columns, binary=True)}
