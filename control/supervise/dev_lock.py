"""One `tidewheel dev` per stack, by a locked file that names its owner.

The kernel releases the lock of a killed process; the file then still records if the stack was its own.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import BaseModel, ValidationError

from tidewheel.errors import StackError


class _Owner(BaseModel):
    """The content of the file.

    Args:
        pid: The process.
        folder: The folder in which it was started.
        owns_stack: True if it has started the stack, and stops it.
    """

    pid: int
    folder: str
    owns_stack: bool = False


class DevLock:
    """The lock of one stack's home.

    Raises:
        StackError: Another `tidewheel dev` has it.
    """

    def __init__(self, home: Path) -> None:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._home = home
        self._file = (home / "dev.lock").open("a+")
        self._owner = _Owner(pid=os.getpid(), folder=str(Path.cwd()))

    def __enter__(self) -> Self:
        """Take the lock, and the stack of a killed `dev`."""
        before = self._read()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            named = f" (pid {before.pid}, started in {before.folder})" if before else ""
            message = (
                f"`tidewheel dev` runs already on the stack in {self._home}{named}: "
                "stop it there, or give this one a --home of its own"
            )
            raise StackError(message) from None
        self._owner.owns_stack = before is not None and before.owns_stack
        self._write()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Release the lock; a stack that is still owned stays so for the next `dev`."""
        if not self._owner.owns_stack:
            self._file.truncate(0)
        self._file.close()

    @property
    def owns_stack(self) -> bool:
        """True if this `dev`, or a killed one before it, has started the stack."""
        return self._owner.owns_stack

    def own_stack(self) -> None:
        """Record, before the stack starts, that this `dev` starts it."""
        self._owner.owns_stack = True
        self._write()

    def release_stack(self) -> None:
        """Record that the stack is stopped."""
        self._owner.owns_stack = False
        self._write()

    def _read(self) -> _Owner | None:
        self._file.seek(0)
        with suppress(ValidationError):
            return _Owner.model_validate_json(self._file.read())
        return None

    def _write(self) -> None:
        self._file.truncate(0)
        self._file.write(self._owner.model_dump_json())
        self._file.flush()
