"""Apply requests in pieces of one transaction each, and recover from every failure.

`Applier._recover` lists the failures and what the member does about each. A piece is a batch, a part of one, or one
request.

A request is rejected for its own data only, but a constraint of the installation raises the same SQLSTATE. So requests
that fail alike are counted until one of their type is accepted with a write: then the installation is sound. Requests
beyond the allowance wait with their partitions (docs/adr/0029).
"""

import logging
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from enum import Enum
from typing import NamedTuple, TypeAlias

import psycopg
from confluent_kafka import Message

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.intake.batch import NeedsOwnTransaction, RequestTimedOut, apply_batch, origin_of, type_of
from tidewheel.intake.locks import RowLocked
from tidewheel.intake.partitions import DeferredPartitions, Fenced, Partition, StoredOffsets, ends_of, partition_of
from tidewheel.migrations.runner import has_newer
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.faults import MAX_ALIKE, kind_of
from tidewheel.postgres.notify import Channel, Notifier
from tidewheel.postgres.session import CommitUnknown, Conn, Session, is_data_fault, is_time_limit
from tidewheel.process.clock_skew import ClockSkew
from tidewheel.process.failpoint import failpoint
from tidewheel.process.fallbacks import Step, work
from tidewheel.process.logs import faults
from tidewheel.process.service import Backoff, Shutdown
from tidewheel.schemas.generated.records import RequestType
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.intake")

Address: TypeAlias = tuple[Partition, int]

_WORK = "requests that fail alike"
_WINDOW_SECONDS = 3600.0  # without a failure of one kind: its count starts anew
_SEARCH_SECONDS = 0.2  # for a request that would be accepted: the other partitions get the rest
# A member that cannot write a batch for so long leaves the group, before the group evicts it for not polling (300 s).
_GIVE_UP_SECONDS = 60.0
# A request is rejected after so many timeouts alone, each followed by a quick answer to a trivial one. With a slower
# answer the machine is at fault, and the request waits.
_MAX_TIMEOUTS = 3
_QUICK_SECONDS = 0.5  # a trivial transaction takes 1 ms


class Verdict(Enum):
    """Treatment of a request that failed alone."""

    REJECT = "reject"
    REPEAT = "repeat"
    POSTPONE = "postpone"


