"""`tidewheel job release`: release quarantined jobs."""

from typing import Annotated

import typer

from tidewheel.control.cli.options import DEFAULT_TENANT, Tenant, requesting, tenant_flag
from tidewheel.control.cli.output import Output, OutputOption, print_document, print_table, progress_bar

Keys = Annotated[list[str] | None, typer.Argument(metavar="KEY", help="Quarantined jobs, by key.")]


def release(
    keys: Keys = None,
    *,
    error: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only those whose error contains this text.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All quarantined jobs; needed without a key or an error.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print their number and the first ten; change nothing.")
    ] = False,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Let quarantined jobs fire again, once the cause of their error is corrected.

    A scheduler quarantines a job that it cannot fire, such as one whose time zone no longer exists. The job then fires
    nothing more, and all others go on. `job list --quarantined` lists such jobs, and `job show KEY` has the error.
    Name jobs by their keys, or select all whose error contains a text, or all.

    A released job fires from where it stopped. Its catch_up decides about the occurrences that have passed meanwhile.
    A job that fails again is quarantined again. The command can be repeated: it changes quarantined jobs only.
    """
    with requesting(tenant) as client, progress_bar("releasing", None) as on_progress:
        result = client.release(
            *(keys or ()), error=error, everything=everything, dry_run=dry_run, on_progress=on_progress
        )
    if output is not Output.TEXT:
        print_document(result, output)
        return
    if dry_run:
        typer.echo(f"jobs that would be released: {result.matched:,}")
        if result.first:
            rows = ((job.key, job.created_at, job.error) for job in result.first)
            print_table(("key", "quarantined", "error"), rows)
        return
    typer.echo(f"jobs released: {result.released:,}")
    if result.released:
        command = f"tidewheel job list --quarantined{tenant_flag(tenant)}"
        typer.echo(f"each fires from where it stopped; `{command}` shows those that fail again")
