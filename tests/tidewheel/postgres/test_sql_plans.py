"""Every hot statement takes the index that its comment promises, with 50,000 rows behind it.

The parameters are those of a busy moment: some dozens of ids, or the shards, slices and lanes of one process.
"""

import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString
from uuid import UUID

import pytest
from psycopg import ClientCursor
from psycopg.types.json import Jsonb

from tests.fixtures.database import Database, Template
from tests.fixtures.run_ids import run_instant
from tests.tidewheel.postgres.test_statements import INDEX_LINE, INDEX_NAME
from tidewheel.clock import SystemClock
from tidewheel.ids import run_range
from tidewheel.nouns.dead_letters.operations import DeadLetterFilter
from tidewheel.nouns.jobs.model import JobFilter
from tidewheel.nouns.runs.model import PageFilter
from tidewheel.outbox import slice_lane_of
from tidewheel.postgres.session import BY_KEY, KEPT_PLANS, UNIFORM, Conn, connect
from tidewheel.postgres.statements import Statements
from tidewheel.relay.outbox_rows import SESSION_OPTIONS
from tidewheel.runs import BARRED, OWNED, Cause, Gate, Move, RunState, sources
from tidewheel.scheduler.tenant_rows import find_tenant_tables, removal_from
from tidewheel.transitions.overlap import REPLACING

ROWS = 50_000
FEWER = 20_000  # where the plan does not turn on how many there are
BATCH = 60
PLACEHOLDER = re.compile(r"%\((\w+)\)s")
PARTITION = re.compile(r"^(finished_runs|run_inputs|attempts|attempt_outputs)_\d{8}")

_LOAD: tuple[LiteralString, ...] = (
    """
    INSERT INTO jobs (job_id, tenant, key, bucket, shard, version, schedule_kind, created_at, updated_at)
    SELECT md5('job' || n)::uuid, 'default', 'job-' || n, n %% 4096, n %% 64, 1, 'interval', now(), now()
      FROM generate_series(1, %(rows)s) AS n
    """,
    """
    INSERT INTO job_versions (job_id, version, tenant, effective_at, spec, schedule_json, policy_json, handler, queue,
                              lane, overlap, definition)
    SELECT job_id, 1, tenant, now(), '{}', 'a schedule of about the usual length, which is not short', '{}',
           'send-email', 'default', 'standard', 'skip', decode(repeat('ab', 300), 'hex')
      FROM jobs
    """,
    """
    INSERT INTO timers (job_id, tenant, shard, due_at, scheduled_at, version)
    SELECT job_id, tenant, shard, now() + bucket * interval '10 s' - interval '1 min',
           now() + bucket * interval '10 s' - interval '1 min', 1
      FROM jobs
    """,
    """
    INSERT INTO job_runs (run_id, job_id, tenant, shard, queue, lane, handler, cause, overlap, state, job_version,
                          scheduled_at, publish_at, created_at)
    SELECT (%(prefix)s || substr(md5('open' || n), 13))::uuid, md5('job' || n)::uuid, 'default', n %% 64, 'default',
           'standard', 'send-email', 'timer', 'skip', 'queued', 1, now(),
           now() + n %% 64 * interval '10 s' - interval '1 min', now()
      FROM generate_series(1, %(rows)s) AS n
    """,
    """
    INSERT INTO finished_runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at,
                               created_at, started_at, finished_at, state, attempt)
    SELECT (%(prefix)s || substr(md5('finished' || n), 13))::uuid, md5('job' || n)::uuid, 'default', 1, n %% 64,
           'timer', 'default', 'standard', now() - interval '1 min', now() - interval '1 min',
           now() - interval '1 min', now(), now(), 'succeeded', 1
      FROM generate_series(1, %(rows)s) AS n
    """,
    "INSERT INTO active_runs (job_id, tenant, run_id) SELECT job_id, tenant, run_id FROM job_runs",
    """
    INSERT INTO run_inputs (run_id, created_at, tenant, payload)
    SELECT run_id, created_at, tenant, decode(repeat('cd', 100), 'hex') FROM job_runs LIMIT %(fewer)s
    """,
    """
    INSERT INTO attempts (run_id, attempt, tenant, started_at, finished_at, outcome)
    SELECT run_id, 1, tenant, now(), now(), 'failed' FROM job_runs LIMIT %(fewer)s
    """,
    """
    INSERT INTO failed_runs (run_id, job_id, tenant, job_version, cause, queue, lane, scheduled_at, finished_at, state,
                             attempt)
    SELECT run_id, job_id, tenant, 1, cause, queue, lane, scheduled_at, now(), 'failed', 1
      FROM finished_runs ORDER BY md5(run_id::text) LIMIT %(fewer)s
    """,
    """
    INSERT INTO dead_letters (tenant, kind, run_id, job_id, reason, created_at)
    SELECT tenant, 'run', run_id, job_id, 'it failed', now() - row_number() OVER () * interval '1 s' FROM failed_runs
    """,
    """
    INSERT INTO audit_log (at, tenant, door, actor_kind, actor, action, object, result)
    SELECT now() - n * interval '1 s', 'default', 'rest', 'key', 'ops', 'job.pause', 'job/' || n, 'unknown_job'
      FROM generate_series(1, %(fewer)s) AS n
    """,
    """
    INSERT INTO outbox (slice_lane, publish_at, topic, key, value)
    SELECT shard %% 4 * 8 + shard / 8,
           now() + bucket * interval '1 s' - interval '1 min', 'tidewheel.runs.standard', 'k',
           decode(repeat('ef', 300), 'hex')
      FROM jobs
    """,
    """
    INSERT INTO overrides (job_id, scheduled_at, tenant, kind, moved_to, created_at)
    SELECT job_id, now() + interval '1 h', tenant, 'move', now() + interval '2 h', now() FROM jobs
    """,
    """
    INSERT INTO run_keys (key_id, tenant, key, burst, wake_at)
    SELECT n, 'default', 'key-' || n, 1, CASE WHEN n %% 100 = 0 THEN now() END FROM generate_series(1, %(rows)s) AS n
    """,
    """
    INSERT INTO order_keys (key_id, tenant, key, blocked_by, blocked_at)
    SELECT n, 'default', 'key-' || n, CASE WHEN n %% 10 = 0 THEN gen_random_uuid() END,
           CASE WHEN n %% 10 = 0 THEN now() END
      FROM generate_series(1, %(rows)s) AS n
    """,
    """
    INSERT INTO order_failures (key_id, order_no, tenant, run_id)
    SELECT n, 1, 'default', gen_random_uuid() FROM generate_series(1, %(rows)s) AS n
    """,
    """
    INSERT INTO key_limits (tenant, is_prefix, key, at_once, burst, set_by)
    SELECT 'default', n %% 100 = 0, 'key-' || n, 1, 1, 'test' FROM generate_series(1, %(rows)s) AS n
    """,
    """
    UPDATE job_runs SET key_id = n.key_id, concurrency_key = 'key', waits_for = n.key_id
      FROM (SELECT run_id, row_number() OVER () AS key_id FROM job_runs LIMIT %(fewer)s) AS n
     WHERE job_runs.run_id = n.run_id
    """,
    """
    INSERT INTO skips (job_id, tenant, job_version, reason, first_at, last_at, occurrences, created_at)
    SELECT job_id, tenant, 1, 'misfire', now() - n * interval '1 h', now() - n * interval '1 h', 1, now()
      FROM jobs CROSS JOIN generate_series(1, 2) AS n
    """,
    """
    INSERT INTO calendars (tenant, name, version, days, weekdays, updated_at)
    SELECT 'default', 'calendar-' || n, 1, ARRAY[current_date + 1, current_date + 2], '{0,6}', now()
      FROM generate_series(1, %(fewer)s) AS n
    """,
    """
    INSERT INTO job_calendars (tenant, name, job_id)
    SELECT tenant, 'calendar-' || bucket + 1, job_id FROM jobs
    """,
    """
    INSERT INTO requests (tenant, request_id, body_hash, reply, created_at)
    SELECT 'default', 'r-' || n, 'h', 'r', now() FROM generate_series(1, %(fewer)s) AS n
    """,
    """
    INSERT INTO signals (run_id, attempt, kind, tenant, executor_id, created_at)
    SELECT run_id, 1, 'cancel', tenant, md5('executor' || shard)::uuid, now() FROM job_runs LIMIT %(fewer)s
    """,
    """
    INSERT INTO workflows (root_run_id, tenant, root_job_id, shard, scheduled_at, graph_at, state, pending, created_at,
                           finished_at)
    SELECT md5('batch' || n)::uuid, n %% 10 || '', '00000000-0000-0000-0000-000000000000', n %% 64, now(), 'epoch',
           CASE WHEN n %% 10 = 0 THEN 'open' ELSE 'succeeded' END, 1, now(),
           CASE WHEN n %% 10 > 0 THEN now() - n * interval '1 min' END
      FROM generate_series(1, %(fewer)s) AS n
    """,
    """
    INSERT INTO batches (batch_id, tenant, open, total, callbacks)
    SELECT root_run_id, tenant, finished_at IS NULL, 1, '{}' FROM workflows
    """,
    """
    INSERT INTO batch_runs (batch_id, ref, tenant, run_id, job_id, delay_ms)
    SELECT batch_id, 'first', tenant, md5('first' || batch_id)::uuid, md5('job' || batch_id)::uuid, 1000 FROM batches
    """,
    """
    INSERT INTO workflows (root_run_id, tenant, root_job_id, shard, scheduled_at, graph_at, state, pending, created_at,
                           finished_at)
    SELECT md5('root' || n)::uuid, n %% 10 || '', md5('job' || n %% 100)::uuid, n %% 64, now() - n * interval '1 min',
           now(), 'succeeded', 0, now(), now()
      FROM generate_series(1, %(fewer)s) AS n
    """,
    """
    INSERT INTO run_edges (batch_id, parent_run_id, child_run_id, tenant, condition)
    SELECT batch_id, run_id, md5('second' || batch_id)::uuid, tenant, 'success' FROM batch_runs
    """,
    """
    INSERT INTO releases (shard, due_at, root_run_id, generation, scheduled_at, run_id, job_id, tenant, state, began,
                          holds)
    SELECT 1, now() + interval '1 h', batch_id, 0, now(), run_id, job_id, tenant, 'succeeded', true, false
      FROM batch_runs
    """,
    """
    INSERT INTO dedupes (dedupe_id, tenant, job_id, run_id, first_at, until_at, runs_at)
    SELECT n, 'default', md5('job' || n)::uuid, md5('open' || n)::uuid, now(), now() + n * interval '1 s', now()
      FROM generate_series(1, %(fewer)s) AS n
    """,
    """
    INSERT INTO activity (tenant, at, grain, queue, lane, state, runs, stages, took, slowest)
    SELECT 'tenant-' || n %% 100, now() - n * interval '1 s', 0, 'default', 'standard', 'succeeded', 1,
           ARRAY[(1::bigint << 48) + 1], ARRAY[1.0], ARRAY[gen_random_uuid()]
      FROM generate_series(1, %(rows)s) AS n
    """,
    "INSERT INTO tenant_rates (tenant, per_second) SELECT 'tenant-' || n, 1 FROM generate_series(1, %(fewer)s) AS n",
)


