"""Exit codes of every command, as docs/command-line.md lists them."""

from enum import IntEnum

from tidewheel.errors import NotRunning, Refused, TidewheelError, Unavailable


class ExitCode(IntEnum):
    """Exit code of a command."""

    DONE = 0
    """The command did all of its work."""
    FAILED = 1
    """The command did part of its work, the awaited run failed, or an operator must correct settings or the schema."""
    USAGE = 2
    """The parser of the command line refuses a flag or an argument: an unknown name, a missing or malformed value."""
    NOT_RUNNING = 3
    """No server is named, and the local stack is not fully running; as in `systemctl status`."""
    NOT_FOUND = 4
    """There is no such job, run, backfill, bulk work, dead letter, calendar, API key or tenant."""
    REFUSED = 5
    """Tidewheel refuses the input: a value, a combination of flags, a file, a request."""
    UNAVAILABLE = 6
    """PostgreSQL or Kafka does not answer; the same command may succeed later."""
    NO_OUTPUT = 7
    """Standard output is closed before the command's work, or full or broken after it."""
    PENDING = 8
    """`apply --dry-run --exit-code` finds changes that are not applied."""
    EXHAUSTED = 71
    """A service has no memory or no thread left. Its last line says so, and its supervisor starts another process."""
    INTERRUPTED = 130
    """Ctrl-C, as in shells."""
    CLOSED_PIPE = 141
    """The reader of the output closed it, such as `head`."""


def exit_code(error: TidewheelError) -> ExitCode:
    """Return the exit code of an error.

    >>> from tidewheel.errors import UnknownJob
    >>> exit_code(UnknownJob("default", "daily")), exit_code(Unavailable("away"))
    (<ExitCode.NOT_FOUND: 4>, <ExitCode.UNAVAILABLE: 6>)
    """
    if isinstance(error, Refused):
        return ExitCode.NOT_FOUND if error.code.startswith("unknown_") else ExitCode.REFUSED
    if isinstance(error, NotRunning):
        return ExitCode.NOT_RUNNING
    return ExitCode.UNAVAILABLE if isinstance(error, Unavailable) else ExitCode.FAILED
