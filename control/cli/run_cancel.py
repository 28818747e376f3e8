"""`tidewheel run cancel`: runs by their ids, or all that fit a filter, with progress until the last has ended."""

import sys
from collections.abc import Sequence
from threading import Event
from typing import Annotated
from uuid import UUID

import typer

from tidewheel.clock import monotonic_seconds
from tidewheel.control.cli.connection_options import DEFAULT_TENANT, Tenant, asking
from tidewheel.control.cli.job_flags import read_labels
from tidewheel.control.cli.jobs import Reason
from tidewheel.control.cli.output import Answer, Output, say, say_json
from tidewheel.control.cli.progress import bar
from tidewheel.control.cli.time_options import Tz, read_instant
from tidewheel.control.client.client import Client
from tidewheel.control.reads.cancellations import Cancellation, RunFilter
from tidewheel.errors import refuse

_LOOK_SECONDS = 0.2
_WARN_SECONDS = 10.0  # schedulers look four times a second


def cancel(
    runs: Annotated[list[UUID] | None, typer.Argument(metavar="RUN", help="These runs.")] = None,
    *,
    job: Annotated[str | None, typer.Option(metavar="KEY", help="All of this job.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="All of jobs with this label; several are possible.")
    ] = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="All of this queue.")] = None,
    lane: Annotated[str | None, typer.Option(metavar="LANE", help="All of this lane.")] = None,
    handler: Annotated[str | None, typer.Option(metavar="NAME", help="All of this handler.")] = None,
    cause: Annotated[
        str | None, typer.Option(metavar="CAUSE", help="All made by a timer, trigger, backfill, workflow or retry.")
    ] = None,
    before: Annotated[str | None, typer.Option(metavar="TIME", help="Of these, only those made before.")] = None,
    not_begun: Annotated[bool, typer.Option("--not-begun", help="Of these, only those that never began.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many there are.")] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait until the last has ended.")] = False,
    reason: Reason = None,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: Answer = Output.TEXT,
) -> None:
    """End runs, whatever state they are in: some by id, or all that fit every filter given."""
    which: RunFilter = {
        "key": job, "labels": read_labels(label) if label else None, "queue": queue, "lane": lane, "handler": handler,
        "cause": cause, "created_before": read_instant(before, "--before", timezone) if before else None,
        "begun": not not_begun,
    }  # fmt: skip
    filtered = not_begun or any(value is not None for name, value in which.items() if name != "begun")
    if bool(runs) == filtered:
        refuse("RUN", "name runs, or filters, and not both", "write ids, or --job, --label, --queue, --lane, …")
    with asking(tenant) as client:
        if runs:
            _cancel_each(client, runs, reason, output, dry_run=dry_run)
            return
        total = client.count_runs(**which)
        if dry_run:
            say([f"{total:,} runs would be cancelled"], {"runs": total}, output)
            return
        number = client.cancel_runs(reason=reason, **which)
        standing = client.cancellation(number) if no_wait else _wait(client, number, total)
    _say(standing, output)


def _cancel_each(client: Client, runs: Sequence[UUID], reason: str | None, output: Output, *, dry_run: bool) -> None:
    found = [(run, client.run(run).state if dry_run else client.cancel(run, reason=reason)) for run in runs]
    if output is Output.JSON:
        say_json({"runs": [{"run_id": run, "found": state} for run, state in found]})
        return
    for run, state in found:
        typer.echo(f"run {run}: {'is' if dry_run else 'was'} {state}")


def _wait(client: Client, number: int, total: int) -> Cancellation:
    """Wait until it is finished; who has no scheduler is told so once."""
    never, moved_at, moved, warned = Event(), monotonic_seconds(), -1, False
    with bar("cancelling", total) as show:
        while (standing := client.cancellation(number)).finished_at is None:
            show(standing.cancelled)
            if standing.cancelled != moved:
                moved, moved_at = standing.cancelled, monotonic_seconds()
            elif not warned and monotonic_seconds() - moved_at > _WARN_SECONDS:
                sys.stderr.write("tidewheel: nothing moves: does a scheduler run? No claim takes them meanwhile\n")
                warned = True
            never.wait(_LOOK_SECONDS)
    return standing


def _say(standing: Cancellation, output: Output) -> None:
    done = f"{standing.cancelled:,} runs cancelled"
    lines = [f"cancellation {standing.cancellation_id}"]
    lines.append(done if standing.finished_at else f"{done} so far; no claim takes any of the others")
    say(lines, standing, output)