@pytest.fixture(scope="module")
def loaded(template: Template) -> Iterator[Database]:
    """A database with many rows in every table that grows, analyzed."""
    made = Database(template.copy(), template.installation)
    load(made)
    made.execute("VACUUM ANALYZE")
    yield made
    made.close()


def load(database: Database, tables: Collection[str] | None = None) -> None:
    """Insert many rows into every table that grows, or into these."""
    midnight = SystemClock().now().replace(hour=12, minute=0, second=0, microsecond=0)
    stamp = f"{int(midnight.timestamp() * 1000):012x}"
    with database.transaction() as connection:
        for statement in _LOAD:
            verb, _, table = statement.split()[:3]
            if tables is None or (verb == "INSERT" and table in tables):
                connection.execute(statement, {"rows": ROWS, "fewer": FEWER, "prefix": stamp})


def some(database: Database, query: LiteralString) -> list[Any]:
    return [row[0] for row in database.rows(query, [BATCH])]


@pytest.fixture(scope="module")
def batches(loaded: Database) -> dict[str, list[Any]]:
    """Values of the hot statements' parameters that have one for each of a batch, by the parameter's name."""
    now: datetime = loaded.now()
    runs: list[UUID] = some(loaded, "SELECT run_id FROM job_runs ORDER BY md5(run_id::text) LIMIT %s")
    jobs: list[UUID] = some(loaded, "SELECT job_id FROM jobs ORDER BY md5(job_id::text) LIMIT %s")
    return {
        "run_ids": runs,
        "job_ids": jobs,
        "attempts": [1] * BATCH,
        "versions": [1] * BATCH,
        "tenants": ["default"] * BATCH,
        "claimed_from": ["t/0/0@0"] * BATCH,
        "states": [RunState.SUCCEEDED] * BATCH,
        "executor_ids": [None] * BATCH,
        "reasons": [None] * BATCH,
        "error_types": [None] * BATCH,
        "started_at": [now] * BATCH,
        "finished_at": [now] * BATCH,
        "scheduled_at": [now] * BATCH,
        "publish_at": [now] * BATCH,
        "deadline_at": [None] * BATCH,
        "close_at": [None] * BATCH,
        "handlers": ["send-email"] * BATCH,
        "due_at": [now] * BATCH,
        "cursors": [now] * BATCH,
        "instants": [now] * BATCH,
        "ended_at": [now] * BATCH,
        "catch_up_ends": [None] * BATCH,
        "hold_reasons": [None] * BATCH,
        "overridden": [False] * BATCH,
        "delays": [timedelta(0)] * BATCH,
        "charges": [1] * BATCH,
        "losses": [0] * BATCH,
        "request_ids": [f"r-{number}" for number in range(BATCH)],
        "requested_from": [f"tidewheel.requests/0/{number}" for number in range(BATCH)],
        "new_run_ids": runs,
        "key_ids": list(range(BATCH)),
        "next_nos": [0] * BATCH,
        "heads": [None] * BATCH,
        "blockers": [None] * BATCH,
        "order_nos": [None] * BATCH,
        "waits_for": [None] * BATCH,
        "ctids": some(loaded, "SELECT ctid::text FROM outbox LIMIT %s"),
        "ids": some(loaded, "SELECT id FROM outbox LIMIT %s"),
    }


