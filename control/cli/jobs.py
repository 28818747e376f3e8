"""`tidewheel job create | list | show | update | pause | resume | delete | trigger`."""

from collections.abc import Mapping
from typing import Annotated

import typer

from tidewheel.control.cli.connection_options import DEFAULT_TENANT, Key, Tenant, asking, reading
from tidewheel.control.cli.job_files import read_job
from tidewheel.control.cli.job_flags import JobFlags, described, read_labels, read_payload, with_job_flags, without
from tidewheel.control.cli.job_format import job_facts, schedule_words, state_words, took_words
from tidewheel.control.cli.output import Answer, Output, as_json, print_facts, print_table, say, say_json
from tidewheel.control.cli.time_options import Tz, beside, read_duration, read_instant, rfc3339
from tidewheel.control.client.results import Job
from tidewheel.control.reads import jobs as read
from tidewheel.errors import refuse
from tidewheel.jobs.strict_json import as_object

Named = Annotated[str | None, typer.Option("--key", metavar="KEY", help="The job's key, in place of KEY.")]
MaybeKey = Annotated[str | None, typer.Argument(metavar="KEY", help="The job's key, if the file does not say it.")]
IfVersion = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Only while this is the job's current version.")
]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Kept and shown.")]


@with_job_flags
def create(
    key: MaybeKey = None,
    *,
    flags: JobFlags,
    named: Named = None,
    paused: Annotated[bool, typer.Option("--paused", help="Fire nothing until it is resumed.")] = False,
    tenant: Tenant = DEFAULT_TENANT,
    output: Answer = Output.TEXT,
) -> None:
    """Make a job, from a file, from flags, or both; one of that key must not exist yet."""
    document = described(read_job(flags.file) if flags.file else {}, flags)
    document["key"] = key_of(key, named, document)
    if paused:
        document["paused"] = True
    with asking(tenant) as client:
        made = client.submit(document, if_version=0)
    say_job(str(document["key"]), "created", made, output, zone=flags.tz or _zone(document))


@with_job_flags
def update(
    key: MaybeKey = None,
    *,
    flags: JobFlags,
    named: Named = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="FIELD", help="Go back to a field's default, such as end_at.")
    ] = None,
    if_version: IfVersion = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: Answer = Output.TEXT,
) -> None:
    """Change a job: flags replace what they name; a file replaces the whole job."""
    given = read_job(flags.file) if flags.file else {}
    wanted = key_of(key, named, given)
    with reading() as connection:
        standing = read.show_job(connection, tenant, wanted)
    document = {**described(without(given or standing.job, unset or []), flags), "key": wanted}
    with asking(tenant) as client:
        # What was read is what is changed: somebody else's edit in between is refused, not overwritten.
        made = client.submit(document, if_version=if_version or standing.summary.version)
    say_job(wanted, "updated", made, output, zone=flags.tz or _zone(document))


def list_jobs(
    *,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Only keys that begin so.")] = "",
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Only jobs with this label; several are possible.")
    ] = None,
    paused: Annotated[
        bool | None, typer.Option("--paused/--not-paused", help="Only paused jobs, or only others.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="Only once, interval, fixed_delay, cron or manual schedules.")
    ] = None,
    after: Annotated[str, typer.Option(metavar="KEY", help="Begin after this key.")] = "",
    number: Annotated[int, typer.Option("-n", metavar="N", min=1, max=1000, help="How many to show.")] = 50,
    tenant: Tenant = DEFAULT_TENANT,
    output: Answer = Output.TEXT,
) -> None:
    """List jobs by key, with what comes next and how the last run went."""
    with reading() as connection:
        page = read.list_jobs(
            connection, tenant, prefix=prefix, labels=read_labels(label or []), paused=paused, kind=kind, after=after,
            most=number,
        )  # fmt: skip
    if output is Output.JSON:
        say_json(page)
        return
    if not page.jobs:
        typer.echo("no such job")
        return
    print_table(("key", "schedule", "state", "next", "last run", "took"), map(_row, page.jobs))
    if page.following is not None:
        typer.echo(f"more: add --after {page.following!r}")


