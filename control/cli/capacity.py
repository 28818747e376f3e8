"""`tidewheel capacity`: what a load needs, from measured costs."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Annotated, cast

import typer

from tidewheel.control.capacity.check import Compared, compare
from tidewheel.control.capacity.costs import Costs, costs_of, read_document
from tidewheel.control.capacity.hot_second import Fleet, Lateness, simulate
from tidewheel.control.capacity.model import Handler, Limits, Load, Plan, plan
from tidewheel.control.capacity.quantities import amount_text, read_bytes, read_count, read_rate, read_share
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.output import Output, OutputOption, print_document, print_facts, print_table, wrapped
from tidewheel.control.cli.time_options import read_duration
from tidewheel.errors import refuse

WITHIN = 0.2  # of the measurement
_MOST_SIMULATED = 5_000_000  # runs: the simulation keeps one number of each
_MACHINE = ("processor", "cores", "memory_gib")


def capacity(
    *,
    jobs: Annotated[str, typer.Option(metavar="N", help="Jobs with a schedule, such as 100M.")] = "0",
    every: Annotated[str, typer.Option(metavar="DURATION", help="Their mean period.")] = "1h",
    triggers: Annotated[str, typer.Option(metavar="RATE", help="Triggered runs, such as 10k/s.")] = "0/s",
    duration: Annotated[str, typer.Option(metavar="DURATION", help="A handler's mean duration.")] = "100ms",
    handler: Annotated[Handler, typer.Option(help="The kind of handlers.")] = Handler.ASYNC,
    slots: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="Runs at once in one executor.")] = 100,
    payload: Annotated[str, typer.Option(metavar="BYTES", help="A payload's mean size.")] = "200",
    result: Annotated[str, typer.Option(metavar="BYTES", help="A result's mean size.")] = "0",
    retention: Annotated[str, typer.Option(metavar="DURATION", help="Time for which finished runs are kept.")] = "90d",
    copies: Annotated[int, typer.Option(metavar="N", min=1, max=9, help="Copies of each topic.")] = 3,
    hot: Annotated[str, typer.Option(metavar="SHARE", help="Share of timed runs at second 0 of the minute.")] = "0%",
    within: Annotated[str, typer.Option(metavar="DURATION", help="Time to start the runs of such a second.")] = "10s",
    keyed: Annotated[str, typer.Option(metavar="SHARE", help="Share of runs with a concurrency key.")] = "0%",
    checkpoint: Annotated[str, typer.Option(metavar="DURATION", help="Time between checkpoints.")] = "15m",
    largest_cores: Annotated[float, typer.Option(metavar="N", min=1, help="Most cores of PostgreSQL.")] = 64,
    largest_wal: Annotated[str, typer.Option(metavar="BYTES", help="Most WAL a second.")] = "400MB",
    largest_disk: Annotated[str, typer.Option(metavar="BYTES", help="Largest disk of PostgreSQL.")] = "64TB",
    hot_second: Annotated[
        bool, typer.Option("--hot-second", help="Simulate the hot second: how late its runs start.")
    ] = False,
    shared: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="With --hot-second: one machine of so many cores for all.")
    ] = None,
    burst: Annotated[
        str | None, typer.Option(metavar="N", help="With --hot-second: so many runs, by the fewest processes.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare predictions with the measured loads; exit code 1 beyond 20 %.")
    ] = False,
    costs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Costs of your machine: `tidewheel bench capacity -o json`.")
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Compute what a load needs from measured costs: processes, cores, disk, WAL, Kafka, connections.

    The packaged costs are those of one machine of two cores. It needs no database and no broker.
    """
    document = read_document(costs)
    if check:
        _check(compare(document), output)
        return
    period = read_duration(every, "--every").total_seconds()
    if period <= 0:
        refuse("--every", "a period of 0", "write a duration such as 1h")
    load = Load(
        jobs=read_count(jobs, "--jobs"),
        timed=read_count(jobs, "--jobs") / period,
        triggers=read_rate(triggers, "--triggers"),
        seconds=read_duration(duration, "--duration").total_seconds(),
        handler=handler,
        slots=slots,
        payload=read_bytes(payload, "--payload"),
        result=read_bytes(result, "--result"),
        days=read_duration(retention, "--retention").total_seconds() / 86_400,
        copies=copies,
        hot=read_share(hot, "--hot"),
        within=_at_least(1.0, within, "--within"),
        keyed=read_share(keyed, "--keyed"),
        checkpoint=_at_least(30.0, checkpoint, "--checkpoint"),
    )
    if not load.runs and not burst:
        refuse("--jobs", "there is no run", "give --jobs with --every, or --triggers")
    known = costs_of(document)
    limits = Limits(largest_cores, read_bytes(largest_wal, "--largest-wal"), read_bytes(largest_disk, "--largest-disk"))
    if hot_second or burst:
        _simulate(load, known, limits, burst=burst, shared=shared, output=output)
        return
    _print(plan(load, known, limits), known, output)