@pytest.fixture(scope="module")
def facts(loaded: Database, batches: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Values of every parameter of the hot statements, by the parameter's name."""
    now: datetime = loaded.now()
    runs, jobs = batches["run_ids"], batches["job_ids"]
    pairs = [(number, name) for name in ("critical", "standard", "events", "batch") for number in range(8)]
    one: dict[str, Any] = {
        "sources": sources(Move.CLAIM),
        "target": RunState.RUNNING,
        "running": RunState.RUNNING,
        "executor_id": UUID(int=1),
        "key_id": None,
        "acts_for": None,
        "met": Gate.MET,
        "key": Gate.KEY,
        "holds": Gate.HOLDS_KEY,
        "barred": BARRED,
        "moved": Gate.MOVED,
        "whole": Gate.WHOLE,
        "now": now,
        "run_id": runs[0],
        "job_id": jobs[0],
        "tenant": "default",
        "backed_off": [],
        "ahead": [timedelta(seconds=1)] * len(pairs),
        "early_topics": ["tidewheel.runs.standard"],
        "in_flight": [],
        "most_bytes": 1 << 24,
        "marks": [datetime(1970, 1, 1, tzinfo=UTC)] * len(pairs),
        "mark_ids": [0] * len(pairs),
        "ends": [datetime(9999, 12, 31, tzinfo=UTC)] * len(pairs),
        "end_ids": [0] * len(pairs),
        "slice_lanes": [slice_lane_of(number, name) for number, name in pairs],
        "limits": [BATCH] * len(pairs),
        "shards": list(range(64)),
        "horizon": now,
        "since": [now - timedelta(days=1)] * 64,
        "until": now,
        "per_shard": 4,
        "first": now - timedelta(hours=1),
        "last": now,
    }
    first, last = run_range(jobs[0], run_instant(runs[0]))
    return {**batches, **one, "first_run_id": first, "last_run_id": last}


# Of lists and walks: no filter but the first, from their beginnings.
_UNFILTERED: Mapping[str, object] = dict.fromkeys(
    [name for each in (PageFilter, DeadLetterFilter, JobFilter) for name in each.__annotations__]
    + ["handler", "order_id", "states", "ahead"]
)
_LONG_AGO, _FAR_AHEAD = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
_NOWHERE, _BEYOND = UUID(int=0), UUID(int=(1 << 128) - 1)
_RANGE: Mapping[str, object] = {"since": _LONG_AGO, "until": _FAR_AHEAD, "first_id": _NOWHERE, "limit": 51}
_WALK: Mapping[str, object] = {
    **_UNFILTERED, "created_before": _FAR_AHEAD, "include_started": True, "states": [RunState.QUEUED],
    "after_id": _NOWHERE,
    "after_at": _LONG_AGO, "limit": 1000, "scan_limit": 20_000,
}  # fmt: skip
_LETTERS: Mapping[str, object] = {
    **_UNFILTERED, **_RANGE, "before_at": _FAR_AHEAD, "before_id": (1 << 63) - 1, "after_at": _LONG_AGO, "after_id": 0,
    "look": 20_000,
}  # fmt: skip
_RUNS: Mapping[str, object] = {
    **_UNFILTERED,
    **_RANGE,
    "before_at": _FAR_AHEAD,
    "before_id": _BEYOND,
    "look": 51,
    "going_on": True,
}

_JOBS: Mapping[str, object] = {
    **_UNFILTERED, "after": "job-2", "prefix": "", "beyond": None, "labels": Jsonb({}), "occurs": True, "look": 20_000,
    "limit": 51,
}  # fmt: skip

_ROOTS: Mapping[str, object] = {
    "state": "failed", "before_at": _FAR_AHEAD, "before_id": _BEYOND, "look": 20_000, "limit": 51
}  # fmt: skip

# One attempt number and version for a batch.
_EARLY: Mapping[str, object] = {
    "attempt": 0, "job_version": 1, "free": "allow_all", "running": RunState.RUNNING, "succeeded": RunState.SUCCEEDED
}  # fmt: skip

_NOW = SystemClock().now()
_TODAY = _NOW.replace(hour=0, minute=0, second=0, microsecond=0)
_DAY: Mapping[str, object] = {
    "first": _TODAY, "end": _TODAY + timedelta(days=1), "before": _TODAY - timedelta(days=1),
    "after_at": _LONG_AGO, "after_id": UUID(int=0),
}  # fmt: skip
_OLD: Mapping[str, object] = {"before": _LONG_AGO, "limit": 1000}
_BATCH: Mapping[str, object] = {"batch_id": UUID(int=1)}

CALENDARS = [f"calendar-{number}" for number in range(BATCH)]

_NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
_TIME: Mapping[str, object] = {"since": _NOON - timedelta(days=7), "until": _NOON}

_WINDOWS: Mapping[str, object] = {"ids": list(range(BATCH))} | dict.fromkeys(
    ("first_at", "until_at", "runs_at"), [_NOON] * BATCH
)

_ACTIVITY: Mapping[str, object] = {
    "tenant": "tenant-1", "edges": [_TODAY - timedelta(days=1), _TODAY, _FAR_AHEAD], "since": _TODAY,
    "until": _FAR_AHEAD, "stages": [1], "look": 100_000, "limit": 50, "queue": "default",
    "lane": None,
}  # fmt: skip

_FREEZE: Mapping[str, object] = {
    "tenant": "default", "queue": "reports", "labels": None, "key_prefix": None, "only": None, "limit": 201,
    "look": 1000,
}  # fmt: skip

_SLICE: Mapping[str, object] = {"grain": 0, "first": _NOW - timedelta(hours=1), "end": _NOW - timedelta(minutes=50)}

# Parameters besides those of, or different from, `facts` has it.
SPECIAL: Mapping[str, Mapping[str, object]] = {
    "add_job_runs": {
        "states": [RunState.QUEUED] * BATCH,
        "shards": [1] * BATCH,
        "queues": ["default"] * BATCH,
        "lanes": ["standard"] * BATCH,
        "handlers": ["send-email"] * BATCH,
        "causes": ["timer"] * BATCH,
        "overlaps": ["skip"] * BATCH,
        "publish_at": [_NOON] * BATCH,
        "moved_ahead": [False] * BATCH,
        "created_at": [_NOON] * BATCH,
        "gates": [0] * BATCH,
        "priorities": [5] * BATCH,
        **dict.fromkeys(
            (
                "deadline_at",
                "close_at",
                "parents",
                "roots",
                "workflows",
                "generations",
                "keys",
                "key_ids",
                "order_nos",
                "waits_for",
            ),
            [None] * BATCH,
        ),
    },
    "read_run_states": {"since": _NOON, "until": _FAR_AHEAD},
    "read_last_attempts": {"since": _NOON, "until": _FAR_AHEAD},
    "read_ended_runs": {"since": _NOON, "until": _FAR_AHEAD},
    "add_order_failures": {"order_nos": [2] * BATCH},
    "lock_keyed": {"attempt": 0, "job_version": 1, "free": "allow_all"},
    "promote_for_keys": {"counts": [1] * BATCH, "target": RunState.QUEUED, "holds": [8] * BATCH},
    "wait_for_keys": {"waits_for": list(range(BATCH)), "kept": [0] * BATCH},
    "write_run_keys": {
        "running": [1] * BATCH,
        "unclaimed": [0] * BATCH,
        "waiters": [False] * BATCH,
        "bursts": [1] * BATCH,
        **dict.fromkeys(("at_once", "every_us", "tats", "wake_at"), [None] * BATCH),
    },
    "find_waiting_keys": {"tenant": "default", "first": "key-5", "last": "key-5\U0010ffff", "limit": 500},
    "find_edited_keys": {"versions": [2] * BATCH, "limit": 500},
    "find_woken_keys": {"count": 64, "limit": 500, "left": []},
    "probe_keys": {"count": 64, "left": []},
    "scan_keys": {"after": -1, "limit": 1000, "budget": 20_000, "idle_after": timedelta(minutes=10)},
    "remove_idle_keys": {"idle_after": timedelta(minutes=10)},
    "measure_tenant_key": {"tenant": "acme", "key_id": 1, "limit": 500_000},
    "read_activity": _ACTIVITY,
    "read_stages": _ACTIVITY,
    "find_slowest_runs": _ACTIVITY,
    "read_frozen_timers": _FREEZE,
    "read_paused_timers": {"limit": 201},
    "count_upcoming": {"edges": [_NOON, _FAR_AHEAD], "look": 100},
    "group_open_runs": {"look": 10_000, "holds": 5},
    "read_error_lines": {"run_ids": [_NOWHERE]},
    "read_newest_errors": {"job_ids": [_NOWHERE]},
    "find_runs_of_batches": {"run_ids": [_NOWHERE]},
    "find_unwell": {"job_ids": [_NOWHERE]},
    "count_freezable": {**_FREEZE, "tenant": "acme", "look": 20_000, "waiting": ["queued"], "under_way": ["running"]},
    "read_waits": {
        "lease": timedelta(seconds=30),
        "most": 10_000,
        "active": ["running"],
        "holds_key": 1,
        "holds_tenant": 2,
    },
    "find_failing_jobs": {
        "since": _TODAY,
        "hour": _NOON,
        "first_id": _NOWHERE,
        "look": 1000,
        "least": 3,
        "runs": 100,
        "failed": 2000,
    },
    "find_oldest_activity": {"grain": 0},
    "find_tenants_of_activity": _SLICE,
    "merge_activity": _SLICE | {"into": timedelta(minutes=1), "tenants": [str(number) for number in range(BATCH)]},
    "delete_old_skips": _OLD,
    "delete_old_activity": _OLD,
    "close_runs": {
        "allowed": ["succeeded:running"],
        "cancelling": RunState.CANCELLING,
        "held": False,
        "cancelled": RunState.CANCELLED,
    },
    "find_still_open": {"allowed": ["succeeded:running"]},
    "start_attempts": {"free": "allow_all", "limited": [], "holds_tenant": Gate.HOLDS_TENANT},
    "move_runs": {"queues": ["default"] * BATCH, "lanes": ["standard"] * BATCH},
    "hasten_run": {"state": RunState.RETRYING, "attempt": 2},
    "wait_runs": {"timeouts": [timedelta(hours=1)] * BATCH, "heartbeats": [None] * BATCH},
    "find_due_tenants": {
        "queues": ["default"] * 3,
        "lanes": ["critical", "standard", "batch"],
        "handlers": ["send-email"],
    },
    "find_due_runs": {
        "queues": ["default"] * 3,
        "lanes": ["critical", "standard", "batch"],
        "tenants": ["default"] * 3,
        "limits": [100] * 3,
        "marks": [_LONG_AGO] * 3,
        "handlers": ["send-email"],
    },
    "find_due_handled": {
        "queues": ["default"] * 3,
        "lanes": ["critical", "standard", "batch"],
        "handlers": ["send-email"],
        "limit": 100,
        "min_age": timedelta(seconds=1),
        "sources": sources(Move.CLAIM),
    },
    "measure_runs": {
        "sources": sources(Move.CLAIM),
        "owned": OWNED,
        "lease": timedelta(seconds=30),
        "limit": 100_000,
    },
    "measure_outbox": {"slice_lanes": list(range(32)), "limit": 12_500},
    "measure_timers": {"late": timedelta(seconds=1), "limit": 1000},
    "read_overdue_timers": {"late": timedelta(seconds=1), "limit": 10},
    "find_unhandled": {"min_age": timedelta(seconds=10), "silent_for": timedelta(seconds=60), "limit": 10_000},
    "find_waiting_runs": {"buffered": RunState.BUFFERED, "replacing": sorted(REPLACING)},
    "promote_next_runs": {"buffered": RunState.BUFFERED},
    "promote_waiting_runs": {"buffered": RunState.BUFFERED, "promoted": [False] * BATCH},
    "mark_waiters": {"no_run": UUID(int=0)},
    "probe_deadlines": {"states": [RunState.QUEUED], "left": [], "ahead": timedelta(seconds=1)},
    "find_overdue_runs": {"states": [RunState.QUEUED], "left": [], "limit": 500},
    "lock_overdue_runs": {"states": [RunState.QUEUED], "waiting": RunState.WAITING},
    "read_previous": {
        "at": _NOON,
        "causes": ["timer", "backfill"],
        "skipped": RunState.SKIPPED,
        "succeeded": RunState.SUCCEEDED,
        "limit": 1000,
    },
    "scan_active_runs": {"after": UUID(int=0), "limit": 1000},
    "find_unmarked_waiters": {"first": UUID(int=0), "last": UUID(int=(1 << 122) - 1), "buffered": RunState.BUFFERED},
    "read_signals": {"stray_after": timedelta(seconds=10)},
    "find_cancelled_of_job": _WALK,
    "find_cancelled": _WALK,
    "lock_cancelled": {"states": [RunState.QUEUED]},
    "list_dead_letters": _LETTERS | {"job_id": None},
    "last_dead_letter_looked_at": _LETTERS | {"job_id": None},
    "count_dead_letters": _LETTERS | {"job_id": None},
    "count_waiting_dead_letters": {"look": 1000, "except_jobs": [_NOWHERE]},
    "count_wrong": {"look": 1000, "lease": timedelta(seconds=30)},
    "group_dead_letters": _LETTERS | {"redriven": False, "look": 10_000},
    "find_open_states": {"job_id": None, "limit": 500},
    "purge_dead_letters": {"redriven": None},
    "count_repeats": {
        "changed": [f"job/{number}" for number in range(BATCH)],
        "actions": ["job.pause"] * BATCH,
        "results": ["unknown_job"] * BATCH,
        "doors": ["rest"] * BATCH,
        "kinds": ["key"] * BATCH,
        "actors": ["ops"] * BATCH,
        "named": [None] * BATCH,
        "key_ids": [None] * BATCH,
        "objects": [1] * BATCH,
    },
    "scan_dead_letters": _LETTERS | {"job_id": None},
    "scan_failed_runs": {
        **_UNFILTERED,
        "job_id": None,
        "after_id": _NOWHERE,
        "before_id": _BEYOND,
        "ended_until": _FAR_AHEAD,
        "look": 2000,
        "limit": 50,
    },
    **dict.fromkeys(
        (
            *("find_runs", "find_oldest_runs", "find_open_runs", "find_oldest_open_runs"),
            *("find_runs_of_job", "find_oldest_runs_of_job", "find_open_runs_of_job", "find_oldest_open_runs_of_job"),
            *("find_failed_runs", "find_oldest_failed_runs"),
            "find_longest_attempts",
            "count_states",
            "count_states_of_job",
        ),
        _RUNS,
    ),
    "lock_unstarted_backfill_runs": {"states": [RunState.QUEUED, RunState.BUFFERED]},
    "drop_moves": {"reason": "manual"},
    "flush_outputs": {"outputs": [b"x"] * BATCH, "output_bytes": [1] * BATCH, "states": [RunState.RUNNING]},
    "add_outputs": {
        "results": [None] * BATCH,
        "traces": [None] * BATCH,
        "outputs": [b"x"] * BATCH,
        "output_bytes": [1] * BATCH,
    },
    "count_runs_of_executors": {"look": 20_000, "parts": 5_000, "states": OWNED},
    "list_runs_of_executor": {"look": 20_000, "parts": 5_000, "states": OWNED, "queues": ["default"], "limit": 50},
    "read_logs": {"attempt": None, "read_attempt": 0, "read_bytes": 0, "limit": 20},
    "lock_attempt": {"attempt": 1, "running": RunState.RUNNING},
    "extend_deadlines": {"heartbeats": [timedelta(seconds=10)] * BATCH},
    "save_progress": {"progress": [b"{}"] * BATCH, "checkpoints": [b"{}"] * BATCH, "states": [RunState.RUNNING]},
    "read_versions_in_force": {"limit": 1001},
    "read_recorded": {"undone": [RunState.SKIPPED, RunState.CANCELLED]},
    "read_backfill_progress": {"job_version": 1},
    "lock_unstarted_runs": {"states": [RunState.QUEUED, RunState.BUFFERED], "limit": 1000},
    "read_day_sets": {"names": CALENDARS},
    "lock_calendars_for_share": {"names": CALENDARS},
    "find_calendar_jobs": {"name": CALENDARS[0]},
    "read_versions_near": {"at": _NOON, "limit": 5},
    "read_runs_at": {"at": _NOON},
    "read_skips_at": {"at": _NOON},
    "read_overrides_around": {"at": _NOON, "cursor_at": _NOON},
    "find_chain": {"at": _NOON, "causes": [Cause.TIMER]},
    "find_unfired": {"since": _NOON, "skipped": RunState.SKIPPED, "limit": 51},
    "find_timeline_runs": _TIME | {"limit": 401},
    "count_timeline_runs": _TIME | {"look": 20_000, "edges": [_NOON, _NOON]},
    "read_job_times": {"day": _NOON, "since": _NOON, "look": 1000},
    "count_runs_of_jobs": {
        "edges": [_NOON - timedelta(hours=1), _NOON],
        "since": [_NOON - timedelta(hours=1)],
        "until": [_NOON],
        "ended_since": _NOON - timedelta(days=1),
        "look": 101,
    },
    "read_versions_since": _TIME,
    "read_pauses": {"object": "job/5"},
    "find_runs_ahead": {"states": [RunState.QUEUED], "limit": 10},
    "read_versions": {"before": 9, "limit": 21},
    **dict.fromkeys(("find_jobs_of_page", "find_last_jobs_of_page"), _JOBS | {"count_limit": 10_001}),
    "add_order_keys": {"keys": ["key"] * BATCH},
    "extend_orders": {"keys": ["key"] * BATCH, "counts": [1] * BATCH},
    "promote_in_order": {"buffered": RunState.BUFFERED},
    "find_next_in_order": {"buffered": RunState.BUFFERED},
    "write_order_keys": {"wake_at": [None] * BATCH},
    "list_blocked_keys": {"after": _NOON, "after_id": 1, "limit": 50, "counted": 1000},
    "read_blocked_key": {"key_id": 10, "counted": 1000},
    "find_woken_orders": {"limit": 500, "left": []},
    "find_runs_of": {
        "after": UUID(int=0),
        "last": UUID(int=(1 << 128) - 1),
        "states": [RunState.QUEUED],
        "limit": 500,
    },
    "stage_outbox": {
        "topic": "tidewheel.runs.standard",
        "known": [],
        "row_limit": 1000,
        "tenant": None,
        "priority": None,
    },
    "read_in_order": {
        "topic": "tidewheel.runs.standard",
        "known": [],
        "row_limit": 1000,
        "tenant": "",
        "priority": 5,
        "before": 0,
    },
    "count_in_order": {"topic": "tidewheel.runs.standard", "row_limit": 1000, "tenant": "", "priority": 5},
    "delete_expired_replies": {"topics": ["tidewheel.replies.t.acme"], "kept": timedelta(days=1), "limit": 1000},
    "add_tenant_rates": {"rates": [1.0] * BATCH},
    "write_tenant_rate": {"per_second": 1.0, "first_bucket": 0, "used": [0] * 64, "held_from": None},
    "hold_runs": {"target": RunState.BUFFERED},
    "release_held_runs": {
        "target": RunState.QUEUED,
        "key_id": 1,
        "until": _NOON,
        "count": 1000,
        "times": [_NOON] * 1000,
    },
    "first_held": {"key_id": 1},
    "put_tenant_key": {"key_id": -1, "at_once": 1},
    "count_started_runs": {"tenant": "acme", "states": OWNED, "after": UUID(int=0), "limit": 1000},
    "add_counted_runs": {"key_id": 1, "runs": 1},
    "set_key_limit": {"is_prefix": False, "key": "key-1", "at_once": 1, "every_us": None, "burst": 1, "set_by": "test"},
    "list_key_limits": {"is_prefix": False, "after": "key-5", "limit": 51, "counted": 1000},
    "find_keys_from": {"text": "job-5", "limit": 100},
    "list_keys_in_use": {"after": "key-5", "first": "", "last": chr(0x10FFFF), "limit": 51, "counted": 1000},
    "grow_batch": _BATCH | {"runs": 1},
    "find_batch_runs": _BATCH | {"refs": ["first"] * BATCH},
    "find_batch_children": {"roots": [UUID(int=1)] * BATCH, "cursors": [None] * BATCH, "limit": 200},
    "repeat_batch_runs": _BATCH | {"old": [UUID(int=1)] * BATCH, "new": [UUID(int=2)] * BATCH},
    "count_batch_ends": {
        "batch_ids": [UUID(int=1)] * BATCH,
        "succeeded": [1] * BATCH,
        "failed_run_ids": [None] * BATCH,
    },
    **dict.fromkeys(
        ("read_batch", "read_batch_members", "read_batch_edges", "close_batch", "read_run_edges"),
        _BATCH,
    ),
    "find_workflows": {"tenant": "1", **_ROOTS},
    "find_workflows_of_root": _ROOTS,
    "list_batches": {"tenant": "1", "before": _BEYOND, "limit": 51},
    "read_batch_runs": _BATCH | {"limit": 1000, "after": ""},
    "list_failed_runs": _BATCH | {"limit": 200, "after": "", "look": 50_000},
    "read_batch_callbacks": _BATCH,
    "find_due_releases": {"limit": 500},
    **dict.fromkeys(
        (
            "delete_old_batch_runs",
            "delete_old_run_edges",
            "delete_old_batches",
            "delete_old_audit",
            "delete_old_failed_runs",
            "delete_old_dead_letters",
        ),
        _OLD,
    ),
    "find_runs_to_remove": _DAY | {"state": "succeeded", "after": UUID(int=0), "limit": 5000},
    "remove_runs": _DAY,
    "scan_ended_jobs": _OLD | {"after": UUID(int=0)},
    "lock_ended_jobs": _OLD,
    "find_edited_jobs": _OLD | {"after": UUID(int=0), "last": UUID(int=1 << 100)},
    "remove_versions": _OLD | {"delay": timedelta(days=400), "limit": 1000},
    "delete_old_windows": {"limit": 1000},
    "measure_blocked_keys": {"limit": 1000},
    "open_windows": {**_WINDOWS, "job_ids": [UUID(int=1)] * BATCH},
    "write_windows": _WINDOWS,
    "find_jobs_of": {"after": "", "limit": 200, "scan_limit": 10_000},
    "find_workflows_of": {"after": UUID(int=0), "limit": 10},
    "is_quiet": {"limit": 10_000},
}
_HOT = {
    "tidewheel": "count_repeats",
    "tidewheel.transitions": """
        lock_claims acquire_active_runs find_stale_active_runs start_attempts read_claims close_runs find_still_open
        release_active_runs drop_signals requeue_runs find_busy_attempts read_attempts read_definitions read_inputs
        find_existing_runs add_job_runs drop_repeated_runs keep_inputs
        retract_runs retract_skips restore_moves read_overrides read_day_sets move_timers
        lock_chained_timers move_chained_timers move_by_attempts drop_timers finish_jobs request_cancel
        find_waiting_runs lock_replaced_runs transfer_active_runs buffer_runs
        mark_waiters promote_next_runs promote_waiting_runs
        lock_keyed add_run_keys read_run_limits find_waiting_keys find_edited_keys find_first_waiting lock_run_keys
        wait_for_keys promote_for_keys
        find_keys_with_waiters write_run_keys lock_unbegun_runs move_runs hasten_run
        add_order_keys extend_orders lock_order_keys promote_in_order find_next_in_order write_order_keys
        drop_order_keys add_order_failures drop_order_failures leave_orders read_blockers find_woken_orders
        read_versions_in_force read_undecided read_recorded save_progress
        flush_outputs add_outputs read_ancestors mark_redriven
        find_roots read_run_states read_ended_runs
        lock_jobs_for_share read_shared_jobs read_retried_runs read_shared_versions scan_dead_letters
        scan_failed_runs find_retried_runs lock_dead_letters purge_dead_letters
        set_key_limit put_tenant_key count_started_runs add_counted_runs
        add_tenant_rates lock_tenant_rates write_tenant_rate hold_runs release_held_runs first_held
        grow_batch read_batch find_batch_runs find_batch_children find_batch_delays read_batch_members
        read_batch_edges repeat_batch_runs count_batch_ends close_batch
    """,
    "tidewheel.intake": """
        find_replies find_jobs lock_timers read_locked_timers
        lock_jobs read_locked_jobs
        lock_unstarted_runs lock_run read_run read_open_states wait_for_runs lock_attempts read_final_states
        extend_deadlines read_timers read_timer_runs resume_jobs
        lock_calendars_for_share find_calendar_jobs drop_job_calendars
        lock_unstarted_backfill_runs read_upcoming_overrides delete_overrides drop_moves read_requested_versions
        open_windows write_windows
    """,
    "tidewheel.scheduler": """
        find_oldest_activity find_tenants_of_activity merge_activity delete_old_activity delete_old_skips
        probe_timers lock_due_timers lock_timer
        find_woken_keys probe_keys scan_keys remove_idle_keys lock_keys repair_keys find_tenant_keys measure_tenant_key
        lock_job_without_timer scan_active_runs lock_active_runs find_unmarked_waiters
        lock_backfilled_job read_backfill_progress read_version_facts find_unhandled
        measure_runs measure_outbox measure_timers read_overdue_timers
        probe_deadlines find_overdue_runs lock_overdue_runs lock_overdue_runs_timers lock_overdue_runs_jobs
        find_cancelled_of_job find_cancelled lock_cancelled lock_cancelled_chains
        find_runs_of find_jobs_of lock_timers_to_drop mark_jobs_deleted
        find_due_releases measure_blocked_keys
        delete_old_windows delete_old_batch_runs delete_old_run_edges delete_old_batches
        find_runs_to_remove remove_runs
        scan_ended_jobs lock_ended_jobs find_edited_jobs remove_versions
        delete_old_audit delete_old_failed_runs delete_old_dead_letters
    """,
    "tidewheel.relay": """
        read_outbox probe_outbox delete_outbox find_unclaimed stage_outbox read_in_order count_in_order
        fetch_outbox delete_expired_replies
    """,
    "tidewheel.executor": """
        find_due_tenants find_due_runs find_due_handled read_owned_attempts read_previous read_signals lock_attempt
    """,
    "tidewheel.control": """
        read_logs read_run find_jobs_of_page find_last_jobs_of_page list_jobs show_job read_job_position
        read_versions_near read_runs_at
        read_attempts_of read_skips_at read_overrides_around
        count_runs_of_jobs read_plain_schedules read_job_times find_timeline_runs count_timeline_runs
        read_took_p95 read_streak read_error_lines read_newest_errors read_versions_since read_pauses
        find_chain find_runs_ahead find_unfired read_versions read_two_versions
        find_runs find_open_runs find_runs_of_job find_open_runs_of_job find_failed_runs read_runs show_run
        find_oldest_runs find_oldest_open_runs find_oldest_runs_of_job find_oldest_open_runs_of_job
        find_oldest_failed_runs
        show_failed_run read_retry_facts find_longest_attempts count_states count_states_of_job
        read_past_attempts read_last_attempts find_open_states
        find_keys_from read_paused_timers
        read_activity read_stages find_slowest_runs count_upcoming group_open_runs find_failing_jobs
        count_waiting_dead_letters count_wrong count_runs_of_executors list_runs_of_executor
    """,
    "tidewheel.nouns.dead_letters": "list_dead_letters last_dead_letter_looked_at group_dead_letters",
    "tidewheel.nouns.freezes": "read_frozen_timers",
    "tidewheel.nouns.limits": "list_blocked_keys read_blocked_key list_key_limits list_keys_in_use",
    "tidewheel.nouns.batches": "list_batches read_batch_runs list_failed_runs find_runs_of_batches"
    " read_batch_callbacks read_run_edges",
    "tidewheel.nouns.workflows": "find_workflows find_workflows_of_root",
    "tidewheel.nouns.works": "count_backfilled",
}
HOT = [(package, name) for package, names in _HOT.items() for name in names.split()]


def nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    children: Sequence[Mapping[str, Any]] = plan.get("Plans", ())
    for child in children:
        yield from nodes(child)


def plan_of(connection: Conn, statement: str, values: Mapping[str, object] | None = None) -> list[Mapping[str, Any]]:
    """The plan for these values; without any, that which a session would keep."""
    kind = "FORMAT JSON"
    if values is None:
        kind, statement = f"GENERIC_PLAN, {kind}", numbered(statement)
    explained = connection.execute(f"EXPLAIN ({kind}) {statement}".encode(), values).fetchone()
    connection.rollback()
    return nodes_of(explained)


def nodes_of(explained: tuple[Any, ...] | None) -> list[Mapping[str, Any]]:
    """All nodes of an explained plan."""
    assert explained is not None
    document: Any = explained[0]
    found: Any = json.loads(document) if isinstance(document, str) else document
    return list(nodes(found[0]["Plan"]))


def numbered(statement: str) -> str:
    """A statement with PostgreSQL's own placeholders."""
    numbers: dict[str, int] = {}
    return PLACEHOLDER.sub(lambda name: f"${numbers.setdefault(name[1], len(numbers) + 1)}", statement)


def indexes_of(plan: Sequence[Mapping[str, Any]]) -> set[str]:
    """The indexes a plan takes; a partition's by the name of its parent's."""
    taken = {str(node["Index Name"]) for node in plan if "Index Name" in node}
    taken |= {str(name) for node in plan for name in node.get("Conflict Arbiter Indexes", ())}
    return {PARTITION.sub(r"\1", name) for name in taken}


def promised(statement: str) -> set[str]:
    """The indexes that a statement's comment promises, as `indexes_of` would name them."""
    line = " ".join(INDEX_LINE.findall(statement))
    return set(INDEX_NAME.findall(line.partition(" Lock:")[0].partition("; ")[0]))


def big(database: Database) -> set[str]:
    """Tables that are too large to be read whole, partitions among them."""
    return {name for (name,) in database.rows("SELECT relname FROM pg_class WHERE relkind = 'r' AND reltuples > 10000")}


@pytest.fixture(scope="module", params=["", BY_KEY], ids=["", "by key"])
def planning(loaded: Database, request: pytest.FixtureRequest) -> Iterator[Conn]:
    """A connection that plans as it likes, and one as intake, scheduler and executor have."""
    connection = connect(loaded.url, "test", options=request.param)
    yield connection
    connection.close()


@pytest.mark.parametrize(("package", "name"), HOT)
def test_hot_statement_uses_the_index_of_its_comment(
    loaded: Database, planning: Conn, facts: Mapping[str, object], package: str, name: str
) -> None:
    statement = Statements(package)[name]
    plan = plan_of(planning, statement, {**facts, **SPECIAL.get(name, {})})
    read_whole = {str(node["Relation Name"]) for node in plan if node["Node Type"] == "Seq Scan"}
    assert not read_whole & big(loaded)
    taken = indexes_of(plan)
    assert promised(statement) <= taken, plan
    line = " ".join(INDEX_LINE.findall(statement))
    if "primary key" in line:
        assert {index for index in taken if index.endswith("_pkey")}
    if "index by run" in line or "indexes by run" in line:
        assert "finished_runs_run_id_idx" in taken
    if "by job in every" in line:
        assert "finished_runs_job_id_scheduled_at_idx" in taken
    if "by tid" in line:
        assert any(node["Node Type"] == "Tid Scan" for node in plan)
        assert not taken


def test_unwell_jobs_are_read_by_their_ids_and_not_looked_for_among_all_keys(
    planning: Conn, facts: Mapping[str, object]
) -> None:
    statement = Statements("tidewheel.control")["find_jobs_of_page"]
    taken = indexes_of(plan_of(planning, statement, {**facts, **SPECIAL["find_jobs_of_page"], "unwell": True}))
    assert {"jobs_pkey", "failed_runs_by_tenant", "finished_runs_job_id_scheduled_at_idx"} <= taken
    assert "jobs_by_key" not in taken


@pytest.mark.parametrize(
    ("package", "name"), [("tidewheel.control", "read_waits"), ("tidewheel.nouns.freezes", "count_freezable")]
)
def test_reasons_of_waits_and_counts_of_freezes_read_no_run_table_whole(
    planning: Conn, facts: Mapping[str, object], package: str, name: str
) -> None:
    plan = plan_of(planning, Statements(package)[name], {**facts, **SPECIAL[name]})
    assert "job_runs" not in {node["Relation Name"] for node in plan if node["Node Type"] == "Seq Scan"}


def test_label_search_does_not_fetch_jobs_one_by_one(planning: Conn, facts: Mapping[str, object]) -> None:
    known = Statements("tidewheel.intake")
    planning.execute(known["reset_plan_mode"])
    plan = plan_of(planning, known["find_labelled_jobs"], {**facts, "labels": Jsonb({"team": "billing"}), "limit": 10})
    assert [node["Node Type"] for node in plan if node.get("Relation Name") == "jobs"] == ["Seq Scan"]


_FEW: tuple[LiteralString, ...] = (
    """
    INSERT INTO jobs (job_id, tenant, key, bucket, shard, version, created_at, updated_at, deleted_at)
    SELECT md5('job' || n)::uuid, 'tenant-' || n %% 10, 'job-' || n, 0, n %% 64, 1, now(), now(), now()
      FROM generate_series(1, 500) AS n
    """,
    """
    INSERT INTO job_runs (run_id, job_id, tenant, shard, queue, lane, handler, cause, overlap, state, job_version,
                          scheduled_at, publish_at, created_at)
    SELECT md5('run' || key)::uuid, job_id, tenant, shard, 'default', 'standard', 'send-email', 'timer', 'skip',
           'queued', 1, now(), now(), now()
      FROM jobs
    """,
    """
    INSERT INTO finished_runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at,
                               created_at, finished_at, state, attempt)
    SELECT run_id, job_id, tenant, 1, shard, 'timer', 'default', 'standard', now(), now(), now(), now(), 'succeeded', 1
      FROM job_runs
    """,
    """
    INSERT INTO attempts (run_id, attempt, tenant, started_at, finished_at, outcome)
    SELECT run_id, 1, tenant, now(), now(), 'failed' FROM job_runs
    """,
    """
    INSERT INTO workflows (root_run_id, tenant, root_job_id, shard, scheduled_at, graph_at, state, pending, created_at,
                           finished_at)
    SELECT run_id, tenant, job_id, shard, now(), now(), CASE WHEN shard > 9 THEN 'succeeded' ELSE 'open' END, 1, now(),
           CASE WHEN shard > 9 THEN now() END
      FROM job_runs
    """,
    """
    INSERT INTO releases (shard, due_at, root_run_id, generation, scheduled_at, run_id, job_id, tenant, state, began,
                          holds)
    SELECT shard, CASE WHEN shard > 9 THEN 'infinity' ELSE now() END, run_id, 0, now(), run_id, job_id, tenant,
           'succeeded', true, false
      FROM job_runs
    """,
)


@pytest.fixture(scope="module")
def few(template: Template) -> Iterator[Database]:
    """A database with few rows of each of ten tenants, analyzed: to read a table whole looks cheap."""
    made = Database(template.copy(), template.installation)
    with made.transaction() as connection:
        for statement in _FEW:
            connection.execute(statement, {})
    made.execute("ANALYZE")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("name", "index"),
    [("find_jobs_of", "jobs_by_key"), ("find_workflows_of", "workflows_open"), ("is_quiet", "releases_due")],
)
def test_deletion_of_a_tenant_reads_no_table_whole(few: Database, name: str, index: str) -> None:
    values = {**SPECIAL[name], "tenant": "tenant-1", "shards": list(range(64))}
    with closing(connect(few.url, "test", options=BY_KEY)) as connection:
        plan = plan_of(connection, Statements("tidewheel.scheduler")[name], values)
    assert index in indexes_of(plan)
    assert not [node for node in plan if node["Node Type"] in {"Seq Scan", "Sort", "Incremental Sort"}]
    # No row of another tenant is read, but releases that are due.
    scans = [node for node in plan if "Relation Name" in node and node["Relation Name"] != "releases"]
    assert all("tenant = " in node["Index Cond"] and "tenant" not in node.get("Filter", "") for node in scans)


