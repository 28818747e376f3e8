"""Read the standing freezes, and those that name a job or a run."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from tidewheel.jobs.values import format_second
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import OWNED, Move, sources

_SQL = Statements("tidewheel.control")
_LIST_FREEZES = _SQL["list_freezes"]
_LIST_ALL_FREEZES = _SQL["list_all_freezes"]
_FIND_STANDING_FREEZES = _SQL["find_standing_freezes"]
_COUNT_FREEZABLE = _SQL["count_freezable"]
_READ_FREEZE_CHANGES = _SQL["read_freeze_changes"]
_FIND_FREEZES_OF = _SQL["find_freezes_of"]
_FIND_FREEZE = Statements("tidewheel.transitions")["find_freeze"]

MAX_WAITING = 10_000
"""The runs that are counted for each freeze: more are shown as at least so many."""
_LOOKED_AT = 20_000
_STANDING = 20  # freezes of one band
_UNDER_WAY = OWNED
_SCOPES = {"tenant": "the tenant", "fleet": "the fleet", "key_prefix": "keys that begin with"}


@dataclass(frozen=True, slots=True)
class Freeze:
    """A standing freeze. It names the runs that fit all its fields.

    Args:
        tenant: The tenant; None for the fleet.
        queue: The queue, if it names one.
        labels: The labels of its jobs, if it names some.
        key_prefix: The beginning of its jobs' keys, if it names one.
        by: The name in the request, which nothing verifies.
        reason: The reason in the request.
        since: When it was written.
    """

    tenant: str | None
    queue: str | None
    labels: Mapping[str, str] | None
    key_prefix: str | None
    by: str | None
    reason: str | None
    since: datetime

    @property
    def scope(self) -> str:
        """The scope in words.

        >>> from datetime import UTC
        >>> Freeze(None, "reports", None, None, None, None, datetime(2026, 11, 22, tzinfo=UTC)).scope
        'queue reports of the fleet'
        """
        owner = "the fleet" if self.tenant is None else f"tenant {self.tenant}"
        narrow = narrow_scope(self.queue, self.labels, self.key_prefix)
        return f"{narrow} of {owner}" if narrow else owner

    @property
    def words(self) -> str:
        """The scope, the time, the operator and the reason, as part of a sentence."""
        by = f" by {self.by}" if self.by else ""
        why = f": {self.reason}" if self.reason else ""
        return f"frozen since {format_second(self.since)}{by} ({self.scope}){why}"

    @property
    def thaw_command(self) -> str:
        """The command that ends it.

        >>> from datetime import UTC
        >>> Freeze("acme", None, {"team": "a b"}, None, None, None, datetime(2026, 11, 22, tzinfo=UTC)).thaw_command
        "tidewheel thaw --tenant acme --label 'team=a b'"
        """
        words = ["--fleet"] if self.tenant is None else ["--tenant", self.tenant]
        words += ["--queue", self.queue] if self.queue is not None else []
        for name, value in (self.labels or {}).items():
            words += ["--label", f"{name}={value}"]
        words += ["--key-prefix", self.key_prefix] if self.key_prefix is not None else []
        is_narrow = self.queue is not None or self.labels or self.key_prefix is not None
        return shlex.join(["tidewheel", "thaw", *words, *([] if self.tenant is None or is_narrow else ["--all"])])


def narrow_scope(queue: str | None, labels: Mapping[str, str] | None, key_prefix: str | None) -> str:
    """Return the parts of a scope below its tenant in words; empty without one.

    >>> narrow_scope("reports", {"team": "billing"}, "etl/")
    'queue reports, label team=billing, keys that begin with etl/'
    """
    parts = [f"queue={queue}"] if queue is not None else []
    parts += [f"label={name}={value}" for name, value in (labels or {}).items()]
    parts += [f"key_prefix={key_prefix}"] if key_prefix is not None else []
    return _in_words(parts)


def _in_words(parts: Iterable[str]) -> str:
    """Return the parts of a scope in words, from the form that the audit log has."""
    named = (part.partition("=") for part in parts)
    return ", ".join(f"{_SCOPES.get(name, name)} {value}".rstrip() for name, _, value in named)


class FreezeChange(NamedTuple):
    """A freeze or a thaw as the audit log has it; a scope is such as `freeze/queue=reports`."""

    at: datetime
    begins: bool
    object: str
    by: str

    @property
    def scope(self) -> str:
        """The scope in words.

        >>> FreezeChange(datetime.min, True, "freeze/queue=reports,key_prefix=etl/", "ops").scope
        'queue reports, keys that begin with etl/'
        """
        return _in_words(self._parts)

    @property
    def _parts(self) -> list[str]:
        return self.object.partition("/")[2].split(",")

    def names(self, *, queue: str, key: str | None, labels: Mapping[str, str]) -> bool:
        """Return True if its scope has a run of this queue, of a job with this key and these labels."""
        return all(
            part in {"tenant", "fleet", f"queue={queue}"}
            or part in {f"label={name}={value}" for name, value in labels.items()}
            or (part.startswith("key_prefix=") and (key or "").startswith(part.partition("=")[2]))
            for part in self._parts
        )


@dataclass(frozen=True, slots=True)
class FreezeSummary:
    """A standing freeze with what waits under it.

    Args:
        freeze: The freeze.
        jobs: The number of its jobs, if it names labels or a key prefix.
        open_runs: The number of its runs that would start without it and other freezes, now or later, `MAX_WAITING` at
            most, of the first 20,000 open ones.
        waiting: The number of those that are due now.
        held: The number of jobs whose timer it has held, `MAX_WAITING` at most.
    """

    freeze: Freeze
    jobs: int | None
    open_runs: int
    waiting: int
    held: int

    @property
    def is_capped(self) -> bool:
        """True if there may be more runs than `open_runs`."""
        return self.open_runs >= MAX_WAITING


def list_freezes(connection: Conn, tenant: str, *, counts_all: bool = True) -> list[FreezeSummary]:
    """Return the standing freezes of a tenant and of the fleet, the oldest first.

    Args:
        counts_all: False to count only this tenant's runs and jobs under a freeze of the fleet.
    """
    columns: dict[str, object] = {
        "tenant": tenant,
        "only": None if counts_all else tenant,
        "states": sources(Move.CLAIM),
        "limit": MAX_WAITING,
        "look": _LOOKED_AT,
    }
    with connection.cursor(row_factory=class_row(_Row), binary=True) as cursor:
        rows = cursor.execute(_LIST_FREEZES, columns).fetchall()
    return [FreezeSummary(row.freeze, row.jobs, row.open_runs, row.waiting, row.held) for row in rows]


def freeze_changes(connection: Conn, tenant: str, since: datetime, until: datetime) -> list[FreezeChange]:
    """Return the freezes and thaws of a time in the audit log of a tenant, the newest first."""
    columns: dict[str, object] = {"tenant": tenant, "since": since, "until": until}
    with connection.cursor(row_factory=class_row(FreezeChange), binary=True) as cursor:
        return cursor.execute(_READ_FREEZE_CHANGES, columns).fetchall()


def frozen_spans(
    connection: Conn, tenant: str, since: datetime, until: datetime
) -> list[tuple[datetime, datetime, str]]:
    """Return the spans of a time in which a scope was frozen, with their scopes, the earliest first."""
    began: dict[str, datetime] = {}
    spans: list[tuple[datetime, datetime, str]] = []
    for change in reversed(freeze_changes(connection, tenant, since, until)):
        if change.begins:
            began.setdefault(change.scope, change.at)
        else:
            spans.append((began.pop(change.scope, since), change.at, change.scope))
    spans += [(at, until, scope) for scope, at in began.items()]
    # One from before this time is in no entry of it.
    spans += [(since, until, each.scope) for each in standing_freezes(connection, tenant) if each.since < since]
    return sorted(spans)


def standing_freezes(connection: Conn, tenant: str, limit: int = _STANDING) -> tuple[Freeze, ...]:
    """Return the standing freezes of a tenant and of the fleet, the oldest first, without counts."""
    columns: dict[str, object] = {"tenant": tenant, "limit": limit}
    with connection.cursor(row_factory=class_row(Freeze), binary=True) as cursor:
        return tuple(cursor.execute(_FIND_STANDING_FREEZES, columns))


def is_paused_by_tenant(connection: Conn, tenant: str) -> bool:
    """Return True if a key of the tenant has begun the freeze of all its runs."""
    columns: dict[str, object] = {"tenant": tenant, "queue": None, "labels": None, "key_prefix": None}
    row = connection.execute(_FIND_FREEZE, columns, binary=True).fetchone()
    return row is not None and not row[1]


def all_freezes(connection: Conn) -> tuple[Freeze, ...]:
    """Return the standing freezes of all tenants and of the fleet, the oldest first, without counts."""
    with connection.cursor(row_factory=class_row(Freeze), binary=True) as cursor:
        return tuple(cursor.execute(_LIST_ALL_FREEZES))


@dataclass(frozen=True, slots=True)
class Freezable:
    """The open runs that a freeze would concern.

    Args:
        open_runs: The number of runs that it would keep from starting.
        waiting: The number of those that are due now.
        under_way: The number of runs that would go on.
        at_least: True if there may be more of each.
    """

    open_runs: int
    waiting: int
    under_way: int
    at_least: bool


def count_freezable(
    connection: Conn,
    tenant: str | None,
    *,
    queue: str | None = None,
    labels: Mapping[str, str] | None = None,
    key_prefix: str | None = None,
) -> Freezable:
    """Count the runs of a scope among the first 20,000 open ones.

    Args:
        tenant: The tenant; None for all of them.
        labels: Only runs of jobs that have all of these labels.
    """
    columns: dict[str, object] = {
        "tenant": tenant, "queue": queue, "labels": Jsonb(dict(labels)) if labels else None, "key_prefix": key_prefix,
        "waiting": sources(Move.CLAIM), "under_way": sorted(_UNDER_WAY), "look": _LOOKED_AT,
    }  # fmt: skip
    row = connection.execute(_COUNT_FREEZABLE, columns, binary=True).fetchone()
    open_runs, waiting, under_way, seen = cast("tuple[int, int, int, int]", row)
    return Freezable(open_runs, waiting, under_way, at_least=seen >= _LOOKED_AT)


def freezes_of(connection: Conn, tenant: str, job_id: UUID, queue: str | None = None) -> tuple[Freeze, ...]:
    """Return the standing freezes of a job's runs, the oldest first; by default in its current queue."""
    columns: dict[str, object] = {"tenant": tenant, "queue": queue, "job_id": job_id}
    with connection.cursor(row_factory=class_row(Freeze), binary=True) as cursor:
        return tuple(cursor.execute(_FIND_FREEZES_OF, columns))


@dataclass(frozen=True, slots=True)
class _Row(Freeze):
    jobs: int | None
    open_runs: int
    waiting: int
    held: int

    @property
    def freeze(self) -> Freeze:
        return Freeze(self.tenant, self.queue, self.labels, self.key_prefix, self.by, self.reason, self.since)
