"""`tidewheel admin changes`: changes and operations with their actors."""

from typing import Annotated

import typer

from tidewheel.control.cli.options import DEFAULT_TENANT, After, Limit, Tenant, Tz, place_text, read_place, reading
from tidewheel.control.cli.output import Output, OutputOption, print_document, print_table
from tidewheel.control.cli.tables import Cell
from tidewheel.control.instants import read_instant
from tidewheel.control.reads.audit_log import AuditEntry, list_audit_log


def audit_log(
    *,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Only entries of this time or later.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only entries before this time.")] = None,
    actor: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only those of this key, user, message or named person.")
    ] = None,
    changed: Annotated[
        str | None, typer.Option("--object", metavar="OBJECT", help="Only those of this object, such as job/nightly.")
    ] = None,
    action: Annotated[str | None, typer.Option(metavar="TYPE", help="Only this action, such as job.submit.")] = None,
    door: Annotated[
        str | None, typer.Option(metavar="DOOR", help="Only by this door: rest, kafka, cli, client or console.")
    ] = None,
    after: After = None,
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="The entries of every tenant and of the whole installation.")
    ] = False,
    timezone: Tz = None,
    number: Limit = 50,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """List changes and operations with actor, door, result and reason, the newest first.

    Accepted triggers and unchanged submits are not recorded. Nothing verifies an actor that has a question mark.
    """
    with reading() as connection:
        page = list_audit_log(
            connection,
            None if all_tenants else tenant,
            after=read_place(after, int) if after else None,
            limit=number,
            since=read_instant(since, "--since", timezone) if since else None,
            until=read_instant(until, "--until", timezone) if until else None,
            actor=actor,
            object=changed,
            action=action,
            door=door,
        )
    if output is not Output.TEXT:
        print_document(page, output)
        return
    if page.entries:
        print_table(("at", "actor", "door", "action", "object", "version", "result", "reason"), map(_row, page.entries))
    elif page.next is None:
        typer.echo("no entries")
    if page.next is not None:
        typer.echo(f"more: add --after {place_text(*page.next)}")


def _row(entry: AuditEntry) -> tuple[Cell, ...]:
    actor = f"{entry.named}?, {entry.actor}" if entry.named else entry.actor
    before, after = entry.version_before, entry.version_after
    versions = "" if before == after else f"{before or '-'} to {after or '-'}"
    return (
        entry.at,
        actor if entry.verified else f"{actor}?",
        entry.door,
        entry.action,
        entry.object if entry.objects == 1 else f"{entry.object} ({entry.objects:,})",
        versions,
        entry.result,
        entry.reason or "",
    )
