"""Examples of the OpenAPI document, the bodies that are sent, and the tables of derived routes."""

from collections.abc import Mapping
from dataclasses import dataclass

from tidewheel.control.api.answers import TRACEPARENT
from tidewheel.doors.rest import Route
from tidewheel.jobs.strict_json import Json
from tidewheel.nouns.batches.operations import ChangedBatch, CreatedBatch
from tidewheel.nouns.workflows.operations import ChangedWorkflow

RUN_ID = "019d3a1c-7f00-8123-8456-789abcdef012"
EXECUTOR_ID = "6c1f7c1e-1f5a-4d0e-9b57-0a3f6f2f7a10"
JOB_ID = "2f0b9a7e-6f6b-5d0c-9d2e-0c7a4f1b2a33"
WORK_ID = "3f2c6f6e-8a5d-4a44-8c7e-0d6f0d9a9c11"
AT, NEXT = "2026-11-20T01:00:00Z", "2026-11-21T01:00:00Z"
_TIMES: dict[str, Json] = {"started_at": "2026-11-20T01:00:00.021Z", "finished_at": "2026-11-20T01:00:04.221Z"}
_NO_ERROR: dict[str, Json] = {"reason": None, "error_type": None}
_REASON: Json = {"reason": "maintenance"}
_CHANGED: Json = {"unchanged": False}

KEYLESS_SPEC: dict[str, Json] = {
    "schedule": {"cron": "0 2 * * *", "timezone": "Europe/Berlin"}, "target": "nightly-report", "overlap": "skip"
}  # fmt: skip
JOB_SPEC: dict[str, Json] = {"key": "nightly", **KEYLESS_SPEC}
_LAST_RUN: dict[str, Json] = {
    "run_id": RUN_ID, "state": "succeeded", "scheduled_at": AT, **_TIMES, "duration": "PT4.2S", **_NO_ERROR,
}  # fmt: skip
_JOB_SUMMARY: dict[str, Json] = {
    "key": "nightly", "job_id": JOB_ID, "version": 3, "kind": "cron",
    "schedule": {"kind": "cron", "expressions": ["0 2 * * *"], "timezone": "Europe/Berlin"},
    "timezone": "Europe/Berlin", "labels": {"team": "billing"}, "paused": False, "paused_until": None,
    "finished_at": None, "hold_reason": None, "postponed_until": None, "next_at": NEXT, "last_run": _LAST_RUN,
}  # fmt: skip
JOBS: Json = {"jobs": [_JOB_SUMMARY], "next_cursor": None, "total": 1, "at_least": False}
JOB: Json = {
    "summary": _JOB_SUMMARY, "job": JOB_SPEC, "effective_at": "2026-11-01T09:00:00Z",
    "created_at": "2026-10-01T09:00:00Z", "paused_by": None, "pause_reason": None, "paused_at": None,
    "consecutive_failures": 0, "error": None, "quarantined_at": None, "freezes": [],
}  # fmt: skip
CHANGED_JOB: Json = {"key": "nightly", "job_id": JOB_ID, "version": 3, "unchanged": False, "next_run_at": NEXT}
BULK: Json = {
    "accepted": 1, "rejected": 0, "results": [{"key": "nightly", "accepted": True, "job": CHANGED_JOB, "errors": []}],
}  # fmt: skip
OCCURRENCE: dict[str, Json] = {
    "at": NEXT, "local": "2026-11-21T02:00:00+01:00", "outcome": "scheduled", "leaves_at": NEXT, "run_id": None,
    "last_at": None, "occurrences": 1, "exact": True, "notes": [], "overridden": False,
}  # fmt: skip
BACKFILL: Json = {"backfill_id": "019d3a1c-7f00-8123-8456-789abcdef013", "occurrences": 7, "unchanged": False}
RELEASED: Json = {"released": 1, "matched": 1, "first": [
    {"job_id": JOB_ID, "key": "nightly", "error": "no such zone", "created_at": AT}]}  # fmt: skip