def test_removal_of_rows_begins_where_the_last_one_has_ended(few: Database) -> None:
    """By the index that begins with the tenant, in its order; else by pages."""
    day = f"{few.now():%Y%m%d}"
    keys = {
        "jobs": ("jobs_by_key", ["job-1"]),
        f"finished_runs_{day}": (f"finished_runs_{day}_tenant_run_id_idx", [str(UUID(int=1))]),
        "dead_letters": ("dead_letters_by_tenant", ["2026-11-20 12:00:00+00", "7"]),
        "requests": ("requests_pkey", ["r-1"]),
    }
    with closing(connect(few.url, "test", options=BY_KEY)) as connection:
        tables = {table.name: table for table in find_tenant_tables(connection, "")}
        for name, (index, key) in keys.items():
            after = {f"after_{number}": value for number, value in enumerate(key)}
            statement = removal_from(tables[name], key).as_string(connection)
            plan = plan_of(connection, statement, {"tenant": "tenant-1", "limit": 1000, **after})
            [scan] = [node for node in plan if "Index Name" in node]
            assert scan["Index Name"] == index
            assert {"tenant = ", " >= "} <= {words for words in ("tenant = ", " >= ") if words in scan["Index Cond"]}
            assert {str(node["Node Type"]) for node in plan if node.get("Relation Name") == name} == {
                "Index Scan", "ModifyTable", "Tid Scan",
            }  # fmt: skip
        for name in ("job_versions", "workflows", "releases", f"attempts_{day}"):
            pages = {"first": "(0,0)", "end": "(64,0)", "tenant": "tenant-1"}
            plan = plan_of(connection, removal_from(tables[name], None).as_string(connection), pages)
            assert [node["Node Type"] for node in plan] == ["ModifyTable", "Tid Range Scan"]


