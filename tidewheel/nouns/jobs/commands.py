"""`tidewheel job …`: flags and texts that their declarations lack."""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import typer

from tidewheel.control.cli.options import (
    DEFAULT_TENANT,
    MAX_INT,
    IfVersion,
    Key,
    Tenant,
    reading,
    rfc3339,
    tenant_flag,
    utc_and_local,
)
from tidewheel.control.cli.output import (
    Output,
    OutputOption,
    Shown,
    Table,
    count_text,
    duration_text,
    print_document,
    print_record,
    print_result,
    print_table,
    wrapped,
)
from tidewheel.control.cli.parser import argument, option, switch
from tidewheel.control.cli.run_output import Wait
from tidewheel.control.cli.tables import Cell
from tidewheel.control.instants import read_instant, read_later
from tidewheel.control.reads.json_form import as_json
from tidewheel.control.words import schedule_words
from tidewheel.doors.cli import Flag, command
from tidewheel.errors import UnknownJob
from tidewheel.jobs.strict_json import as_object
from tidewheel.nouns.jobs.model import BackfillResult, Change, Job, JobDetail, JobSummary, LastRun, Version
from tidewheel.nouns.jobs.operations import MAX_DAYS, JobDay, Jobs, JobStatistics, OneJob
from tidewheel.nouns.jobs.reads import show_job
from tidewheel.nouns.works.commands import follow
from tidewheel.schedules.decision import HoldReason

_RELEASE = "correct the cause, then run `tidewheel job release {key}{tenant}`; or correct the job and submit it"
_POSTPONED = "correct the cause, which is in the schedulers' logs and at `/readyz`; the job then fires by itself"


def print_job_change(
    done: str,
    job: Job,
    output: Output,
    *,
    unchanged: str = "the job already has this spec",
    version: str = ", version {}",
    zone: str | None = None,
) -> None:
    """Print the change of a job: the action, its version and its next occurrence."""
    text = f"unchanged: {unchanged}, version {job.version}" if job.unchanged else done + version.format(job.version)
    coming = f"; next {utc_and_local(job.next_run_at, zone)}" if job.next_run_at else ""
    print_result([f"{job.key}: {text}{coming}"], job, output)


def change_lines(found: Sequence[Change]) -> list[str]:
    """Return a line for each field that differs."""
    return [wrapped(f"{each.path}: {_value_text(each.before)} -> {_value_text(each.after)}", "    ") for each in found]


def zone_of(tenant: str, key: str) -> str | None:
    """Return the zone of a job's schedule; None if it has none, or for a deleted job."""
    with suppress(UnknownJob), reading() as connection:
        return show_job(connection, tenant, key).summary.timezone
    return None


def _show_one(shown: Shown) -> None:
    job: JobDetail = shown.found
    rest = as_object(as_json(job)) or {}
    document = {**(as_object(rest.pop("summary")) or {}), **rest}
    print_record(_facts(job, shown.zone or job.summary.timezone, shown.tenant), document, shown.output)


def _show_days(shown: Shown) -> None:
    found: JobStatistics = shown.found
    if shown.output is not Output.TEXT:
        print_document(found, shown.output)
    elif found.total is None:
        days = shown.arguments["days"]
        typer.echo(f"no runs counted in the last {days} days; a UTC day is counted an hour after its end")
    else:
        rows = [_day_row(day.day.isoformat(), day) for day in found.days]
        print_table(_DAYS, [*rows, _day_row("total", found.total)])
        if found.total.longest is not None:
            typer.echo(f"longest run: {found.total.longest.run_id}, {found.total.longest.took:.3g} s")


def _show_versions(shown: Shown) -> None:
    if shown.output is not Output.TEXT:
        print_document({"key": shown.arguments["key"], "versions": shown.found["versions"]}, shown.output)
    else:
        _VERSIONS.print(shown.found["versions"])


def _changes(
    done: str, unchanged: str = "the job already has this spec", *, version: str = ", version {}"
) -> Callable[[Shown], None]:
    """Return what shows a change of a job; its text names arguments, of which instants are local ones."""

    def show(shown: Shown) -> None:
        given = {name: _argument_text(value, shown.zone) for name, value in shown.arguments.items()}
        text = done.format_map(given).removesuffix(" until None")
        zone = shown.zone if "at" in given else None
        print_job_change(text, shown.found, shown.output, unchanged=unchanged, version=version, zone=zone)

    return show


def _show_backfill(shown: Shown) -> None:
    done: BackfillResult = shown.found
    if shown.options["wait"] and done.work_id is not None:
        follow(shown, done.work_id)
        return
    many = count_text(done.occurrences or 0, "occurrence")
    lines = [f"{many} would be run"] if done.work_id is None else [f"backfill {done.work_id}", many]
    print_result(lines, {"key": shown.arguments["key"], **(as_object(as_json(done)) or {})}, shown.output)


def _argument_text(value: Any, zone: str | None) -> str:  # noqa: ANN401 - an argument
    return utc_and_local(value, zone) if hasattr(value, "tzinfo") else str(value)


def _read_end(arguments: dict[str, Any], given: Mapping[str, Any]) -> None:
    if (text := given["until"]) is not None:
        arguments["until"] = read_later(text, "--until", given["timezone"], "resume the job")