VERSIONS: Json = {"next_cursor": None, "versions": [
    {"number": 1, "effective_at": "2026-10-01T09:00:00Z", "until": None, "retired_at": None,
     "payload_sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "payload_bytes": 0,
     "changes": []}]}  # fmt: skip
PREVIEW: Json = {
    "key": "nightly", "version": 1, "zone": "Europe/Berlin", "now": AT, "words": ["every day at 02:00"],
    "occurrences": [OCCURRENCE], "exhausted": False, "drops": "",
}  # fmt: skip
DIAGNOSIS: Json = {
    "report": {
        "findings": [{
            "check": "server", "severity": "warning", "what": "a transaction holds vacuum back",
            "evidence": "pid 4711 since 22 min", "remedy": "end it",
        }],
        "passed": ["database", "schema"], "skipped": [],
    },
    "checked_at": AT, "is_running": False,
}  # fmt: skip
ANSWER: Json = {
    "question": "nightly", "kind": "job", "target": "nightly", "words": "a job",
    "alternatives": [{"kind": "job", "target": "nightly-report", "words": "a job"}],
}  # fmt: skip
REGISTRATION: Json = {"name": "worker-1:7", "handlers": ["nightly-report"], "slots": 4}
REGISTERED: Json = {
    "executor_id": EXECUTOR_ID, "heartbeat_seconds": 1.0, "lease_seconds": 15.0, "sweep_seconds": 1.0,
    "topics": [{"topic": "tidewheel.runs.standard", "group": "tidewheel.runs.standard.executors"}],
    "max_runs": 100, "max_sweep": 100, "max_outcomes": 100,
}  # fmt: skip
STARTED: Json = {"started": [{
    "run_id": RUN_ID, "attempt": 1, "failed_attempts": 0, "lost_attempts": 0, "started_at": AT,
    "schedule_to_close_remaining_seconds": None, "task_token": "AZ06HH8AgSOEVnia", "request": None,
}]}  # fmt: skip
RESUMPTION: Json = {
    "jobs": [{"key": "nightly", "fires": 1, "skips": 13, "at_least": False}], "fires": 1, "skips": 13,
    "at_least": False, "words": [
        "14 occurrences came due during the pause.", "1 fires at once, and 13 are skipped.",
        "To run a skipped occurrence later, use a backfill.",
    ],
}  # fmt: skip
_RUN: dict[str, Json] = {
    "run_id": RUN_ID, "key": "nightly", "job_id": JOB_ID, "job_version": 3, "status": "succeeded", "cause": "timer",
    "queue": "default", "lane": "standard", "attempt": 1, "scheduled_at": AT, "created_at": "2026-11-20T00:59:59.8Z",
    "publish_at": None, **_TIMES, **_NO_ERROR, "concurrency_key": None, "why": None,
}  # fmt: skip
RUNS: Json = {"runs": [_RUN], "next_cursor": None, "total": 1, "at_least": False}
_CLAIMED_FROM = "tidewheel.runs.standard/3/1841@1795568400004"
_ATTEMPT: dict[str, Json] = {
    "attempt": 1, "outcome": "succeeded", "executor_id": EXECUTOR_ID, **_TIMES, "error_type": None,
    "error_message": None, "claimed_from": _CLAIMED_FROM, "trace": None, "output_bytes": 0, "result": {"rows": 7},
}  # fmt: skip
ATTEMPTS: Json = {"attempts": [_ATTEMPT]}
RUN: Json = {
    **_RUN, "handler": "nightly-report", "labels": {"team": "billing"}, "max_attempts": 4,
    "failed_attempts": 0, "lost_attempts": 0,
    "deadline_at": None, "schedule_to_close_at": None, "external_deadline_at": None, "executor_id": None,
    "executor": None, "claimed_from": None, "progress": None, "progress_at": None, "checkpoint": None,
    "checkpoint_attempt": None, "error_message": None, "result": {"rows": 7}, "late": None, "request_id": None,
    "traceparent": None, "dead_letter": None, "workflow_run_id": None, "batch_id": None,
    "retry_chain": {"parent_run_id": None, "root_run_id": None, "previous": [], "next": []}, "attempts": [_ATTEMPT],
    "payload": {"bytes": 16, "content_type": "application/json", "is_own": False},
    "stages": [
        {"name": "due", "attempt": None, "at": AT, "clock": "database", "known": True},
        {"name": "published", "attempt": 1, "at": "2026-11-20T01:00:00.004Z", "clock": "broker", "known": True},
        {"name": "begun", "attempt": 1, "at": None, "clock": "executor", "known": False},
    ],
    "archived": False, "copied": False,
}  # fmt: skip
LOGS: Json = {"logs": [{"attempt": 1, "outcome": "succeeded", "dropped_bytes": 0, "output": "7 rows\n"}]}
CANCELLED: Json = {"run_id": RUN_ID, "run_status": "queued"}
CANCEL_RESULT: Json = {"cancellation_id": 88, "matched": 103442, "at_least": False}
CANCELLATION: Json = {
    "cancellation_id": 88, "key": "nightly", "labels": {}, "queue": None, "lane": None, "handler": None, "cause": None,
    "created_before": AT, "include_started": True, "reason": "wrong data", "created_at": AT, "named_count": 103442,
    "cancelled_count": 78120, "finished_at": None,
}  # fmt: skip
CANCELLATIONS: Json = {"cancellations": [CANCELLATION], "next_cursor": None}
EXECUTORS: Json = {"next_cursor": None, "executors": [{
    "executor_id": EXECUTOR_ID, "name": "worker-1:7", "queues": ["default"], "handlers": ["nightly-report"],
    "slots": 100, "stopping": False, "started_at": "2026-11-19T08:00:00Z", "last_heartbeat_at": AT,
    "is_silent": False,
}]}  # fmt: skip
SHARDS: Json = {"shards": [{"shard": 0, "owner": {
    "member_id": "8f8d3b0a-3f0a-4c57-a4b5-6d6f0c5d1e22", "name": "scheduler-1:12", "last_heartbeat_at": AT,
}}]}  # fmt: skip
RUN_EVENT = f'id: {AT}\nevent: run\ndata: {{"run_id": "{RUN_ID}", "status": "succeeded"}}\n\n'
STATUS: Json = {
    "now": NEXT, "services": [{
        "role": "executor", "process_id": EXECUTOR_ID, "host": "worker-1", "pid": 4711, "version": "0.2.0",
        "started_at": AT, "last_heartbeat_at": NEXT, "is_silent": False, "is_stopping": False, "queues": ["default"],
        "handlers": ["nightly-report"], "slots": 100, "settings": {"source": "tidewheel"}, "skew_seconds": 0.002,
    }],
    "due": [{"queue": "default", "lane": "standard", "due": 3, "oldest": "2s", "orphaned": 0}],
    "outbox": [{"lane": "standard", "due": 1, "oldest": "40ms"}], "overdue_timers": 0, "overdue_by": "0s",
    "held": [{
        "queue": "default", "lane": "standard", "since": AT, "runs": 1204, "at_least": False, "tenants": 2,
        "largest": {"acme": 1203, "default": 1},
    }],
    "freezes": [], "problems": [{
        "check": "services", "severity": "error",
        "what": "no relay is running: no event is published, and only the sweep starts runs",
        "evidence": "no relay has a row in processes", "remedy": "tidewheel service relay",
    }],
}  # fmt: skip
NOW: Json = {
    "as_of": AT, "findings": [{
        "kind": "failing_job", "severity": "error", "words": "fails since version 7",
        "evidence": "HTTPStatusError: 401 from wms.example.com: token expired", "since": "2026-11-20T00:05:00Z",
        "latest": AT, "count": 14, "at_least": False, "counted": "failed",
        "remedy": "tidewheel job rollback nightly 6 --if-version 7", "key": "nightly", "job_id": JOB_ID,
        "error_type": "HTTPStatusError", "since_version": 7,
    }],
    "due_next_minute": {"jobs": 312, "at_least": False}, "running": 46, "slots": {"busy": 46, "all": 132},
    "open": {"running": 46, "queued": 3, "scheduled": 20}, "open_at_least": False, "ended_hour": 4229, "ran_hour": 4224,
    "failed_hour": 17, "on_time_rate": 0.992,
}  # fmt: skip
_STAGES: Json = {"claimed": {"runs": 61, "p50": 0.0113, "p99": 0.0241}}
ACTIVITY: Json = {"at_least": False, "bins": [{
    "at": AT, "succeeded": 60, "failed": 1, "timed_out": 0, "cancelled": 0, "skipped": 2, "stages": _STAGES,
}], "stages": _STAGES}  # fmt: skip
UPCOMING_JOBS: Json = {"bins": [{"at": AT, "jobs": 312}], "jobs": 312, "at_least": False}
BACKLOG: Json = {"backlog": [{
    "queue": "reports", "lane": "standard", "state": "queued", "count": 312, "at_least": False, "oldest_at": AT,
    "oldest_run_id": RUN_ID,
    "why": {
        "code": "no_handler", "words": "no live executor of queue reports has the handler render-pdf",
        "remedy": "tidewheel service executor --queues reports", "until": None, "behind_run_id": None,
        "executor_id": None, "freezes": [], "cancellation_id": None, "cancel_requested": False,
    },
}]}  # fmt: skip
SLOWEST: Json = {"runs": [{"took": 4.2, "run": _RUN}]}

