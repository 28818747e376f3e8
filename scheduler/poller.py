"""Poll timers and fire due ones, on one connection or on two while there is a backlog.

While PostgreSQL works on one batch, this process prepares the other: two cores fire nearly twice as much. Firing locks
timers and skips locked ones, so the two connections need no coordination.

An id begins with its job's bucket, so the rows of one shard lie next to each other in every index. A batch out of two
shards touches a thirtieth of the pages that a batch out of sixty-four does. Without a backlog all shards share a batch,
so that no shard waits for another.

A timer costs twice as much in a batch of a few dozen as in one of a thousand. So timers gather while they are in the
farthest quarter of the lookahead, and all that have come into it fire together.
"""

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import cast

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.postgres.low_water import BEGINNING, LowWaterMarks
from tidewheel.postgres.notify import Channel, Notifier
from tidewheel.postgres.pg_binary import instants, integers
from tidewheel.postgres.session import BY_KEY, Session
from tidewheel.postgres.statements import Statements
from tidewheel.scheduler.firing import FireBatch, fire
from tidewheel.scheduler.job_faults import Breaker
from tidewheel.settings.services import SchedulerSettings
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.scheduler")

_PROBE_TIMERS = Statements("tidewheel.scheduler")["probe_timers"]

_MIN_SHARDS, _MAX_SHARDS = 2, 16  # of a batch in a rotation
_MISSED_FRACTION = 4  # missed timers get this fraction of a batch, since each can create a hundred runs
_DRAIN_SECONDS = 0.25  # of one drain; then the scheduler does its other duties
_SINGLE_SECONDS = 5.0  # on one connection after the second one could not be opened
_BUSY_SECONDS = 0.05  # pause when timers are due but all are locked: their transactions end soon
_GATHER_FRACTION = 4  # one part in so many of the lookahead passes while timers come into it
_DUE_NOW_PER_SHARD = 4  # timers of each shard that are due by now and fire before a drain
_NOW = timedelta(0)


class ShardRotation:
    """The due shards not yet polled in this backlog, the longest due first. Two threads use it.

    `fired` is the number of timers that this rotation has fired; once it is over, that of the last one.
    """

    def __init__(self) -> None:
        self._shards: deque[int] = deque()
        self.fired = 0

    @property
    def active(self) -> bool:
        """True if shards are left to poll."""
        return bool(self._shards)

    def start(self, due: Iterable[int]) -> None:
        """Start a rotation through these shards."""
        self._shards, self.fired = deque(due), 0

    def take(self, limit: int) -> list[int]:
        """Take the next shards, at most `limit`."""
        taken: list[int] = []
        while len(taken) < limit:
            try:
                taken.append(self._shards.popleft())
            except IndexError:
                break
        return taken


