"""The rule of each table: which work removes its rows, or the reason for which they stay few.

`retention.py` works off `Days`, `Rows` and `Jobs`. A test lists the tables of the catalog, and fails on one without a
rule (docs/adr/0075-retention.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from types import MappingProxyType
from typing import LiteralString

from tidewheel.postgres.statements import Statements
from tidewheel.settings.services import SchedulerSettings

_SQL = Statements("tidewheel.scheduler")


class Period(Enum):
    """The periods for which rows are kept."""

    RUNS = auto()
    OUTPUTS = auto()
    FAILED = auto()
    AUDIT = auto()
    STATISTICS = auto()


@dataclass(frozen=True, slots=True)
class Periods:
    """The length of each period."""

    runs: timedelta  # of finished runs and what belongs to them
    outputs: timedelta  # of results, tracebacks and output
    failed: timedelta  # of copies of failed runs, and of dead letters
    audit: timedelta
    statistics: timedelta  # of counts by day

    def of(self, period: Period) -> timedelta:
        """Return the length of a period; outputs do not outlive their runs."""
        return {
            Period.RUNS: self.runs,
            Period.OUTPUTS: min(self.outputs, self.runs),
            Period.FAILED: max(self.failed, self.runs),
            Period.AUDIT: self.audit,
            Period.STATISTICS: self.statistics,
        }[period]


def periods_of(settings: SchedulerSettings) -> Periods:
    """Return the periods that an operator has set."""
    return Periods(
        runs=settings.retention,
        outputs=settings.output_retention,
        failed=settings.failed_retention,
        audit=settings.audit_retention,
        statistics=settings.statistics_retention,
    )


@dataclass(frozen=True, slots=True)
class Days:
    """The partition of a day is dropped whole, when all its rows are older than the period."""

    period: Period


@dataclass(frozen=True, slots=True)
class Rows:
    """A statement, which takes `before` and `limit`, deletes old rows, some in each transaction."""

    statement: LiteralString
    period: Period = Period.RUNS


@dataclass(frozen=True, slots=True)
class Jobs:
    """Rows go with their job, which `removals.py` removes when it was deleted or finished long ago.

    Superseded versions of live jobs go before.
    """


@dataclass(frozen=True, slots=True)
class By:
    """A statement of other work deletes each row when it has served."""

    package: str
    statement: str


@dataclass(frozen=True, slots=True)
class Bounded:
    """Rows stay, and are few."""

    by: str


Rule = Days | Rows | Jobs | By | Bounded

_OPERATOR = "rows that operators or requests define and remove"

# In the order of the work: the parts of a batch go before its occurrence, which dates them.
RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "finished_runs": Days(Period.RUNS),
        "run_inputs": Days(Period.RUNS),
        "attempts": Days(Period.RUNS),
        "attempt_outputs": Days(Period.OUTPUTS),
        "audit_log": Rows(_SQL["delete_old_audit"], Period.AUDIT),
        "works": Rows(_SQL["delete_old_works"]),
        "redrives": Rows(_SQL["delete_old_redrives"]),
        "backfills": Rows(_SQL["delete_old_backfills"]),
        "cancellations": Rows(_SQL["delete_old_cancellations"]),
        "batch_runs": Rows(_SQL["delete_old_batch_runs"]),
        "run_edges": Rows(_SQL["delete_old_run_edges"]),
        "batches": Rows(_SQL["delete_old_batches"]),
        "workflows": Rows(_SQL["delete_old_workflows"]),
        "dedupes": Rows(_SQL["delete_old_windows"]),
        "skips": Rows(_SQL["delete_old_skips"]),
        "overrides": Rows(_SQL["delete_old_overrides"]),
        "failed_runs": Rows(_SQL["delete_old_failed_runs"], Period.FAILED),
        "dead_letters": Rows(_SQL["delete_old_dead_letters"], Period.FAILED),
        "quarantine": Rows(_SQL["delete_old_quarantine"], Period.FAILED),
        "api_keys": Rows(_SQL["delete_old_api_keys"], Period.AUDIT),
        "job_days": Rows(_SQL["delete_old_job_days"], Period.STATISTICS),
        "activity": Rows(_SQL["delete_old_activity"]),
        "tenant_deletions": Rows(_SQL["delete_old_deletions"]),
        "jobs": Jobs(),
        "job_versions": Jobs(),
        "job_edges": Jobs(),
        "job_calendars": Jobs(),
        "job_runs": By("tidewheel.transitions", "close_runs"),
        "timers": By("tidewheel.transitions", "drop_timers"),
        "active_runs": By("tidewheel.transitions", "release_active_runs"),
        "signals": By("tidewheel.scheduler", "drop_stale_signals"),
        "pending_cancels": By("tidewheel.scheduler", "delete_pending_cancels"),
        "cancelled_jobs": By("tidewheel.scheduler", "delete_cancelled_jobs"),
        "deferred_effects": By("tidewheel.transitions", "take_deferred_effects"),
        "freezes": By("tidewheel.scheduler", "drop_thawed"),
        "frozen_jobs": By("tidewheel.scheduler", "drop_thawed"),
        "joins": By("tidewheel.transitions", "drop_joins"),
        "releases": By("tidewheel.transitions", "drop_releases"),
        "run_keys": By("tidewheel.scheduler", "remove_idle_keys"),
        "order_keys": By("tidewheel.transitions", "drop_order_keys"),
        "order_failures": By("tidewheel.transitions", "drop_order_failures"),
        "tenant_rates": By("tidewheel.transitions", "drop_tenant_rate"),
        "outbox": By("tidewheel.relay", "delete_outbox"),
        "requests": By("tidewheel.intake", "purge_replies"),
        "members": By("tidewheel", "live_members"),
        "processes": By("tidewheel", "heartbeat_process"),
        "executors": By("tidewheel.executor", "delete_executor"),
        "unhandled_announcements": By("tidewheel.scheduler", "purge_unhandled"),
        "message_keys": By("tidewheel.control", "delete_message_keys"),
        "task_token_keys": By("tidewheel.control", "delete_task_token_keys"),
        "sign_ins": By("tidewheel.control", "drop_sign_ins"),
        "tenants": By("tidewheel.transitions", "take_tenant"),
        "job_rooms": By("tidewheel.nouns.tenants", "forget_job_room"),
        "key_limits": Bounded(_OPERATOR),
        "tenant_periods": Bounded(_OPERATOR),
        "tenant_roles": Bounded(_OPERATOR),
        "calendars": Bounded(_OPERATOR),
        "intake_offsets": Bounded("a row for each partition of a topic of requests"),
        "settings": Bounded("a row for each fact of the installation"),
        "schemas": Bounded("a row for each released schema"),
        "tidewheel_migrations": Bounded("a row for each file of a release"),
        "run_days": Bounded("a row for each day"),
        "archived_days": By("tidewheel.control.archive", "delete_archived_day"),
        "retention_state": Bounded("one row"),
        **dict.fromkeys(
            ("claims_lock", "kept_since_lock", "retention_lock", "archive_lock", "restore_lock"),
            Bounded("no row: only the table is locked"),
        ),
        "tenant_locks": Bounded("two rows for each tenant, which go with it"),
        "relay_slices": Bounded("eight rows"),
    }
)
