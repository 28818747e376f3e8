"""`tidewheel dev` and `tidewheel serve`: every service of an installation by one command.

Exit codes: 0 after a signal, 1 if a service cannot be kept running, 130 or 143 if a second signal ended it at once.
"""

import asyncio
from typing import Annotated

import typer

from tidewheel.control.cli.service_options import Handlers, Home, LogLevel, joined
from tidewheel.control.supervise.log import Log

MetricsPort = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        help="Port of the first role's metrics and health; each further role has the next. 0: free ones.",
    ),
]
ApiPort = Annotated[int | None, typer.Option(metavar="PORT", help="Port of the HTTP API; 0 picks a free one.")]


def dev(
    handlers: Handlers = None,
    home: Home = None,
    api_port: ApiPort = None,
    metrics_port: MetricsPort = None,
    log_level: LogLevel = "info",
) -> None:
    """Run all of Tidewheel in this terminal for development; reload handlers when they are saved.

    Starts PostgreSQL, Kafka and every service. Ctrl-C stops them in order and keeps the data. A stack of which a part
    runs already is used, and left running.
    """
    from tidewheel.control.supervise.dev import DevOptions, run_dev

    options = DevOptions(
        handlers=joined(handlers),
        home=home,
        api_port=api_port,
        metrics_port=metrics_port,
        flags=["--log-level", log_level],
    )
    log = Log("dev")
    try:
        is_well = asyncio.run(run_dev(options, log))
    finally:
        log.close()
    if not is_well:
        raise typer.Exit(1)


def run(
    roles: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMES", help="Services to run, separated by commas; repeatable; all by default."),
    ] = None,
    handlers: Handlers = None,
    api_port: ApiPort = None,
    metrics_port: MetricsPort = None,
    log_level: LogLevel = "info",
) -> None:
    """Run several services as one unit, for a small installation; restart one that ends.

    SIGTERM stops them in order. The exit code is 1 if a service cannot be kept running.
    """
    from tidewheel.control.supervise.services import make_services, module_files, read_roles, run_services
    from tidewheel.settings.executor import ExecutorSettings

    names = read_roles("intake,scheduler,relay,executor,api" if roles is None else ",".join(roles))
    variables: dict[str, str] = {}
    if "executor" in names and (modules := ExecutorSettings.load(handlers=joined(handlers)).handlers):
        module_files(modules)
        variables["TIDEWHEEL_HANDLERS"] = modules
    if api_port is not None:
        variables["TIDEWHEEL_API_PORT"] = str(api_port)
    services = make_services(names, variables, ["--log-level", log_level], metrics_port)
    log = Log("run")
    try:
        is_well = asyncio.run(run_services(services, log))
    finally:
        log.close()
    if not is_well:
        raise typer.Exit(1)