def partitions_in(plan: Sequence[Mapping[str, Any]]) -> set[str]:
    """The partitions that a plan reads."""
    return {name for node in plan if PARTITION.match(name := str(node.get("Relation Name")))}


@pytest.mark.parametrize("name", ["read_inputs", "keep_inputs"])
def test_plan_reads_the_partitions_of_its_days_only(loaded: Database, facts: Mapping[str, object], name: str) -> None:
    """Ninety days of partitions must not cost more than one."""
    now = loaded.now()
    with loaded.transaction() as connection:
        statement = Statements("tidewheel.transitions")[name]
        plan = plan_of(connection, statement, {**facts, "first": now, "last": now})
    assert partitions_in(plan) == {f"run_inputs_{now:%Y%m%d}"}


@pytest.mark.parametrize("name", ["close_runs", "add_job_runs"])
def test_plan_of_a_write_reads_no_partition(loaded: Database, facts: Mapping[str, object], name: str) -> None:
    plan = loaded.within(plan_of, Statements("tidewheel.transitions")[name], {**facts, **SPECIAL[name]})
    assert partitions_in(plan) == set()


# What looks a batch of runs up among those that are open.
LOOKING_UP = {
    "tidewheel.transitions": """
        lock_claims find_stale_active_runs start_attempts read_claims close_runs find_still_open requeue_runs wait_runs
        find_busy_attempts save_progress flush_outputs start_cancelling
    """,
    "tidewheel.scheduler": "scan_active_runs",
    "tidewheel.executor": "read_owned_attempts",
    "tidewheel.intake": "extend_deadlines",
}
BY_ID = re.compile(r"job_runs_pkey \(run_id = \w+\.\w+\)$")  # of one run at a time, which another row names
BY_JOB = re.compile(r"job_runs_(by_job|moved_ahead) \(\(?job_id = ")
BOTH_WAYS = re.compile(r"run_id = ANY .*run_id = \w+\.|run_id = \w+\..*run_id = ANY ")


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package, names in LOOKING_UP.items() for name in names.split()]
)
def test_batch_of_runs_is_read_by_keys_with_any_statistics(
    loaded: Database, batches: Mapping[str, list[Any]], facts: Mapping[str, object], package: str, name: str
) -> None:
    """An ANALYZE after nearly all runs ended must not make the plan scan all open runs."""
    special = SPECIAL.get(name, {})
    connection = connect(loaded.url, "test", options=BY_KEY)
    try:
        for rows, times in itertools.product((0, 10, 1000), (1, 16)):
            pretend_open_runs(connection, rows)
            many = {key: value * times for key, value in batches.items()}
            plan = plan_of(connection, Statements(package)[name], {**facts, **special, **many})
            looks = looks_at_open_runs(plan)
            assert looks
            assert all(BY_ID.match(look) for look in looks), (rows, times, looks)
            # One at a time and out of the whole batch at once: the batch would be sorted for each.
            assert not [node for node in plan if BOTH_WAYS.search(node.get("Index Cond", ""))]
    finally:
        connection.close()


