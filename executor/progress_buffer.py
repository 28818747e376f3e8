"""What attempts of this process tell of themselves, until it is written: the newest of each attempt only.

Handlers put in from every thread and never wait; the finisher takes out, so that a checkpoint is written before the end
of its attempt, and no older one after it.
"""

import threading
from collections.abc import Callable, Iterable
from uuid import UUID

from tidewheel.clock import monotonic_seconds
from tidewheel.transitions.attempts import ProgressReport

EVERY_SECONDS = 1.0  # how often what is told is written: what a crash can lose of it

Key = tuple[UUID, int]


class Beats:
    """The signs of life that are not written yet; safe from every thread."""

    def __init__(self, executor_id: UUID, wake: Callable[[], None]) -> None:
        self._executor_id, self._wake = executor_id, wake
        self._told: dict[Key, ProgressReport] = {}
        self._lock = threading.Lock()
        self._next_write = 0.0

    def tell(self, key: Key, progress: bytes | None, checkpoint: bytes | None) -> None:
        """Keep what an attempt says, with what it said before where it says nothing new."""
        with self._lock:
            first, before = not self._told, self._told.get(key)
            if before is not None:
                progress = before.progress if progress is None else progress
                checkpoint = before.checkpoint if checkpoint is None else checkpoint
            self._told[key] = ProgressReport(*key, self._executor_id, progress, checkpoint)
        if first:
            self._wake()

    def seconds(self) -> float | None:
        """How long until something is to be written; None while there is nothing."""
        return max(self._next_write - monotonic_seconds(), 0.0) if self._told else None

    def all(self) -> list[ProgressReport]:
        """Whatever is not written yet; asks for the next writing in a second."""
        self._next_write = monotonic_seconds() + EVERY_SECONDS
        with self._lock:
            return list(self._told.values())

    def of(self, keys: Iterable[Key]) -> list[ProgressReport]:
        """What these attempts have told and is not written yet."""
        if not self._told:  # as it is for most that have nothing to tell
            return []
        with self._lock:
            return [self._told[key] for key in keys if key in self._told]

    def wrote(self, beats: Iterable[ProgressReport]) -> None:
        """These are written; what was told since stays."""
        with self._lock:
            for beat in beats:
                if self._told.get((beat.run_id, beat.attempt)) is beat:
                    del self._told[beat.run_id, beat.attempt]