class RequestBreaker:
    """Stops rejecting when requests fail alike; one for all members of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: dict[str, dict[Address, RequestType]] = {}
        self._last: dict[str, float] = {}
        self._waiting: dict[Partition, tuple[int, str]] = {}

    @property
    def is_idle(self) -> bool:
        """True if no failure is counted and no request waits."""
        return not self._failed and not self._waiting

    def rejects(self, error: BaseException, address: Address, kind: RequestType, *, allowed: int) -> bool:
        """Count a request that failed alone; return True if it is to be rejected."""
        now, name = monotonic_seconds(), kind_of(error)
        with self._lock:
            if self._last.get(name, now) < now - _WINDOW_SECONDS:
                del self._failed[name]
            failed = self._failed.setdefault(name, {})
            failed[address] = kind
            self._last[name] = now
            return len(failed) <= allowed

    def restart(self, kinds: Collection[RequestType]) -> None:
        """Start the counts with one of these types anew: a request of it would be accepted with a write."""
        with self._lock:
            for name in [name for name, failed in self._failed.items() if set(kinds) & set(failed.values())]:
                del self._failed[name], self._last[name]

    def postpone(self, error: BaseException, address: Address) -> None:
        """Report that a request waits, with its partition."""
        partition, offset = address
        with self._lock:
            self._waiting[partition] = offset, kind_of(error)
            self._report()

    def waits(self, address: Address) -> bool:
        """Return True if a request was postponed, and was neither applied nor forgotten since."""
        waiting = self._waiting.get(address[0])
        return waiting is not None and waiting[0] == address[1]

    def is_postponed(self, partition: Partition) -> bool:
        """Return True if a partition waits behind a postponed request."""
        return partition in self._waiting

    def waits_for(self, error: BaseException) -> bool:
        """Return True if a request waits because of an error of this kind."""
        name = kind_of(error)
        with self._lock:
            return any(name == known for _, known in self._waiting.values())

    def applied(self, ends: Mapping[Partition, int]) -> None:
        """Record that everything before these offsets is applied."""
        if done := [each for each, end in ends.items() if (first := self._waiting.get(each)) and first[0] < end]:
            self.forget(done)

    def forget(self, partitions: Collection[Partition]) -> None:
        """Remove the requests that wait in these partitions."""
        with self._lock:
            for partition in partitions:
                self._waiting.pop(partition, None)
            self._report()

    def _report(self) -> None:
        if names := sorted({name for _, name in self._waiting.values()}):
            text = f"{', '.join(names)}; no such request is rejected, and their partitions wait"
            faults.report(_WORK, f"{text}. Start the release that migrated the database, or correct the cause")
        else:
            faults.clear(_WORK)


class LoneFailures:
    """Tell requests that fail for their own data from those that the installation refuses."""

    def __init__(self, session: Session, installation: Installation, breaker: RequestBreaker) -> None:
        self._session, self._installation, self._breaker = session, installation, breaker

    def judge(self, failure: BaseException, message: Message, others: Sequence[Message]) -> Verdict:
        """Count a request that failed alone, and decide: one of `others` may prove the installation sound."""
        address, kind = address_of(message), type_of(message, self._installation)
        allowed = self._count_allowed()
        if self._breaker.rejects(failure, address, kind, allowed=allowed):
            return Verdict.REJECT
        if not allowed or not self._is_another_accepted(kind, others):
            return Verdict.POSTPONE
        # The operator may have corrected the cause since the failure: only a failure after the proof counts.
        self._breaker.restart({kind})
        return Verdict.REPEAT

    def _count_allowed(self) -> int:
        """Return the number of rejections alike: none if a newer release's constraint may be the cause."""
        try:
            return 0 if self._session.within(has_newer) else MAX_ALIKE
        except Unavailable:
            return 0

    def _is_another_accepted(self, kind: RequestType, messages: Sequence[Message]) -> bool:
        """Return True if another request of this type would be accepted with a write; all is rolled back."""
        give_up_at = monotonic_seconds() + _SEARCH_SECONDS
        for message in messages:
            if monotonic_seconds() > give_up_at:
                break
            if type_of(message, self._installation) is not kind:
                continue
            written = set[RequestType]()
            with suppress(Exception), self._session.transaction() as connection:
                apply_batch(connection, self._installation, [message], None, read_now(connection), written=written)
                connection.rollback()
                if written:
                    return True
        return False


def address_of(message: Message) -> Address:
    """Return the partition and the offset of a message."""
    return partition_of(message), message.offset() or 0


class _Piece(NamedTuple):
    """Messages that are applied in one transaction; with `refusal`, they are rejected instead.

    `alone` is true of a message whose batch has failed.
    """

    messages: Sequence[Message]
    refusal: Exception | None = None
    alone: bool = False