@pytest.mark.parametrize("name", ["lock_claims", "find_stale_active_runs", "start_attempts", "read_claims"])
def test_cached_plan_of_a_claiming_session_uses_keys(loaded: Database, name: str) -> None:
    """It was made for some other batch, at some other time."""
    connection = connect(loaded.url, "test", options=KEPT_PLANS)
    try:
        for rows in (0, 10, 1000):
            pretend_open_runs(connection, rows)
            looks = looks_at_open_runs(plan_of(connection, Statements("tidewheel.transitions")[name]))
            assert looks
            assert all(BY_ID.match(look) for look in looks), (rows, looks)
    finally:
        connection.close()


@pytest.mark.parametrize("name", ["claim_uniform", "close_uniform"])
def test_kept_plan_of_a_uniform_statement_locks_runs_in_the_order_of_their_key(loaded: Database, name: str) -> None:
    """A scan in the order of pages, or a loop over the batch, could make a circle with another statement."""
    connection = connect(loaded.url, "test", options=UNIFORM)
    try:
        for rows in (0, 10, 1000, 100_000):
            pretend_open_runs(connection, rows)
            assert_locks_runs_by_key(plan_of(connection, Statements("tidewheel.transitions")[name]))
    finally:
        connection.close()


def assert_locks_runs_by_key(plan: Sequence[Mapping[str, Any]]) -> None:
    first, *others = looks_at_open_runs(plan)
    assert re.match(r"job_runs_pkey \(run_id = ANY \(", first), first
    assert all(BY_JOB.match(look) for look in others), others
    assert not [node for node in plan if node["Node Type"] == "Nested Loop"]
    assert not [node for node in plan if node["Node Type"].startswith("Bitmap")]


