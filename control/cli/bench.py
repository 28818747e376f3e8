"""`tidewheel admin bench`: measure this machine, from a checkout: `tools/` is not in the wheel."""

from importlib import import_module
from typing import Annotated

import typer

from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.output import Output, OutputOption
from tidewheel.errors import StackError

_SCENARIOS = "Any of submit, fire, relay, execute, pipeline, latency, hot-second, http, handlers, limits, api, growth."
Scenarios = Annotated[list[str] | None, typer.Argument(metavar="SCENARIO", help=_SCENARIOS)]
Rounds = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Rounds of each scenario; default: 5, or 1 if a round takes minutes."),
]
Jobs = Annotated[int | None, typer.Option(metavar="N", min=1, help="Number of jobs, messages or requests of a round.")]
Seconds = Annotated[
    float | None, typer.Option(metavar="SECONDS", min=1, help="Duration of the load in pipeline and latency.")
]
Rate = Annotated[
    float | None, typer.Option(metavar="N", min=1, help="Runs per second of a steady load: latency, growth, pipeline.")
]
Minutes = Annotated[float | None, typer.Option(metavar="MINUTES", min=0.01, help="Duration of growth and limits.")]


def bench(
    scenarios: Scenarios = None,
    *,
    rounds: Rounds = None,
    jobs: Jobs = None,
    seconds: Seconds = None,
    rate: Rate = None,
    minutes: Minutes = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Measure this machine, from a checkout.

    Starts its own PostgreSQL and Kafka, or uses those that TIDEWHEEL_DATABASE_URL and TIDEWHEEL_KAFKA_BOOTSTRAP
    name, in a new database.
    """
    try:
        command = import_module("tools.bench.command")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("tools"):
            raise
        message = "the benchmarks are not in the wheel: run `tidewheel admin bench` in a checkout, after `make setup`"
        raise StackError(message) from None
    measurement = import_module("tools.bench.measurement")
    options = measurement.Options(jobs=jobs, seconds=seconds, rate=rate, minutes=minutes)
    try:
        reached = command.run(scenarios or [], rounds=rounds, options=options, as_json=output is not Output.TEXT)
    except KeyboardInterrupt:
        typer.echo("interrupted: everything the benchmark had started is stopped and removed", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if not reached:
        raise typer.Exit(ExitCode.FAILED)