def _read_instants(arguments: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Read the instants of an occurrence on the clock of the job, if `--tz` names no other one."""
    zone = given["timezone"] or zone_of(given["tenant"], given["key"])
    for name in ("at", "to"):
        if name in given:
            arguments[name] = read_instant(given[name], f"--{name}", zone, ahead=True)


def diff(
    key: Key,
    first: Annotated[int, argument("A", "A version's number.", min=1, max=MAX_INT)],
    second: Annotated[
        int | None, argument("B", "Another version's number; the newest by default.", min=1, max=MAX_INT)
    ] = None,
    *,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Compare version B of a job with version A, field by field."""
    from tidewheel.nouns.jobs import versions as read  # here: a list of jobs needs no codec

    with reading() as connection:
        to = second or read.versions(connection, tenant, key, limit=1)[0].number
        found = read.diff(connection, tenant, key, first, to)
    lines = change_lines(found) or ["no differences"]
    print_result(lines, {"key": key, "from": first, "to": to, "changes": found}, output)


def _row(job: JobSummary) -> tuple[Cell, ...]:
    return (
        job.key,
        schedule_words(job.schedule),
        _state_text(job),
        job.next_at,
        job.last_run.state if job.last_run else "",
        duration_text(job.last_run.duration if job.last_run else None),
    )


def _version_row(version: Version) -> tuple[Cell, ...]:
    changed = ", ".join(change.path for change in version.changes)
    if version.retired_at is not None:
        changed = f"{changed}; deleted at {rfc3339(version.retired_at)}".removeprefix("; ")
    return str(version.number), version.effective_at, version.until, changed


def _facts(job: JobDetail, zone: str | None, tenant: str) -> Iterator[tuple[str, str | None]]:
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


def _state_text(job: JobSummary) -> str:
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


def _pause_text(job: JobDetail) -> str | None:
    if not job.summary.paused:
        return None
    from tidewheel.control.explain.text import paused_by  # here: a list of jobs needs no explanation

    since = f"since {rfc3339(job.paused_at)}" if job.paused_at else ""
    by = f"by {paused_by(job.paused_by)}" if job.paused_by else ""
    return ", ".join(part for part in (since, by, job.pause_reason) if part)


def _last_run_text(run: LastRun | None) -> str | None:
    if run is None:
        return None
    scheduled = f"scheduled at {rfc3339(run.scheduled_at)}"
    parts = (run.state, run.reason, run.error_type, duration_text(run.duration), scheduled, str(run.run_id))
    return ", ".join(dict.fromkeys(part for part in parts if part))


def _day_row(name: str, day: JobDay) -> tuple[Cell, ...]:
    counts = (day.succeeded, day.failed, day.timed_out, day.cancelled, day.skipped, day.attempts)
    quantiles = (day.duration.p50, day.duration.p90, day.duration.p99, day.lateness.p99)
    return name, *map(str, counts), *("" if each is None else f"{each:.3g} s" for each in quantiles)


def _value_text(value: object) -> str:
    return "unset" if value is None else json.dumps(value, ensure_ascii=False)


_JOBS = Table("job", ("key", "schedule", "state", "next", "last run", "duration"), _row)
_VERSIONS = Table("version", ("version", "in force after", "until", "changed"), _version_row)
_DAYS = (
    "day", "succeeded", "failed", "timed out", "cancelled", "skipped", "attempts", "p50", "p90", "p99", "late p99",
)  # fmt: skip
_NUMBER = Annotated[int, option("N", "Show at most this many.", "-n", min=1, max=100)]
_SHOWN_DAYS = Annotated[int, option("N", "Look back this many days.", "-n", "--days", min=1, max=MAX_DAYS)]
_VERSION = Annotated[int, argument("VERSION", "The version to restore.", min=1, max=MAX_INT)]
_BEFORE = Annotated[int | None, option("VERSION", "Only versions before this one.", min=1, max=MAX_INT)]
_DRY_RUN = Annotated[bool, switch("Print the number of occurrences; run none.", "--dry-run")]
_ONE: Mapping[str, Flag | None] = {
    "key": Flag(kind=Key),
    "if_version": Flag(kind=IfVersion),
    **dict.fromkeys(("until", "at", "to"), Flag(read=str)),
    "days": Flag(kind=_SHOWN_DAYS),
    "limit": Flag(kind=_NUMBER),
    "before": Flag(kind=_BEFORE),
    "version": Flag(kind=_VERSION),
    "next_in": Flag(metavar="DURATION"),
    "request_id": None,
}
_UNREASONED = {**_ONE, "reason": None}
_BACKFILL: Mapping[str, Flag | None] = {
    "key": Flag(kind=Key),
    "what": Flag(
        metavar="WHAT", help="Occurrences to run: missing_only (no run, or a skipped or cancelled one) or all."
    ),
    "versions": Flag(metavar="WHICH"),
    "overlap": Flag(metavar="POLICY"),
    "dry_run": Flag(kind=_DRY_RUN),
}

list_jobs = command(Jobs, "list", partial(_JOBS.show, nothing="no jobs"))
show = command(Jobs, "get", _show_one, flags=_ONE, local_times=True)

_job = partial(command, OneJob, flags=_ONE)
pause = _job("pause", _changes("paused until {until}", "the job is already paused"), prepare=_read_end)
resume = _job("resume", _changes("resumed", "the job is not paused"), flags=_UNREASONED)
delete = _job("delete", _changes("deleted"), flags=_UNREASONED)
rollback = _job("rollback", _changes("rolled back to version {version}", version=" (saved as version {})"))
skip = _job("skip", _changes("skips {at}", "the occurrence is already skipped"), prepare=_read_instants)
move = _job("move", _changes("moves {at} to {to}", "the occurrence already has this time"), prepare=_read_instants)
unskip = _job(
    "unskip", _changes("fires {at} again", "the occurrence is neither skipped nor moved"), prepare=_read_instants
)
reschedule = _job("reschedule", _changes("rescheduled", "the job runs next then already", version=""))
backfill = command(OneJob, "backfill", _show_backfill, flags=_BACKFILL, options={"wait": Wait})
stats = _job("statistics", _show_days)
versions = _job("versions", _show_versions)
