"""A lost race: another version came first. Both edits are compared and laid on top of each other."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from tidewheel.audit import ACCEPTED, MAX_OBJECT
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.spec_check import value_text
from tidewheel.control.console.spec_form import Job
from tidewheel.control.console.spec_merge import Difference, differences, laid_on_top
from tidewheel.control.reads.audit_log import AuditEntry, list_audit_log
from tidewheel.control.reads.versions import job_at
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn

_LOOK = 100  # entries of the audit log about one job


@dataclass(frozen=True, slots=True)
class RaceRow:
    """A field that one of both has changed, as text."""

    path: str
    yours: str
    theirs: str
    base: str
    meets: bool
    by_you: bool


@dataclass(frozen=True, slots=True)
class Race:
    """A save that came too late.

    Args:
        version: The version in force; None if the job was deleted.
        by: Its author; None if the audit log has none.
        at: When it was made.
        now: The database's clock.
        rows: The fields that either has changed.
    """

    version: int | None
    by: str | None
    at: datetime | None
    now: datetime
    rows: Sequence[RaceRow]

    @property
    def meeting(self) -> int:
        """The number of fields that both have changed."""
        return sum(row.meets for row in self.rows)

    @property
    def apart(self) -> int:
        """The number of fields that only the late save has changed."""
        return sum(row.by_you and not row.meets for row in self.rows)


def read_race(connection: Connection, tenant: str, key: str, *, base: int, yours: Job, version: int | None) -> Race:
    """Return what came first, beside what was typed."""
    with connection.snapshot() as reading:
        now = read_now(reading)
        made = authors(reading, tenant, key)
        entry = made.get(version) if version is not None else None
        if version is None:
            return Race(None, *_who(_deletion(reading, tenant, key)), now, ())
        old, theirs = (job_at(reading, tenant, key, number) for number in (base, version))
    return Race(version, *_who(entry), now, [_row(each) for each in differences(old, yours, theirs)])


def lay_on_top(
    connection: Connection, tenant: str, key: str, yours: Job, *, versions: tuple[int, int], kept: Collection[str]
) -> dict[str, object]:
    """Return the later of two versions with the changes that were made to the earlier one."""
    with connection.snapshot() as reading:
        old, theirs = (job_at(reading, tenant, key, number) for number in versions)
    return laid_on_top(theirs, differences(old, yours, theirs), kept)


def authors(reading: Conn, tenant: str, key: str) -> dict[int, AuditEntry]:
    """Return the entries of the audit log that made versions of a job, by the number of the version."""
    page = list_audit_log(reading, tenant, limit=_LOOK, object=_object(key))
    return {
        each.version_after: each
        for each in reversed(page.entries)
        if each.result == ACCEPTED and each.version_after is not None and each.version_before != each.version_after
    }


def author_words(entry: AuditEntry) -> str:
    """Return who made a change: the person that the sender named, and the key or the user."""
    return f"{entry.named}, {entry.actor}" if entry.named else entry.actor


def _deletion(reading: Conn, tenant: str, key: str) -> AuditEntry | None:
    page = list_audit_log(reading, tenant, limit=_LOOK, object=_object(key))
    return next((each for each in page.entries if each.action == "job.delete" and each.result == ACCEPTED), None)


def _object(key: str) -> str:
    return f"job/{key}"[:MAX_OBJECT]


def _who(entry: AuditEntry | None) -> tuple[str | None, datetime | None]:
    return (None, None) if entry is None else (author_words(entry), entry.at)


def _row(each: Difference) -> RaceRow:
    return RaceRow(
        each.name, value_text(each.yours), value_text(each.theirs), value_text(each.base), each.meets, each.is_yours
    )
