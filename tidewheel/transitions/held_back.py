"""Runs held back before they are queued, by the order of their key or the rate of their tenant.

`take_order` numbers new runs under the lock of the key's row: the first may start, the others are buffered. Only the
first has a message. `settle_order` lets the next one start when the first has ended for good, or blocks the key when it
has failed. A key's last run has the number before the next: its end deletes the key, and looks for no other run. A run
that fails before its turn, as by `schedule_to_start`, blocks the key when its turn comes. Keys are locked in key_id
order, after every other row. The next run is taken with SKIP LOCKED: if another transaction holds it, `wake_at` is set,
and the scheduler queues it.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import refuse
from tidewheel.ids import order_id, rate_key_id
from tidewheel.outbox import append
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_binary import instants, integers, texts, uuids
from tidewheel.postgres.session import Conn, at_commit, read_row, read_rows, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.runs import DEAD_LETTERED, Move, RunState, sources, target
from tidewheel.transitions.active_runs import PromotedRun
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.messages import append_requests
from tidewheel.transitions.new_runs import NewRun
from tidewheel.transitions.places import FreedPlace
from tidewheel.transitions.tenant_rates import RateRow, Ring, write_rate

_SQL = Statements("tidewheel.transitions")

_KeyColumns = tuple[int, int, UUID | None, UUID | None, datetime | None]
_RETRY = timedelta(milliseconds=50)  # until the next look at a run that another transaction holds
_MAX_WOKEN = 500
_PACED = 2  # buckets after the present that each look fills from the held runs
MAX_RELEASED = 1000
"""Held runs that one transaction queues: about twenty milliseconds."""


@dataclass(slots=True)
class OrderKey:
    """The row of a key, locked."""

    key_id: int
    next_no: int
    head: UUID | None
    blocked_by: UUID | None
    wake_at: datetime | None = None

    @property
    def is_free(self) -> bool:
        """True if the next run may start."""
        return self.head is None and self.blocked_by is None

    @property
    def is_used(self) -> bool:
        """True if a run is open, or keeps others waiting."""
        return not self.is_free or self.wake_at is not None


class _PromotedRun(NamedTuple):
    """The row of a run that is first in its order now, in the order of the columns."""

    run_id: UUID
    job_id: UUID
    shard: int
    queue: str
    lane: str
    cause: str
    job_version: int
    attempt: int
    scheduled_at: datetime
    publish_at: datetime
    created_at: datetime
    concurrency_key: str | None
    tenant: str
    priority: int | None
    key_id: int
    definition: bytes | None  # of the first run of each version


def lock_orders(connection: Conn, runs: Sequence[NewRun]) -> dict[int, OrderKey]:
    """Lock the keys of new runs, the missing ones inserted."""
    found = connection.execute(_SQL["add_order_keys"], _columns_of(_by_key(runs)), binary=True).fetchall()
    return {row[0]: OrderKey(*row) for row in cast("list[_KeyColumns]", found)}


def take_order(connection: Conn, runs: Sequence[NewRun], locked: Mapping[int, OrderKey]) -> list[NewRun]:
    """Return new runs with their numbers, in the order in which they were accepted; write their keys.

    A retry of the run that blocks its key takes that run's place, and so does one of a run that has failed before its
    turn. A further retry of such a run is the last of the key. The keys of runs without a retry need not be locked.
    """
    retries = [retry for run in runs if (retry := _take_place(connection, run, locked)) is not None]
    placed = {run.run_id for run in retries}
    behind = _by_key([run for run in runs if run.run_id not in placed])
    _store(connection, [key for key in locked.values() if key.is_used or key.key_id not in behind])
    if not behind:
        return retries
    columns: dict[str, object] = {
        **_columns_of(behind),
        "counts": integers(map(len, behind.values())),
        "run_ids": uuids(first.run_id for first, *_ in behind.values()),
    }
    found = connection.execute(_SQL["extend_orders"], columns, binary=True).fetchall()
    return retries + [
        run._replace(order_no=number, waits_in_order=run.run_id != head)
        for key, next_no, head in cast("list[tuple[int, int, UUID | None]]", found)
        for number, run in enumerate(behind[key], next_no - len(behind[key]))
    ]


def _take_place(connection: Conn, run: NewRun, locked: Mapping[int, OrderKey]) -> NewRun | None:
    """Return a retry in the place of the run that it repeats; None without one, or if that place is taken."""
    if (blocker := run.repeats_blocker) is None:
        return None
    key = locked[order_id(run.tenant, run.ordering_key or "")]
    if key.head is None and key.blocked_by == blocker:
        key.head = run.run_id
        return run._replace(order_no=-1)
    number = _drop_failures(connection, [blocker]).get(blocker)
    return None if number is None else run._replace(order_no=number, waits_in_order=True)


def _by_key(runs: Sequence[NewRun]) -> dict[int, list[NewRun]]:
    found: defaultdict[int, list[NewRun]] = defaultdict(list)
    for run in runs:
        found[order_id(run.tenant, run.ordering_key or "")].append(run)
    return dict(sorted(found.items()))


def _columns_of(keys: Mapping[int, Sequence[NewRun]]) -> dict[str, object]:
    return {
        "key_ids": integers(keys),
        "tenants": texts([runs[0].tenant for runs in keys.values()]),
        "keys": texts([runs[0].ordering_key or "" for runs in keys.values()]),
    }


def settle_order(
    connection: Conn, installation: Installation, *, ended: Sequence[FreedPlace] = (), woken: Sequence[int] = ()
) -> int:
    """Let the next runs of keys start; return their number. The transaction waits for no other row now."""
    keys = _lock(connection, {*(place.key_id for place in ended), *woken}, ended)
    for each in keys.values():
        each.wake_at = None
    blocked: list[UUID] = []
    early: list[FreedPlace] = []
    for place in ended:
        key = keys.get(place.key_id)
        if key is None or place.ended is None:
            continue
        failed = _blocks(place)
        if key.head != place.ended:
            if failed:
                early.append(place)
            continue
        key.head = None
        if failed:
            key.blocked_by = place.ended
            blocked.append(place.ended)
        elif place.state is RunState.SUCCEEDED or place.passes:
            key.blocked_by = None
    _add_failures(connection, early)
    started = _promote(connection, installation, keys)
    for key_id in started:
        del keys[key_id]
    blocked += _block(connection, keys)
    _store(connection, keys.values())
    _announce(connection, installation, blocked)
    return len(started)


def _lock(connection: Conn, key_ids: Collection[int], ended: Sequence[FreedPlace] = ()) -> dict[int, OrderKey]:
    """Lock keys and return them, but those whose last run ends and blocks nothing: they are deleted."""
    last = [place for place in ended if place.order_no is not None and not _blocks(place)]
    columns: dict[str, object] = {
        "key_ids": integers(sorted(key_ids)),
        "run_ids": uuids(place.ended for place in last),
        "order_nos": integers(cast("int", place.order_no) for place in last),
    }
    found = connection.execute(_SQL["lock_order_keys"], columns, binary=True).fetchall()
    return {row[0]: OrderKey(*row) for row in cast("list[_KeyColumns]", found)}


def _blocks(place: FreedPlace) -> bool:
    """Return True if the end of a run blocks its key, now or at its turn."""
    return place.state in DEAD_LETTERED and not place.passes


def find_woken_orders(connection: Conn, *, left: Collection[int] = ()) -> list[int]:
    """Return keys whose next runs other transactions held, but those to leave out."""
    columns: dict[str, object] = {"left": list(left), "limit": _MAX_WOKEN}
    found = connection.execute(_SQL["find_woken_orders"], columns, binary=True).fetchall()
    return [cast("int", row[0]) for row in found]


def skip_blocker(connection: Conn, installation: Installation, tenant: str, key: str) -> UUID:
    """Let the next run of a blocked key start; return the run that blocked it, or raise InvalidInput."""
    row = _lock(connection, [order_id(tenant, key)]).get(order_id(tenant, key))
    if row is None or row.blocked_by is None:
        remedy = "`tidewheel admin ordering-key list` lists blocked keys"
        refuse("key", f"the ordering key {key!r} is not blocked", remedy)
    if row.head is not None:
        refuse("key", f"run {row.head} retries the failed run", f"wait until it ends, or cancel run {row.head}")
    blocker = row.blocked_by
    row.blocked_by, row.wake_at = None, read_now(connection)  # without a reason to wait the row would go
    _store(connection, [row])
    settle_order(connection, installation, woken=[row.key_id])
    return blocker


def _promote(connection: Conn, installation: Installation, keys: Mapping[int, OrderKey]) -> list[int]:
    """Queue the next run of each key that is free; return the keys whose next run is the head now."""
    free = [key.key_id for key in keys.values() if key.is_free]
    if not free:
        return []
    columns: dict[str, object] = {
        "key_ids": integers(free),
        "target": target(Move.PROMOTE),
        "buffered": RunState.BUFFERED,
    }
    runs = read_rows(connection, rows_of(_PromotedRun._make), _SQL["promote_in_order"], columns)
    known = {(run.job_id, run.job_version): run.definition for run in runs if run.definition is not None}
    append_requests(connection, installation, runs, known=known)
    return [run.key_id for run in runs]


def _block(connection: Conn, keys: Mapping[int, OrderKey]) -> list[UUID]:
    """Block the free keys whose next run has failed; return these runs. Wake those whose next run is held."""
    free = [key.key_id for key in keys.values() if key.is_free]
    if not free:
        return []
    columns: dict[str, object] = {"key_ids": integers(free), "buffered": RunState.BUFFERED}
    found = connection.execute(_SQL["find_next_in_order"], columns, binary=True).fetchall()
    for key_id, failed in cast("list[tuple[int, UUID | None]]", found):
        keys[key_id].blocked_by = failed
        if failed is None:
            keys[key_id].wake_at = read_now(connection) + _RETRY
    blockers = [failed for _, failed in cast("list[tuple[int, UUID | None]]", found) if failed is not None]
    _drop_failures(connection, blockers)
    return blockers


def _add_failures(connection: Conn, early: Sequence[FreedPlace]) -> None:
    if early:
        columns: dict[str, object] = {
            "key_ids": [place.key_id for place in early],
            "order_nos": [place.order_no for place in early],
            "run_ids": uuids(place.ended for place in early),
        }
        connection.execute(_SQL["add_order_failures"], columns)


def _drop_failures(connection: Conn, run_ids: Sequence[UUID | None]) -> dict[UUID | None, int]:
    if not run_ids:
        return {}
    rows = connection.execute(_SQL["drop_order_failures"], {"run_ids": uuids(run_ids)}, binary=True).fetchall()
    return dict(cast("list[tuple[UUID | None, int]]", rows))


def _store(connection: Conn, keys: Collection[OrderKey]) -> None:
    used = [key for key in keys if key.is_used]
    gone = [key.key_id for key in keys if not key.is_used]
    if gone:
        connection.execute(_SQL["drop_order_keys"], {"key_ids": integers(gone)})
    if not used:
        return
    columns: dict[str, object] = {
        "key_ids": integers(key.key_id for key in used),
        "next_nos": integers(key.next_no for key in used),
        "heads": uuids(key.head for key in used),
        "blockers": uuids(key.blocked_by for key in used),
        "wake_at": instants(key.wake_at for key in used),
    }
    connection.execute(_SQL["write_order_keys"], columns)


def _announce(connection: Conn, installation: Installation, blocked: Sequence[UUID]) -> None:
    if not blocked:
        return
    now = read_now(connection)
    found = connection.execute(_SQL["read_blockers"], {"run_ids": uuids(blocked)}, binary=True).fetchall()
    rows = cast("list[tuple[UUID, str, UUID, str, int, int, str]]", found)
    events = [
        lifecycle_row(
            installation,
            kind="key.blocked",
            tenant=tenant,
            job_id=job_id,
            job_key=job_key,
            shard=shard,
            now=now,
            job_version=version,
            reason="the run failed, and the runs behind it wait",
            detail={"ordering_key": key, "run_id": str(run_id)},
        )
        for run_id, tenant, job_id, job_key, shard, version, key in rows
    ]
    append(connection, events, shards=installation.shards)


def hold_runs(connection: Conn, held: Mapping[UUID, str]) -> None:
    """Hold runs, by tenant, that were just written: no claim matches them until the scheduler queues them."""
    columns = {
        "run_ids": uuids(held),
        "waits_for": [rate_key_id(tenant) for tenant in held.values()],
        "sources": sources(Move.BUFFER),
        "target": target(Move.BUFFER),
    }
    connection.execute(_SQL["hold_runs"], columns)
    at_commit(connection, partial(metrics.count, "runs_buffered", len(held)))


def find_held_tenants(connection: Conn) -> list[str]:
    """Return the tenants that have taken places, of which runs may be held."""
    return [str(row[0]) for row in connection.execute(_SQL["find_held_tenants"]).fetchall()]


def pace(connection: Conn, installation: Installation, tenant: str) -> int:
    """Queue held runs of a tenant at the places of the next two seconds; return their number.

    Without a rate all are queued, a thousand in a transaction.
    """
    row = read_row(connection, class_row(RateRow), _SQL["lock_tenant_rates"], {"tenants": [tenant]})
    if row is None:
        return 0
    rate = cast(
        "tuple[float | None] | None", connection.execute(_SQL["read_tenant_rate"], {"tenant": tenant}).fetchone()
    )
    per_second = None if rate is None else rate[0]
    ring = row.ring
    if per_second is None:
        times = [row.now] * MAX_RELEASED
    else:
        ring.change_rate(per_second)
        ring.forget_past(row.now)
        trial = Ring(ring.per_second, ring.first, list(ring.used))
        times = list[datetime]()
        while len(times) < MAX_RELEASED and (at := trial.place(row.now, reach=_PACED, spaced=True)) is not None:
            times.append(at)
    until = row.now + timedelta(microseconds=_PACED * ring.width)
    released = _release(connection, installation, tenant, times, until) if times else []
    if per_second is not None:
        for _ in released:
            ring.place(row.now, reach=_PACED, spaced=True)
    held_from, sees_all = _held_from(connection, row)
    if sees_all and held_from is None and per_second is None:
        connection.execute(_SQL["drop_tenant_rate"], {"tenant": tenant})
    else:
        write_rate(connection, tenant, ring, held_from)
    return len(released)


def _held_from(connection: Conn, row: RateRow) -> tuple[datetime | None, bool]:
    """Return the time of the oldest held run, and False if an open transaction may hold further ones."""
    columns: dict[str, object] = {"key_id": rate_key_id(row.tenant), "tenant": row.tenant}
    sees_all = connection.execute(_SQL["sees_all_held"], columns).fetchone() == (True,)
    # A later statement than the lock: it sees the runs of transactions that have ended by then.
    first = cast("tuple[datetime] | None", connection.execute(_SQL["first_held"], columns, binary=True).fetchone())
    known = [] if first is None else [first[0]]
    if not sees_all and row.held_from is not None:
        known.append(row.held_from)
    return min(known, default=None), sees_all


def _release(
    connection: Conn, installation: Installation, tenant: str, times: Sequence[datetime], until: datetime
) -> list[PromotedRun]:
    columns: dict[str, object] = {
        "key_id": rate_key_id(tenant),
        "times": instants(times),
        "count": len(times),
        "until": until,
        "target": target(Move.PROMOTE),
    }
    released = read_rows(connection, class_row(PromotedRun), _SQL["release_held_runs"], columns)
    append_requests(connection, installation, released)
    return released