@pytest.mark.parametrize("count", [1, 10_000])
def test_timers_are_moved_by_their_keys_however_many_a_batch_has(loaded: Database, count: int) -> None:
    """A join that can be hashed would read all timers of the table for a large batch."""
    values = {
        "job_ids": [row[0] for row in loaded.rows("SELECT job_id FROM timers LIMIT %s", [count])],
        **{name: [loaded.now()] * count for name in ("scheduled_at", "due_at", "catch_up_ends")},
        "hold_reasons": [None] * count,
        "overridden": [False] * count,
    }
    with closing(connect(loaded.url, "test", options=BY_KEY)) as connection:
        plan = plan_of(connection, Statements("tidewheel.transitions")["move_timers"], values)
    [scan] = [node for node in plan if node.get("Relation Name") == "timers" and "Scan" in node["Node Type"]]
    assert scan["Index Name"] == "timers_pkey"
    assert "moved.job_id" in scan["Index Cond"]


# Those that take and give back places of keys, of concurrency and of an order.
OF_KEYS = (
    *("add_run_keys", "lock_run_keys", "read_run_limits", "find_first_waiting", "wait_for_keys", "promote_for_keys"),
    *("find_keys_with_waiters", "write_run_keys", "start_attempts", "lock_order_keys", "promote_in_order"),
    *("find_next_in_order", "write_order_keys", "drop_order_keys", "read_definitions"),
)
# Statements that services execute while the tables are empty, with the options of the session that does.
PLANNED_EARLY = {
    "claim_uniform": ("tidewheel.transitions", KEPT_PLANS),
    "close_uniform": ("tidewheel.transitions", UNIFORM),
    **dict.fromkeys(OF_KEYS, ("tidewheel.transitions", UNIFORM)),
    "find_due_tenants": ("tidewheel.executor", ""),
    "find_due_runs": ("tidewheel.executor", ""),
    "probe_outbox": ("tidewheel.relay", SESSION_OPTIONS),
    "read_outbox": ("tidewheel.relay", SESSION_OPTIONS),
    "probe_timers": ("tidewheel.scheduler", BY_KEY),
    "lock_due_timers": ("tidewheel.scheduler", BY_KEY),
}
EARLY_TABLES = {
    "jobs",
    "job_versions",
    "timers",
    "job_runs",
    "active_runs",
    "finished_runs",
    "outbox",
    "order_keys",
    "order_failures",
}  # of those
POLLS = 20  # at the sixth execution the server decides whether it keeps a plan


