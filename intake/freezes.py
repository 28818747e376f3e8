"""`freeze` starts no run of a scope until `thaw` (ADR 0043).

A scope is the fleet, a tenant, a queue, labels, a key prefix, or what fits several of them.

A freeze is one row that every claim reads. It is written under the lock `claims`: a batch of claims comes wholly before
it, or sees it. Firing holds the timers that come due under it. A thaw ends the freeze at once, and the scheduler then
releases these timers (scheduler/freezing.py). The sweeps of the executors find the runs that waited.

An operator's freeze of all runs of a tenant is not ended by a key or a topic of the tenant.

A run shows neither its job's labels nor its key. So a freeze by them has a row for each job, and each submit keeps
these rows. A submit that is not committed when the freeze is written may miss it: the scheduler then adds the job.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple, cast
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from tidewheel.errors import PausedByOperator, UnknownFreeze, refuse
from tidewheel.intake.locks import RowLocked, try_lock
from tidewheel.intake.request import ReceivedRequest, accepted
from tidewheel.intake.runs import block_claims
from tidewheel.intake.writing import Writing, one_by_one
from tidewheel.jobs.requests import Freeze, Thaw
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schemas.generated.records import Reply

_SQL = Statements("tidewheel.intake")
_FIND_FREEZE = Statements("tidewheel.transitions")["find_freeze"]
_NEXT_FREEZE_ID = _SQL["next_freeze_id"]
_RESET_PLAN_MODE = _SQL["reset_plan_mode"]
_FIND_JOBS_TO_FREEZE = _SQL["find_jobs_to_freeze"]
_ADD_FROZEN_JOBS = _SQL["add_frozen_jobs"]
_ADD_FREEZE = _SQL["add_freeze"]
_TAKE_OVER_PAUSE = _SQL["take_over_pause"]
_LOCK_FREEZE = _SQL["lock_freeze"]
_THAW = _SQL["thaw"]
_KEEP_FROZEN_JOBS = _SQL["keep_frozen_jobs"]

MAX_JOBS = 100_000  # jobs of one freeze: a row each, about a second in all


class _Standing(NamedTuple):
    """A standing freeze; `by_operator` is true for that of a tenant that no key of the tenant ends."""

    id: int
    by_operator: bool


def apply_freezes(writing: Writing, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Write freezes."""
    return one_by_one(batch, partial(_freeze, writing))


def apply_thaws(writing: Writing, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """End freezes."""
    return one_by_one(batch, partial(_thaw, writing))


def keep_frozen_jobs(connection: Conn, job_ids: Iterable[UUID]) -> None:
    """Add jobs that were just written to the standing freezes that they fit; remove them from the others."""
    connection.execute(_KEEP_FROZEN_JOBS, {"job_ids": uuids(job_ids)})


def _freeze(writing: Writing, received: ReceivedRequest) -> Reply:
    request = received.of(Freeze)
    scope = _scope(received, request)
    is_pause = request.scope == "tenant" and not (request.queue or request.labels or request.key_prefix)
    by_operator = is_pause and _is_operator(writing, received)
    columns: dict[str, object] = {**scope, "reason": request.reason, "by": request.by, "by_operator": by_operator}
    if by_operator and _take_over(writing, received, columns):
        return accepted(received)
    if _find(writing, scope) is not None:
        return accepted(received, unchanged=True)
    [(columns["id"],)] = writing.read(_NEXT_FREEZE_ID)
    added = 0
    with writing.connection.transaction() as savepoint:
        _add_jobs(writing, columns)
        # As late as possible: no executor can claim from here to the commit.
        block_claims(writing.connection, [received])
        # Freezes come one after another from here on, so this sees one that was written meanwhile.
        added = writing.execute(_ADD_FREEZE, **columns).rowcount
        if not added:
            raise psycopg.Rollback(savepoint)
    changed = added or (by_operator and _take_over(writing, received, columns))
    return accepted(received, unchanged=not changed)


def _take_over(writing: Writing, received: ReceivedRequest, columns: dict[str, object]) -> bool:
    """Make the pause that a key of the tenant has begun one of an operator; return False if there is none."""
    standing = _find(writing, columns)
    if standing is None or standing.by_operator:
        return False
    _lock(writing, received, standing)
    return writing.execute(_TAKE_OVER_PAUSE, **{**columns, "id": standing.id}).rowcount > 0


def _thaw(writing: Writing, received: ReceivedRequest) -> Reply:
    request = received.of(Thaw)
    scope = _scope(received, request)
    standing = _find(writing, scope)
    if standing is None:
        named = ("key_prefix", "labels", "queue", "scope")
        raise UnknownFreeze(next(name for name in named if getattr(request, name)))
    _lock(writing, received, standing)
    # A later statement than the lock: it sees that an operator has taken the pause over.
    standing = _find(writing, scope)
    if standing is None:
        return accepted(received, unchanged=True)
    if standing.by_operator and not _is_operator(writing, received):
        raise PausedByOperator(received.tenant)
    writing.execute(_THAW, id=standing.id)
    return accepted(received)


def _lock(writing: Writing, received: ReceivedRequest, standing: _Standing) -> None:
    if not try_lock(writing.connection, _LOCK_FREEZE, {"id": standing.id}):
        freeze = "the freeze"
        raise RowLocked(freeze, [received])


def _is_operator(writing: Writing, received: ReceivedRequest) -> bool:
    """Return True for a sender with the rights of all tenants: none by a key or a topic of one tenant."""
    if received.origin is not None:
        return writing.installation.topics.tenant_of(received.origin.topic) is None
    return writing.actor is None or writing.actor.tenant is None


def _scope(received: ReceivedRequest, request: Freeze | Thaw) -> dict[str, object]:
    return {
        "tenant": None if request.scope == "fleet" else received.tenant,
        "queue": request.queue,
        "labels": Jsonb(request.labels) if request.labels else None,
        "key_prefix": request.key_prefix,
    }


def _find(writing: Writing, scope: dict[str, object]) -> _Standing | None:
    """Return the standing freeze of exactly this scope."""
    rows = cast("list[tuple[int, bool]]", writing.read(_FIND_FREEZE, **scope))
    return _Standing(*rows[0]) if rows else None


def _add_jobs(writing: Writing, columns: dict[str, object]) -> None:
    """Write the jobs of a freeze by labels or key prefix."""
    if columns["labels"] is None and columns["key_prefix"] is None:
        return
    # Labels have no index. Under `BY_KEY`, intake's plan mode, a tenant's jobs would be read one by one in key order.
    with writing.connection.transaction(force_rollback=True):  # a savepoint: the plan mode is restored
        writing.connection.execute(_RESET_PLAN_MODE)
        found = writing.read(_FIND_JOBS_TO_FREEZE, **columns, limit=MAX_JOBS + 1)
    if len(found) > MAX_JOBS:
        path = "labels" if columns["labels"] is not None else "key_prefix"
        refuse(path, f"more than {MAX_JOBS} jobs fit", "narrow it, or freeze a queue or the tenant")
    jobs = cast("list[tuple[UUID]]", found)
    writing.execute(_ADD_FROZEN_JOBS, **columns, job_ids=uuids(job for (job,) in jobs))
