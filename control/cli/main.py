"""Entry point of the `tidewheel` command.

`commands.py` names the module of each command, `parser.py` runs it. A refusal is a line on standard error for each
problem. What standard output cannot take ends the command, in one sentence.
"""

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from tidewheel.control.cli.exit_codes import ExitCode


def main() -> None:
    """Run the command line."""
    _guard_output(_main)


def _main() -> None:
    if sys.argv[1:] == ["--version"]:
        # Imported here: the command line's imports cost more than the rest of this call.
        from tidewheel.distribution import describe_release

        sys.stdout.write(f"{describe_release()}\n")
        return
    from tidewheel.control.cli.parser import run

    run()


def _guard_output(command: Callable[[], None]) -> None:
    """Run a command; exit with a code of its own if standard output is closed, full or broken."""
    # Python's stand-in for a closed descriptor is None. The next opened file would get its number.
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - as long as the process
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - likewise
    if sys.stdout is None:
        _exit("standard output is closed, so nothing was done; to discard the output, redirect it to /dev/null")
    given = sys.stdout
    if not isinstance(given, io.TextIOWrapper):  # a caller's own, in memory
        command()
        return
    output = _Output(sys.stdout.buffer, given.encoding, given.errors, line_buffering=given.line_buffering)
    sys.stdout = output
    try:
        try:
            command()
        finally:
            output.flush()
    except _Lost as lost:
        # What is buffered is written at the process's end, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        if isinstance(lost.__cause__, BrokenPipeError):
            sys.exit(ExitCode.CLOSED_PIPE)
        _exit(f"standard output cannot be written: {lost.reason}; the work of the command is done")
    finally:
        sys.stdout = given
        output.detach()


def _exit(reason: str) -> NoReturn:
    sys.stderr.write(f"tidewheel: {reason}\n")
    sys.exit(ExitCode.NO_OUTPUT)


class _Lost(Exception):
    """Standard output takes no more; raised instead of an OSError, which click would take for its own."""

    def __init__(self, error: OSError) -> None:
        self.reason = error.strerror


class _Output(io.TextIOWrapper):
    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise _Lost(error) from error

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise _Lost(error) from error
