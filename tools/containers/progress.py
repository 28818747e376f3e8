"""Steps with their seconds, and waits on a condition."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import StackError

_LOOK_SECONDS = 0.5


@contextmanager
def step(what: str) -> Generator[None]:
    """Print what begins, and at its end the seconds that it took."""
    print(f"{what:<100}", end="", flush=True)
    began = monotonic_seconds()
    end = "failed after "
    try:
        yield
        end = ""
    finally:
        print(f"{end}{monotonic_seconds() - began:.0f} s", flush=True)


def wait_for(condition: Callable[[], object], what: str, seconds: float) -> None:
    """Wait until a condition holds; raise StackError with `what` if it does not in time."""
    deadline = monotonic_seconds() + seconds
    while not condition():
        if monotonic_seconds() > deadline:
            message = f"not within {seconds:.0f} s: {what}"
            raise StackError(message)
        threading.Event().wait(_LOOK_SECONDS)
