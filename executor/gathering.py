"""Gather runs of chunk handlers: those of one tenant and version number wait for each other.

A run that has failed or was lost runs alone: so a run that ends its process takes no other with it twice. At-most-once
runs run alone, or a neighbour's exception would be their end.

Two open runs of an ordering key are never claimed, and so never gathered.
"""

import asyncio
from collections.abc import Callable, Mapping

from tidewheel.executor.attempt import Attempt
from tidewheel.executor.chunk import Chunk
from tidewheel.executor.runners.python import LOSSES
from tidewheel.runs import Lane

# Handler, tenant, lane whose slots the runs take, and job_version, so that no job is in a chunk with two versions.
_Key = tuple[str, str, Lane, int]


class Gathering:
    """The chunks of one executor that wait for further runs; used on the event loop."""

    def __init__(self, chunks: Mapping[str, Chunk], start: Callable[[list[Attempt]], object]) -> None:
        self._chunks, self._start_call = chunks, start
        self._waiting: dict[_Key, tuple[list[Attempt], asyncio.TimerHandle]] = {}

    def takes(self, attempt: Attempt, lane: Lane) -> bool:
        """Take an attempt of a chunk handler, unless it needs a worker process; return False for any other."""
        definition = attempt.definition
        name = definition.target.handler or ""
        if (chunk := self._chunks.get(name)) is None or attempt.started.lost_attempts >= LOSSES:
            return False
        started = attempt.started
        if started.failed_attempts or started.lost_attempts or definition.at_most_once:
            self._start_call([attempt])
            return True
        key = name, definition.tenant, lane, attempt.request.job_version
        if key not in self._waiting:
            self._waiting[key] = [], asyncio.get_running_loop().call_later(chunk.wait_seconds, self._start, key)
        attempts, _ = self._waiting[key]
        attempts.append(attempt)
        if len(attempts) >= chunk.most:
            self._start(key)
        return True

    def start_if(self, is_full: Callable[[Lane], bool]) -> None:
        """Start the chunks of the lanes that no further run can join."""
        for key in [key for key in self._waiting if is_full(key[2])]:
            self._start(key)

    def _start(self, key: _Key) -> None:
        attempts, timer = self._waiting.pop(key)
        timer.cancel()
        self._start_call(attempts)
