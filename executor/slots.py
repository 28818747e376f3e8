"""Slots: the number of attempts that an executor runs at once.

Of every ten slots one is reserved for the critical lane (none below ten), so that ordinary work never keeps a critical
run waiting for a slot.

Attempts that end without waiting need a slot for microseconds. While all are such, the executor may overcommit: claim
more than it has slots. `run_queue.py` bounds the starts in any case.
"""

import threading
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Final, NamedTuple
from uuid import UUID

from tidewheel.clock import monotonic_seconds
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.outcome import Outcome
from tidewheel.process.metrics import metrics
from tidewheel.runs import Lane
from tidewheel.schemas.generated.records import JobDefinition, RunRequest

_RESERVED_FOR_CRITICAL = 10  # one slot of so many
_MOST_BYTES: Final = 40 << 20
_RESERVED_BYTES: Final = 16 << 20  # beside it, for the critical lane
_SHARED_BYTES: Final = 8 << 20  # beyond both, for the sweep: five of the largest attempts of a second tenant
_COUNTED_BYTES: Final = 16 << 10


class TakenSlots(NamedTuple):
    """Slots that were taken; of these `real` exist, the others are overcommitted."""

    taken: int
    real: int


class Slots:
    """The slots of one executor; safe from every thread."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._reserved = total // _RESERVED_FOR_CRITICAL
        self._critical = self._others = self._most_busy = self._overcommit = 0
        self._suspended_until: dict[Lane, float] = {}  # overcommit is suspended for the sake of these lanes
        self._next: Lane | None = None  # the lane that gets the next free slots, by `take_next`
        self._changed = threading.Condition()

    def take(self, lane: Lane, limit: int) -> int:
        """Take slots for a lane, up to the limit; return their number, 0 if none is free."""
        with self._changed:
            return self._take(lane, min(self._free(lane), limit))

    def take_overcommit(self, lane: Lane, limit: int) -> TakenSlots:
        """Take slots for a lane, up to the limit, overcommitted ones included."""
        with self._changed:
            real = max(self._free(lane), 0)
            taken = self._take(lane, min(self._free_overcommit(lane), limit))
            if real and taken and self._suspended_until.pop(lane, None) is not None:
                self._changed.notify_all()
            return TakenSlots(taken, min(real, taken))

    def take_next(self, lane: Lane, limit: int, seconds: float) -> int:
        """Take the next slots that come free, before any other caller, up to the limit; return their number.

        Until then no lane overcommits, and the other lanes wait. The critical lane waits only if `lane` is critical.
        For one thread.
        """
        with self._changed:
            self._next = lane
            try:
                self._changed.wait_for(lambda: self._existing(lane) >= limit, timeout=seconds)
                return self._take(lane, min(self._existing(lane), limit))
            finally:
                self._next = None
                self._changed.notify_all()

    def release(self, lane: Lane, count: int) -> None:
        """Free slots that were taken."""
        if count <= 0:
            return
        with self._changed:
            self._add(lane, -count)
            self._changed.notify_all()

    def set_overcommit(self, count: int) -> None:
        """Allow this many claims beyond the slots from now on."""
        with self._changed:
            self._overcommit = count
            self._changed.notify_all()

    def is_overcommitted(self) -> bool:
        """Return True if claims beyond the slots are allowed: no running attempt waits."""
        return self._overcommit > 0

    def suspend_overcommit(self, lane: Lane, seconds: float) -> None:
        """Allow no overcommit until this lane has taken an existing slot, or the time is over.

        Overcommitted attempts are worked off meanwhile. With a busy processor that takes longer than any fixed time.
        """
        with self._changed:
            self._suspended_until[lane] = monotonic_seconds() + seconds

    def free(self, lane: Lane) -> int:
        """Return the number of slots that a lane could take now."""
        with self._changed:
            return max(self._free(lane), 0)

    def free_overcommit(self, lane: Lane) -> int:
        """Return the number of slots that a lane could take now, overcommitted ones included."""
        with self._changed:
            return max(self._free_overcommit(lane), 0)

    def is_scarce(self, lane: Lane) -> bool:
        """Return True if less than a quarter of all that may be claimed is free: more comes free in a moment."""
        with self._changed:
            return self._free_overcommit(lane) < (self.total + self._overcommit) // 4

    def may_start(self, lane: Lane, critical: int, others: int) -> bool:
        """Return True if one more attempt of a lane may start beside so many critical and other running ones."""
        return critical + others < self.total and (lane is Lane.CRITICAL or others < self.total - self._reserved)

    def watch(self) -> None:
        """Start recording the greatest number of busy slots, for `unused`; for one caller."""
        with self._changed:
            self._most_busy = self._critical + self._others

    def unused(self, lane: Lane) -> int:
        """Return the number of slots that a lane could have taken at any moment since `watch`."""
        with self._changed:
            reserved = 0 if lane is Lane.CRITICAL else self._reserved
            return max(self.total - self._most_busy - reserved, 0)

    def wait_free(self, lane: Lane, seconds: float) -> bool:
        """Wait until a lane could take a slot; return False after a timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._free(lane) > 0, timeout=seconds)

    def wait_free_overcommit(self, lane: Lane, seconds: float) -> bool:
        """Wait until a lane could take a slot, overcommitted ones included; return False after a timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._free_overcommit(lane) > 0, timeout=seconds)

    def wait_half_free(self, lane: Lane, seconds: float) -> None:
        """Wait until a lane could take half of what may be claimed, if overcommit is allowed.

        The other half is queued meanwhile: claims come in few large batches, and the queue does not run dry.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: not self._overcommit or self._free_overcommit(lane) * 2 >= self.total + self._overcommit,
                timeout=seconds,
            )

    def _free(self, lane: Lane) -> int:
        waits = self._next is not None and (lane is not Lane.CRITICAL or self._next is Lane.CRITICAL)
        return min(self._existing(lane), 0) if waits else self._existing(lane)

    def _existing(self, lane: Lane) -> int:
        if lane is Lane.CRITICAL:
            # Overcommitted attempts of other lanes are queued behind this lane, and take no slot from it.
            return self.total - self._critical - min(self._others, self.total - self._reserved)
        return self.total - self._reserved - self._critical - self._others

    def _free_overcommit(self, lane: Lane) -> int:
        suspended = self._suspended_until and max(self._suspended_until.values()) > monotonic_seconds()
        overcommit = 0 if suspended or self._next is not None else self._overcommit
        if lane is Lane.CRITICAL:
            overcommit -= max(self._others - (self.total - self._reserved), 0)  # the other lanes' part of it
        return self._free(lane) + max(overcommit, 0)

    def _take(self, lane: Lane, count: int) -> int:
        taken = max(count, 0)
        self._add(lane, taken)
        self._most_busy = max(self._most_busy, self._critical + self._others)
        return taken

    def _add(self, lane: Lane, count: int) -> None:
        if lane is Lane.CRITICAL:
            self._critical += count
        else:
            self._others += count
        metrics.set("slots_busy", min(self._critical + self._others, self.total))


