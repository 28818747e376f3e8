"""Read tenants: their limits, their periods of retention, and what they use.

The operator owns the rows of `tenants`. A list for an unknown tenant is refused, because it would only be empty.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Annotated, Literal, TypeAlias, cast, get_args

from psycopg.rows import class_row

from tidewheel.control.reads.json_form import one_of
from tidewheel.errors import UnknownTenant
from tidewheel.ids import first_run_id
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import IN_FLIGHT, RunState
from tidewheel.transitions.tenant_refusals import refusals_of

_SQL = Statements("tidewheel.control")
_FIND_TENANT = _SQL["find_tenant"]
_LIST_TENANTS = _SQL["list_tenants"]
_SHOW_TENANT = _SQL["show_tenant"]
_COUNT_OPEN_RUNS = _SQL["count_open_runs"]
_COUNT_FINISHED_RUNS = _SQL["count_finished_runs"]
_COUNT_TENANT_JOBS = _SQL["count_tenant_jobs"]
MAX_COUNTED = 5_000
"""The rows of a kind that the usage of a tenant counts: more are shown as at least so many."""
_DAY = timedelta(days=1)
_LIMITS = 12  # columns of a tenant before those of its deletion

_Limits: TypeAlias = tuple[
    str,
    datetime,
    int,
    float | None,
    int | None,
    int | None,
    int | None,
    int | None,
    float | None,
    datetime | None,
    datetime | None,
    list[str],
]

_DeletionRow: TypeAlias = tuple[
    datetime | None, int, int, Mapping[str, int], str | None, datetime | None, datetime | None
]
_READ_TENANT_PERIODS = Statements("tidewheel.control")["read_tenant_periods"]
KeptState = Literal["any", "succeeded", "failed", "timed_out", "cancelled", "skipped"]
KEPT_STATES: tuple[KeptState, ...] = get_args(KeptState)
MAX_PERIOD = 3650
"""The longest period in days. One that is longer than `TIDEWHEEL_RETENTION` has no effect."""


@dataclass(frozen=True, slots=True)
class TenantDeletion:
    """The deletion of a tenant, with its progress.

    Args:
        accepted_at: When it was accepted: nothing of the tenant starts from then on.
        jobs: The jobs that it has deleted.
        runs: The runs that it has ended or requested to stop.
        removed: The rows that it has removed, by table.
        at_table: The table whose rows it removes now; None before and after.
        finished_at: When the last row was removed; None if that is still to come.
        free_at: When the name is free again; None if the deletion has not ended.
    """

    accepted_at: datetime
    jobs: int
    runs: int
    removed: Mapping[str, int]
    at_table: str | None
    finished_at: datetime | None
    free_at: datetime | None


@dataclass(frozen=True, slots=True)
class TenantSummary:
    """A tenant with its limits; a limit that is None is no bound.

    Args:
        tenant: Its name.
        created_at: When it was created.
        weight: The share of a queue that is held back: so many runs leave in each of its turns.
        triggers_per_second: The runs a second that may become due; more are delayed.
        in_flight: The runs that may be active at once; more wait.
        jobs: The number of its jobs.
        payload_bytes: The size of a payload.
        keys: The API keys that its own keys may create.
        key_rate: The requests a second of its API keys.
        paused_at: When it was paused; None if it is not.
        delete_at: When its requested deletion begins, which can be taken back until then; None if none was requested.
        roles: The database roles that may call the SQL functions for it.
        deletion: Its deletion; None if it is not deleted.
    """

    tenant: str
    created_at: datetime
    weight: int
    triggers_per_second: float | None
    in_flight: int | None
    jobs: int | None
    payload_bytes: int | None
    keys: int | None
    key_rate: float | None
    paused_at: datetime | None
    delete_at: datetime | None
    roles: Sequence[str]
    deletion: TenantDeletion | None

    @property
    def state(self) -> Literal["active", "paused", "to be deleted", "deleting", "deleted"]:
        """The state in a few words."""
        if self.deletion is not None:
            return "deleting" if self.deletion.finished_at is None else "deleted"
        if self.delete_at is not None:
            return "to be deleted"
        return "active" if self.paused_at is None else "paused"


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows; `at_least` if there may be more."""

    count: int
    at_least: bool


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """Present usage of a tenant.

    Args:
        tenant: Its name with its limits.
        open_runs: The number of its open runs.
        in_flight: How many of those are active: they run, or wait for an external completion.
        waiting: How many of those wait to start: for their time, a slot, a place or another run.
        finished_runs: The number of its runs of the last 24 hours that have ended, by their scheduled times.
        jobs: The number of its jobs.
    """

    tenant: TenantSummary
    open_runs: Count
    in_flight: Count
    waiting: Count
    finished_runs: Count
    jobs: Count


