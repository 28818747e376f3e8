"""`tidewheel up` and `down`: the local stack; `tidewheel admin bench`: measure this machine."""

import shlex
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated

import typer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from tidewheel.control.cli.dev import Home
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.output import Output, OutputOption, print_document, print_result
from tidewheel.control.cli.parser import argument, option, switch
from tidewheel.control.supervise.local_stack import make_stack, start_stack
from tidewheel.errors import StackError, refuse
from tidewheel.local.daemon import Progress as Watcher
from tidewheel.local.daemon import Step, in_silence
from tidewheel.local.stack import SIZES, LocalStack, StackInfo, StackStatus
from tidewheel.local.state import HOME_VARIABLE, STATE_FILE, default_home

_SCENARIOS = (
    "Any of submit, fire, relay, execute, pipeline, latency, hot-second, http, handlers, chunks, limits, api, growth."
)
Scenarios = Annotated[list[str] | None, argument("SCENARIO", _SCENARIOS)]
Rounds = Annotated[
    int | None, option("N", "Rounds of each scenario; default: 5, or 1 if a round takes minutes.", min=1)
]
Jobs = Annotated[int | None, option("N", "Number of jobs, messages or requests of a round.", min=1)]
Seconds = Annotated[float | None, option("SECONDS", "Duration of the load in pipeline and latency.", min=1)]
Rate = Annotated[float | None, option("N", "Runs per second of a steady load: latency, growth, pipeline.", min=1)]
Minutes = Annotated[float | None, option("MINUTES", "Duration of growth and limits.", min=0.01)]


def up(
    home: Home = None,
    brokers: Annotated[int | None, option("N", "Number of brokers: 1, or 3 with replication 3.")] = None,
    standby: Annotated[
        bool | None,
        switch("PostgreSQL with or without a synchronous standby; unchanged by default.", "--standby/--no-standby"),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Start PostgreSQL and Kafka on this machine; create the schema and the topics.

    A server named by TIDEWHEEL_DATABASE_URL or TIDEWHEEL_KAFKA_BOOTSTRAP is used instead.
    """
    if brokers not in (None, *SIZES):
        refuse("--brokers", f"a stack has 1 or 3 brokers, not {brokers}", "write 1 or 3")
    with _shown() as watch:
        stack = make_stack(home, brokers=brokers, standby=standby)
        info = start_stack(stack, watch)
        status = stack.status()
    _print_started(info, status, output)


def down(
    home: Home = None,
    erase: Annotated[bool, switch("Delete all data too.", "--erase")] = False,  # noqa: FBT002 - a flag
    output: OutputOption = Output.TEXT,
) -> None:
    """Stop the local stack. Its data stays unless --erase is given."""
    stack = LocalStack(home)
    exists = _exists(stack)
    with _shown() as watch:
        stack.down(erase=erase, progress=watch if exists else in_silence)
    line = f"there is no local stack in {stack.home}; `tidewheel dev` or `tidewheel up` creates one"
    if exists:
        line = f"stopped; the data in {stack.home} is {'erased' if erase else 'kept'}"
    print_result([line], {"home": str(stack.home), "running": False, "erased": erase}, output)


def fail_over(home: Home = None, output: OutputOption = Output.TEXT) -> None:
    """Stop the local stack's primary PostgreSQL and promote its standby.

    Services follow by themselves. The next `tidewheel up` makes the old primary the standby, from a new copy of
    the data.
    """
    stack = LocalStack(home)
    with _shown() as watch:
        stack.fail_over(watch)
    if output is not Output.TEXT:
        print_document(stack_json(stack.status()), output)
    else:
        typer.echo("the standby is the primary now; `tidewheel up` makes the old primary its standby")


def _exists(stack: LocalStack) -> bool:
    """Return True if there is a stack, even with an unreadable state file."""
    try:
        return bool(stack.status().parts)
    except StackError:
        return True


def _print_started(info: StackInfo, status: StackStatus, output: Output) -> None:
    if output is not Output.TEXT:
        named, public = _database_address(info)
        reached = {
            "database_url": make_conninfo(**public),
            "password_file": str(info.data_dir / STATE_FILE) if public != named else None,
            "bootstrap": info.bootstrap,
            "kafka_properties": str(info.kafka_properties) if info.kafka_properties else None,
            "replication": info.replication,
        }
        print_document(stack_json(status) | reached, output)
        return
    for part in status.parts:
        typer.echo(f"{part.name:<13} {part.address}")
    print_access(info)
    typer.echo(f"{'data':<13} {info.data_dir}")
    if info.data_dir != default_home().absolute():
        typer.echo(f"\nnext: export {HOME_VARIABLE}={info.data_dir}; then tidewheel --help")
    else:
        typer.echo("\nnext: tidewheel --help")


def print_access(info: StackInfo, *, has_api: bool = False) -> None:
    """Print how clients reach a running stack; files have the passwords."""
    named, public = _database_address(info)
    typer.echo(f"{'psql':<13} psql {shlex.quote(make_conninfo(**public))}")
    if public != named:
        typer.echo(f"{'password':<13} of PostgreSQL: in {info.data_dir / STATE_FILE}")
    if info.kafka_properties:
        typer.echo(f"{'client':<13} {info.kafka_properties}")
    if not has_api:
        typer.echo(f"{'HTTP API':<13} not part of the stack; `tidewheel service api` starts it and logs its URL")


def _database_address(info: StackInfo) -> tuple[dict[str, str], dict[str, str]]:
    """Return the parts of the database's address: all, and those that are no password."""
    named = {name: str(value) for name, value in conninfo_to_dict(info.database_url).items()}
    return named, {name: value for name, value in named.items() if "password" not in name}


def stack_json(status: StackStatus) -> dict[str, object]:
    """Return the parts of a stack as a document."""
    parts = [
        {"name": part.name, "state": part.state.value, "address": part.address, "pid": part.pid}
        for part in status.parts
    ]
    return {"home": str(status.data_dir), "running": status.is_running, "parts": parts}


@contextmanager
def _shown() -> Generator[Watcher]:
    """Yield a watcher that shows each step on standard error: live on a terminal, otherwise a line each."""
    console = Console(stderr=True)
    if not console.is_terminal:
        last = ""

        def begin(step: Step) -> None:
            nonlocal last
            if step.what != last:
                last = step.what
                console.print(last)

        yield begin
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None, amount="")

        def show(step: Step) -> None:
            done, total = step.done_bytes, step.total_bytes
            amount = f"{done / 1e6:.0f} of {total / 1e6:.0f} MB" if total else ""
            progress.update(task, description=step.words, completed=done, total=total or None, amount=amount)

        yield show


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
    """Benchmark this machine, from a checkout.

    Starts its own PostgreSQL and Kafka, or uses those that TIDEWHEEL_DATABASE_URL and TIDEWHEEL_KAFKA_BOOTSTRAP
    name, in a new database.
    """
    try:
        command = import_module("tools.bench.command")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("tools"):
            raise
        message = "the benchmarks are not in the wheel; run `tidewheel admin bench` in a checkout, after `make setup`"
        raise StackError(message) from None
    measurement = import_module("tools.bench.measurement")
    options = measurement.Options(jobs=jobs, seconds=seconds, rate=rate, minutes=minutes)
    try:
        reached = command.run(scenarios or [], rounds=rounds, options=options, as_json=output is not Output.TEXT)
    except KeyboardInterrupt:
        typer.echo("interrupted: stopped and removed everything that the benchmark had started", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if not reached:
        raise typer.Exit(ExitCode.FAILED)
