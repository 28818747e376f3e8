"""Tables, keys and topics of the rows that a standby site needs (docs/adr/0082-standby-site.md).

`tidewheel admin standby enable` creates triggers on these tables, a scheduler publishes the changed rows, and
`tidewheel admin standby raise` inserts them in this order.
"""

from collections.abc import Mapping
from types import MappingProxyType

from tidewheel.kafka.topics import Topics

MARK = "mark"

# Definitions change seldom. Tables that others refer to come first.
JOBS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "tenants": ("tenant",),
        "tenant_deletions": ("tenant",),
        "tenant_periods": ("tenant", "state"),
        "api_keys": ("key_id",),
        "calendars": ("tenant", "name"),
        "jobs": ("job_id",),
        "job_versions": ("job_id", "version"),
        "job_edges": ("parent_job_id", "child_job_id", "from_at"),
        "job_calendars": ("tenant", "name", "job_id"),
        "overrides": ("job_id", "scheduled_at"),
        "key_limits": ("tenant", "is_prefix", "key"),
        "freezes": ("id",),
        "frozen_jobs": ("freeze_id", "job_id"),
        "history_limits": ("job_id",),
    }
)

# Positions of timers, and what open runs need.
RUN_STATES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "timers": ("job_id",),
        "job_runs": ("run_id",),
        "active_runs": ("job_id",),
        "run_keys": ("key_id",),
        "order_keys": ("key_id",),
        "order_failures": ("key_id", "order_no"),
        "tenant_rates": ("tenant",),
        "dedupes": ("dedupe_id",),
        "workflows": ("root_run_id",),
        "joins": ("child_run_id",),
        "releases": ("id",),
        "batches": ("batch_id",),
        "batch_runs": ("batch_id", "ref"),
        "run_edges": ("batch_id", "parent_run_id", "child_run_id"),
        "backfills": ("backfill_id",),
        "cancellations": ("id",),
        "cancelled_jobs": ("cancellation_id", "job_id"),
        "pending_cancels": ("id",),
        "deferred_effects": ("run_id",),
        "requests": ("tenant", "request_id"),
    }
)

CARRIED: Mapping[str, tuple[str, ...]] = MappingProxyType({**JOBS, **RUN_STATES})


def topic_of(topics: Topics, kind: str) -> str:
    """Return the topic of a table's rows."""
    return topics.jobs if kind in JOBS else topics.run_states


def key_of(kind: str, key: str) -> bytes:
    """Return the Kafka key of a row.

    >>> key_of("jobs", '{"job_id": "6f1d0f3e-5b0e-5c7a-9a51-7d1e3a1f6c11"}')
    b'jobs {"job_id": "6f1d0f3e-5b0e-5c7a-9a51-7d1e3a1f6c11"}'
    """
    return f"{kind} {key}".encode()


def read_key(key: bytes) -> tuple[str, str]:
    """Return the table and the primary key of a Kafka key.

    >>> read_key(b'timers {"job_id": "6f1d"}')
    ('timers', '{"job_id": "6f1d"}')
    """
    kind, _, row = key.decode().partition(" ")
    if kind != MARK and kind not in CARRIED:
        message = f"the key {key[:60]!r} does not name a table that this release knows"
        raise ValueError(message)
    return kind, row
