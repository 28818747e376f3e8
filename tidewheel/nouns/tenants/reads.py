"""Tenants, their limits, their periods of retention and their usage: records and reads.

The operator owns the rows of `tenants`. A list for an unknown tenant is refused, because it would only be empty.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date, datetime, timedelta
from typing import Annotated, Any, Literal, TypedDict, cast, get_args

from psycopg.rows import args_row
from pydantic import AfterValidator, BeforeValidator, Field

from tidewheel.api_keys import MAX_RATE as MAX_KEY_RATE
from tidewheel.control.reads.json_form import one_of
from tidewheel.errors import ScheduleRefused, UnknownTenant
from tidewheel.ids import first_run_id
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import MAX_PAYLOAD_BYTES, Finite, is_tenant
from tidewheel.nouns.operation import Page, read_page
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn, read_row, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.runs import IN_FLIGHT, RunState
from tidewheel.schedules.zones import zone
from tidewheel.transitions.tenant_refusals import refusals_of

KeptState = Literal["any", "succeeded", "failed", "timed_out", "cancelled", "skipped"]
KEPT_STATES: tuple[KeptState, ...] = get_args(KeptState)
_MIN_RATE = 0.01  # a second: one each hundred seconds

_SQL = Statements("tidewheel.nouns.tenants")
MAX_COUNTED = 5_000
"""The rows of a kind that the usage of a tenant counts: more are shown as at least so many."""
_DAY = timedelta(days=1)


def _some(value: object) -> object:
    if value == 0 and not isinstance(value, bool):
        remedy = "freeze the tenant instead: tidewheel admin tenant pause NAME"
        raise InvalidValue(problem="0 would refuse every request", remedy=remedy)
    return value


_Some = BeforeValidator(_some)
_Triggers = Annotated[
    Annotated[Finite, Field(ge=_MIN_RATE, le=10_000), _Some] | None,
    Field(description="Runs per second that may become due; more are delayed."),
]
_InFlight = Annotated[
    Annotated[int, Field(ge=1, le=100_000), _Some] | None,
    Field(description="Runs that may be active at once; more wait."),
]
_Jobs = Annotated[
    Annotated[int, Field(ge=1, le=1_000_000), _Some] | None, Field(description="Jobs of the tenant; more are refused.")
]
_PayloadBytes = Annotated[
    Annotated[int, Field(ge=1, le=MAX_PAYLOAD_BYTES), _Some] | None,
    Field(description="Size of a payload; a larger one is refused."),
]
_Keys = Annotated[
    Annotated[int, Field(ge=1, le=10_000), _Some] | None,
    Field(description="Active API keys that the tenant's own keys may create; 20 by default."),
]
_KeyRate = Annotated[
    Annotated[Finite, Field(ge=_MIN_RATE, le=MAX_KEY_RATE), _Some] | None,
    Field(
        description="Requests per second of all its API keys together, in each process; also the highest rate of a key"
        " that the tenant creates, by default 100."
    ),
]


def _known_zone(name: str) -> str:
    try:
        return zone(name).name
    except ScheduleRefused as refused:
        [error] = refused.errors
        raise InvalidValue(problem=error.problem, remedy=error.remedy) from None


_Timezone = Annotated[
    Annotated[str, AfterValidator(_known_zone)] | None,
    Field(description="Time zone of cron schedules that name none, for submits from now on; UTC by default."),
]


class Limits(TypedDict, total=False):
    """Limits and time zone of a tenant: one that is left out stays as it is, and null lifts it."""

    weight: Annotated[
        Annotated[int, Field(ge=1, le=100)] | None,
        Field(description="Runs per turn while a queue is held back, 1 to 100; 1 by default."),
    ]
    triggers_per_second: _Triggers
    in_flight: _InFlight
    jobs: _Jobs
    payload_bytes: _PayloadBytes
    keys: _Keys
    key_rate: _KeyRate
    timezone: _Timezone


@dataclass(frozen=True, slots=True)
class TenantDeletion:
    """The deletion of a tenant, with its progress."""

    accepted_at: Annotated[
        datetime, Field(description="When it was accepted; from then on, nothing of the tenant starts.")
    ]
    jobs: Annotated[int, Field(description="The jobs that it has deleted.")]
    runs: Annotated[int, Field(description="The runs that it has ended or requested to stop.")]
    removed: Annotated[Mapping[str, int], Field(description="The rows that it has removed, by table.")]
    at_table: Annotated[str | None, Field(description="The table whose rows it removes now; null before and after.")]
    finished_at: Annotated[datetime | None, Field(description="When the last row was removed; null before that.")]
    free_at: Annotated[
        datetime | None, Field(description="When the name can be used again; null if the deletion has not ended.")
    ]


@dataclass(frozen=True, slots=True)
class TenantSummary:
    """A tenant with its limits; a null limit is unlimited."""

    tenant: Annotated[str, Field(description="Its name.")]
    created_at: Annotated[datetime, Field(description="When it was created.")]
    weight: Annotated[
        int, Field(description="Its share of a queue that is held back: the number of its runs that leave per turn.")
    ]
    triggers_per_second: _Triggers
    in_flight: _InFlight
    jobs: _Jobs
    payload_bytes: _PayloadBytes
    keys: _Keys
    key_rate: _KeyRate
    timezone: _Timezone
    paused_at: Annotated[datetime | None, Field(description="When it was paused; null if it is not.")]
    delete_at: Annotated[
        datetime | None,
        Field(description="When its requested deletion begins, which can be cancelled until then; null without one."),
    ]
    roles: Annotated[Sequence[str], Field(description="The database roles that may call the SQL functions for it.")]
    deletion: Annotated[TenantDeletion | None, Field(description="Its deletion; null if it is not deleted.")]

    @property
    def state(self) -> Literal["active", "paused", "to be deleted", "deleting", "deleted"]:
        """The state in a few words."""
        if self.deletion is not None:
            return "deleting" if self.deletion.finished_at is None else "deleted"
        if self.delete_at is not None:
            return "to be deleted"
        return "active" if self.paused_at is None else "paused"


@dataclass(frozen=True, slots=True)
class Changed:
    """Result of a change; false if nothing was changed."""

    unchanged: bool

    def __bool__(self) -> bool:
        """Return False if it was so already."""
        return not self.unchanged


@dataclass(frozen=True, slots=True)
class ChangedTenant(Changed):
    """Result of a change: `unchanged` if the tenant already was in this state."""

    tenant: TenantSummary


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows; `at_least` if there may be more."""

    count: int
    at_least: bool


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """Present usage of a tenant."""

    tenant: Annotated[TenantSummary, Field(description="Its name with its limits.")]
    open_runs: Annotated[Count, Field(description="The number of its open runs.")]
    in_flight: Annotated[
        Count, Field(description="How many of these are active: running, or waiting for an external completion.")
    ]
    waiting: Annotated[
        Count, Field(description="How many of these wait to start: for their time, a slot, a place or another run.")
    ]
    finished_runs: Annotated[
        Count, Field(description="The number of its runs of the last 24 hours that have ended, by scheduled time.")
    ]
    jobs: Annotated[Count, Field(description="The number of its jobs.")]