def _at_least(least: float, text: str, path: str) -> float:
    seconds = read_duration(text, path).total_seconds()
    if seconds < least:
        refuse(path, f"{text} is too short", f"write at least {least:.0f}s")
    return seconds


def _print(found: Plan, costs: Costs, output: Output) -> None:
    if output is not Output.TEXT:
        needs = [each._asdict() for each in found.needs]
        limits = {name: more if isfinite(more) else None for name, more in found.limits.items()}
        print_document({"needs": needs, "limits": limits, "costs": dict(costs.about)}, output)
        return
    print_table(
        ("need", "amount", "reason"),
        [(each.name, amount_text(each.value, each.unit), each.reason) for each in found.needs],
    )
    typer.echo("")
    rows = sorted(found.limits.items(), key=lambda item: item[1])
    print_table(("one PostgreSQL ends at", "times this load"), [(name, _multiple(more)) for name, more in rows])
    typer.echo("")
    typer.echo(wrapped(f"Costs of {_machine(costs.about)}. Your machine's: tidewheel bench capacity -o json."))


def _simulate(
    load: Load, costs: Costs, limits: Limits, *, burst: str | None, shared: int | None, output: Output
) -> None:
    if burst:
        runs, fleet = int(read_count(burst, "--burst")), Fleet(slots=load.slots, seconds=load.seconds, shared=shared)
    else:
        found, runs = plan(load, costs, limits), int(load.burst)
        fleet = Fleet(
            schedulers=int(found["schedulers"]),
            relays=int(found["relays"]),
            executors=int(found["executors"]),
            slots=load.slots,
            seconds=load.seconds,
            postgres=int(found["PostgreSQL's cores"]),
            brokers=max(1, round(found["cores of brokers"]) + 1),
            shared=shared,
        )
    if runs < 1:
        refuse("--hot", "no run is due at second 0", "give --hot with --jobs, or --burst")
    if runs > _MOST_SIMULATED:
        refuse("--hot", f"{runs:,} runs are due at once", f"the simulation takes {_MOST_SIMULATED:,}: use fewer jobs")
    late = simulate(runs, fleet, costs)
    if output is Output.TEXT:
        print_facts(_lateness_facts(runs, fleet, late))
    else:
        print_document({"runs": runs, "fleet": asdict(fleet), "lateness_seconds": asdict(late)}, output)


def _lateness_facts(runs: int, fleet: Fleet, late: Lateness) -> Iterator[tuple[str, str | None]]:
    yield "runs due at once", f"{runs:,}"
    where = f"one machine of {fleet.shared} cores" if fleet.shared else f"PostgreSQL with {fleet.postgres} cores"
    yield "schedulers, relays, executors", f"{fleet.schedulers}, {fleet.relays}, {fleet.executors}; {where}"
    yield "published after", f"{late.published:.2f} s"
    yield "half have started after", f"{late.p50:.2f} s"
    yield "99 % after", f"{late.p99:.2f} s"
    yield "all after", f"{late.last:.2f} s"


def _check(found: list[Compared], output: Output) -> None:
    failed = [each for each in found if abs(each.error) > WITHIN]
    if output is Output.TEXT:
        rows = [
            (each.load, each.figure, amount_text(each.predicted, each.unit), amount_text(each.measured, each.unit),
             f"{each.error:+.0%}")
            for each in found
        ]  # fmt: skip
        print_table(("load", "figure", "predicted", "measured", "error"), rows)
        typer.echo("")
        typer.echo(f"{len(found) - len(failed)} of {len(found)} within {WITHIN:.0%}")
    else:
        print_document({"compared": [{**each._asdict(), "error": each.error} for each in found]}, output)
    if failed:
        raise typer.Exit(ExitCode.FAILED)


def _multiple(more: float) -> str:
    return f"{more:,.0f}" if more >= 100 else f"{more:.2g}"


def _machine(about: Mapping[str, object]) -> str:
    machine = cast("Mapping[str, object]", about.get("machine", {}))
    parts = [f"{machine[name]} {name.replace('_gib', ' GiB')}" if name != "processor" else str(machine[name])
             for name in _MACHINE if name in machine]  # fmt: skip
    return ", ".join(parts) or "an unknown machine"
