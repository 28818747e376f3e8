"""One process at a time, across processes that share a folder."""

import fcntl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold the lock file at `path`; waits for whoever holds it. A process that dies lets go."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
