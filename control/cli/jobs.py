"""`tidewheel job list | show | stats`: read jobs."""

import json
import shlex
from collections.abc import Iterator
from typing import Annotated

import typer

from tidewheel.control.cli.options import (
    DEFAULT_TENANT,
    Key,
    Limit,
    Tenant,
    Tz,
    read_labels,
    reading,
    rfc3339,
    tenant_flag,
    utc_and_local,
)
from tidewheel.control.cli.output import (
    Output,
    OutputOption,
    duration_text,
    print_document,
    print_facts,
    print_table,
    total_text,
)
from tidewheel.control.cli.tables import Cell
from tidewheel.control.reads import jobs as read
from tidewheel.control.reads.job_days import MAX_DAYS, JobDay, job_statistics
from tidewheel.control.reads.json_form import as_json
from tidewheel.control.schedule_words import schedule_words
from tidewheel.jobs.strict_json import as_object
from tidewheel.schedules.decision import HoldReason

_RELEASE = "correct the cause, then run `tidewheel job release {key}{tenant}`; or correct the job and submit it"
_POSTPONED = "correct the cause, which the schedulers' logs and `/readyz` have; the job then fires by itself"

_HEADINGS = (
    "day", "succeeded", "failed", "timed out", "cancelled", "skipped", "attempts", "p50", "p90", "p99", "late p99",
)  # fmt: skip


def list_jobs(
    *,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Only jobs whose key begins with this text.")] = "",
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Only jobs with this label; repeatable.")
    ] = None,
    paused: Annotated[
        bool | None, typer.Option("--paused/--not-paused", help="Only paused jobs, or only jobs that are not paused.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="Only this kind of schedule: once, interval, fixed_delay, cron, manual or after."
        ),
    ] = None,
    quarantined: Annotated[bool, typer.Option("--quarantined", help="Only quarantined jobs.")] = False,
    after: Annotated[
        str, typer.Option(metavar="KEY", help="Begin after this key; the last line of a page names it.")
    ] = "",
    number: Limit = 50,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """List jobs by key, each with its next occurrence and last run."""
    with reading() as connection:
        page = read.list_jobs(
            connection, tenant, prefix=prefix, labels=read_labels(label or []), paused=paused, kind=kind,
            quarantined=quarantined or None, after=after, limit=number,
        )  # fmt: skip
    if output is not Output.TEXT:
        print_document(page, output)
        return
    if page.jobs:
        print_table(("key", "schedule", "state", "next", "last run", "duration"), map(_row, page.jobs))
        typer.echo(total_text(page.total, at_least=page.at_least, shown=len(page.jobs), noun="job"))
    else:
        typer.echo("no jobs" if page.next_cursor is None else "none among the jobs of this page")
    if page.next_cursor is not None:
        typer.echo(f"more: add --after {page.next_cursor!r}")


def show(
    key: Key,
    *,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a job: its spec, state, pause and last run."""
    with reading() as connection:
        job = read.show_job(connection, tenant, key)
    if output is not Output.TEXT:
        rest = as_object(as_json(job)) or {}
        print_document({**(as_object(rest.pop("summary")) or {}), **rest}, output)
    else:
        print_facts(_facts(job, timezone or job.summary.timezone, tenant))


def stats(
    key: Key,
    *,
    days: Annotated[
        int, typer.Option("-n", "--days", metavar="N", min=1, max=MAX_DAYS, help="Look back so many days.")
    ] = 30,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a job's runs by day: counts, durations and lateness, kept for two years."""
    with reading() as connection:
        found = job_statistics(connection, tenant, key, days)
    if output is not Output.TEXT:
        print_document(found, output)
    elif found.total is None:
        typer.echo(f"no run of the last {days} days is counted; a day is counted an hour after its end, in UTC")
    else:
        rows = [_day_row(day.day.isoformat(), day) for day in found.days]
        print_table(_HEADINGS, [*rows, _day_row("total", found.total)])
        if found.total.longest is not None:
            typer.echo(f"the longest run: {found.total.longest.run_id}, {found.total.longest.took:.3g} s")


def _row(job: read.JobSummary) -> tuple[Cell, ...]:
    return (
        job.key,
        schedule_words(job.schedule),
        _state_text(job),
        job.next_at,
        job.last_run.state if job.last_run else "",
        duration_text(job.last_run.duration if job.last_run else None),
    )


def _facts(job: read.JobDetail, zone: str | None, tenant: str) -> Iterator[tuple[str, str | None]]:
    summary = job.summary
    yield "key", summary.key
    yield "job id", str(summary.job_id)
    yield "version", f"{summary.version}, since {rfc3339(job.effective_at)}"
    yield "created", rfc3339(job.created_at)
    yield "schedule", schedule_words(summary.schedule)
    yield "state", _state_text(summary)
    yield "quarantined", f"since {rfc3339(job.quarantined_at)}, {job.error}" if job.quarantined_at else None
    if job.quarantined_at:
        yield "remedy", _RELEASE.format(key=shlex.quote(summary.key), tenant=tenant_flag(tenant))
    elif summary.postponed_until:
        yield "remedy", _POSTPONED
    yield "paused", _pause_text(job)
    yield "frozen", "\n".join(freeze.words for freeze in job.freezes)
    yield "next", utc_and_local(summary.next_at, zone) if summary.next_at else None
    yield "last run", _last_run_text(summary.last_run)
    yield "failures in a row", str(job.consecutive_failures) if job.consecutive_failures else None
    yield "labels", ", ".join(f"{name}={value}" for name, value in summary.labels.items())
    yield "job", json.dumps(dict(job.job), ensure_ascii=False, indent=2)


def _state_text(job: read.JobSummary) -> str:
    if job.postponed_until:
        return f"postponed until {rfc3339(job.postponed_until)}"
    if job.paused:
        return f"paused until {rfc3339(job.paused_until)}" if job.paused_until else "paused"
    if job.hold_reason == HoldReason.QUARANTINED:
        return "quarantined"
    if job.hold_reason == HoldReason.RUN:
        return "waits for its run"
    if job.hold_reason == HoldReason.FREEZE:
        return "frozen"
    return "finished" if job.finished_at else "active"


def _pause_text(job: read.JobDetail) -> str | None:
    if not job.summary.paused:
        return None
    from tidewheel.control.explain.text import paused_by  # here: a list of jobs needs no explanation

    since = f"since {rfc3339(job.paused_at)}" if job.paused_at else ""
    by = f"by {paused_by(job.paused_by)}" if job.paused_by else ""
    return ", ".join(part for part in (since, by, job.pause_reason) if part)


def _last_run_text(run: read.LastRun | None) -> str | None:
    if run is None:
        return None
    scheduled = f"scheduled at {rfc3339(run.scheduled_at)}"
    parts = (run.state, run.reason, run.error_type, duration_text(run.duration), scheduled, str(run.run_id))
    return ", ".join(dict.fromkeys(part for part in parts if part))


def _day_row(name: str, day: JobDay) -> tuple[Cell, ...]:
    counts = (day.succeeded, day.failed, day.timed_out, day.cancelled, day.skipped, day.attempts)
    quantiles = (day.duration.p50, day.duration.p90, day.duration.p99, day.lateness.p99)
    return name, *map(str, counts), *("" if each is None else f"{each:.3g} s" for each in quantiles)
