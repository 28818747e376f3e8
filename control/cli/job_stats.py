"""`tidewheel job stats`: a job's runs by day."""

from typing import Annotated

import typer

from tidewheel.control.cli.options import DEFAULT_TENANT, Key, Tenant, reading
from tidewheel.control.cli.output import Output, OutputOption, print_document, print_table
from tidewheel.control.cli.tables import Cell
from tidewheel.control.reads.job_days import MAX_DAYS, JobDay, job_statistics

_HEADINGS = (
    "day", "succeeded", "failed", "timed out", "cancelled", "skipped", "attempts", "p50", "p90", "p99", "late p99",
)  # fmt: skip


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
        rows = [_row(day.day.isoformat(), day) for day in found.days]
        print_table(_HEADINGS, [*rows, _row("total", found.total)])
        if found.total.longest is not None:
            typer.echo(f"the longest run: {found.total.longest.run_id}, {found.total.longest.took:.3g} s")


def _row(name: str, day: JobDay) -> tuple[Cell, ...]:
    counts = (day.succeeded, day.failed, day.timed_out, day.cancelled, day.skipped, day.attempts)
    quantiles = (day.duration.p50, day.duration.p90, day.duration.p99, day.lateness.p99)
    return name, *map(str, counts), *("" if each is None else f"{each:.3g} s" for each in quantiles)
