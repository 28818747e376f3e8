"""Rights of the database roles of services and applications: the only declaration of them.

They follow from the statements. `tests/migrations/test_service_roles.py` compares them with what PostgreSQL derives
from the statements of all modules that a service imports. After a change of statements the test prints what to write.

Letters as in PostgreSQL's own lists: r reads, a inserts, w updates or locks rows, d deletes.
"""

from collections.abc import Mapping
from types import MappingProxyType

SERVICES = ("scheduler", "relay", "intake", "executor", "api", "application")

# Functions that no other role may call: they run with the rights of the tables' owner.
FUNCTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "tidewheel_cancel": ("application",),
        "tidewheel_create_day": SERVICES,
        "tidewheel_drop_day": ("scheduler",),
        "tidewheel_enqueue": ("application",),
        "tidewheel_status": ("application",),
    }
)

# Tables, views and sequences, each with the letters of the services that may use it.
RIGHTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "active_runs": {
            "scheduler": "rawd",
            "intake": "rawd",
            "executor": "rawd",
            "api": "rawd",
            "application": "rawd",
        },
        "activity": {"scheduler": "rad", "relay": "a", "intake": "a", "executor": "a", "api": "ra"},
        "api_keys": {"scheduler": "rwd", "api": "raw"},
        "archive_lock": {"api": "w"},
        "archived_days": {"scheduler": "r", "intake": "r", "api": "rd", "application": "r"},
        "attempt_outputs": {
            "scheduler": "rawd",
            "intake": "raw",
            "executor": "raw",
            "api": "raw",
            "application": "raw",
        },
        "attempts": {"scheduler": "rad", "intake": "ra", "executor": "ra", "api": "ra", "application": "ra"},
        "audit_log": {"scheduler": "rd", "intake": "raw", "api": "raw"},
        "backfills": {"scheduler": "rwd", "intake": "raw", "api": "raw"},
        "batch_runs": {"scheduler": "rd", "intake": "raw", "executor": "ra", "api": "raw"},
        "batches": {"scheduler": "rwd", "intake": "raw", "executor": "raw", "api": "raw"},
        "calendars": {"scheduler": "rd", "intake": "rawd", "api": "rawd"},
        "cancellations": {"scheduler": "rawd", "intake": "ra", "executor": "r", "api": "ra", "application": "r"},
        "cancellations_id_seq": {"intake": "w", "api": "w"},
        "cancelled_jobs": {"scheduler": "rd", "intake": "ra", "executor": "r", "api": "ra", "application": "r"},
        "catch_up_pace": {"scheduler": "rw", "intake": "rw", "api": "rw"},
        "claims_lock": {"intake": "w", "executor": "d", "api": "wd"},
        "dead_letters": {
            "scheduler": "rawd",
            "intake": "rawd",
            "executor": "rawd",
            "api": "rawd",
            "application": "rawd",
        },
        "dedupes": {"scheduler": "rwd", "intake": "raw", "api": "raw", "application": "raw"},
        "deferred_effects": {
            "scheduler": "rawd",
            "intake": "rawd",
            "executor": "rawd",
            "api": "rawd",
            "application": "rawd",
        },
        "ended_attempts": {"scheduler": "r", "intake": "r", "executor": "r", "api": "r", "application": "r"},
        "executors": {"scheduler": "r", "relay": "r", "executor": "rawd", "api": "rawd"},
        "failed_runs": {"scheduler": "rawd", "intake": "ra", "executor": "ra", "api": "ra", "application": "ra"},
        "finished_runs": {"scheduler": "rad", "intake": "ra", "executor": "ra", "api": "ra", "application": "ra"},
        "freezes": {"scheduler": "rwd", "relay": "r", "intake": "raw", "executor": "r", "api": "raw"},
        "freezes_id_seq": {"intake": "w", "api": "w"},
        "frozen_jobs": {"scheduler": "rad", "relay": "r", "intake": "rad", "executor": "r", "api": "rad"},
        "history_limits": {"scheduler": "rwd", "intake": "raw", "api": "raw"},
        "intake_offsets": {"scheduler": "rd", "intake": "raw", "api": "r"},
        "job_calendars": {"scheduler": "rd", "intake": "rad", "api": "rad"},
        "job_days": {"scheduler": "rawd", "api": "r"},
        "job_edges": {"scheduler": "rd", "intake": "raw", "executor": "r", "api": "raw", "application": "r"},
        "job_rooms": {"scheduler": "rd", "intake": "raw", "api": "rawd"},
        "job_runs": {
            "scheduler": "rawd",
            "relay": "r",
            "intake": "rawd",
            "executor": "rawd",
            "api": "rawd",
            "application": "rawd",
        },
        "job_versions": {"scheduler": "rd", "intake": "raw", "executor": "r", "api": "raw", "application": "r"},
        "jobs": {"scheduler": "rwd", "intake": "raw", "executor": "rw", "api": "raw", "application": "rw"},
        "joins": {"scheduler": "rawd", "intake": "rad", "executor": "rad", "api": "rad"},
        "kept_since_lock": {"scheduler": "w", "intake": "d", "api": "d"},
        "key_limits": {"scheduler": "rd", "intake": "rawd", "executor": "r", "api": "rawd", "application": "r"},
        "members": {"scheduler": "rawd", "relay": "rawd", "executor": "r", "api": "rawd"},
        "message_keys": {"relay": "r", "executor": "r", "api": "r"},
        "order_failures": {"scheduler": "rad", "intake": "rad", "executor": "rad", "api": "rad", "application": "rad"},
        "order_keys": {"scheduler": "rawd", "intake": "rawd", "executor": "rawd", "api": "rawd", "application": "rawd"},
        "outbox": {
            "scheduler": "rad",
            "relay": "rawd",
            "intake": "a",
            "executor": "a",
            "api": "ra",
            "application": "a",
        },
        "overrides": {"scheduler": "rwd", "intake": "rawd", "api": "rawd"},
        "pending_cancels": {"scheduler": "rad", "intake": "ra", "executor": "ra", "api": "ra", "application": "r"},
        "processes": {"scheduler": "rawd", "relay": "rawd", "intake": "rawd", "executor": "rawd", "api": "rawd"},
        "quarantine": {"scheduler": "rad", "relay": "a", "api": "r"},
        "redrives": {"scheduler": "rawd", "api": "raw"},
        "relay_slices": {"relay": "raw"},
        "releases": {"scheduler": "rawd", "intake": "rawd", "executor": "rawd", "api": "rawd", "application": "rawd"},
        "requests": {"scheduler": "rd", "intake": "rawd", "api": "ra", "application": "ra"},
        "retention_lock": {"scheduler": "w"},
        "retention_state": {"scheduler": "raw", "api": "r"},
        "run_days": {"scheduler": "raw", "intake": "r", "api": "r"},
        "run_edges": {"scheduler": "rd", "intake": "raw", "executor": "ra", "api": "raw"},
        "run_inputs": {"scheduler": "rawd", "intake": "raw", "executor": "raw", "api": "raw", "application": "raw"},
        "run_keys": {"scheduler": "rawd", "intake": "raw", "executor": "raw", "api": "raw", "application": "raw"},
        "runs": {"scheduler": "r", "intake": "r", "executor": "r", "api": "r", "application": "r"},
        "schemas": {"scheduler": "r", "relay": "r", "intake": "r", "executor": "r", "api": "r"},
        "settings": {
            "scheduler": "raw",
            "relay": "raw",
            "intake": "raw",
            "executor": "raw",
            "api": "raw",
            "application": "r",
        },
        "sign_ins": {"api": "rawd"},
        "signals": {"scheduler": "rad", "intake": "rad", "executor": "rad", "api": "rad", "application": "rd"},
        "skips": {"scheduler": "rawd", "intake": "rad", "api": "rad"},
        "standby": {"scheduler": "rw", "intake": "r", "api": "r"},
        "standby_changes": {"scheduler": "rd", "api": "r"},
        "task_token_keys": {"intake": "r", "executor": "r", "api": "r"},
        "tenant_deletions": {"scheduler": "rawd", "intake": "rw", "api": "rad", "application": "r"},
        "tenant_locks": {
            "scheduler": "rawd",
            "relay": "raw",
            "intake": "raw",
            "executor": "raw",
            "api": "raw",
            "application": "raw",
        },
        "tenant_periods": {"scheduler": "rwd", "intake": "r", "api": "raw"},
        "tenant_rates": {
            "scheduler": "rawd",
            "relay": "raw",
            "intake": "rawd",
            "executor": "rawd",
            "api": "rawd",
            "application": "rawd",
        },
        "tenant_roles": {"api": "rad"},
        "tenants": {
            "scheduler": "rwd",
            "relay": "r",
            "intake": "r",
            "executor": "r",
            "api": "rawd",
            "application": "r",
        },
        "tidewheel_migrations": {"scheduler": "r", "relay": "r", "intake": "r", "executor": "r", "api": "r"},
        "timers": {"scheduler": "rawd", "intake": "rawd", "executor": "rw", "api": "rawd", "application": "rw"},
        "unhandled_announcements": {"scheduler": "rawd", "api": "rawd"},
        "workflows": {"scheduler": "rawd", "intake": "raw", "executor": "raw", "api": "raw", "application": "r"},
        "works": {"scheduler": "rawd", "api": "raw"},
    }
)
