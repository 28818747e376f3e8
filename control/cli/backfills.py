"""`tidewheel job backfill`, which asks for a past range, and `tidewheel backfill pause | resume | cancel`."""

from typing import Annotated
from uuid import UUID

import typer

from tidewheel.control.cli.answers import Answer, Output, as_json, say
from tidewheel.control.cli.connecting import DEFAULT_TENANT, Key, Tenant, asking
from tidewheel.control.cli.instants import Tz, read_instant
from tidewheel.control.cli.jobs import Reason
from tidewheel.control.client import Backfilled
from tidewheel.jobs.strict_json import as_object

BackfillId = Annotated[UUID, typer.Argument(metavar="ID", help="The backfill, by the id it was answered with.")]


def backfill_job(
    key: Key,
    *,
    from_at: Annotated[str, typer.Option("--from", metavar="TIME", help="The first instant of the range.")],
    to_at: Annotated[str, typer.Option("--to", metavar="TIME", help="The last.")],
    what: Annotated[
        str | None, typer.Option(metavar="WHAT", help="missing_only (those that did not fire), or all.")
    ] = None,
    versions: Annotated[
        str | None, typer.Option(metavar="WHICH", help="as_of (the version in force then), or current.")
    ] = None,
    overlap: Annotated[str | None, typer.Option(metavar="POLICY", help="In place of the job's.")] = None,
    max_concurrent: Annotated[
        int | None, typer.Option(metavar="N", help="How many of its runs may be open at once; 10 if not said.")
    ] = None,
    order: Annotated[str | None, typer.Option(metavar="ORDER", help="oldest_first or newest_first.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many there would be.")] = False,
    reason: Reason = None,
    request_id: Annotated[
        str | None, typer.Option(metavar="ID", help="The same id again is the same backfill, not a second one.")
    ] = None,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: Answer = Output.TEXT,
) -> None:
    """Run the occurrences of a past range, some at a time; prints the backfill's id."""
    first, last = read_instant(from_at, "--from", timezone), read_instant(to_at, "--to", timezone)
    with asking(tenant) as client:
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
    if done.backfill_id is None:
        lines = [f"{done.occurrences} occurrences would be run"]
    else:
        lines = [f"backfill {done.backfill_id}", f"of {done.occurrences} occurrences"]
    say(lines, {"key": key, **(as_object(as_json(done)) or {})}, output)


def pause_backfill(
    backfill_id: BackfillId, *, reason: Reason = None, tenant: Tenant = DEFAULT_TENANT, output: Answer = Output.TEXT
) -> None:
    """Make no further run of a backfill until it is resumed."""
    with asking(tenant) as client:
        _say(client.pause_backfill(backfill_id, reason=reason), "paused", backfill_id, output)


def resume_backfill(backfill_id: BackfillId, *, tenant: Tenant = DEFAULT_TENANT, output: Answer = Output.TEXT) -> None:
    """Go on with a backfill."""
    with asking(tenant) as client:
        _say(client.resume_backfill(backfill_id), "resumed", backfill_id, output)


def cancel_backfill(
    backfill_id: BackfillId, *, reason: Reason = None, tenant: Tenant = DEFAULT_TENANT, output: Answer = Output.TEXT
) -> None:
    """Make no further run of a backfill, and cancel those that have not begun."""
    with asking(tenant) as client:
        _say(client.cancel_backfill(backfill_id, reason=reason), "cancelled", backfill_id, output)


def _say(done: Backfilled, what: str, backfill_id: UUID, output: Output) -> None:
    said = "was so already" if done.unchanged else what
    say([f"backfill {backfill_id}: {said}"], {"backfill_id": backfill_id, "unchanged": done.unchanged}, output)
