"""`tidewheel dev` and `tidewheel serve`, and the options of all commands that start services.

Exit codes: 0 after a signal, 1 if a service cannot be kept running, 130 or 143 if a second signal ended it at once.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidewheel.control.cli.parser import option

if TYPE_CHECKING:
    from tidewheel.control.supervise.process import Log

Home = Annotated[
    Path | None,
    option("DIR", "Folder of the stack's data; default: TIDEWHEEL_HOME, else one in the user's data folder."),
]
Handlers = Annotated[
    list[str] | None, option("MODULES", "Modules with @tidewheel.handler functions, separated by commas; repeatable.")
]
LogLevel = Annotated[str, option("LEVEL", "Log level: debug, info, warning or error.")]

MetricsPort = Annotated[
    int | None,
    option("PORT", "Port of the first role's metrics and health; further roles use the next ports. 0 picks free ones."),
]
ApiPort = Annotated[int | None, option("PORT", "Port of the HTTP API; 0 picks a free one.")]


def joined(names: Sequence[str] | None) -> str | None:
    """Return the names of a repeatable option as the one list of its setting; None where it is not given."""
    return ",".join(names) if names else None


def dev(
    handlers: Handlers = None,
    home: Home = None,
    api_port: ApiPort = None,
    metrics_port: MetricsPort = None,
    log_level: LogLevel = "info",
) -> None:
    """Run all of Tidewheel in this terminal for development; reload handlers when they are saved.

    Starts PostgreSQL, Kafka and every service. Ctrl-C stops them in order and keeps the data. A stack that is already
    running, even in part, is used and left running.
    """
    from tidewheel.control.supervise.dev import DevOptions, run_dev

    options = DevOptions(
        handlers=joined(handlers),
        home=home,
        api_port=api_port,
        metrics_port=metrics_port,
        flags=["--log-level", log_level],
    )
    _supervise("dev", lambda log: run_dev(options, log))


def run(
    roles: Annotated[
        list[str] | None, option("NAMES", "Services to run, separated by commas; repeatable; all by default.")
    ] = None,
    handlers: Handlers = None,
    api_port: ApiPort = None,
    metrics_port: MetricsPort = None,
    log_level: LogLevel = "info",
) -> None:
    """Run several services as one unit, for a small installation; restart any that ends.

    SIGTERM stops them in order. The exit code is 1 if a service cannot be kept running.
    """
    from tidewheel.control.supervise.supervisor import make_services, module_files, read_roles, run_services
    from tidewheel.settings.executor import ExecutorSettings

    names = read_roles("intake,scheduler,relay,executor,api" if roles is None else ",".join(roles))
    variables: dict[str, str] = {}
    if "executor" in names and (modules := ExecutorSettings.load(handlers=joined(handlers)).handlers):
        module_files(modules)
        variables["TIDEWHEEL_HANDLERS"] = modules
    if api_port is not None:
        variables["TIDEWHEEL_API_PORT"] = str(api_port)
    services = make_services(names, variables, ["--log-level", log_level], metrics_port)
    _supervise("run", lambda log: run_services(services, log))


def _supervise(name: str, services: "Callable[[Log], Coroutine[Any, Any, bool]]") -> None:
    from tidewheel.control.supervise.process import Log  # here: services share the options of this file

    log = Log(name)
    try:
        is_well = asyncio.run(services(log))
    finally:
        log.close()
    if not is_well:
        raise typer.Exit(1)
