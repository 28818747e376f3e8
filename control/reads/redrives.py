"""Read redrives: those of a tenant, or one with its rejections."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.reads.dead_letters import DeadLetterFilter, DeadLetterSummary, list_dead_letters
from tidewheel.control.reads.tenants import require_tenant
from tidewheel.errors import UnknownRedrive
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.control")
_LIST_REDRIVES = _SQL["list_redrives"]
_SHOW_REDRIVE = _SQL["show_redrive"]

_FILTERS = ("kind", "key", "status", "error_type", "queue", "lane")


@dataclass(frozen=True, slots=True)
class Redriving:
    """A redrive with its progress.

    Args:
        redrive_id: Its id.
        state: `running`, `paused`, `finished` or `cancelled`.
        kind: Only dead letters of this kind.
        ids: Only these.
        key: Only of this job.
        status: Only of runs in this final state.
        error_type: Only with this error type.
        queue: Only of this queue.
        lane: Only of this lane.
        since_at: Only those created at this instant or later.
        until_at: Only those created at this instant or before.
        rate: Dead letters a second at most; None for no bound.
        matched_count: How many matched at its acceptance; counted to 10,001, which means that there may be more.
        redriven_count: How many were redriven so far.
        rejected_count: How many could not be redriven so far.
        rejections: The first hundred of these: `id` and `errors` of each.
        reason: The reason of its request, pause or cancellation.
        created_at: When it was accepted.
        finished_at: When it was finished or cancelled.
    """

    redrive_id: UUID
    state: str
    kind: str | None
    ids: Sequence[int] | None
    key: str | None
    status: str | None
    error_type: str | None
    queue: str | None
    lane: str | None
    since_at: datetime
    until_at: datetime
    rate: float | None
    matched_count: int
    redriven_count: int
    rejected_count: int
    rejections: Sequence[Mapping[str, object]]
    reason: str | None
    created_at: datetime
    finished_at: datetime | None

    @property
    def processed(self) -> int:
        """Dead letters that were redriven or rejected, of `matched_count`."""
        return self.redriven_count + self.rejected_count

    @property
    def filters(self) -> DeadLetterFilter:
        """The filter of the dead letters that it has not redriven."""
        return {
            "ids": self.ids or None, "kind": self.kind, "key": self.key, "status": self.status,
            "error_type": self.error_type, "queue": self.queue, "lane": self.lane, "since": self.since_at,
            "until": self.until_at, "redriven": False,
        }  # fmt: skip

    def includes(self, letter: DeadLetterSummary) -> bool:
        """Return True if a redrive that has not ended will still redrive a dead letter."""
        return (
            letter.redriven_at is None
            and self.since_at <= letter.created_at <= self.until_at
            and (not self.ids or letter.id in self.ids)
            and letter.id not in {each.get("id") for each in self.rejections}
            and all(getattr(self, name) in (None, getattr(letter, name)) for name in _FILTERS)
        )


def redrives(connection: Conn, tenant: str, *, limit: int = 100) -> list[Redriving]:
    """Return a tenant's redrives, the newest first.

    Raises:
        InvalidInput: There is no such tenant.
    """
    require_tenant(connection, tenant)
    with connection.cursor(row_factory=class_row(Redriving), binary=True) as cursor:
        return cursor.execute(_LIST_REDRIVES, {"tenant": tenant, "limit": limit}).fetchall()


def going_on(connection: Conn, tenant: str) -> list[Redriving]:
    """Return a tenant's redrives that have not ended, paused ones last."""
    rows = [row for row in redrives(connection, tenant) if row.finished_at is None]
    return sorted(rows, key=lambda row: row.state == "paused")


def letters_in_redrives(
    connection: Conn, tenant: str, filters: DeadLetterFilter, *, look: int
) -> list[DeadLetterSummary]:
    """Return those of the newest `look` dead letters of a filter that are in a redrive under way."""
    rows = going_on(connection, tenant)
    if not rows:
        return []
    open_ones: DeadLetterFilter = {**filters, "redriven": False}
    found = list_dead_letters(connection, tenant, open_ones, limit=look).dead_letters
    return [letter for letter in found if any(row.includes(letter) for row in rows)]


def in_redrives(count: int, known: int, *, at_least: bool = False) -> str:
    """Return a sentence about how many of some dead letters redrives include; empty for none.

    >>> in_redrives(1, 1), in_redrives(3, 2), in_redrives(3, 0)
    ('It is in a redrive already.', '2 of them are in a redrive already.', '')
    >>> in_redrives(3, 3), in_redrives(3, 1)
    ('All of them are in a redrive already.', '1 of them is in a redrive already.')
    """
    if not known:
        return ""
    many = "All" if known == count and not at_least else f"{known:,}{'+' if at_least else ''}"
    which = "It is" if count == 1 else f"{many} of them {'is' if known == 1 else 'are'}"
    return f"{which} in a redrive already."


def redrive(connection: Conn, tenant: str, redrive_id: UUID) -> Redriving:
    """Return one redrive.

    Raises:
        UnknownRedrive: The tenant has no redrive of this id.
    """
    columns = {"tenant": tenant, "redrive_id": redrive_id}
    with connection.cursor(row_factory=class_row(Redriving), binary=True) as cursor:
        found = cursor.execute(_SHOW_REDRIVE, columns).fetchone()
    if found is None:
        raise UnknownRedrive(str(redrive_id))
    return found
