"""`tidewheel bench`: measure this machine.

The benchmarks belong to a higher layer. The command imports them by name when it runs.
"""

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.output import Output, OutputOption

_SCENARIOS = (
    "Any of fire, relay, execute, pipeline, hot-second, latency, idle, soak, submit, http, overlap, async, threads, "
    "process, retry, results, bulk (all of these: all), peers, stages, costs, ledger, conservation, rolling, cancel, "
    "freeze, fairness, limits, workflows, batches, retention, audit, archive, api, standby-site."
)
Scenarios = Annotated[list[str] | None, typer.Argument(metavar="SCENARIO", help=_SCENARIOS)]
Rounds = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Rounds of each scenario; default: 5, or 1 if a round takes minutes."),
]
Jobs = Annotated[int | None, typer.Option(metavar="N", min=1, help="Number of jobs, messages or requests of a round.")]
Seconds = Annotated[
    float | None, typer.Option(metavar="SECONDS", min=1, help="Duration of the load in pipeline, latency and limits.")
]
Rate = Annotated[
    float | None, typer.Option(metavar="N", min=1, help="Runs per second of a steady load: latency, soak, pipeline.")
]
Minutes = Annotated[float | None, typer.Option(metavar="MINUTES", min=0.01, help="Duration of idle, soak and limits.")]
Keys = Annotated[bool, typer.Option("--keys", help="With execute: also with one concurrency key, and with 1,000.")]
Plots = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write a plot of each scenario to this folder, as PNG and SVG.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Compare small rounds with the stored ratios, in two minutes.")]
Against = Annotated[
    Path | None,
    typer.Option(metavar="CHECKOUT", help="Compare with another checkout: both builds in turns, by their ratios."),
]
Update = Annotated[bool, typer.Option("--update-baseline", help="With --quick: store the measured ratios.")]


def bench(
    scenarios: Scenarios = None,
    *,
    rounds: Rounds = None,
    jobs: Jobs = None,
    seconds: Seconds = None,
    rate: Rate = None,
    minutes: Minutes = None,
    keys: Keys = False,
    plots: Plots = None,
    quick: Quick = False,
    update_baseline: Update = False,
    against: Against = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Measure this machine; show each figure with its baseline.

    Starts its own PostgreSQL and Kafka, or uses those that TIDEWHEEL_DATABASE_URL and TIDEWHEEL_KAFKA_BOOTSTRAP
    name, in a new database.
    """
    command = import_module("tidewheel.bench.command")
    measurement = import_module("tidewheel.bench.measurement")
    options = measurement.Options(jobs=jobs, seconds=seconds, rate=rate, minutes=minutes, keys=keys)
    try:
        reached = command.run(
            scenarios or [],
            rounds=rounds,
            options=options,
            as_json=output is not Output.TEXT,
            plots=plots,
            quick=quick,
            update_baseline=update_baseline,
            other=against,
        )
    except KeyboardInterrupt:
        typer.echo("interrupted: everything the benchmark had started is stopped and removed", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if not reached:
        raise typer.Exit(ExitCode.FAILED)
