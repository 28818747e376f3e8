"""Jobs in words, for lists and for `tidewheel job show`."""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from tidewheel.control.cli.time_options import beside, rfc3339
from tidewheel.control.explain.text import paused_by
from tidewheel.control.reads.jobs import JobDetail, JobSummary, LastRun
from tidewheel.jobs.strict_json import as_list
from tidewheel.jobs.values import format_duration
from tidewheel.schedules.decision import HoldReason


def schedule_words(schedule: Mapping[str, object]) -> str:
    """A stored schedule in a few words.

    >>> schedule_words({"kind": "interval", "interval_us": 90_000_000}), schedule_words({"kind": "manual"})
    ('every 1m30s', 'manual')
    """
    every = schedule.get("interval_us")
    span = format_duration(timedelta(microseconds=every)) if isinstance(every, int) else ""
    match schedule.get("kind"):
        case "interval":
            return f"every {span}"
        case "fixed_delay":
            return f"{span} after each end"
        case "once":
            return f"once at {rfc3339(datetime.fromisoformat(str(schedule['at'])))}"
        case "cron":
            expressions = ", ".join(map(str, as_list(schedule.get("expressions")) or ()))
            zone = schedule.get("timezone")
            return expressions if zone == "UTC" else f"{expressions} {zone}"
        case kind:
            return str(kind)


def state_words(job: JobSummary) -> str:
    """Whether a job fires, and if not, why."""
    if job.paused:
        return f"paused until {rfc3339(job.paused_until)}" if job.paused_until else "paused"
    if job.held == HoldReason.QUARANTINED:
        return "set aside"
    if job.held == HoldReason.RUN:
        return "waits for its run"
    return "finished" if job.finished_at else "active"


def took_words(run: LastRun | None) -> str:
    """How long a run took, as far as anybody cares."""
    if run is None or run.duration is None:
        return ""
    seconds = run.duration.total_seconds()
    return f"{seconds:.3g} s" if seconds < 60 else format_duration(timedelta(seconds=round(seconds)))


def job_facts(job: JobDetail, zone: str | None) -> Iterator[tuple[str, str | None]]:
    """Names and values of everything about a job."""
    summary = job.summary
    yield "key", summary.key
    yield "job id", str(summary.job_id)
    yield "version", f"{summary.version}, since {rfc3339(job.effective_at)}"
    yield "created", rfc3339(job.created_at)
    yield "schedule", schedule_words(summary.schedule)
    yield "state", state_words(summary)
    yield "paused", _pause(job)
    yield "next", beside(summary.next_at, zone) if summary.next_at else None
    yield "last run", _last_run(summary.last_run)
    yield "failures in a row", str(job.failures) if job.failures else None
    yield "labels", ", ".join(f"{name}={value}" for name, value in summary.labels.items())
    yield "job", json.dumps(dict(job.job), ensure_ascii=False, indent=2)


def _pause(job: JobDetail) -> str | None:
    if not job.summary.paused:
        return None
    since = f"since {rfc3339(job.paused_at)}" if job.paused_at else ""
    by = f"by {paused_by(job.paused_by)}" if job.paused_by else ""
    return ", ".join(part for part in (since, by, job.pause_reason) if part)


def _last_run(run: LastRun | None) -> str | None:
    if run is None:
        return None
    parts = (run.state, run.reason, run.error_type, took_words(run), f"of {rfc3339(run.scheduled_at)}", str(run.run_id))
    return ", ".join(part for part in parts if part)