class BatchWidth:
    """The number of shards of one thread's next batch: few, as long as they fill it."""

    def __init__(self) -> None:
        self.shards = _MIN_SHARDS

    def adjust(self, *, full: bool) -> None:
        """Halve the width after a full batch, else double it."""
        self.shards = max(self.shards // 2, _MIN_SHARDS) if full else min(self.shards * 2, _MAX_SHARDS)


class TimerPoller:
    """Polls and fires the timers of one scheduler."""

    def __init__(
        self, session: Session, url: str, installation: Installation, settings: SchedulerSettings, notifier: Notifier
    ) -> None:
        self._session, self._second_session = session, Session(url, "tidewheel-scheduler-second", options=BY_KEY)
        self._installation, self._settings, self._notifier = installation, settings, notifier
        self._second_thread = ThreadPoolExecutor(1, thread_name_prefix="fire-second")
        self._widths = BatchWidth(), BatchWidth()
        self._single_until = 0.0
        self._breaker = Breaker()

    def close(self) -> None:
        """Close the second connection."""
        self._second_thread.shutdown()
        self._second_session.close()

    def poll(self, shards: list[int], ahead: timedelta, marks: LowWaterMarks[int], rotation: ShardRotation) -> float:
        """Fire timers that are due up to `ahead` from now; return the seconds until the next poll.

        One call fires one batch, or drains a backlog for `_DRAIN_SECONDS`. A negative `ahead` fires only what is
        overdue by more. The rotation, kept from call to call, has the shards left to poll in a backlog.
        """
        self._breaker.settle()
        if not shards:
            return self._settings.scheduler_poll.total_seconds()
        if rotation.active:
            # First what is due by now in any shard. Most of a backlog lies ahead and still fires in time.
            self._poll(shards, min(ahead, _NOW), marks, None, limit=_DUE_NOW_PER_SHARD * len(shards))
            rotation.fired += self._drain_backlog(ahead, marks, rotation)
            return 0.0
        return self._poll(shards, ahead, marks, rotation, limit=self._settings.fire_batch)

    def _poll(
        self,
        shards: list[int],
        ahead: timedelta,
        marks: LowWaterMarks[int],
        rotation: ShardRotation | None,
        *,
        limit: int,
    ) -> float:
        """Fire one batch out of all these shards; a full one starts a rotation, if that is given."""
        now, found = _probe(self._session, shards, marks.scan_from(shards))
        marks.record(found, now)
        earliest = {shard: at for shard, at in found.items() if at is not None}
        due = sorted((shard for shard, at in earliest.items() if at <= now + ahead), key=earliest.__getitem__)
        if not due:
            return self._until_due(now, earliest, ahead)
        first, batch = earliest[due[0]], self._batch_of(due, now, ahead, marks, limit)
        if rotation is not None and ahead > self._settings.scheduler_poll:
            gathered_at = first - ahead + ahead / _GATHER_FRACTION
            if gathered_at > now:
                return min(gathered_at - now, self._settings.scheduler_poll).total_seconds()
            if rotation.fired > self._settings.fire_batch and first > batch.since:
                rotation.start(due)
                return 0.0
        fired = self._fire(self._session, batch)
        if rotation is not None and fired >= limit:
            rotation.start(due)
        elif first <= batch.since:
            # Missed timers fire after those on time and in smaller batches, so that they delay little.
            shards = [shard for shard in due if earliest[shard] <= batch.since]
            limit = -(-limit // _MISSED_FRACTION)
            missed = replace(batch, shards=shards, since=BEGINNING, until=batch.since, limit=limit)
            fired += self._fire(self._session, missed)
        return 0.0 if fired else min(self._settings.scheduler_poll.total_seconds(), _BUSY_SECONDS)

    def _drain_backlog(self, ahead: timedelta, marks: LowWaterMarks[int], rotation: ShardRotation) -> int:
        """Fire batches on both connections until the rotation or its time is over; count the timers."""
        until = monotonic_seconds() + _DRAIN_SECONDS
        drain = partial(self._drain, ahead=ahead, marks=marks, rotation=rotation, until=until)
        one, other = self._widths
        if monotonic_seconds() < self._single_until:
            return drain(self._session, one)
        second = self._second_thread.submit(drain, self._second_session, other)
        try:
            fired = drain(self._session, one)
        finally:
            wait([second])
        try:
            fired += second.result()
        except Unavailable as error:
            # The server may allow one connection only. Its timers are still due, and this connection fires them.
            _LOG.warning(
                "the second connection failed; the scheduler uses one connection for %.0f s: %s", _SINGLE_SECONDS, error
            )
            self._single_until = monotonic_seconds() + _SINGLE_SECONDS
        return fired

    def _drain(
        self,
        session: Session,
        width: BatchWidth,
        *,
        ahead: timedelta,
        marks: LowWaterMarks[int],
        rotation: ShardRotation,
        until: float,
    ) -> int:
        session.connection()  # before shards are taken: if it fails, they stay in the rotation
        limit, all_fired = self._settings.fire_batch, 0
        while monotonic_seconds() < until and (some := rotation.take(width.shards)):
            now, found = _probe(session, some, list(marks.of(some).values()))
            due = [shard for shard, at in found.items() if at is not None and at <= now + ahead]
            fired = self._fire(session, self._batch_of(due, now, ahead, marks, limit)) if due else 0
            width.adjust(full=fired >= limit)
            all_fired += fired
        return all_fired

    def _batch_of(
        self, due: Sequence[int], now: datetime, ahead: timedelta, marks: LowWaterMarks[int], limit: int
    ) -> FireBatch:
        horizon = now + ahead
        return FireBatch(
            shards=due,
            now=now,
            horizon=horizon,
            misfire_after=self._settings.misfire_after,
            limit=limit,
            since=min(now - self._settings.misfire_after, horizon),
            marks=marks.of(due),
        )

    def _fire(self, session: Session, batch: FireBatch) -> int:
        fired = fire(session, self._installation, batch, self._breaker)
        if fired:
            self._notifier.notify(Channel.OUTBOX)
        return fired

    def _until_due(self, now: datetime, earliest: dict[int, datetime], ahead: timedelta) -> float:
        poll = self._settings.scheduler_poll
        # With a lookahead longer than the poll, a timer that comes into it can wait for the next poll. With a shorter
        # one, sleep until the timer is due.
        if not earliest or ahead > poll:
            return poll.total_seconds()
        return min(max((min(earliest.values()) - ahead - now).total_seconds(), 0.001), poll.total_seconds())


def _probe(
    session: Session, shards: Sequence[int], marks: Sequence[datetime]
) -> tuple[datetime, dict[int, datetime | None]]:
    with session.transaction() as connection:
        columns: dict[str, object] = {"shards": integers(shards), "marks": instants(marks)}
        rows = connection.execute(_PROBE_TIMERS, columns, binary=True).fetchall()
    found = {cast("int", shard): cast("datetime | None", at) for shard, at, _ in rows}
    return cast("datetime", rows[0][2]), found
