"""`tidewheel job backfill`."""

from typing import Annotated

import typer

from tidewheel.control.cli.options import DEFAULT_TENANT, Key, Reason, RequestId, Tenant, Tz, requesting
from tidewheel.control.cli.output import Output, OutputOption, count_text, print_result
from tidewheel.control.cli.waiting import Wait
from tidewheel.control.instants import read_instant
from tidewheel.control.reads.json_form import as_json
from tidewheel.doors.cli import Shown
from tidewheel.jobs.strict_json import as_object
from tidewheel.nouns.works.commands import follow


def backfill_job(
    key: Key,
    *,
    from_at: Annotated[str, typer.Option("--from", metavar="TIME", help="The first instant of the range.")],
    to_at: Annotated[str, typer.Option("--to", metavar="TIME", help="The last instant of the range.")],
    what: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT", help="Occurrences to run: missing_only (no run, or a skipped or cancelled one) or all."
        ),
    ] = None,
    versions: Annotated[
        str | None, typer.Option(metavar="WHICH", help="Version of the job: as_of (the one in force then) or current.")
    ] = None,
    overlap: Annotated[str | None, typer.Option(metavar="POLICY", help="Overlap policy instead of the job's.")] = None,
    max_concurrent: Annotated[
        int | None, typer.Option(metavar="N", help="Have at most this many open runs; 10 by default.")
    ] = None,
    order: Annotated[
        str | None, typer.Option(metavar="ORDER", help="Order of the runs: oldest_first or newest_first.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the number of occurrences; run none.")] = False,
    wait: Wait = False,
    reason: Reason = None,
    request_id: RequestId = None,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Run the occurrences of a past range; print the backfill's id."""
    first, last = read_instant(from_at, "--from", timezone), read_instant(to_at, "--to", timezone)
    with requesting(tenant) as client:
        done = client.backfill(
            key,
            first,
            last,
            what=what,
            versions=versions,
            overlap=overlap,
            max_concurrent=max_concurrent,
            order=order,
            dry_run=dry_run,
            reason=reason,
            request_id=request_id,
        )
    if wait and done.backfill_id is not None:
        follow(Shown(None, {}, {}, timezone, tenant, output), done.backfill_id)
        return
    if done.backfill_id is None:
        lines = [f"{count_text(done.occurrences or 0, 'occurrence')} would be run"]
    else:
        lines = [f"backfill {done.backfill_id}", count_text(done.occurrences or 0, "occurrence")]
    print_result(lines, {"key": key, **(as_object(as_json(done)) or {})}, output)