_ENTRY: Json = {
    "id": 7, "at": AT, "tenant": "default", "door": "rest", "actor_kind": "key", "actor": "ci",
    "verified": True, "named": "anna", "key_id": "k3v9x0a1bc", "action": "job.submit", "object": "job/nightly",
    "request_id": None, "version_before": 2, "version_after": 3, "objects": 1, "result": "accepted", "reason": None,
}  # fmt: skip

AUDIT_LOG: Mapping[str, Route] = {"list": Route({"next_cursor": None, "entries": [_ENTRY]})}

_WORK: Json = {
    "work_id": WORK_ID, "kind": "redrive", "state": "running",
    "filter": {"kind": "run", "error_type": "TimeoutError", "redriven": False, "since": "1970-01-01T00:00:00Z",
               "until": AT},
    "rate": 10.0, "matched_count": 12, "done_count": 3, "rejected_count": 0, "rejections": [], "reason": None,
    "created_at": AT, "finished_at": None, "facts": {},
}  # fmt: skip
_PAUSED: Json = {"status": "paused", "unchanged": False}

WORKS: Mapping[str, Route] = {
    "list": Route({"works": [_WORK], "next_cursor": None}),
    "get": Route(_WORK),
    "pause": Route(_PAUSED, sent=_REASON),
    "resume": Route(_PAUSED),
    "cancel": Route(_PAUSED, sent=_REASON),
}
_BATCH: dict[str, Json] = {
    "batch_id": RUN_ID, "state": "open", "accepts_runs": False, "generation": 0, "total": 2, "pending": 1,
    "succeeded": 1, "failed": 0, "cancelled": 0, "first_failed_run_id": None, "reason": None, "created_at": AT,
    "finished_at": None,
}  # fmt: skip
_LOAD: dict[str, Json] = {
    "ref": "load", "key": "nightly", "run_id": RUN_ID, "state": "succeeded", "parents": [], "reason": None,
    "attempt": 1, "started_at": AT, "finished_at": AT,
}  # fmt: skip
_REPORT: Json = {
    **_LOAD, "ref": "report", "state": "running", "parents": [{"ref": "load", "when": "success"}], "finished_at": None,
}  # fmt: skip
_SUBMITTED: Json = {
    "runs": [{"ref": "load", "key": "nightly"}, {"ref": "report", "key": "nightly", "after": [{"ref": "load"}]}],
    "on": {"finished": {"key": "nightly", "payload": {"order": 7}}},
}
_CHANGED_BATCH: Json = {"batch_id": RUN_ID, "unchanged": False}

