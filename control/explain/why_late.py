"""The reason for which a run was made after its time, by the versions of its job and the audit log."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import cast

from psycopg.rows import class_row

from tidewheel.control.explain.job_timeline import VersionTick
from tidewheel.control.reads.run_detail import RunDetail
from tidewheel.nouns.freezes.reads import freeze_changes
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.control")
_READ_VERSIONS_SINCE = _SQL["read_versions_since"]
_READ_PAUSES = _SQL["read_pauses"]

UNKNOWN = "the occurrence was missed, came due in a pause, or was past when the job was submitted"
_TICK = timedelta(microseconds=1)


def why_late(connection: Conn, tenant: str, run: RunDetail) -> str:
    """Return the reason as a part of a sentence; all that are possible if the records do not show which."""
    summary = run.summary
    at, made = summary.scheduled_at, summary.created_at
    columns: dict[str, object] = {"job_id": summary.job_id, "since": at, "until": made + _TICK}
    with connection.cursor(row_factory=class_row(VersionTick), binary=True) as cursor:
        submitted = cursor.execute(_READ_VERSIONS_SINCE, columns).fetchall()
    if any(each.number == summary.job_version for each in submitted):
        return f"it was past when version {summary.job_version} of the job was submitted"
    columns = {"tenant": tenant, "object": f"job/{summary.key}", "until": made}
    entries = connection.execute(_READ_PAUSES, columns, binary=True).fetchall()
    pause = _pause_at(at, cast("Sequence[tuple[datetime, bool, str]]", entries))
    if pause is not None:
        return pause
    for change in freeze_changes(connection, tenant, at, made):
        if not change.begins and change.names(queue=summary.queue, key=summary.key, labels=run.labels):
            return f"the occurrence came due in a freeze ({change.scope}), which {change.by} ended"
    return "the occurrence was missed"


def _pause_at(at: datetime, entries: Sequence[tuple[datetime, bool, str]]) -> str | None:
    """Return whether the job was paused at an instant; None if it was not.

    A pause with an end of its own ends without an entry, so one without a resume may have ended before.

    Args:
        entries: Pauses and resumes until the run was made, the newest first, each with True for a pause and its author.
    """
    before = next((begins for when, begins, _ in entries if when <= at), None)
    after = next(((begins, by) for when, begins, by in reversed(entries) if when > at), None)
    if after is not None and not after[0] and before is not False:
        return f"the occurrence came due in a pause, which {after[1]} ended"
    return UNKNOWN if before else None