@pytest.fixture(scope="module")
def plans_after_growth(template: Template, facts: Mapping[str, object]) -> Iterator[dict[str, list[Mapping[str, Any]]]]:
    """Plans for 50,000 rows without statistics, in the sessions that executed the statements on no rows."""
    grown = Database(template.copy(), template.installation)
    grown.execute("VACUUM ANALYZE")
    sessions: dict[str, tuple[Conn, str]] = {}
    for name, (package, options) in PLANNED_EARLY.items():
        connection = connect(grown.url, "test", options=options, autocommit=True)
        statement = Statements(package)[name]
        connection.execute(f"PREPARE early AS {numbered(statement)}".encode())
        names = dict.fromkeys(PLACEHOLDER.findall(statement))
        call = f"EXECUTE early ({', '.join(f'%({each})s' for each in names)})"
        sessions[name] = (
            connection,
            ClientCursor(connection).mogrify(call.encode(), {**facts, **_EARLY, **SPECIAL.get(name, {})}),
        )
        for _ in range(POLLS):
            connection.execute(sessions[name][1].encode())
    load(grown, EARLY_TABLES)
    yield {
        name: nodes_of(connection.execute(f"EXPLAIN (FORMAT JSON) {call}".encode()).fetchone())
        for name, (connection, call) in sessions.items()
    }
    for connection, _ in sessions.values():
        connection.close()
    grown.close()


@pytest.mark.parametrize("name", PLANNED_EARLY)
def test_plan_made_on_empty_tables_uses_the_index_after_they_have_grown(
    loaded: Database, plans_after_growth: Mapping[str, list[Mapping[str, Any]]], name: str
) -> None:
    plan = plans_after_growth[name]
    assert not {str(node.get("Relation Name")) for node in plan if node["Node Type"] == "Seq Scan"} & big(loaded)
    if name in {"claim_uniform", "close_uniform"}:
        assert_locks_runs_by_key(plan)
    if name in OF_KEYS:  # no index is read from its begin to its end
        assert not [node for node in plan if node["Node Type"].startswith("Index") and "Index Cond" not in node]
    assert promised(Statements(PLANNED_EARLY[name][0])[name]) <= indexes_of(plan), plan


def pretend_open_runs(connection: Conn, rows: int) -> None:
    """Statistics of that many, in this transaction."""
    connection.execute("DELETE FROM pg_statistic WHERE starelid = 'job_runs'::regclass")
    connection.execute(
        "UPDATE pg_class SET reltuples = %s"
        " WHERE oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = 'job_runs'::regclass"
        "               UNION SELECT 'job_runs'::regclass)",
        [rows],
    )


def looks_at_open_runs(plan: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each reading of job_runs that is not by tid: its index, and what is looked for in it."""
    return [
        f"{node.get('Index Name')} {node.get('Index Cond')}"
        for node in plan
        if node["Node Type"] in {"Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Index Scan"}
        and (node.get("Relation Name") == "job_runs" or str(node.get("Index Name")).startswith("job_runs"))
    ]


def test_outbox_scan_begins_at_the_low_water_mark(loaded: Database, facts: Mapping[str, object]) -> None:
    """Rows behind the low-water mark are not scanned: the mark is an index condition, not a filter."""
    plan = loaded.within(plan_of, Statements("tidewheel.relay")["read_outbox"], facts)
    [scan] = [node for node in plan if node.get("Index Name") == "outbox_due"]
    assert "ROW(publish_at, id) > " in scan["Index Cond"]
    assert "publish_at <= " in scan["Index Cond"]
    # Nothing sorts, gathers or joins otherwise: what is read comes in the index's order, slice by slice.
    in_order = {"Nested Loop", "Function Scan", "Limit", "Index Scan", "Result"}
    assert {node["Node Type"] for node in plan} <= in_order | {"ProjectSet"}  # of the ids in flight


@pytest.mark.parametrize("name", ["read_outbox", "read_in_order", "stage_outbox"])
def test_kept_plan_hashes_the_ids_that_the_relay_passes_over(loaded: Database, name: str) -> None:
    """Otherwise it compares each row with each of thousands of ids."""
    statement = Statements("tidewheel.relay")[name]
    with connect(loaded.url, "test", options=f"{SESSION_OPTIONS} -c plan_cache_mode=force_generic_plan") as connection:
        connection.execute(f"PREPARE kept AS {numbered(statement)}".encode())
        nulls = ", ".join("NULL" for _ in dict.fromkeys(PLACEHOLDER.findall(statement)))
        lines = connection.execute(f"EXPLAIN EXECUTE kept ({nulls})".encode()).fetchall()
    plan = "\n".join(str(line) for (line,) in lines)
    assert "NOT (ANY (id = (hashed SubPlan" in plan or "NOT (hashed SubPlan" in plan


def test_sweep_reads_due_runs_only(loaded: Database, facts: Mapping[str, object]) -> None:
    with loaded.transaction() as connection:
        statement = Statements("tidewheel.executor")["find_due_runs"]
        plan = plan_of(connection, statement, {**facts, **SPECIAL["find_due_runs"]})
    [scan] = [node for node in plan if node.get("Index Name") == "job_runs_due"]
    assert all(column in scan["Index Cond"] for column in ("queue", "lane", "tenant", "publish_at"))


@pytest.mark.parametrize("name", ["contest_runs", "contest_free_runs"])
def test_runs_whose_policy_limits_nothing_read_no_other_run(loaded: Database, name: str) -> None:
    """Else every batch of messages reads all due runs of its job: a million under a freeze."""
    plan = loaded.within(plan_of, Statements("tidewheel.transitions")[name])
    [gate] = [node for node in plan if "One-Time Filter" in node]
    assert "job_runs" in {str(node.get("Relation Name")) for node in nodes(gate)}
