"""Entry point of a supervised service: it imports its code, then waits for the go-ahead.

Then it is `tidewheel <role>`. Arguments: the supervisor's pid, a socket's descriptor, the role, the command's flags.
The kernel kills the process when its supervisor dies, so that no service outlives it.
"""

import ctypes
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

from tidewheel.errors import SettingsError

# What a role needs: imported before the go-ahead, while the stack starts.
CODE: Mapping[str, str] = {
    "intake": "tidewheel.intake.service",
    "scheduler": "tidewheel.scheduler.loop",
    "relay": "tidewheel.relay.loop",
    "executor": "tidewheel.executor.loop",
    "api": "tidewheel.control.api.app",
}
GO = b"\n"
UNUSABLE = 78  # exit code for an error that only an operator can correct; EX_CONFIG of sysexits.h

_PR_SET_PDEATHSIG = 1  # Source: prctl(2)
_PYTHON = Path(os.__file__).resolve().parent
_TIDEWHEEL = Path(__file__).resolve().parents[1]


def main() -> None:
    """Be a service."""
    supervisor, descriptor, role, *flags = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(supervisor):  # it died before the line above
        return
    with socket.socket(fileno=int(descriptor)) as gate:
        gate.sendall(json.dumps(_prepare(role)).encode() + b"\n")
        if gate.recv(1) != GO:
            return
    from tidewheel.control.cli.parser import run

    sys.argv = ["tidewheel", "service", role, *flags]
    run(unusable=UNUSABLE)


def _prepare(role: str) -> dict[str, object]:
    """Import the role's code, and an executor's handlers; return the report."""
    import_module("tidewheel.control.services")
    import_module(CODE[role])
    if role != "executor":
        return {}
    from tidewheel.executor.handlers import import_handlers, registered
    from tidewheel.settings.executor import ExecutorSettings

    try:
        modules = ExecutorSettings.load().handlers
    except SettingsError:
        return {}  # the command reports it
    error: SettingsError | None = None
    try:
        import_handlers(modules)
    except SettingsError as refused:
        error = refused
    return {
        "error": str(error) if error else None,
        "files": sorted({*_imported_files(), *_files_of(error.__cause__ if error else None)}),
        "handlers": sorted(registered()),
    }


def _imported_files() -> Iterator[str]:
    """Yield the files of the user's modules: all but Tidewheel's, Python's own and installed packages."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name.partition(".")[0] not in ("tidewheel", "__main__") and _is_own(file):
            yield os.path.realpath(file)


def _files_of(error: BaseException | None) -> Iterator[str]:
    """Yield the user's files that an error names."""
    if error is None:
        return
    named = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        named.append(error.filename)
    yield from (os.path.realpath(file) for file in named if Path(file).is_file() and _is_own(file))


def _is_own(file: str) -> bool:
    path = Path(file).resolve()
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return not installed and not path.is_relative_to(_PYTHON) and not path.is_relative_to(_TIDEWHEEL)


if __name__ == "__main__":
    main()
