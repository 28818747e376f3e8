"""Files of a stack's folder: private ones, and the lock of one process at a time."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Replace a file by one with mode 0600, which is never seen half-written nor with other rights."""
    scratch = path.with_name(f"{path.name}.new")
    scratch.unlink(missing_ok=True)
    with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:  # noqa: PTH123 - a descriptor
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Lock the file at `path`; wait for its owner. A process that dies releases the lock."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