BATCHES: Mapping[str, Route] = {
    "submit": Route({"batch_id": RUN_ID}, sent=_SUBMITTED, shape=CreatedBatch, headers=TRACEPARENT),
    "add": Route(_CHANGED_BATCH, sent={"runs": [{"ref": "more", "key": "nightly"}]}, shape=ChangedBatch),
    "close": Route(_CHANGED_BATCH, shape=ChangedBatch),
    "resume": Route(_CHANGED_BATCH, sent={}, shape=ChangedBatch),
    "cancel": Route(_CHANGED_BATCH, sent=_REASON, shape=ChangedBatch),
    "get": Route({"summary": _BATCH, "runs": [_LOAD, _REPORT]}),
    "list": Route({"batches": [_BATCH], "next_cursor": None}),
}

_FREEZE: Json = {
    "tenant": "default", "queue": "reports", "labels": None, "key_prefix": None, "by": "anna",
    "reason": "printer swap", "since": AT,
}  # fmt: skip
_DAY: Json = {
    "day": "2026-11-19", "succeeded": 23, "failed": 1, "timed_out": 0, "cancelled": 0, "skipped": 0, "attempts": 26,
    "duration": {"p50": 1.25, "p90": 2.21, "p99": 2.94}, "lateness": {"p50": 0.01, "p90": 0.02, "p99": 0.05},
    "longest": {"run_id": RUN_ID, "took": 2.9},
}  # fmt: skip
_TIMELINE: Json = {
    "key": "nightly", "now": AT, "since": "2026-11-13T01:00:00Z", "until": NEXT, "mode": "runs", "bins": [],
    "runs": [{
        "run_id": RUN_ID, "scheduled_at": AT, **_TIMES, "state": "succeeded", "cause": "timer", "attempt": 1,
        **_NO_ERROR,
    }],
    "complete_since": None, "more_skips": False, "took_p95": "PT4.9S",
    "skips": [{
        "at": "2026-11-15T01:00:00Z", "last_at": "2026-11-16T01:00:00Z", "occurrences": 2, "exact": True,
        "reason": "paused", "words": "It came due during a pause.",
    }],
    "pauses": [{"since": "2026-11-14T09:00:00Z", "until": "2026-11-16T09:00:00Z", "by": "anna"}],
    "versions": [{"number": 3, "at": "2026-11-14T09:00:00Z"}],
}  # fmt: skip
_CALENDAR: Json = {
    "key": "nightly", "zone": "Europe/Berlin", "month": "2026-03-01", "now": AT, "words": "",
    "days": [{
        "date": "2026-03-29", "fires": 1, "exact": True, "first": ["2026-03-29T03:00:00+02:00"],
        "notes": ["the clock goes from 02:00 to 03:00"], "excluded_by": [], "skipped": 0, "moved": 0,
    }],
}  # fmt: skip
_EXPLANATION: Json = {
    "key": "nightly", "at": AT, "local": "2026-11-20T02:00:00+01:00", "zone": "Europe/Berlin", "outcome": "skipped",
    "words": "It was missed: no scheduler ran at that time.", "reason": "misfire", "run": None, "others": [],
    "version": {"number": 3, "effective_at": "2026-11-01T09:00:00Z", "until": None}, "span": None, "moved_to": None,
    "before": "2026-11-19T01:00:00Z", "after": NEXT, "notes": [], "workflow": None, "between_runs": False,
}  # fmt: skip
_UPCOMING: Json = {"key": "nightly", "zone": "Europe/Berlin", "now": AT, "occurrences": [OCCURRENCE], "words": ""}