def show(
    key: Key,
    *,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: Answer = Output.TEXT,
) -> None:
    """Show a job: what was submitted, where it stands, its pause and its last run."""
    with reading() as connection:
        found = read.show_job(connection, tenant, key)
    if output is Output.JSON:
        rest = as_object(as_json(found)) or {}
        say_json({**(as_object(rest.pop("summary")) or {}), **rest})
    else:
        print_facts(job_facts(found, timezone or found.summary.timezone))


def pause(
    key: Key,
    *,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Resume by itself then.")] = None,
    reason: Reason = None,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: Answer = Output.TEXT,
) -> None:
    """Fire no occurrence of a job until it is resumed; triggers go on working."""
    end = read_instant(until, "--until", timezone) if until else None
    with asking(tenant) as client:
        done = client.pause(key, until=end, reason=reason)
    said = f"paused until {beside(end, timezone)}" if end else "paused"
    say_job(key, said, done, output, unchanged="is paused already")


def resume(key: Key, *, tenant: Tenant = DEFAULT_TENANT, output: Answer = Output.TEXT) -> None:
    """Fire a paused job's occurrences again."""
    with asking(tenant) as client:
        done = client.resume(key)
    say_job(key, "resumed", done, output, unchanged="is not paused")


def delete(
    key: Key, *, if_version: IfVersion = None, tenant: Tenant = DEFAULT_TENANT, output: Answer = Output.TEXT
) -> None:
    """Remove a job; runs that have begun finish, the others are cancelled."""
    with asking(tenant) as client:
        done = client.delete(key, if_version=if_version)
    say_job(key, "deleted", done, output)


def trigger(
    key: Key,
    *,
    payload: Annotated[
        str | None, typer.Option(metavar="JSON", help="In place of the job's; @FILE reads a file.")
    ] = None,
    delay: Annotated[str | None, typer.Option(metavar="DURATION", help="So long from now.")] = None,
    run_at: Annotated[str | None, typer.Option(metavar="TIME", help="At this time; at once if it has passed.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="In place of the job's.")] = None,
    overlap: Annotated[str | None, typer.Option(metavar="POLICY", help="In place of the job's.")] = None,
    request_id: Annotated[
        str | None, typer.Option(metavar="ID", help="The same id again is the same run, not a second one.")
    ] = None,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: Answer = Output.TEXT,
) -> None:
    """Run a job once, now or later, whatever its schedule says; prints the run's id."""
    with asking(tenant) as client:
        run_id = client.trigger(
            key,
            None if payload is None else read_payload(payload),
            delay=None if delay is None else read_duration(delay, "--delay"),
            run_at=read_instant(run_at, "--run-at", timezone) if run_at else None,
            labels=read_labels(label) if label else None,
            overlap=overlap,
            request_id=request_id,
        )
    say([f"run {run_id}"], {"key": key, "run_id": run_id}, output)


def say_job(
    key: str,
    done: str,
    job: Job,
    output: Output,
    *,
    unchanged: str = "is so already",
    zone: str | None = None,
) -> None:
    """Tell what became of a job: what was done, its version and what comes next."""
    said = f"{unchanged}, version {job.version}" if job.unchanged else f"{done}, version {job.version}"
    coming = f"; next {beside(job.next_run_at, zone)}" if job.next_run_at else ""
    say([f"{key}: {said}{coming}"], {"key": key, **(as_object(as_json(job)) or {})}, output)


def key_of(key: str | None, named: str | None, document: Mapping[str, object]) -> str:
    """The one key that argument, flag and file agree on."""
    said = sorted({str(each) for each in (key, named, document.get("key")) if each is not None})
    if not said:
        refuse("key", "is missing", "name the job: `tidewheel job create KEY …`, or --key, or key in the file")
    if len(said) > 1:
        refuse("key", f"{' and '.join(map(repr, said))} were read", "name the job once")
    return said[0]


def _zone(job: Mapping[str, object]) -> str | None:
    zone = (as_object(job.get("schedule")) or {}).get("timezone")
    return zone if isinstance(zone, str) else None


def _row(job: read.JobSummary) -> tuple[str, ...]:
    return (
        job.key,
        schedule_words(job.schedule),
        state_words(job),
        rfc3339(job.next_at) if job.next_at else "",
        job.last_run.state if job.last_run else "",
        took_words(job.last_run),
    )