def require_tenant(connection: Conn, tenant: str) -> None:
    """Check that a tenant exists and is not deleted, or raise UnknownTenant."""
    if connection.execute(_FIND_TENANT, {"tenant": tenant}).fetchone() is None:
        raise refusals_of(connection, [tenant])[tenant]


def list_tenants(connection: Conn, *, after: str = "", limit: int = 50) -> list[TenantSummary]:
    """Return a page of the tenants, in the order of their names; deleted ones until their names are free."""
    return _summaries(connection.execute(_LIST_TENANTS, {"after": after, "limit": limit}, binary=True).fetchall())


def show_tenant(connection: Conn, tenant: str) -> TenantSummary:
    """Return a tenant, even one being deleted or with a reserved name, or raise UnknownTenant."""
    found = _summaries(connection.execute(_SHOW_TENANT, {"tenant": tenant}, binary=True).fetchall())
    if not found:
        raise UnknownTenant(tenant)
    return found[0]


def tenant_usage(connection: Conn, tenant: str) -> TenantUsage:
    """Return what a tenant uses, or raise UnknownTenant; no read looks at more than some thousand rows."""
    summary = show_tenant(connection, tenant)
    columns: dict[str, object] = {
        "tenant": tenant,
        "limit": MAX_COUNTED + 1,
        "first_id": first_run_id(read_now(connection) - _DAY),
    }
    found = connection.execute(_COUNT_OPEN_RUNS, columns, binary=True).fetchall()
    states: Mapping[RunState, int] = {RunState(state): count for state, count in cast("list[tuple[str, int]]", found)}
    opened = sum(states.values())
    more = opened > MAX_COUNTED
    active = sum(count for state, count in states.items() if state in IN_FLIGHT)
    finished = connection.execute(_COUNT_FINISHED_RUNS, columns, binary=True).fetchone()
    jobs, looked_at = cast("tuple[int, int]", connection.execute(_COUNT_TENANT_JOBS, columns, binary=True).fetchone())
    return TenantUsage(
        summary,
        Count(min(opened, MAX_COUNTED), more),
        Count(active, more),
        Count(opened - active, more),
        _count(cast("tuple[int]", finished)[0]),
        Count(min(jobs, MAX_COUNTED), looked_at > MAX_COUNTED),
    )


@dataclass(frozen=True, slots=True)
class TenantPeriod:
    """The period of a tenant's finished runs.

    Args:
        state: The state of the runs, or `any`.
        days: The days for which they are kept; None after the period was lifted.
        kept_since: The first day from which none was removed by this period; None if none was removed.
    """

    state: Annotated[str, one_of(KEPT_STATES)]
    days: int | None
    kept_since: date | None


@dataclass(frozen=True, slots=True)
class _Row:
    state: str
    keep: timedelta | None
    kept_since: date | None


def tenant_periods(connection: Conn, tenant: str) -> list[TenantPeriod]:
    """Return the shorter periods of a tenant; raise UnknownTenant if it does not exist any more."""
    require_tenant(connection, tenant)
    with connection.cursor(row_factory=class_row(_Row), binary=True) as cursor:
        rows = cursor.execute(_READ_TENANT_PERIODS, {"tenant": tenant}).fetchall()
    return [TenantPeriod(row.state, None if row.keep is None else row.keep.days, row.kept_since) for row in rows]


def _count(number: int) -> Count:
    return Count(min(number, MAX_COUNTED), number > MAX_COUNTED)


def _summaries(rows: Iterable[Sequence[object]]) -> list[TenantSummary]:
    """Return tenants by rows of `tenant_columns`."""
    return [
        TenantSummary(*cast("_Limits", tuple(row[:_LIMITS])), _deletion(cast("_DeletionRow", tuple(row[_LIMITS:]))))
        for row in rows
    ]


def _deletion(row: _DeletionRow) -> TenantDeletion | None:
    accepted_at, jobs, runs, removed, at_table, finished_at, free_at = row
    if accepted_at is None:
        return None
    return TenantDeletion(accepted_at, jobs, runs, removed, at_table, finished_at, free_at)