ONE_JOB: Mapping[str, Route] = {"statistics": Route({"key": "nightly", "days": [_DAY], "total": _DAY})}
OCCURRENCES: Mapping[str, Route] = {"next": Route(_UPCOMING), "explain": Route(_EXPLANATION)}
JOB_TIMES: Mapping[str, Route] = {
    "timeline": Route(_TIMELINE), "calendar": Route(_CALENDAR), "preview_resume": Route(RESUMPTION),
}  # fmt: skip
_SET: dict[str, Json] = {"key": "api/*", "at_once": 3, "rate": "100/min"}
_LIMIT: dict[str, Json] = {**_SET, "burst": 1, "running": 3, "waiting": 12}
_LIMIT_SET: dict[str, Json] = {**_LIMIT, "set_by": "anna, with ci (rest)", "set_at": AT, "keys": 1}
_CHANGED_LIMIT: Json = {"unchanged": False, "started": 2, "complete": True}
_BLOCKED: Json = {"key": "acme", "blocked_by": RUN_ID, "blocked_at": AT, "retried_by": None, "waiting": 12}

LIMITS: Mapping[str, Route] = {
    "set": Route(_CHANGED_LIMIT, sent=_SET),
    "remove": Route(_CHANGED_LIMIT, sent={"key": "api/*"}),
    "list": Route({"limits": [_LIMIT_SET], "next_cursor": None}),
    "keys": Route({"keys": [{**_LIMIT, "key": "api/acme", "next_at": None}], "next_cursor": None}),
}
ORDERING_KEYS: Mapping[str, Route] = {
    "blocked": Route({"keys": [_BLOCKED], "next_cursor": None}),
    "unblock": Route({"run_id": RUN_ID, "skipped": False}, sent={"key": "acme"}),
}

