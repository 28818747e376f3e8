"""Read the periods of a tenant that are shorter than those of the installation."""

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Annotated, Literal, get_args

from psycopg.rows import class_row

from tidewheel.control.reads.json_form import one_of
from tidewheel.control.reads.tenants import require_tenant
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_READ_TENANT_PERIODS = Statements("tidewheel.control")["read_tenant_periods"]

KeptState = Literal["any", "succeeded", "failed", "timed_out", "cancelled", "skipped"]
KEPT_STATES: tuple[KeptState, ...] = get_args(KeptState)
MAX_PERIOD = 3650
"""The longest period in days. One that is longer than `TIDEWHEEL_RETENTION` has no effect."""


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
