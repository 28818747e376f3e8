"""Examples for the OpenAPI document."""

from collections.abc import Mapping

from tidewheel.control.api.examples import AT, NEXT, OCCURRENCE, RESUMPTION, RUN_ID
from tidewheel.doors.rest import Route
from tidewheel.jobs.strict_json import Json

_DAY: Json = {
    "day": "2026-11-19", "succeeded": 23, "failed": 1, "timed_out": 0, "cancelled": 0, "skipped": 0, "attempts": 26,
    "duration": {"p50": 1.25, "p90": 2.21, "p99": 2.94}, "lateness": {"p50": 0.01, "p90": 0.02, "p99": 0.05},
    "longest": {"run_id": RUN_ID, "took": 2.9},
}  # fmt: skip
_TIMELINE: Json = {
    "key": "nightly", "now": AT, "since": "2026-11-13T01:00:00Z", "until": NEXT, "mode": "runs", "bins": [],
    "runs": [{
        "run_id": RUN_ID, "scheduled_at": AT, "started_at": "2026-11-20T01:00:00.021Z",
        "finished_at": "2026-11-20T01:00:04.221Z", "state": "succeeded", "cause": "timer", "attempt": 1, "reason": None,
        "error_type": None,
    }],
    "complete_since": None, "more_skips": False, "took_p95": "PT4.9S",
    "skips": [{
        "at": "2026-11-15T01:00:00Z", "last_at": "2026-11-16T01:00:00Z", "occurrences": 2, "exact": True,
        "reason": "paused", "words": "It came due in a pause.",
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

ONE_JOB: Mapping[str, Route] = {
    "statistics": Route({"key": "nightly", "days": [_DAY], "total": _DAY}),
}
OCCURRENCES: Mapping[str, Route] = {"next": Route(_UPCOMING), "explain": Route(_EXPLANATION)}
JOB_TIMES: Mapping[str, Route] = {
    "timeline": Route(_TIMELINE),
    "calendar": Route(_CALENDAR),
    "preview_resume": Route(RESUMPTION),
}