_WORKFLOW: dict[str, Json] = {
    "root_run_id": RUN_ID, "key": "nightly", "state": "failed", "scheduled_at": AT, "generation": 0, "pending": 0,
    "failed": 1, "reason": None, "created_at": "2026-11-20T01:00:04.3Z", "finished_at": "2026-11-20T01:02:11Z",
}  # fmt: skip
_SHOWN: Json = {"summary": _WORKFLOW, "nodes": [
    {"key": "nightly", "state": "succeeded", "parents": [], "run_id": RUN_ID, "reason": None, "attempt": 1, **_TIMES},
    {"key": "mail", "state": "failed", "parents": [{"key": "nightly", "when": "success"}],
     "run_id": "019d3a1c-7f00-8123-8456-789abcdef077", "reason": None, "attempt": 4,
     "started_at": "2026-11-20T01:02:09Z", "finished_at": "2026-11-20T01:02:11Z"},
], "again": ["mail"]}  # fmt: skip
_PARENT: Json = {
    "key": "extract", "when": "success", "status": "succeeded", "run_id": RUN_ID, "result": {"rows": 7},
    "result_bytes": 10, "left_out": False, "expired": False,
}  # fmt: skip
_CHANGED_WORKFLOW: Json = {"root_run_id": RUN_ID, "unchanged": False}

WORKFLOWS: Mapping[str, Route] = {
    "list": Route({"workflows": [_WORKFLOW], "next_cursor": None}),
    "get": Route(_SHOWN),
    "pause": Route(_CHANGED_WORKFLOW, sent=_REASON, shape=ChangedWorkflow),
    "resume": Route(_CHANGED_WORKFLOW, sent={}, shape=ChangedWorkflow),
    "parents": Route({"parents": [_PARENT]}),
    "cancel": Route(_CHANGED_WORKFLOW, sent=_REASON, shape=ChangedWorkflow),
}


@dataclass(frozen=True, slots=True)
class ChangedFreeze:
    """Result of a freeze or a thaw; `unchanged` if the scope was already frozen, or thawed."""

    unchanged: bool


FREEZES: Mapping[str, Route] = {
    "list": Route({"freezes": [{"freeze": _FREEZE, "jobs": None, "open_runs": 340, "waiting": 312, "held": 14}]}),
    "preview_thaw": Route(RESUMPTION),
    "freeze": Route(_CHANGED, sent={"queue": "reports", "reason": "printer swap", "by": "anna"}, shape=ChangedFreeze),
    "thaw": Route(_CHANGED, sent={"queue": "reports"}, shape=ChangedFreeze),
}
