"""The memory of claimed attempts: their payloads, and results that are not written yet.

A slot bounds the number of attempts, not their size: a thousand with the largest payload and result have 600 MB. Above
the bound nothing more is claimed. Small ones are not counted: they take less than other parts of an attempt do.
"""

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from tidewheel.executor.attempt import Attempt
from tidewheel.executor.outcome import Outcome
from tidewheel.runs import Lane

_MOST_BYTES: Final = 40 << 20
_RESERVED_BYTES: Final = 16 << 20  # beside it, for the critical lane
_COUNTED_BYTES: Final = 16 << 10


class HeldBytes:
    """The bytes of large attempts, from their claims until their ends are written; used from any thread."""

    def __init__(self) -> None:
        self._bytes: dict[tuple[UUID, int], int] = {}

    def claimed(self, attempts: Iterable[Attempt]) -> None:
        """Count the payloads of claimed attempts."""
        for attempt in attempts:
            # As in the message, as decoded, and as the handler gets it.
            size = len(attempt.request.definition) + len(attempt.definition.payload) + len(attempt.payload)
            if size > _COUNTED_BYTES:
                self._bytes[attempt.key] = size

    def ended(self, attempt: Attempt, outcome: Outcome) -> None:
        """Count the result of an attempt."""
        if outcome.result is not None and len(outcome.result) > _COUNTED_BYTES:
            self._bytes[attempt.key] = self._bytes.get(attempt.key, 0) + len(outcome.result)

    def written(self, attempts: Iterable[Attempt]) -> None:
        """Forget attempts whose ends are written."""
        if self._bytes:
            for attempt in attempts:
                self._bytes.pop(attempt.key, None)

    def full(self, lane: Lane) -> bool:
        """Return True if nothing more of a lane is to be claimed."""
        if not self._bytes:
            return False
        most = _MOST_BYTES + (_RESERVED_BYTES if lane is Lane.CRITICAL else 0)
        return sum(self._bytes.copy().values()) > most
