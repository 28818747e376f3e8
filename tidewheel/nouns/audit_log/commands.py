"""`tidewheel admin changes`: its columns."""

import typer

from tidewheel.control.cli.options import place_text
from tidewheel.control.cli.output import Output, print_document
from tidewheel.control.cli.tables import Cell
from tidewheel.doors.cli import Flag, Shown, Table, command
from tidewheel.nouns.audit_log.operations import AuditEntry, AuditLog, AuditLogPage


def _show_list(shown: Shown) -> None:
    page: AuditLogPage = shown.found
    if shown.output is not Output.TEXT:
        print_document(page, shown.output)
        return
    if page.entries:
        _ENTRIES.print(page.entries)
    elif page.next_cursor is None:
        typer.echo("no entries")
    if page.next_cursor is not None:
        typer.echo(f"more: add --after {place_text(*page.next_cursor)}")


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


_ENTRIES = Table("entry", ("at", "actor", "door", "action", "object", "version", "result", "reason"), _row)
_FLAGS = {
    "actor": Flag(metavar="NAME"),
    "object": Flag(metavar="OBJECT"),
    "action": Flag(metavar="TYPE"),
    "door": Flag(metavar="DOOR"),
}
list_all = command(AuditLog, "list", _show_list, flags=_FLAGS)
