"""Decide which requests that fail alone are rejected, and report those that wait instead.

A request is rejected for its own data only, but a constraint of the installation raises the same SQLSTATE. So requests
that fail alike are counted until one of their type is accepted with a write: then the installation is sound. Requests
beyond the allowance wait with their partitions (docs/adr/0029).
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import TypeAlias

from confluent_kafka import Message

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.intake.batch import apply_batch, type_of
from tidewheel.intake.partitions import Partition, partition_of
from tidewheel.migrations.runner import has_newer
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.faults import MAX_ALIKE, kind_of
from tidewheel.postgres.session import Session
from tidewheel.process.logs import faults
from tidewheel.schemas.generated.records import RequestType
from tidewheel.transitions.installation import Installation

Address: TypeAlias = tuple[Partition, int]

_WINDOW_SECONDS = 3600.0  # without a failure of one kind: its count starts anew
_SEARCH_SECONDS = 0.2  # for a request that would be accepted: the other partitions get the rest
_WORK = "requests that fail alike"


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
            text = f"{', '.join(names)}; none of them is rejected, and their partitions wait"
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
            with self._session.transaction() as connection:
                return 0 if has_newer(connection) else MAX_ALIKE
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