@dataclass(frozen=True, slots=True)
class TenantPeriod:
    """The period of a tenant's finished runs."""

    state: Annotated[str, one_of(KEPT_STATES), Field(description="The state of the runs, or `any`.")]
    days: Annotated[
        int | None, Field(description="The days for which they are kept; null after the period was lifted.")
    ]
    kept_since: Annotated[
        date | None,
        Field(description="The first day of which this period has removed no run; null if it has removed none."),
    ]


@dataclass(frozen=True, slots=True)
class TenantPeriods(Changed):
    """The periods of a tenant; `unchanged` if a change set the periods that were in force."""

    tenant: str
    periods: Sequence[TenantPeriod]


_NAMES = [each.name for each in fields(TenantSummary)][:-1]  # columns of a tenant before those of its deletion


def require_tenant(connection: Conn, tenant: str) -> None:
    """Check that a tenant exists and is not deleted, or raise UnknownTenant."""
    if connection.execute(_SQL["find_tenant"], {"tenant": tenant}).fetchone() is None:
        raise refusals_of(connection, [tenant])[tenant]


def ensure_seen(name: str, only: str | None) -> str:
    """Return a name; raise UnknownTenant if it is none, or not that of the only tenant that a caller sees."""
    if not is_tenant(name) or only not in {None, name}:
        raise UnknownTenant(name[:64])
    return name


def list_tenants(connection: Conn, *, after: str | None = None, limit: int = 50) -> Page[TenantSummary]:
    """Return a page of the tenants, in the order of their names; deleted ones until their names are free."""
    columns = {"after": after or ""}
    return read_page(
        connection, args_row(_summary), _SQL["list_tenants"], columns, lambda last: last.tenant, limit=limit
    )


def show_tenant(connection: Conn, tenant: str) -> TenantSummary:
    """Return a tenant, even one being deleted or with a reserved name, or raise UnknownTenant."""
    found = read_row(connection, args_row(_summary), _SQL["show_tenant"], {"tenant": tenant})
    if found is None:
        raise UnknownTenant(tenant)
    return found


def tenant_usage(connection: Conn, tenant: str) -> TenantUsage:
    """Return what a tenant uses, or raise UnknownTenant; no read looks at more than some thousand rows."""
    summary = show_tenant(connection, tenant)
    columns: dict[str, object] = {
        "tenant": tenant,
        "limit": MAX_COUNTED + 1,
        "first_id": first_run_id(read_now(connection) - _DAY),
    }
    found = connection.execute(_SQL["count_open_runs"], columns, binary=True).fetchall()
    states: Mapping[RunState, int] = {RunState(state): count for state, count in cast("list[tuple[str, int]]", found)}
    opened = sum(states.values())
    more = opened > MAX_COUNTED
    active = sum(count for state, count in states.items() if state in IN_FLIGHT)
    finished = connection.execute(_SQL["count_finished_runs"], columns, binary=True).fetchone()
    jobs, looked_at = cast(
        "tuple[int, int]", connection.execute(_SQL["count_tenant_jobs"], columns, binary=True).fetchone()
    )
    return TenantUsage(
        summary,
        Count(min(opened, MAX_COUNTED), more),
        Count(active, more),
        Count(opened - active, more),
        _count(cast("tuple[int]", finished)[0]),
        Count(min(jobs, MAX_COUNTED), looked_at > MAX_COUNTED),
    )


def tenant_periods(connection: Conn, tenant: str) -> list[TenantPeriod]:
    """Return the shorter periods of a tenant; raise UnknownTenant if it does not exist any more."""
    require_tenant(connection, tenant)
    return read_rows(connection, args_row(TenantPeriod), _SQL["read_tenant_periods"], {"tenant": tenant})


def _count(number: int) -> Count:
    return Count(min(number, MAX_COUNTED), number > MAX_COUNTED)


def _summary(*row: Any) -> TenantSummary:  # noqa: ANN401 - the values of `tenant_columns`
    accepted_at, *_ = deletion = row[len(_NAMES) :]
    limits = dict(zip(_NAMES, row, strict=False))
    return TenantSummary(**limits, deletion=None if accepted_at is None else TenantDeletion(*deletion))
