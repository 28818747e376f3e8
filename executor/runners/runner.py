"""What a kind of target has to do."""

from typing import Protocol

from tidewheel.executor.attempt import Attempt
from tidewheel.executor.outcome import Outcome


class Runner(Protocol):
    """Runs attempts of one kind of target."""

    async def run(self, attempt: Attempt) -> Outcome:
        """Run an attempt and say how it ended.

        Cancellation of the task means that the attempt's time is over or that it was asked to stop: clean up and let it
        pass. Any other exception is the attempt's failure.
        """
        ...

    async def close(self) -> None:
        """Free what is held: connections, threads."""
        ...
