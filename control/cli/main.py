"""The `tidewheel` command: one entry, sub-commands by noun.

Exit codes: 0 as asked, 1 with a line on standard error for each thing that is in the way, 2 for a wrong flag.
"""

import inspect
import sys
from collections.abc import Callable
from importlib.metadata import version as version_of
from typing import Annotated

import typer

from tidewheel.control.cli import admin as operate
from tidewheel.control.cli import (
    apply,
    backfills,
    bench,
    calendars,
    demo,
    dev,
    dlq,
    jobs,
    occurrences,
    run_cancel,
    run_logs,
    runs,
    services,
    topics,
    versions,
)
from tidewheel.control.cli import upcoming as coming
from tidewheel.control.cli.cron import cron
from tidewheel.control.cli.output import COLUMNS
from tidewheel.errors import Refused, TidewheelError

app = typer.Typer(
    name="tidewheel",
    help="A distributed job scheduler: PostgreSQL is the truth, Kafka carries the work.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": COLUMNS},
)

_COMMANDS: tuple[Callable[..., None], ...] = (
    dev.up,
    dev.down,
    dev.status,
    demo.demo,
    bench.bench,
    services.intake,
    services.scheduler,
    services.relay,
    services.executor,
    services.api,
    operate.migrate,
    apply.apply,
)
for command in _COMMANDS:
    app.command()(command)

_JOB_COMMANDS: dict[str, Callable[..., None]] = {
    "create": jobs.create,
    "list": jobs.list_jobs,
    "show": jobs.show,
    "update": jobs.update,
    "pause": jobs.pause,
    "resume": jobs.resume,
    "delete": jobs.delete,
    "trigger": jobs.trigger,
    "backfill": backfills.backfill_job,
    "next": coming.next_of,
    "preview": coming.preview_of,
    "explain": occurrences.explain,
    "skip": occurrences.skip,
    "move": occurrences.move,
    "unskip": occurrences.unskip,
    "versions": versions.versions,
    "diff": versions.diff,
    "rollback": versions.rollback,
}
_BACKFILL_COMMANDS: dict[str, Callable[..., None]] = {
    "list": backfills.list_backfills,
    "show": backfills.show_backfill,
    "pause": backfills.pause_backfill,
    "resume": backfills.resume_backfill,
    "cancel": backfills.cancel_backfill,
}
_CALENDAR_COMMANDS: dict[str, Callable[..., None]] = {
    "put": calendars.put,
    "list": calendars.list_all,
    "show": calendars.show,
    "delete": calendars.delete,
}
_RUN_COMMANDS: dict[str, Callable[..., None]] = {
    "list": runs.list_runs,
    "show": runs.show,
    "attempts": runs.attempts,
    "where": runs.where,
    "cancel": run_cancel.cancel,
    "retry": runs.retry,
    "logs": run_logs.logs,
}
_DLQ_COMMANDS: dict[str, Callable[..., None]] = {
    "list": dlq.list_letters,
    "show": dlq.show,
    "redrive": dlq.redrive,
    "purge": dlq.purge,
}
job = typer.Typer(help="Jobs, their occurrences and versions.", no_args_is_help=True)
for name, command in _JOB_COMMANDS.items():
    job.command(name)(command)
backfill = typer.Typer(help="Past ranges that are being made up for.", no_args_is_help=True)
for name, command in _BACKFILL_COMMANDS.items():
    backfill.command(name)(command)
calendar = typer.Typer(help="Named sets of days that jobs leave out, or keep to.", no_args_is_help=True)
for name, command in _CALENDAR_COMMANDS.items():
    calendar.command(name)(command)
run = typer.Typer(help="Runs, their attempts and what becomes of them.", no_args_is_help=True)
for name, command in _RUN_COMMANDS.items():
    run.command(name)(command)
dead = typer.Typer(help="Dead letters: runs given up, and messages that were no request.", no_args_is_help=True)
for name, command in _DLQ_COMMANDS.items():
    dead.command(name)(command)

app.add_typer(job, name="job")
app.add_typer(backfill, name="backfill")
app.add_typer(calendar, name="calendar")
app.add_typer(run, name="run")
app.add_typer(dead, name="dlq")
app.add_typer(cron, name="cron")
app.add_typer(topics.topics, name="topics")
app.add_typer(operate.schemas, name="schemas")


def _say_version(asked: bool) -> None:  # noqa: FBT001 - as typer calls it
    if asked:
        typer.echo(f"tidewheel {version_of('tidewheel')}")
        raise typer.Exit


@app.callback()
def tidewheel(
    version: Annotated[  # noqa: FBT002 - a flag, answered by its callback
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say which release this is.")
    ] = False,
) -> None:
    """What holds for every command."""


def main() -> None:
    """Run the command line; an error of ours is a line on standard error for each field, and exit code 1."""
    try:
        app()
    except Refused as refused:
        _complain(*map(str, refused.errors))
    except TidewheelError as error:
        _complain(str(error))


def _complain(*lines: str) -> None:
    for line in lines:
        sys.stderr.write(f"tidewheel: {line}\n")
    sys.exit(1)


def _summarise(commands: typer.Typer) -> None:
    """Let the list of commands show each one's first line whole: it is cut off otherwise, wherever the line ends."""
    for command in commands.registered_commands:
        command.short_help = (inspect.getdoc(command.callback) or "").partition("\n")[0]
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _summarise(group.typer_instance)


_summarise(app)
