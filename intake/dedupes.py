"""Dedupe of triggers: the triggers of a job with one key have one run in a window (ADR 0060).

The window's row is locked before its run, so triggers of one key are applied one after another, in whatever process. A
run that has not begun keeps its id and gets the inputs of the later trigger. The lock of its row decides between a
claim and a trigger: what the answer names is what runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from tidewheel.ids import RunId, dedupe_id
from tidewheel.jobs.dedupe import Dedupe
from tidewheel.postgres.pg_binary import instants, texts, uuids
from tidewheel.postgres.session import Conn, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.transitions.create import NewRun
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.moves import NEXT, lock_unbegun, move_runs

_SQL = Statements("tidewheel.intake")
_OPEN_WINDOWS = _SQL["open_windows"]
_WRITE_WINDOWS = _SQL["write_windows"]

ACCEPTED, DEDUPLICATED = "accepted", "deduplicated"
_MOVED = {"replace": "replaced", "debounce": "debounced"}


class SharedTrigger(NamedTuple):
    """A trigger with dedupe, and the run that it makes unless it has that of an earlier one."""

    place: int
    dedupe: Dedupe
    run: NewRun

    @property
    def dedupe_id(self) -> int:
        """The id of its window's row."""
        return dedupe_id(self.run.job_id, self.dedupe.key)


class Answer(NamedTuple):
    """The answer to a trigger: what happened, the run that it has, and when that is due."""

    outcome: str
    run_id: UUID
    runs_at: datetime


class _Row(NamedTuple):
    """The row of a window, in the order of its columns."""

    dedupe_id: int
    run_id: UUID
    first_at: datetime
    until_at: datetime
    runs_at: datetime


@dataclass(slots=True)
class _Window:
    """A window: its row as it was and as it is, and its run if this batch makes or moves it."""

    before: _Row
    row: _Row
    new: NewRun | None = None
    moved: NewRun | None = None


class Windows:
    """The windows of a batch, locked; `unbegun` has None for a run that waits for others."""

    def __init__(self, rows: Sequence[_Row], unbegun: Mapping[UUID, datetime | None], now: datetime) -> None:
        self._windows = {row.dedupe_id: _Window(row, row) for row in rows}
        self._unbegun, self._now = unbegun, now

    def apply(self, trigger: SharedTrigger) -> Answer:
        """Decide about a trigger, after those before it."""
        window = self._windows[trigger.dedupe_id]
        row = window.row
        if window.new is None:
            inserted = row.run_id == trigger.run.run_id
            if inserted or self._now >= row.until_at:
                return self._begin(window, trigger)
        if trigger.dedupe.mode == "reject":
            return Answer(DEDUPLICATED, row.run_id, row.runs_at)
        if window.new is None and row.run_id not in self._unbegun:
            return self._begin(window, trigger)
        return self._move(window, trigger)

    def write(self, connection: Conn, installation: Installation) -> list[NewRun]:
        """Write the windows and the moved runs; return the new ones, which the caller creates."""
        windows = sorted(self._windows.values(), key=lambda each: each.row.dedupe_id)
        changed = [window.row for window in windows if window.row != window.before]
        if changed:
            columns: dict[str, object] = {
                "ids": [row.dedupe_id for row in changed],
                "run_ids": uuids(row.run_id for row in changed),
                "first_at": instants(row.first_at for row in changed),
                "until_at": instants(row.until_at for row in changed),
                "runs_at": instants(row.runs_at for row in changed),
            }
            connection.execute(_WRITE_WINDOWS, columns)
        move_runs(connection, installation, [each.moved for each in windows if each.moved is not None])
        return [each.new for each in windows if each.new is not None]

    def _begin(self, window: _Window, trigger: SharedTrigger) -> Answer:
        window.new, window.row = _first(trigger, self._now)
        return Answer(ACCEPTED, window.row.run_id, window.row.runs_at)

    def _move(self, window: _Window, trigger: SharedTrigger) -> Answer:
        row, dedupe = window.row, trigger.dedupe
        known = None if window.new or window.moved else self._unbegun[row.run_id]
        at = (known or row.runs_at) + NEXT
        if dedupe.mode == "debounce":
            at = max(at, min(self._now + dedupe.window, row.first_at + dedupe.bound))
            row = row._replace(until_at=at)
        window.row = row._replace(runs_at=at)
        run = trigger.run._replace(run_id=RunId(row.run_id), scheduled_at=at, publish_at=at)
        if window.new is None:
            window.moved = run
        else:
            window.new = run
        return Answer(_MOVED[dedupe.mode], row.run_id, at)


def open_windows(connection: Conn, triggers: Sequence[SharedTrigger], now: datetime) -> Windows:
    """Lock the windows of triggers, and the runs that these may move."""
    first: dict[int, SharedTrigger] = {}
    for trigger in triggers:
        first.setdefault(trigger.dedupe_id, trigger)
    given = [first[key] for key in sorted(first)]
    rows = [_first(each, now)[1] for each in given]
    columns: dict[str, object] = {
        "ids": [row.dedupe_id for row in rows],
        "tenants": texts([each.run.tenant for each in given]),
        "job_ids": uuids(each.run.job_id for each in given),
        "run_ids": uuids(row.run_id for row in rows),
        "first_at": instants(row.first_at for row in rows),
        "until_at": instants(row.until_at for row in rows),
        "runs_at": instants(row.runs_at for row in rows),
    }
    with connection.cursor(row_factory=rows_of(_Row._make), binary=True) as cursor:
        found = cursor.execute(_OPEN_WINDOWS, columns).fetchall()
    moving = {each.dedupe_id for each in triggers if each.dedupe.mode != "reject"}
    open_runs = [row.run_id for row in found if row.dedupe_id in moving and now < row.until_at]
    return Windows(found, lock_unbegun(connection, open_runs) if open_runs else {}, now)


def _first(trigger: SharedTrigger, now: datetime) -> tuple[NewRun, _Row]:
    """Return the run of the first trigger of a window, and the window's row."""
    run, dedupe = trigger.run, trigger.dedupe
    until = now + dedupe.window
    if dedupe.mode == "debounce":
        run = run._replace(scheduled_at=until, publish_at=until)
    return run, _Row(trigger.dedupe_id, run.run_id, now, until, run.publish_at)
