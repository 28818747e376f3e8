"""Examples of the OpenAPI document: one answer of each route, and the bodies that are sent."""

from tidewheel.jobs.strict_json import Json

RUN_ID = "019d3a1c-7f00-8123-8456-789abcdef012"
EXECUTOR_ID = "6c1f7c1e-1f5a-4d0e-9b57-0a3f6f2f7a10"
JOB_ID = "2f0b9a7e-6f6b-5d0c-9d2e-0c7a4f1b2a33"
_AT, _NEXT = "2026-11-20T01:00:00Z", "2026-11-21T01:00:00Z"

KEYLESS_SPEC: dict[str, Json] = {
    "schedule": {"cron": "0 2 * * *", "timezone": "Europe/Berlin"}, "target": "nightly-report", "overlap": "skip"
}  # fmt: skip
JOB_SPEC: dict[str, Json] = {"key": "nightly", **KEYLESS_SPEC}
_LAST_RUN: dict[str, Json] = {
    "run_id": RUN_ID, "state": "succeeded", "scheduled_at": _AT, "started_at": "2026-11-20T01:00:00.021Z",
    "finished_at": "2026-11-20T01:00:04.221Z", "duration": "4.2s", "reason": None, "error_type": None,
}  # fmt: skip
_JOB_SUMMARY: dict[str, Json] = {
    "key": "nightly", "job_id": JOB_ID, "version": 3, "kind": "cron",
    "schedule": {"kind": "cron", "expressions": ["0 2 * * *"], "timezone": "Europe/Berlin"},
    "timezone": "Europe/Berlin", "labels": {"team": "billing"}, "paused": False, "paused_until": None,
    "finished_at": None, "hold_reason": None, "next_at": _NEXT, "last_run": _LAST_RUN,
}  # fmt: skip
JOBS: Json = {"jobs": [_JOB_SUMMARY], "next_cursor": None, "total": 1, "at_least": False}
JOB: Json = {
    "summary": _JOB_SUMMARY, "job": JOB_SPEC, "effective_at": "2026-11-01T09:00:00Z",
    "created_at": "2026-10-01T09:00:00Z", "paused_by": None, "pause_reason": None, "paused_at": None,
    "consecutive_failures": 0, "error": None, "quarantined_at": None,
}  # fmt: skip
CHANGED_JOB: Json = {"key": "nightly", "job_id": JOB_ID, "version": 3, "unchanged": False, "next_run_at": _NEXT}
BULK: Json = {
    "accepted": 1, "rejected": 0,
    "results": [{"key": "nightly", "accepted": True, "job": CHANGED_JOB, "errors": []}],
}  # fmt: skip
_OCCURRENCE: dict[str, Json] = {
    "at": _NEXT, "local": "2026-11-21T02:00:00+01:00", "outcome": "scheduled", "leaves_at": _NEXT, "run_id": None,
    "last_at": None, "occurrences": 1, "exact": True, "notes": [],
}  # fmt: skip
BACKFILL: Json = {"backfill_id": "019d3a1c-7f00-8123-8456-789abcdef013", "occurrences": 7, "unchanged": False,
                  "status": None}  # fmt: skip
RELEASED: Json = {"released": 1, "matched": 1, "first": [
    {"job_id": JOB_ID, "key": "nightly", "error": "no such zone", "created_at": _AT}]}  # fmt: skip
VERSIONS: Json = {"next_cursor": None, "versions": [
    {"number": 1, "effective_at": "2026-10-01T09:00:00Z", "until": None, "retired_at": None,
     "payload_sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "payload_bytes": 0,
     "changes": []}]}  # fmt: skip
UPCOMING: Json = {"key": "nightly", "zone": "Europe/Berlin", "now": _AT, "occurrences": [_OCCURRENCE], "words": ""}
PREVIEW: Json = {
    "key": "nightly", "version": 1, "zone": "Europe/Berlin", "now": _AT, "words": ["every day at 02:00"],
    "occurrences": [_OCCURRENCE], "exhausted": False,
}  # fmt: skip
EXPLANATION: Json = {
    "key": "nightly", "at": _AT, "local": "2026-11-20T02:00:00+01:00", "zone": "Europe/Berlin", "outcome": "skipped",
    "words": "It was missed: no scheduler ran at that time.", "reason": "misfire", "run": None, "others": [],
    "version": {"number": 3, "effective_at": "2026-11-01T09:00:00Z", "until": None}, "span": None, "moved_to": None,
    "before": "2026-11-19T01:00:00Z", "after": _NEXT, "notes": [],
}  # fmt: skip
REGISTRATION: Json = {"name": "worker-1:7", "handlers": ["nightly-report"], "slots": 4}
REGISTERED: Json = {
    "executor_id": EXECUTOR_ID, "heartbeat_seconds": 1.0, "lease_seconds": 15.0, "sweep_seconds": 1.0,
    "topics": [{"topic": "tidewheel.runs.standard", "group": "tidewheel.runs.standard.executors"}],
    "max_runs": 100, "max_sweep": 100, "max_outcomes": 100,
}  # fmt: skip
STARTED: Json = {"started": [{
    "run_id": RUN_ID, "attempt": 1, "failed_attempts": 0, "lost_attempts": 0, "started_at": _AT,
    "schedule_to_close_remaining_seconds": None, "task_token": "AZ06HH8AgSOEVnia", "request": None,
}]}  # fmt: skip
FREEZE: Json = {"queue": "reports", "reason": "printer swap", "by": "anna"}
FREEZES: Json = {"freezes": [{
    "freeze": {
        "tenant": "default", "queue": "reports", "labels": None, "key_prefix": None, "by": "anna",
        "reason": "printer swap", "since": _AT,
    },
    "jobs": None, "waiting": 312, "held": 14,
}]}  # fmt: skip
