"""Reads of freezes, and of those that name a job or a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import cast
from uuid import UUID

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from tidewheel.control.reads.stored import rows_as
from tidewheel.nouns.freezes.model import MAX_WAITING, Freezable, Freeze, FreezeChange, FreezeSummary, FrozenScope
from tidewheel.postgres.session import Conn, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.runs import OWNED, Move, sources

_SQL = Statements("tidewheel.nouns.freezes")
FIND_FREEZE = Statements("tidewheel.transitions")["find_freeze"]

_LOOKED_AT = 20_000
_STANDING = 20  # freezes of one band


def list_freezes(connection: Conn, tenant: str, *, counts_all: bool = True) -> list[FreezeSummary]:
    """Return the standing freezes of a tenant and of the fleet, oldest first.

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
    rows = read_rows(connection, rows_as(_Row), _SQL["list_freezes"], columns)
    return [FreezeSummary(row.freeze, row.jobs, row.open_runs, row.waiting, row.held) for row in rows]


def freeze_changes(connection: Conn, tenant: str, since: datetime, until: datetime) -> list[FreezeChange]:
    """Return the freezes and thaws of a time in the audit log of a tenant, newest first."""
    columns: dict[str, object] = {"tenant": tenant, "since": since, "until": until}
    return read_rows(connection, class_row(FreezeChange), _SQL["read_freeze_changes"], columns)


def thaws_of(
    connection: Conn,
    tenant: str,
    since: datetime,
    until: datetime,
    *,
    queue: str,
    key: str | None,
    labels: Mapping[str, str],
) -> list[FreezeChange]:
    """Return the thaws of a time whose freezes held the runs of a queue and a job, newest first."""
    found = freeze_changes(connection, tenant, since, until)
    return [each for each in found if not each.begins and each.names(queue=queue, key=key, labels=labels)]


def frozen_spans(
    connection: Conn, tenant: str, since: datetime, until: datetime
) -> list[tuple[datetime, datetime, str]]:
    """Return the spans of a time in which a scope was frozen, with their scopes, earliest first."""
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
    """Return the standing freezes of a tenant and of the fleet, oldest first, without counts."""
    columns: dict[str, object] = {"tenant": tenant, "limit": limit}
    return tuple(read_rows(connection, rows_as(Freeze), _SQL["find_standing_freezes"], columns))


def all_freezes(connection: Conn) -> tuple[Freeze, ...]:
    """Return the standing freezes of all tenants and of the fleet, oldest first, without counts."""
    return tuple(read_rows(connection, rows_as(Freeze), _SQL["list_all_freezes"], {}))


def freezes_of(connection: Conn, tenant: str, job_id: UUID) -> tuple[Freeze, ...]:
    """Return the standing freezes of a job's runs in its current queue, oldest first."""
    columns: dict[str, object] = {"tenant": tenant, "job_id": job_id}
    return tuple(read_rows(connection, rows_as(Freeze), _SQL["find_freezes_of"], columns))


def is_paused_by_tenant(connection: Conn, tenant: str) -> bool:
    """Return True if a key of the tenant has begun the freeze of all its runs."""
    columns = scope_columns(FrozenScope(tenant, None, None, None))
    row = connection.execute(FIND_FREEZE, columns, binary=True).fetchone()
    return row is not None and not row[1]


def count_freezable(connection: Conn, scope: FrozenScope) -> Freezable:
    """Count the runs of a scope among the first 20,000 open ones."""
    columns = {**scope_columns(scope), "waiting": sources(Move.CLAIM), "under_way": sorted(OWNED), "look": _LOOKED_AT}
    row = connection.execute(_SQL["count_freezable"], columns, binary=True).fetchone()
    open_runs, waiting, under_way, seen = cast("tuple[int, int, int, int]", row)
    return Freezable(open_runs, waiting, under_way, at_least=seen >= _LOOKED_AT)


def scope_columns(scope: FrozenScope) -> dict[str, object]:
    """Return the parameters of a scope in SQL."""
    labels = Jsonb(dict(scope.labels)) if scope.labels else None
    return {"tenant": scope.tenant, "queue": scope.queue, "labels": labels, "key_prefix": scope.key_prefix}


@dataclass(frozen=True, slots=True)
class _Row(Freeze):
    jobs: int | None
    open_runs: int
    waiting: int
    held: int

    @property
    def freeze(self) -> Freeze:
        return Freeze(self.tenant, self.queue, self.labels, self.key_prefix, self.by, self.reason, self.since)
