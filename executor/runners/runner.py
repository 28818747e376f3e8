"""The interface of a runner: it runs the attempts of one kind of target."""

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
