"""`tidewheel service intake | scheduler | relay | executor | api`: each runs until SIGTERM.

The environment (`TIDEWHEEL_…`) or the file that TIDEWHEEL_CONFIG names can set every setting. Flags exist for the
settings that differ between processes.
"""

from typing import Annotated

import typer

from tidewheel.control import services as run
from tidewheel.control.cli.service_options import Handlers, LogLevel, joined
from tidewheel.process.json_logging import configure_logging
from tidewheel.settings.api import ApiSettings
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.settings.services import IntakeSettings, RelaySettings, SchedulerSettings

MetricsPort = Annotated[
    int | None,
    typer.Option(
        metavar="PORT", help="Serve /metrics, /healthz and /readyz on this port of 127.0.0.1; 0 picks a free one."
    ),
]
FailFast = Annotated[
    bool | None,
    typer.Option("--fail-fast", help="End with an error if PostgreSQL or Kafka is away at the start; do not wait."),
]


def intake(log_level: LogLevel = "info", metrics_port: MetricsPort = None, fail_fast: FailFast = None) -> None:
    """Apply the requests of the requests topic."""
    configure_logging(log_level)
    run.run_intake(IntakeSettings.load(metrics_port=metrics_port, fail_fast=fail_fast))


def scheduler(log_level: LogLevel = "info", metrics_port: MetricsPort = None, fail_fast: FailFast = None) -> None:
    """Create the runs of due occurrences."""
    configure_logging(log_level)
    run.run_scheduler(SchedulerSettings.load(metrics_port=metrics_port, fail_fast=fail_fast))


def relay(log_level: LogLevel = "info", metrics_port: MetricsPort = None, fail_fast: FailFast = None) -> None:
    """Publish outbox rows to Kafka."""
    configure_logging(log_level)
    run.run_relay(RelaySettings.load(metrics_port=metrics_port, fail_fast=fail_fast))


def executor(
    handlers: Handlers = None,
    queues: Annotated[
        list[str] | None, typer.Option(metavar="NAMES", help="Queues to serve, separated by commas; repeatable.")
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(metavar="N", help="The largest number of runs that this executor executes in parallel."),
    ] = None,
    *,
    log_level: LogLevel = "info",
    metrics_port: MetricsPort = None,
    fail_fast: FailFast = None,
) -> None:
    """Claim and execute runs, and record their outcomes."""
    configure_logging(log_level)
    settings = ExecutorSettings.load(
        handlers=joined(handlers), queues=joined(queues), slots=slots, metrics_port=metrics_port, fail_fast=fail_fast
    )
    run.run_executor(settings)


def api(
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address to listen on; 127.0.0.1 by default.")
    ] = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", help="Port to listen on; 0 picks a free one.")] = None,
    log_level: LogLevel = "info",
    metrics_port: MetricsPort = None,
    fail_fast: FailFast = None,
) -> None:
    """Serve REST: jobs, runs and dead letters, executors in other languages, and task tokens."""
    configure_logging(log_level)
    run.run_api(ApiSettings.load(api_host=host, api_port=port, metrics_port=metrics_port, fail_fast=fail_fast))
