"""`tidewheel admin changes`: its columns."""

from functools import partial

from tidewheel.control.cli.output import Table
from tidewheel.control.cli.tables import Cell
from tidewheel.doors.cli import command
from tidewheel.nouns.audit_log.operations import AuditEntry, AuditLog


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
list_all = command(AuditLog, "list", partial(_ENTRIES.show, nothing="no entries"))
