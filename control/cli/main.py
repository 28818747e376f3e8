"""The `tidewheel` command: one entry, sub-commands by noun."""

import sys
from collections.abc import Callable

import typer

from tidewheel.control.cli import demo, dev, operate, services
from tidewheel.errors import TidewheelError

app = typer.Typer(
    name="tidewheel",
    help="A distributed job scheduler: PostgreSQL is the truth, Kafka carries the work.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_COMMANDS: tuple[Callable[..., None], ...] = (
    dev.up,
    dev.down,
    dev.status,
    demo.demo,
    services.intake,
    services.scheduler,
    services.relay,
    services.executor,
    operate.migrate,
)
for command in _COMMANDS:
    app.command()(command)
app.add_typer(operate.topics, name="topics")
app.add_typer(operate.schemas, name="schemas")


def main() -> None:
    """Run the command line; an error of ours is one line on standard error and exit code 1."""
    try:
        app()
    except TidewheelError as error:
        sys.stderr.write(f"tidewheel: {error}\n")
        sys.exit(1)
