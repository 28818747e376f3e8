"""The interface of a runner: it runs the attempts of one kind of target."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from tidewheel.executor.attempt import Attempt
from tidewheel.executor.outcome import Outcome


class Runner(Protocol):
    """Runs attempts of one kind of target."""

    async def run(self, attempt: Attempt) -> Outcome:
        """Run an attempt and return its outcome.

        A cancellation of the task means that the attempt's time is over or that it is requested to stop: clean up and
        re-raise. Any other exception is the attempt's failure.
        """
        ...

    async def close(self) -> None:
        """Release connections and threads."""
        ...


class DeferredRunner:
    """Loads a runner with its first attempt, in a thread: most executors never need its modules.

    Args:
        load: Imports and returns the runner.
    """

    def __init__(self, load: Callable[[], Runner]) -> None:
        self._load = load
        self._loading = asyncio.Lock()
        self._runner: Runner | None = None

    async def run(self, attempt: Attempt) -> Outcome:
        """Run an attempt and return its outcome."""
        if self._runner is None:
            async with self._loading:
                if self._runner is None:
                    self._runner = await asyncio.to_thread(self._load)
        return await self._runner.run(attempt)

    async def close(self) -> None:
        """Release what was loaded."""
        if self._runner is not None:
            await self._runner.close()
