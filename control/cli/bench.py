"""`tidewheel bench`: measure this machine.

The benchmarks belong to a higher layer. The command imports them by name when it runs.
"""

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from tidewheel.control.cli.output import Output, OutputOption

_SCENARIOS = (
    "Some of fire, relay, execute, pipeline, hot-second, latency, idle, soak, submit, bulk (together: all), peers, "
    "costs, ledger, conservation, rolling, cancel."
)
Scenarios = Annotated[list[str] | None, typer.Argument(metavar="SCENARIO", help=_SCENARIOS)]
Rounds = Annotated[int | None, typer.Option(min=1, help="Repetitions; by default 5, and 1 of what takes minutes.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Jobs, messages or requests of a round.")]
Seconds = Annotated[
    float | None, typer.Option(min=1, help="How long the load of pipeline and latency lasts, steady too.")
]
Rate = Annotated[
    float | None, typer.Option(min=1, help="Runs a second where the load is steady: latency, soak, pipeline's.")
]
Minutes = Annotated[float | None, typer.Option(min=0.01, help="How long idle and soak last.")]
Plots = Annotated[Path | None, typer.Option(metavar="DIR", help="Draw each scenario there, as PNG and SVG.")]
Quick = Annotated[bool, typer.Option("--quick", help="Compare with the stored ratios: about two minutes.")]
Update = Annotated[bool, typer.Option("--update-baseline", help="With --quick: store the ratios found.")]

_INTERRUPTED = 130  # as in shells: 128 + SIGINT


def bench(
    scenarios: Scenarios = None,
    *,
    rounds: Rounds = None,
    jobs: Jobs = None,
    seconds: Seconds = None,
    rate: Rate = None,
    minutes: Minutes = None,
    plots: Plots = None,
    quick: Quick = False,
    update_baseline: Update = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Measure this machine; show each figure with its baseline.

    Starts a PostgreSQL and a Kafka of its own, or uses those that TIDEWHEEL_DATABASE_URL and TIDEWHEEL_KAFKA_BOOTSTRAP
    name, in a new database.
    """
    command = import_module("tidewheel.bench.command")
    measurement = import_module("tidewheel.bench.measurement")
    options = measurement.Options(jobs=jobs, seconds=seconds, rate=rate, minutes=minutes)
    try:
        reached = command.run(
            scenarios or [],
            rounds=rounds,
            options=options,
            as_json=output is Output.JSON,
            plots=plots,
            quick=quick,
            update_baseline=update_baseline,
        )
    except KeyboardInterrupt:
        typer.echo("interrupted: everything the benchmark had started is stopped and removed", err=True)
        raise typer.Exit(_INTERRUPTED) from None
    if not reached:
        raise typer.Exit(1)
