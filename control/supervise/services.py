"""The roles of a command as services, and `tidewheel serve`, which runs them as one unit.

The first signal stops them in order, a second one ends at once: also those of `tidewheel dev`.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path

from tidewheel.control.supervise.child import CODE
from tidewheel.control.supervise.log import Log
from tidewheel.control.supervise.process import Service
from tidewheel.control.supervise.supervisor import Supervisor
from tidewheel.errors import refuse
from tidewheel.extras import require
from tidewheel.settings.api import ApiSettings
from tidewheel.settings.connections import Connections
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.settings.services import IntakeSettings, RelaySettings, SchedulerSettings

ROLES = tuple(CODE)

_SETTINGS: Mapping[str, type[Connections]] = {
    "intake": IntakeSettings,
    "scheduler": SchedulerSettings,
    "relay": RelaySettings,
    "executor": ExecutorSettings,
    "api": ApiSettings,
}
_STOP_SECONDS = 20.0  # beside the drain: longer than a service takes to end itself
_EXIT_BY_SIGNAL = 128  # as shells have it


def read_roles(text: str) -> list[str]:
    """Return the roles that a list names, each once."""
    names = list(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    for name in names:
        if name not in ROLES:
            refuse("--roles", f"{name!r} is no role", f"the roles are {', '.join(ROLES)}")
    if not names:
        refuse("--roles", "it names no role", f"write some of {','.join(ROLES)}")
    return names


def make_services(
    roles: Sequence[str], variables: Mapping[str, str], flags: Sequence[str], metrics_port: int | None
) -> list[Service]:
    """Return the services of some roles, with ports of metrics from one on; 0 picks free ones."""
    services: list[Service] = []
    first = Connections.load(metrics_port=metrics_port).metrics_port
    for number, role in enumerate(roles):
        if role == "api":
            require("api", "the role api")
        settings = _SETTINGS[role].load(**_given(variables, _SETTINGS[role]))
        drain = settings.drain_timeout.total_seconds() if isinstance(settings, ExecutorSettings) else 0.0
        ports = [] if first is None else ["--metrics-port", str(first + number if first else 0)]
        services.append(
            Service(
                role=role,
                flags=[*flags, *ports],
                variables=variables if role != "executor" else {**variables, **_with_folder(Path.cwd())},
                stop_seconds=_STOP_SECONDS + drain,
            )
        )
    return services


def module_files(handlers: str | None) -> list[Path]:
    """Return the files of the modules with handlers, without importing one; refuse an unknown module."""
    files: list[Path] = []
    for name in filter(None, (part.strip() for part in (handlers or "").split(","))):
        if name.endswith(".py"):
            refuse("--handlers", f"{name} is a file", f"write the module's name, {name.removesuffix('.py')}")
        top, *rest = name.split(".")
        spec = PathFinder.find_spec(top, [str(Path.cwd()), *sys.path])
        if spec is None:
            problem = f"there is no module {name!r} in this folder, and none is installed"
            refuse("--handlers", problem, f"run the command in the folder of {top}.py, or install the package")
        if spec.origin and spec.has_location and not rest:
            files.append(Path(spec.origin))
    return files


async def run_services(services: Sequence[Service], log: Log) -> bool:
    """Run services until a signal; return False if one of them could not be kept running."""
    supervisor = Supervisor(services, log)
    with stopping_by_signals(supervisor, log, "the services are killed"):
        supervisor.start()
        supervisor.release()
        await supervisor.wait_stopping()
        await supervisor.stop()
    log.report("stopped", level="error" if supervisor.has_failed else "info")
    return not supervisor.has_failed


@contextmanager
def stopping_by_signals(supervisor: Supervisor, log: Log, at_once: str) -> Generator[None]:
    """Request a stop at SIGINT, SIGTERM or SIGHUP; kill all and end at a second SIGINT or SIGTERM."""
    loop, requested = asyncio.get_running_loop(), False

    def on_signal(number: signal.Signals) -> None:
        nonlocal requested
        if requested and number != signal.SIGHUP:  # a terminal that closes sends it beside others
            supervisor.kill()
            log.report(f"{number.name} again: {at_once}", level="warning")
            log.close()
            os._exit(_EXIT_BY_SIGNAL + number)
        if not requested:
            requested = True
            log.report(f"{number.name}: stopping in order; once more ends at once")
            supervisor.request_stop()

    # `nohup` and a shell's background jobs ignore some of them: that stays.
    heeded = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    for number in heeded:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)


def _with_folder(folder: Path) -> dict[str, str]:
    path = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(folder), path] if path else [str(folder)])}


def _given(variables: Mapping[str, str], model: type[Connections]) -> dict[str, object]:
    """Return the variables that are settings of a model, by the names of its fields."""
    fields = {f"TIDEWHEEL_{name.upper()}": name for name in model.model_fields}
    return {fields[name]: value for name, value in variables.items() if name in fields}