class HeldBytes:
    """The bytes of large attempts, from their claims until their ends are written; used from any thread.

    Payloads of a chunk stay until its call has ended.

    They are payloads, and results that are not written yet. A slot bounds the number of attempts, not their size: a
    thousand with the largest payload and result have 600 MB. Above the bound no message is claimed, and the sweep
    leaves each tenant a share (`Room`). Small ones are not counted: they take less than other parts of an attempt do.
    """

    def __init__(self) -> None:
        self._bytes: dict[tuple[UUID, int], tuple[str, int]] = {}
        self._calls: dict[tuple[UUID, int], tuple[str, int]] = {}  # payloads of calls in progress, not written yet

    def claimed(self, attempts: Iterable[Attempt]) -> None:
        """Count the payloads of claimed attempts."""
        for attempt in attempts:
            size = _payload_bytes(attempt.request, attempt.definition)
            if size > _COUNTED_BYTES:
                self._bytes[attempt.key] = attempt.definition.tenant, size

    def ended(self, attempt: Attempt, outcome: Outcome) -> None:
        """Count the result of an attempt."""
        if outcome.result is not None and len(outcome.result) > _COUNTED_BYTES:
            tenant, size = self._bytes.get(attempt.key, (attempt.definition.tenant, 0))
            self._bytes[attempt.key] = tenant, size + len(outcome.result)

    def written(self, attempts: Iterable[Attempt]) -> None:
        """Forget attempts whose ends are written."""
        if self._bytes:
            for attempt in attempts:
                if (payload := self._calls.get(attempt.key)) is not None:
                    self._bytes[attempt.key] = payload  # without the result
                self._leave(attempt.key)

    @contextmanager
    def of_call(self, attempts: Iterable[Attempt]) -> Generator[None]:
        """Count the payloads of a call until the block ends, though ends of its runs are written before."""
        held = {one.key: payload for one in attempts if (payload := self._bytes.get(one.key)) is not None}
        self._calls.update(held)
        try:
            yield
        finally:
            for key in held:
                self._leave(key)

    def _leave(self, key: tuple[UUID, int]) -> None:
        if self._calls.pop(key, None) is None:
            self._bytes.pop(key, None)

    def full(self, lane: Lane) -> bool:
        """Return True if no message of a lane is to be claimed."""
        if not self._bytes:
            return False
        most = _MOST_BYTES + (_RESERVED_BYTES if lane is Lane.CRITICAL else 0)
        return sum(size for _, size in self._bytes.copy().values()) > most

    def room(self, lane: Lane) -> "Room":
        """Return what the tenants may still claim of a lane, for one claim."""
        if not self.full(lane):
            return Room(None)
        held = Counter[str]()
        for tenant, size in self._bytes.copy().values():
            held[tenant] += size
        return Room(held)


class Room:
    """The bytes that tenants may still claim: any below the bound, above it a share of a reserve.

    A tenant whose payloads fill the executor is left out until enough of its attempts have ended. The others go on.
    """

    def __init__(self, held: Counter[str] | None) -> None:
        self._held = held  # by tenant; None below the bound

    def has(self, tenant: str, more: int = 0) -> bool:
        """Return True if a tenant holds less than its share, and no more than it with so many bytes."""
        if self._held is None:
            return True
        share = _SHARED_BYTES // len(self._held.keys() | {tenant})
        return self._held[tenant] < share and self._held[tenant] + more <= share

    def take(self, request: RunRequest, definition: JobDefinition) -> bool:
        """Count a run that is to be claimed; return False if its tenant has no room for it."""
        size = _payload_bytes(request, definition)
        counted = size if size > _COUNTED_BYTES else 0
        if not self.has(definition.tenant, counted):
            return False
        if self._held is not None and counted:
            self._held[definition.tenant] += counted
        return True


def _payload_bytes(request: RunRequest, definition: JobDefinition) -> int:
    """Return the bytes of a payload: as in the message, as decoded, and as the handler gets it."""
    own = definition.payload if request.payload is None else request.payload
    return len(request.definition) + len(definition.payload) + len(own)
