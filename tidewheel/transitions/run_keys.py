"""Places of concurrency keys, and of a tenant's runs in flight: the rows of `run_keys`.

`settle_keys` is the one function for it. It locks the keys' rows by one statement in key_id order, after every open run
and active run of the transaction. With a key locked no statement waits for another row: a waiting run is taken with
SKIP LOCKED. A run holds a place exactly while its `gates` have `HOLDS_KEY`, and `run_keys.running` counts these runs.

A place that an end gives back goes to the oldest waiting run, in the same transaction. So no newcomer takes it, and no
waiting run is claimed in vain. If other transactions hold all waiting runs, the scheduler promotes them at `wake_at`.

A claimer knows the tenants with a limit from a read each second. It sends their runs to the claims that take places,
which lock the tenant's row last. When a limit begins, runs have started without a place. The scheduler marks and counts
these until ten seconds later, when no claimer can have an older list.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.ids import tenant_key_id
from tidewheel.postgres.pg_binary import Uuids, instants, integers, uuids, words
from tidewheel.postgres.session import Conn, at_commit, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.runs import HOLDS, IN_FLIGHT, Gate, Move, sources, target
from tidewheel.transitions.active_runs import PromotedRun
from tidewheel.transitions.held_back import settle_order
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.messages import append_requests
from tidewheel.transitions.places import Arrival, FreedPlace, KeyRow, Limit, Refusal, admit, share_out

_SQL = Statements("tidewheel.transitions")
_ADD_RUN_KEYS = _SQL["add_run_keys"]
_READ_RUN_LIMITS = _SQL["read_run_limits"]
_FIND_FIRST_WAITING = _SQL["find_first_waiting"]
_LOCK_RUN_KEYS = _SQL["lock_run_keys"]
_WAIT_FOR_KEYS = _SQL["wait_for_keys"]
_PROMOTE_FOR_KEYS = _SQL["promote_for_keys"]
_FIND_KEYS_WITH_WAITERS = _SQL["find_keys_with_waiters"]
_WRITE_RUN_KEYS = _SQL["write_run_keys"]

_MAX_PROMOTED = 1000  # runs in one transaction; wake_at brings the rest

_LimitRow = tuple[int, int | None, int | None, int]
_KeyColumns = tuple[
    int, int, int, bool, int | None, int | None, int, datetime | None, datetime | None, bool, datetime
]  # fmt: skip
_FIND_LIMITED_TENANTS = _SQL["find_limited_tenants"]
_PUT_TENANT_KEY = _SQL["put_tenant_key"]
_COUNT_STARTED_RUNS = _SQL["count_started_runs"]
_ADD_COUNTED_RUNS = _SQL["add_counted_runs"]

_MAX_READ = 2000  # open runs in one transaction: about twenty milliseconds if all are counted
COUNTED_FOR = timedelta(seconds=10)
_FRESH_SECONDS = 1.0


@dataclass(slots=True)
class KeysSettled:
    """The result of settling keys.

    Args:
        undecided: Arrivals that must not wait, or whose key's row was removed meanwhile; they are to be claimed again.
        promoted: The number of runs that got a place, or are first in their order.
    """

    waiting: set[UUID]
    undecided: set[UUID]
    promoted: int = 0


@dataclass(frozen=True, slots=True)
class _Promoted(PromotedRun):
    """The row of a run that got a place of a key."""

    awaited: int


def settle_keys(
    connection: Conn,
    installation: Installation,
    *,
    arrivals: Sequence[Arrival] = (),
    freed: Iterable[FreedPlace] = (),
    woken: Iterable[int] = (),
) -> KeysSettled:
    """Take and give back places of keys, in a transaction that waits for no other row from here on.

    Args:
        arrivals: Claimed runs with a key, whose rows the caller has locked and starts unless they wait.
        woken: Keys whose waiting runs may get a place now. The job of the oldest one brings its limit, as the newest
            arrival's does, unless an operator has set one (`key_limits`).
    """
    all_freed = list(freed)
    ordered = [place for place in all_freed if place.ended is not None]
    places = [place for place in all_freed if place.ended is None]
    started = settle_order(connection, installation, ended=ordered) if ordered else 0
    given_back = Counter(place.key_id for place in places)
    unstarted = Counter(place.key_id for place in places if not place.started)
    by_key: defaultdict[int, list[Arrival]] = defaultdict(list)
    by_own: defaultdict[int, list[Arrival]] = defaultdict(list)
    for arrival in arrivals:
        for key, _ in arrival.places:
            by_key[key].append(arrival)
        if arrival.key_id is not None:
            by_own[arrival.key_id].append(arrival)
    awake = list(woken)
    keys = sorted({*by_key, *given_back, *awake})
    settled = KeysSettled(set(), set(), started)
    if not keys:
        return settled
    # The newest run of a key brings the limit of its job, if no operator has set one.
    newest = [(max(each, key=lambda one: one.scheduled_at).run_id, key) for key, each in by_own.items()]
    if awake:
        oldest = connection.execute(_FIND_FIRST_WAITING, {"key_ids": integers(awake)}, binary=True).fetchall()
        newest += cast("list[tuple[UUID, int]]", oldest)
    run_ids = uuids(run_id for run_id, _ in newest)
    if newest:
        connection.execute(_ADD_RUN_KEYS, {"run_ids": run_ids, "key_ids": integers(key for _, key in newest)})
    rows, now = _lock_keys(connection, keys)
    limits = _read_limits(connection, run_ids) if newest else {}
    for key, found in by_key.items():
        if key not in rows:
            settled.undecided |= {arrival.run_id for arrival in found}
    for key, limit in limits.items():
        if key in rows:
            rows[key].change_limit(limit, now)
    for key, count in given_back.items():
        if key in rows:
            rows[key].free(count, unstarted[key])
    must_not_wait = {arrival.run_id for arrival in arrivals if not arrival.may_wait}
    refused = admit(rows, [one for one in arrivals if one.run_id not in settled.undecided], now)
    settled.undecided |= {each.run_id for each in refused} & must_not_wait
    settled.waiting = {each.run_id for each in refused} - must_not_wait
    _let_wait(connection, [each for each in refused if each.run_id in settled.waiting])
    settled.promoted += _promote(connection, installation, rows, now)
    _write_keys(connection, list(rows.values()))
    return settled


def _read_limits(connection: Conn, run_ids: Uuids) -> dict[int, Limit]:
    found = connection.execute(_READ_RUN_LIMITS, {"run_ids": run_ids}, binary=True).fetchall()
    return {key: Limit(at_once, every, burst) for key, at_once, every, burst in cast("list[_LimitRow]", found)}


def _lock_keys(connection: Conn, keys: Sequence[int]) -> tuple[dict[int, KeyRow], datetime]:
    found = connection.execute(_LOCK_RUN_KEYS, {"key_ids": integers(keys)}, binary=True).fetchall()
    rows: dict[int, KeyRow] = {}
    for key, running, unclaimed, waiters, at_once, every, burst, tat, wake_at, of_tenant, _ in cast(
        "list[_KeyColumns]", found
    ):
        rows[key] = KeyRow(key, running, unclaimed, waiters, Limit(at_once, every, burst), tat, wake_at, of_tenant)
    now = cast("datetime", found[0][-1]) if found else datetime.min  # noqa: DTZ901 - unused without a row
    return rows, now


def _let_wait(connection: Conn, waiting: Sequence[Refusal]) -> None:
    if waiting:
        columns = {
            "run_ids": uuids(each.run_id for each in waiting),
            "waits_for": integers(each.waits_for for each in waiting),
            "kept": integers(Gate.HOLDS_KEY if each.keeps else 0 for each in waiting),
            "holds": HOLDS,
            "sources": sources(Move.BUFFER),
            "target": target(Move.BUFFER),
        }
        connection.execute(_WAIT_FOR_KEYS, columns)
        at_commit(connection, partial(metrics.count, "runs_buffered", len(waiting)))


def _promote(connection: Conn, installation: Installation, rows: dict[int, KeyRow], now: datetime) -> int:
    """Give free places to waiting runs, the oldest first; set the time of the next promotion."""
    wanted = {key: count for key, row in rows.items() if (count := row.wanted(now))}
    promoted: list[_Promoted] = []
    more: set[int] = set()
    if wanted:
        columns: dict[str, object] = {
            "key_ids": integers(wanted),
            "counts": integers(share_out(wanted, _MAX_PROMOTED).values()),
            "target": target(Move.PROMOTE),
            "holds": integers(Gate.HOLDS_TENANT if rows[key].of_tenant else Gate.HOLDS_KEY for key in wanted),
        }
        promoted = read_rows(connection, class_row(_Promoted), _PROMOTE_FOR_KEYS, columns)
        left = connection.execute(_FIND_KEYS_WITH_WAITERS, {"key_ids": integers(wanted)}, binary=True)
        more = {cast("int", row[0]) for row in left}
        append_requests(connection, installation, promoted)
    found = Counter(run.awaited for run in promoted)
    for key, row in rows.items():
        if key in wanted:
            row.promote(wanted[key], found[key], now, more=key in more)
        else:
            row.promote(0, 0, now, more=row.has_waiters)
    return len(promoted)


def _write_keys(connection: Conn, rows: Sequence[KeyRow]) -> None:
    columns: dict[str, object] = {
        "key_ids": integers(row.key_id for row in rows),
        "running": integers(row.running for row in rows),
        "unclaimed": integers(row.unclaimed for row in rows),
        "waiters": words("true" if row.has_waiters else "false" for row in rows),
        "at_once": _numbers(row.limit.at_once for row in rows),
        "every_us": _numbers(row.limit.every_us for row in rows),
        "bursts": integers(row.limit.burst for row in rows),
        "tats": instants(row.tat for row in rows),
        "wake_at": instants(row.wake_at for row in rows),
    }
    connection.execute(_WRITE_RUN_KEYS, columns)


def _numbers(values: Iterable[int | None]) -> str:
    return words("NULL" if value is None else str(value) for value in values)


class LimitedTenants:
    """The tenants that limit their runs in flight, as one thread reads them once a second."""

    def __init__(self) -> None:
        self.known: Collection[str] = frozenset()
        self._until = -math.inf

    def read(self, connection: Conn) -> Collection[str]:
        """Return their names, in a transaction that claims."""
        now = monotonic_seconds()
        if now >= self._until:
            self.known = frozenset(str(row[0]) for row in connection.execute(_FIND_LIMITED_TENANTS))
            self._until = now + _FRESH_SECONDS
        return self.known


def limit_in_flight(connection: Conn, installation: Installation, tenant: str, at_once: int | None) -> int:
    """Write the limit of a tenant and give free places to waiting runs; return the number that got one."""
    key = tenant_key_id(tenant)
    connection.execute(_PUT_TENANT_KEY, {"key_id": key, "tenant": tenant, "at_once": at_once})
    return settle_keys(connection, installation, woken=[key]).promoted


class Count(NamedTuple):
    """The runs that a step counted and read, and the run to go on after; None at the end."""

    counted: int
    read: int
    after: UUID | None


def count_started_runs(connection: Conn, tenant: str, after: UUID) -> Count:
    """Count the runs that have started without a place, among the next open runs of a tenant by id."""
    columns: dict[str, object] = {
        "tenant": tenant,
        "states": list(IN_FLIGHT),
        "holds": Gate.HOLDS_TENANT,
        "after": after,
        "limit": _MAX_READ,
    }
    row = connection.execute(_COUNT_STARTED_RUNS, columns, binary=True).fetchone()
    assert row is not None  # noqa: S101 - an aggregate
    counted, read, last = cast("tuple[int, int, UUID | None]", row)
    if counted:
        connection.execute(_ADD_COUNTED_RUNS, {"key_id": tenant_key_id(tenant), "runs": counted})
    return Count(counted, read, last if read == _MAX_READ else None)
