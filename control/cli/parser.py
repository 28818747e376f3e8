"""The typer application, which imports a command's module when the command runs.

A test parses each of them by the command that it shows.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typer.models import ArgumentInfo, OptionInfo

from tidewheel.control.cli.commands import COMMANDS, OLDER_COMMANDS, Command, Group
from tidewheel.control.cli.exit_codes import exit_code
from tidewheel.distribution import describe_release, require
from tidewheel.errors import Refused, TidewheelError, Unusable
from tidewheel.redaction import redact

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "up": ("tidewheel up --brokers 3 --standby",),
    "dev": ("tidewheel dev --handlers hello",),
    "serve": ("tidewheel serve --roles scheduler,relay,executor --handlers hello",),
    "admin bench": ("tidewheel admin bench fire relay --rounds 3",),
    "service intake": ("tidewheel service intake --metrics-port 9101",),
    "service scheduler": ("tidewheel service scheduler --metrics-port 9102",),
    "service relay": ("tidewheel service relay --metrics-port 9103",),
    "service executor": ("tidewheel service executor --handlers hello --queues default,reports --slots 50",),
    "service api": ("tidewheel service api --host 0.0.0.0 --port 8080",),
    "env": ('eval "$(tidewheel env)"', "tidewheel env --format kafka --secrets"),
    "apply": ("tidewheel apply -f jobs.yaml --dry-run", "tidewheel apply -f jobs.yaml --prune --label team=billing"),
    "job create": ("tidewheel job create tidy --every 10m --handler tidy --max-attempts 5",),
    "job list": ("tidewheel job list --prefix reports/ --paused", "tidewheel job list --label team=billing -o json"),
    "job update": ("tidewheel job update report --cron '30 9 * * MON-FRI'", "tidewheel job update -f job.yaml"),
    "job pause": ("tidewheel job pause report --until 'tomorrow 09:00' --tz Europe/Berlin --reason audit",),
    "job release": ("tidewheel job release report", "tidewheel job release --all --dry-run"),
    "job trigger": ("""tidewheel job trigger send-email --payload '{"to": "a@example.org"}' --wait""",),
    "job backfill": ("tidewheel job backfill report --from 2026-11-01 --to 2026-11-08 --tz UTC --max-concurrent 4",),
    "job preview": ("tidewheel job preview --cron '30 2 * * *' --tz Europe/Berlin --handler tidy",),
    "explain": ("tidewheel explain report --at 2027-03-28T03:00 --tz Europe/Berlin",),
    "job skip": ("tidewheel job skip report --at 'tomorrow 09:00' --tz Europe/Berlin --reason holiday",),
    "job move": ("tidewheel job move report --at 'tomorrow 09:00' --to 'tomorrow 11:00' --tz Europe/Berlin",),
    "freeze": ("tidewheel freeze --fleet --reason 'database upgrade' --yes", "tidewheel freeze --queue reports"),
    "thaw": ("tidewheel thaw --fleet",),
    "admin calendar put": ("tidewheel admin calendar put weekend --weekdays SAT,SUN",),
    "run list": ("tidewheel run list --status failed --since yesterday", "tidewheel run list --job report -n 10"),
    "run cancel": ("tidewheel run cancel --job report --not-started --dry-run",),
    "run retry": ("tidewheel run retry 01a1f866-8561-8c4e-a263-6b34d2c2d0e3 --wait",),
    "run retry-failed": ("tidewheel run retry-failed --job report --since yesterday --rate 10/s --wait",),
    "dlq list": ("tidewheel dlq list --since yesterday --error TimeoutError",),
    "dlq groups": ("tidewheel dlq groups --since yesterday",),
    "dlq redrive": ("tidewheel dlq redrive --job send-email --error TimeoutError --rate 10/s --wait",),
    "dlq purge": ("tidewheel dlq purge --until 30d --redriven --dry-run",),
    "work list": ("tidewheel work list --kind purge", "tidewheel work list --job report -n 10"),
    "workflow list": ("tidewheel workflow list etl/load --state failed",),
    "batch submit": ("tidewheel batch submit -f batch.yaml --wait",),
    "batch add": ("tidewheel batch add 019b2d5e-7a10-7c3e-8f00-1f5f1f9b1a3c -f more.yaml",),
    "admin limit set": ("tidewheel admin limit set 'api/*' --at-once 3 --rate 100/min",),
    "admin api-key create": ("tidewheel admin api-key create ci --scope write --scope read --expires 90d",),
    "admin api-key list": ("tidewheel admin api-key list --all-tenants",),
    "admin limit keys": ("tidewheel admin limit keys api/",),
    "admin tenant create": ("tidewheel admin tenant create acme --triggers-per-second 100 --in-flight 500",),
    "admin tenant limits": ("tidewheel admin tenant limits acme --jobs 1000 --payload 64KiB --in-flight none",),
    "admin tenant delete": ("tidewheel admin tenant delete acme --yes", "tidewheel admin tenant delete acme --undo"),
    "admin audit": ("tidewheel admin audit --from 2026-11-01 --to 2026-12-01 --tz UTC --report november.json",),
    "admin restore": ("tidewheel admin restore --stopped-at 2026-11-20T08:00Z --yes",),
    "admin changes": ("tidewheel admin changes --since 24h --object job/report",),
    "admin cron explain": ("tidewheel admin cron explain '0 9 * * MON-FRI' --tz America/New_York",),
    "migrate": ("tidewheel migrate --dry-run", "tidewheel migrate --roles --passwords passwords"),
    "admin topics apply": ("tidewheel admin topics apply --queues default,reports --dry-run",),
}

COLUMNS = 100  # widest help and text output where no terminal says otherwise
_NUMBER = re.compile(r"[+-]?\d{1,99}(?:\.\d{1,99})?", re.ASCII)
_HELP = ["-h", "--help"]
_CONTEXT = {"max_content_width": COLUMNS, "help_option_names": _HELP}


def run(*, unusable: int | None = None) -> None:
    """Run the command that the arguments name; write a Tidewheel error to standard error, a line a field.

    `unusable` is the exit code for what only an operator can correct, by which a supervisor tells it from a crash.
    """
    try:
        root_command()()
    except Refused as refused:
        _exit_with(exit_code(refused), *map(str, refused.errors))
    except Unusable as error:
        _exit_with(exit_code(error) if unusable is None else unusable, str(error))
    except TidewheelError as error:
        _exit_with(exit_code(error), str(error))


class _LazyCommand(TyperCommand):
    """A command whose module is imported when it is invoked or prints its own help."""

    def __init__(self, words: str, command: Command) -> None:
        super().__init__(words.split()[-1], short_help=command.help, hidden=command.hidden)
        self._words, self._command = words, command

    def make_context(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - click's own types are private
        """Parse the arguments with the real command, which the context then names."""
        return self.real().make_context(*arguments, **options)

    def real(self) -> TyperCommand:
        """Import the command."""
        if self._command.extra is not None:
            require(self._command.extra, f"`tidewheel {self._words}`")
        return real_command(self._words, self._command)


class _Group(TyperGroup):
    """A group of commands, or of one more that needs no name: the flags do."""

    def __init__(self, group: Group, **options: Any) -> None:  # noqa: ANN401 - as above
        super().__init__(**options)
        self._by_flags = group.by_flags

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **options: Any) -> Any:  # noqa: ANN401
        """Parse the arguments, by the command without a name if the first one is a flag of it."""
        is_flag = bool(args) and args[0].startswith("-") and args[0] not in _HELP
        if self._by_flags is None or not is_flag:
            return super().make_context(info_name, args, *rest, **options)
        return _LazyCommand(info_name or "", self._by_flags).make_context(info_name, args, *rest, **options)

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - as above
        """Write the flags of the command without a name, then the commands; leave out --help."""
        if self._by_flags is not None and not self._by_flags.hidden:
            command = _LazyCommand(self.name or "", self._by_flags).real()
            with formatter.section("Without a command"):
                formatter.write_dl(filter(None, (each.get_help_record(ctx) for each in command.params)))
        self.format_commands(ctx, formatter)


def option(metavar: str, words: str, *names: str, min: float | None = None, max: float | None = None) -> OptionInfo:
    """Return an option with a value; without `names` it has that of its parameter."""
    made: OptionInfo = typer.Option(*names, metavar=metavar, help=words, min=min, max=max)
    return made


def switch(words: str, *names: str) -> OptionInfo:
    """Return an option without a value, or one of few values."""
    made: OptionInfo = typer.Option(*names, help=words)
    return made


def argument(metavar: str, words: str, min: float | None = None, max: float | None = None) -> ArgumentInfo:
    """Return an argument."""
    made: ArgumentInfo = typer.Argument(metavar=metavar, help=words, min=min, max=max)
    return made


def root_command() -> TyperGroup:
    """Return the command line, with every command of the table."""
    app = _app(add_completion=True)
    app.callback()(_options)
    root = get_command(app)
    assert isinstance(root, TyperGroup)  # noqa: S101 - it has a callback
    for name, each in {**COMMANDS, **OLDER_COMMANDS}.items():
        root.add_command(_made(name, each))
    return root


def real_command(words: str, entry: Command) -> TyperCommand:
    """Import a command whose numbers accept ASCII digits alone."""
    app, context = _app(), {**_CONTEXT, "ignore_unknown_options": entry.passes_arguments}
    function = getattr(import_module(entry.path), entry.function)
    app.command(words.split()[-1], context_settings=context, epilog=_epilog(words))(function)
    command = get_command(app)
    assert isinstance(command, TyperCommand)  # noqa: S101 - it has no callback
    for each in command.params:
        if getattr(each, "type_descriptor").annotation in {int, float, list[int]}:  # noqa: B009 - private in typer
            vars(each)["process_value"] = partial(_number, each, each.process_value)
    return command


def _number(parameter: Any, process: Any, ctx: Any, value: object) -> object:  # noqa: ANN401 - as above
    """Convert a number as typer does; refuse what only Python reads as one, such as `1_000`."""
    for text in cast("Sequence[object]", value) if isinstance(value, list | tuple) else (value,):
        if isinstance(text, str) and not _NUMBER.fullmatch(text):
            message = f"{text[:64]!r} is not a number"
            raise typer.BadParameter(message, ctx, parameter)
    return process(ctx, value)


def _made(words: str, entry: Command | Group) -> TyperCommand | TyperGroup:
    if isinstance(entry, Command):
        return _LazyCommand(words, entry)
    group = _Group(
        entry,
        name=words.split()[-1],
        help=entry.help,
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings=dict(_CONTEXT),
        epilog=_epilog(words),
    )
    for name, each in entry.commands.items():
        group.add_command(_made(f"{words} {name}", each))
    return group


def _epilog(words: str) -> str | None:
    """Return the examples of a command, which click leaves as they are after a backspace."""
    lines = EXAMPLES.get(words, ())
    return "\n  ".join(("\b\nExamples:" if len(lines) > 1 else "\b\nExample:", *lines)) if lines else None


def _app(*, add_completion: bool = False) -> typer.Typer:
    return typer.Typer(
        name="tidewheel",
        help="A distributed job scheduler on PostgreSQL and Kafka.",
        no_args_is_help=True,
        add_completion=add_completion,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=_CONTEXT,
    )


def _print_version(requested: bool) -> None:  # noqa: FBT001 - as typer calls it
    if requested:
        typer.echo(describe_release())
        raise typer.Exit


def _options(
    version: Annotated[  # noqa: FBT002 - a flag, handled by its callback
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the versions of the release, its schema and its protocol.",
        ),
    ] = False,
) -> None:
    """Options of every command."""


def _exit_with(code: int, *lines: str) -> None:
    for line in lines:
        sys.stderr.write(f"tidewheel: {redact(line)}\n")
    sys.exit(code)
