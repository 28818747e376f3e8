"""`tidewheel run list | show | where | attempts | retry`; `run cancel` is in run_cancel.py."""

from typing import Annotated
from uuid import UUID

import typer

from tidewheel.control.cli.connection_options import DEFAULT_TENANT, Tenant, asking, reading
from tidewheel.control.cli.job_flags import read_labels
from tidewheel.control.cli.output import Answer, Output, as_json, print_facts, print_table, say, say_json
from tidewheel.control.cli.run_format import attempt_facts, attempt_row, claimed_from, run_facts, run_row, total_words
from tidewheel.control.cli.time_options import Tz, read_duration, read_instant
from tidewheel.control.reads import run_detail as read_one
from tidewheel.control.reads import runs as read
from tidewheel.jobs.strict_json import as_object

RunId = Annotated[UUID, typer.Argument(metavar="RUN", help="The run, by the id it was answered with.")]
After = Annotated[UUID | None, typer.Option(metavar="RUN", help="Begin after this run.")]


def list_runs(
    *,
    status: Annotated[
        str | None, typer.Option(metavar="STATE", help="Only those: queued, scheduled, running, failed, …")
    ] = None,
    job: Annotated[str | None, typer.Option(metavar="KEY", help="Only this job's.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Only runs with this label; needs --job or --since.")
    ] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="From this time on.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Up to this time.")] = None,
    after: After = None,
    number: Annotated[int, typer.Option("-n", metavar="N", min=1, max=1000, help="How many to show.")] = 50,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: Answer = Output.TEXT,
) -> None:
    """List runs, the newest first."""
    which = read.WhichRuns(
        status=status,
        key=job,
        labels=read_labels(label) if label else None,
        since=read_instant(since, "--since", timezone) if since else None,
        until=read_instant(until, "--until", timezone) if until else None,
    )
    with reading() as connection:
        page = read.list_runs(connection, tenant, which, after=after, most=number)
    if output is Output.JSON:
        say_json(page)
        return
    if not page.runs:
        typer.echo("no such run")
        return
    print_table(("run", "key", "status", "cause", "scheduled", "attempt", "took", "why"), map(run_row, page.runs))
    typer.echo(total_words(page.total, at_least=page.at_least, shown=len(page.runs), what="run"))
    if page.following is not None:
        typer.echo(f"more: add --after {page.following}")


def show(run_id: RunId, *, timezone: Tz = None, tenant: Tenant = DEFAULT_TENANT, output: Answer = Output.TEXT) -> None:
    """Show a run: where it stands, its attempts, result, deadlines, and the chain of retries it is in."""
    with reading() as connection:
        found = read_one.show_run(connection, tenant, run_id)
    if output is Output.JSON:
        rest = as_object(as_json(found)) or {}
        say_json({**(as_object(rest.pop("summary")) or {}), **rest})
    else:
        print_facts(run_facts(found, timezone))


def attempts(run_id: RunId, *, tenant: Tenant = DEFAULT_TENANT, output: Answer = Output.TEXT) -> None:
    """List a run's attempts, with what each failed with and wrote."""
    with reading() as connection:
        found = read_one.show_run(connection, tenant, run_id)
    if output is Output.JSON:
        say_json({"run_id": run_id, "attempts": found.attempts})
        return
    if not found.attempts:
        typer.echo("no attempt is over")
        return
    print_table(("attempt", "outcome", "started", "took", "executor", "error"), map(attempt_row, found.attempts))
    for attempt in found.attempts:
        if facts := list(attempt_facts(attempt)):
            typer.echo(f"\nattempt {attempt.attempt}")
            print_facts(facts)


def where(run_id: RunId, *, tenant: Tenant = DEFAULT_TENANT, output: Answer = Output.TEXT) -> None:
    """Say by which Kafka messages a run's attempts came: topic, partition, offset, timestamp."""
    with reading() as connection:
        found = read_one.show_run(connection, tenant, run_id)
    told = [(one.attempt, one.claimed_from) for one in found.attempts]
    if found.claimed_from is not None and found.summary.attempt not in dict(told):
        told.append((found.summary.attempt, found.claimed_from))
    places = [claimed_from(attempt, text) for attempt, text in told if text is not None]
    if output is Output.JSON:
        say_json({"run_id": run_id, "messages": places})
    elif places:
        rows = [
            (str(place.attempt), place.topic or "none: by the sweep", *map(_cell, (place.partition, place.offset)),
             _cell(place.timestamp))
            for place in places
        ]  # fmt: skip
        print_table(("attempt", "topic", "partition", "offset", "timestamp"), rows)
    else:
        typer.echo("nobody has claimed it")


def retry(
    run_id: RunId,
    *,
    delay: Annotated[str | None, typer.Option(metavar="DURATION", help="So long from now.")] = None,
    request_id: Annotated[
        str | None, typer.Option(metavar="ID", help="The same id again is the same run, not a second one.")
    ] = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: Answer = Output.TEXT,
) -> None:
    """Make a new run of one that is over, under its job's current version; prints the new one's id."""
    with asking(tenant) as client:
        made = client.retry(
            run_id, delay=None if delay is None else read_duration(delay, "--delay"), request_id=request_id
        )
    say([f"run {made}"], {"run_id": made, "parent_run_id": run_id}, output)


def _cell(value: object) -> str:
    return "" if value is None else str(as_json(value))