class Applier:
    """Applies the messages of one member, each exactly once; its session has no open transaction."""

    def __init__(
        self,
        session: Session,
        notifier: Notifier,
        installation: Installation,
        *,
        breaker: RequestBreaker,
        skew: ClockSkew,
        max_batch: int,
        stop: Shutdown,
    ) -> None:
        self._session, self._notifier, self._installation = session, notifier, installation
        self._breaker, self._lone_failures = breaker, LoneFailures(session, installation, breaker)
        self._skew, self._max_batch, self._stop = skew, max_batch, stop
        self._offsets, self._deferred = StoredOffsets("", {}), DeferredPartitions()
        # Both outlive the membership: a timeout can end it, and the batch must not be tried again at its full size.
        self._batch_size = max_batch
        self._timeouts = Counter[Address]()

    def begin(self, offsets: StoredOffsets, deferred: DeferredPartitions) -> None:
        """Begin a membership with what it owns."""
        self._offsets, self._deferred = offsets, deferred

    def apply(self, messages: Sequence[Message]) -> None:
        """Apply messages in pieces of one transaction each; `_recover` handles every failure."""
        failpoint("intake.received")
        backoff = Backoff(self._stop, "applying requests")
        give_up_at = monotonic_seconds() + _GIVE_UP_SECONDS
        self._deferred.add([message for message in messages if message in self._deferred])
        while pending := [m for m in messages if self._offsets.is_pending(m) and m not in self._deferred]:
            pieces = [self._first_piece(pending)]
            while pieces:
                piece = pieces.pop(0)
                try:
                    self._apply_piece(piece)
                except Exception as error:  # noqa: BLE001 - what `_recover` does not handle, it raises
                    instead = self._recover(error, piece, pending, backoff, give_up_at)
                    if instead is None:
                        break
                    pieces[:0] = instead
                else:
                    give_up_at = monotonic_seconds() + _GIVE_UP_SECONDS
            else:
                backoff.reset()
                self._batch_size = min(2 * self._batch_size, self._max_batch)
        self._timeouts.clear()

    def _recover(
        self, failure: Exception, failed: _Piece, pending: Sequence[Message], backoff: Backoff, give_up_at: float
    ) -> list[_Piece] | None:
        """Handle the failure of a piece.

        | Failure | What the member does |
        | --- | --- |
        | another member owns the partition | leaves the group, joins again, and reads the stored offsets |
        | the result of a COMMIT is unknown | the same |
        | another transaction holds a row | defers the request's partition; the other partitions go on |
        | a request needs its own transaction | applies it alone, in its place |
        | a statement or transaction timeout | halves the batch; rejects a request that times out alone three times |
        | the database is unavailable | retries for 60 s without a success, then leaves the group |
        | data that does not fit, or a fault of ours | applies each request alone |
        | the same of one request alone | rejects it, unless requests fail alike: then defers its partition |

        Returns the pieces to apply in its place, or None to begin again with what is still pending.
        """
        if isinstance(failure, psycopg.Error) and not is_data_fault(failure):
            cause, failure = failure, Unavailable(str(failure))
            failure.__cause__ = cause
        match failure:
            case Fenced() | MemoryError():
                raise failure
            case CommitUnknown():
                raise Fenced(str(failure)) from failure
            case RowLocked():
                self._defer(pending, failure)
                return None
            case NeedsOwnTransaction():
                return [_Piece(messages) for messages in _cut(failed.messages, failure.messages)]
            case Unavailable():
                if is_time_limit(failure):
                    self._halve_batch(failed.messages, failure)
                if self._stop.requested() or monotonic_seconds() > give_up_at:
                    raise Fenced(str(failure)) from failure
                backoff.wait(failure)
                return None
            case _ if len(failed.messages) > 1:
                if not self._breaker.waits_for(failure):
                    text = "a batch of %d requests failed (%s); intake applies them one by one"
                    _LOG.warning(text, len(failed.messages), failure)
                return [_Piece([message], alone=True) for message in failed.messages]
            case _:
                return self._recover_alone(failure, failed, pending)

    def _recover_alone(self, failure: Exception, failed: _Piece, pending: Sequence[Message]) -> list[_Piece] | None:
        """Reject a request that fails alone, or postpone it.

        It waits if its own data may not be the cause, and if the rejection fails too.
        """
        message = failed.messages[0]
        if failed.refusal is None or isinstance(failed.refusal, RequestTimedOut):
            others = [each for each in pending if each is not message and self._offsets.is_pending(each)]
            verdict = self._lone_failures.judge(failure, message, others)
            if verdict is not Verdict.POSTPONE:
                return [_Piece(failed.messages, failure if verdict is Verdict.REJECT else None)]
        address = address_of(message)
        if not self._breaker.waits(address):
            _LOG.info("the request at %s waits: %s", origin_of(message), failure)
        self._breaker.postpone(failure, address)
        self._deferred.add(_behind(address, pending))
        return None

    def _first_piece(self, pending: Sequence[Message]) -> _Piece:
        """Cut the first piece; reject a request that has timed out alone too often."""
        messages = pending[: 1 if self._breaker.waits(address_of(pending[0])) else self._batch_size]
        if len(messages) > 1 or self._timeouts[address_of(messages[0])] < _MAX_TIMEOUTS:
            return _Piece(messages)
        origin = origin_of(messages[0])
        _LOG.error(
            "the request at %s timed out %d times; intake rejects it", origin, _MAX_TIMEOUTS, extra={"origin": origin}
        )
        return _Piece(messages, RequestTimedOut())

    def _defer(self, pending: Sequence[Message], locked: RowLocked) -> None:
        for origin in locked.origins:
            partition = (origin.topic, origin.partition)
            deferred = _behind((partition, origin.offset), pending)
            self._deferred.add(deferred)
            _LOG.info("%s/%d is deferred with %d requests: %s", *partition, len(deferred), locked)

    def _halve_batch(self, messages: Sequence[Message], error: Unavailable) -> None:
        self._batch_size = max(len(messages) // 2, 1)
        if len(messages) > 1:
            text = "a batch of %d requests took too long (%s); intake applies at most %d in one batch"
            _LOG.warning(text, len(messages), error, self._batch_size)
            return
        if self._is_database_quick():
            self._timeouts[address_of(messages[0])] += 1

    def _is_database_quick(self) -> bool:
        """Return True if a trivial request is answered at once: then the one that timed out is at fault."""
        began = monotonic_seconds()
        try:
            self._session.within(read_now)
        except Unavailable:
            return False
        return monotonic_seconds() - began < _QUICK_SECONDS

    def _apply_piece(self, piece: _Piece) -> None:
        ends = ends_of(piece.messages)
        written = None if self._breaker.is_idle else set[RequestType]()
        with self._session.transaction() as connection:
            self._offsets.store(connection, ends)
            now = read_clock(connection, self._skew)
            apply_batch(connection, self._installation, piece.messages, piece.refusal, now, written=written)
            failpoint("intake.before_commit")
        failpoint("intake.after_commit")
        fallback = piece.alone or self._batch_size < self._max_batch
        work.count(Step.APPLY, len(piece.messages), fallback=fallback)
        self._offsets.committed(ends)
        self._breaker.applied(ends)
        if piece.refusal is not None and not isinstance(piece.refusal, RequestTimedOut):
            origin = origin_of(piece.messages[0])
            text = "intake cannot apply the request at %s and rejects it"
            _LOG.error(text, origin, exc_info=piece.refusal, extra={"origin": origin})
        if written:
            self._breaker.restart(written)
        for channel in (Channel.TIMERS, Channel.OUTBOX, Channel.SIGNALS):
            self._notifier.notify(channel)


def read_clock(connection: Conn, skew: ClockSkew) -> datetime:
    """Return the time by the database's clock, and record this process's skew."""
    since = monotonic_seconds()
    now = read_now(connection)
    skew.record(now, since=since)
    return now


def _behind(address: Address, messages: Sequence[Message]) -> list[Message]:
    partition, offset = address
    return [message for message in messages if partition_of(message) == partition and (message.offset() or 0) >= offset]


def _cut(messages: Sequence[Message], alone: Sequence[Message]) -> list[list[Message]]:
    """Split messages in their order, each of `alone` into a part of its own."""
    parts: list[list[Message]] = [[]]
    for message in messages:
        if message in alone:
            parts += [[message], []]
        else:
            parts[-1].append(message)
    return [part for part in parts if part]
