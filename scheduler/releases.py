"""Release what waits: runs whose parents have ended, and timers that a freeze has held.

Releases of other schedulers' shards wait for their owner, or for its successor after its last heartbeat. A drain that
fails is repeated one release at a time. One that fails alone is postponed by a minute, and the others go on. After five
failures it is quarantined: `tidewheel doctor` shows it, and a resume of its occurrence drains it again. A drain that
waits for a lock is repeated as well, for its thread also fires. A release that waits alone is postponed by a second.

Rows decide which instants come under a freeze: those after `created_at`, up to `thawed_at`. A scheduler that was down
for all of that time records the same as one that saw it. Three steps share the work:

- Firing holds a timer at the first instant under a freeze, and decides earlier ones as of the freeze's beginning. It
  locks the freezes for that. So a thaw comes wholly before a firing, or finds the timers that it has held.
- Runs that were written ahead of such instants are retracted, as by a pause. Claims refuse them until then, and after
  the thaw too.
- After the thaw the timers are decided as after a pause, a bounded batch in each step, so that other timers fire in
  between. `on_resume` decides, and what fires leaves at the catch-up rate.

All other runs need no release: claims and sweeps see the thaw at once.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_binary import instants, uuids
from tidewheel.postgres.session import Conn, RowsLocked, Session, list_ids, readable_rows
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.process.metrics import metrics
from tidewheel.runs import HOLDS, Move, RunState, SkipReason, sources
from tidewheel.scheduler.set_aside import SetAside
from tidewheel.transitions.children import fail_release, postpone_releases
from tidewheel.transitions.drain import Drained, drain
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.frozen_timers import decide_held, retract_frozen
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.scheduler")

_SET_WAITS = Statements("tidewheel.transitions")["set_waits"]
_SQL = Statements("tidewheel.scheduler")

_STEP_SECONDS = 0.05  # of one step; then the scheduler does its other duties
_POSTPONED = timedelta(minutes=1)
_ONE_BY_ONE = 50  # releases tried alone after a failure
_LOCK_TIMEOUT = "50ms"
_LOCKED = timedelta(seconds=1)  # until the next drain of a release that has waited alone
_ALONE_TIMEOUT = "10ms"
_ALONE_SECONDS = 0.2  # of one pass over releases that are tried alone

_RELEASED = 500  # timers of one step: tens of milliseconds
_SCANNED = 5000  # index entries of one step
_POLL_SECONDS = 1.0
_MAX_SETTLE_SECONDS = 60.0  # between two looks for the jobs of a transaction that stays open: each may read all jobs
_NOWHERE = UUID(int=0)


class Releases:
    """Drains releases, a bounded batch at a time."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation

    def step(self, shards: Sequence[int]) -> tuple[int, bool]:
        """Drain for up to `_STEP_SECONDS`; return the number of runs, and True if there is more to drain."""
        until, runs, more = monotonic_seconds() + _STEP_SECONDS, 0, bool(shards)
        while more and monotonic_seconds() < until:
            done = self._drain(shards)
            runs, more = runs + done.runs, done.more
        return runs, more

    def _drain(self, shards: Sequence[int]) -> Drained:
        try:
            with self._session.transaction() as connection:
                connection.execute(_SET_WAITS, {"lock_timeout": _LOCK_TIMEOUT})
                done = drain(connection, self._installation, shards)
        except RowsLocked:
            return self._drain_apart(shards)
        except (Unavailable, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - draining one at a time finds the one that fails
            _LOG.warning("draining releases failed (%s); the scheduler drains them one by one", error)
            return self._drain_apart(shards)
        if done.releases:
            failpoint("draining.after_commit")
        return done

    def _drain_apart(self, shards: Sequence[int]) -> Drained:
        with self._session.transaction() as connection:
            columns = {"shards": list(shards), "limit": _ONE_BY_ONE}
            ids = [row[0] for row in connection.execute(_SQL["find_due_releases"], columns) if isinstance(row[0], int)]
        total, until = Drained(more=True), monotonic_seconds() + _ALONE_SECONDS
        for one in ids:
            if monotonic_seconds() > until:
                break
            try:
                with self._session.transaction() as connection:
                    connection.execute(_SET_WAITS, {"lock_timeout": _ALONE_TIMEOUT})
                    done = drain(connection, self._installation, shards, ids=[one])
                total.releases += done.releases
                total.runs += done.runs
            except RowsLocked:
                self._postpone(one)
            except (Unavailable, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - the others go on
                self._fail(one, error)
        return total

    def _fail(self, release: int, error: Exception) -> None:
        with self._session.transaction() as connection:
            connection.execute(_SET_WAITS, {"lock_timeout": _LOCK_TIMEOUT})
            quarantined = fail_release(connection, release, error, _POSTPONED)
        if quarantined:
            metrics.count("releases_quarantined")
            _LOG.error(
                "release %d cannot be drained and is quarantined; run `tidewheel doctor`", release, exc_info=error
            )
        else:
            text = "the scheduler cannot drain release %d; the scheduler tries it again in a minute"
            _LOG.error(text, release, exc_info=error)

    def _postpone(self, release: int) -> None:
        with self._session.transaction() as connection:
            connection.execute(_SET_WAITS, {"lock_timeout": _LOCK_TIMEOUT})
            postpone_releases(connection, [release], read_now(connection) + _LOCKED)


@dataclass(slots=True)
class _Retraction:
    """A pass over the jobs with runs that were written ahead, a page in each step."""

    after: UUID = _NOWHERE
    found: int = 0
    done: int = 0  # jobs whose runs were retracted, and runs that were skipped


@dataclass(slots=True)
class _Look:
    """The time of the next look for the transactions that did not see a freeze, and the pause after it."""

    next_at: float = 0.0
    seconds: float = _POLL_SECONDS


class Thaws:
    """Retracts runs for freezes, releases the timers of thawed ones, and completes freezes by jobs."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation
        self._next_poll = 0.0
        self._looks: dict[int, _Look] = {}  # by freeze that is not settled
        self._pass: list[int] = []  # the freezes that were thawed when the current pass over the held timers began
        self._after, self._found, self._done = _NOWHERE, 0, 0
        self._retraction: _Retraction | None = None  # of the runs written ahead, at the begin of a pass
        self._settling = _Retraction()  # of the freezes that are not settled
        self._failed = SetAside[UUID]()  # jobs whose runs cannot be retracted
        self._is_behind = False  # whether firing had more to decide when it began

    def step(self) -> bool:
        """Retract the runs of some jobs, or release some timers; return True if more can be done at once."""
        if monotonic_seconds() < self._next_poll:
            return False
        with self._session.transaction() as connection:
            rows = cast(
                "list[tuple[int, datetime | None]]", readable_rows(connection.execute(_SQL["find_thaws"], binary=True))
            )
        thawed = {number: at for number, at in rows if at is not None}
        more = self._settle([number for number, at in rows if at is None])
        more = (bool(thawed) and self._release(thawed)) or more
        self._next_poll = 0.0 if more else monotonic_seconds() + _POLL_SECONDS
        return more

    def _release(self, thawed: Mapping[int, datetime]) -> bool:
        """Release the next timers of a pass over the held ones; return True if more can be done at once.

        A pass ends the freezes that were thawed when it began, unless it found something: a timer with an instant
        under them that firing has not decided, a run written ahead, a timer to release. It looks for them in this
        order, because firing turns a timer of the first kind into the others.
        """
        if not self._pass:
            with self._session.transaction() as connection:
                columns = {"shards": self._installation.shards, "until": max(thawed.values())}
                [(behind,)] = connection.execute(_SQL["has_timer_behind"], columns).fetchall()
            self._pass, self._after, self._found, self._done = list(thawed), _NOWHERE, 0, 0
            self._is_behind, self._retraction = bool(behind), _Retraction()
        if self._retraction is not None:
            if self._retract(self._pass, self._retraction):
                return True
            self._found, self._done, self._retraction = self._retraction.found, self._retraction.done, None
        with self._session.transaction() as connection:
            columns = {"after": self._after, "limit": _SCANNED}
            found = connection.execute(_SQL["find_held_timers"], columns, binary=True).fetchall()
        rows = cast("list[tuple[UUID, bool]]", found)
        chosen = [job for job, released in rows if released][:_RELEASED]
        if chosen:
            released = self._release_batch(chosen)
            self._found += len(chosen)
            self._done += released
            if released:
                _LOG.info("released %d timers of thawed freezes", released)
        if len(chosen) == _RELEASED:
            self._after = chosen[-1]
            return True
        if len(rows) == _SCANNED:
            self._after = rows[-1][0]
            return True
        ended, self._pass = self._pass, []
        if self._found == 0 and not self._is_behind:
            with self._session.transaction() as connection:
                connection.execute(_SQL["drop_thawed"], {"ids": ended})
            _LOG.info("%d freezes are thawed, and their timers released", len(ended))
        return self._done > 0  # what another transaction holds is found again a second later

    def _retract(self, freezes: Sequence[int], retraction: _Retraction) -> bool:
        """Retract the runs of the next jobs that were written ahead of instants under these freezes.

        Return True if there may be more, also behind jobs that another transaction holds.
        """
        columns: dict[str, object] = {
            "ids": list(freezes), "sources": sources(Move.SKIP), "holds": HOLDS, "after": retraction.after,
            "limit": _RELEASED,
        }  # fmt: skip
        with self._session.transaction() as connection:
            found = connection.execute(_SQL["find_written_ahead"], columns, binary=True).fetchall()
        rows = cast("list[tuple[UUID, datetime]]", found)
        left = self._failed.current()
        began = {job: at for job, at in rows if job not in left}
        if began:
            retraction.found += len(began)
            retraction.done += self._failed.together(
                list(began),
                lambda jobs: self._retract_of({job: began[job] for job in jobs}, columns),
                "retract runs of job",
            )
        if rows:
            retraction.after = rows[-1][0]
        return len(rows) == _RELEASED

    def _retract_of(self, began: Mapping[UUID, datetime], columns: Mapping[str, object]) -> int:
        ended = self._session.within(self._end_before_edit, began, columns)
        jobs = self._session.within(retract_frozen, began)
        if jobs or ended:
            _LOG.info("retracted the runs of %d jobs that were written ahead of a freeze, and ended %d", jobs, ended)
        return jobs + ended

    def _end_before_edit(self, connection: Conn, began: Mapping[UUID, datetime], columns: Mapping[str, object]) -> int:
        """Skip the runs written ahead that an edit has left, which did not see the freeze."""
        named = {**columns, "job_ids": uuids(began), "began": instants(began.values())}
        found = list_ids(connection, _SQL["find_runs_before_edit"], named)
        ends = [RunEnd(run, 0, RunState.SKIPPED, reason=SkipReason.FROZEN) for run in found]
        return len(finish_runs(connection, self._installation, ends).states)

    def _release_batch(self, job_ids: Sequence[UUID]) -> int:
        try:
            with self._session.transaction() as connection:
                return len(decide_held(connection, self._installation, job_ids))
        except (Unavailable, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - releasing one at a time finds the one that fails
            if len(job_ids) > 1:
                _LOG.warning(
                    "releasing %d timers failed (%s); the scheduler releases them one by one", len(job_ids), error
                )
                return sum(self._release_batch([job]) for job in job_ids)
            _LOG.exception("deciding the timer of job %s failed; firing decides the timer later", job_ids[0])
            with self._session.transaction() as connection:
                return connection.execute(_SQL["unhold_timer"], {"job_id": job_ids[0]}).rowcount

    def _settle(self, freezes: list[int]) -> bool:
        """Add jobs and retract runs that did not see these freezes; return True if more can be done."""
        self._looks = {number: self._looks.get(number) or _Look() for number in freezes}
        now = monotonic_seconds()
        due = [number for number, look in self._looks.items() if look.next_at <= now]
        if not due:
            return False
        with self._session.transaction() as connection:
            connection.execute(_SQL["begin_settling"], {"ids": due})
        with self._session.transaction() as connection:
            rows = cast(
                "list[tuple[int]]", connection.execute(_SQL["find_settled"], {"ids": due}, binary=True).fetchall()
            )
            connection.execute(_SQL["resolve_freezes"], {"ids": due})
        if self._retract(due, self._settling):
            return True
        retracted, self._settling = self._settling, _Retraction()
        if not retracted.found:  # else the next look finds those whose rows another transaction held
            with self._session.transaction() as connection:
                connection.execute(_SQL["settle_freezes"], {"ids": [number for (number,) in rows]})
        now = monotonic_seconds()
        for number in due:
            seconds = self._looks[number].seconds
            self._looks[number] = _Look(now + seconds, min(seconds * 2, _MAX_SETTLE_SECONDS))
        return False
