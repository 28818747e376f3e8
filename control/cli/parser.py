"""The command line of typer, which imports a command's module only when the command runs."""

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from tidewheel.control.cli.commands import COMMANDS, OLDER_COMMANDS, Command, Group, every_command
from tidewheel.control.cli.examples import EXAMPLES
from tidewheel.control.cli.exit_codes import exit_code
from tidewheel.errors import Refused, TidewheelError, UnknownJob, Unusable
from tidewheel.extras import require
from tidewheel.redaction import redact
from tidewheel.release import describe_release

COLUMNS = 100  # widest help and text output where no terminal says otherwise
_HELP = ["-h", "--help"]
_CONTEXT = {"max_content_width": COLUMNS, "help_option_names": _HELP}


def run(*, unusable: int | None = None) -> None:
    """Run the command that the arguments name; write a Tidewheel error to standard error, a line a field.

    Args:
        unusable: Exit code for an error that only an operator can correct, in place of its own: a supervisor tells it
            from a crash.
    """
    try:
        root_command()()
    except Refused as refused:
        _exit_with(exit_code(refused), *map(str, refused.errors))
    except Unusable as error:
        _exit_with(exit_code(error) if unusable is None else unusable, str(error))
    except TidewheelError as error:
        _exit_with(exit_code(error), str(error))


class _Command(TyperCommand):
    """A command that explains the key of a job that does not exist."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - as below
        """Run the command; name the option that has an unknown key, and the nearest keys."""
        try:
            return super().invoke(ctx)
        except UnknownJob as unknown:
            from tidewheel.control.cli.unknown_keys import with_nearest  # here: no other error reads the keys

            names = [max(each.opts, key=len) for each in self.params if ctx.params.get(each.name) == unknown.key]
            raise with_nearest(unknown, next((name for name in names if name.startswith("--")), None)) from None


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
        module = import_module(self._command.path)
        app = _app()
        context = {**_CONTEXT, "ignore_unknown_options": self._command.passes_arguments}
        function = getattr(module, self._command.function)
        app.command(self.name, cls=_Command, context_settings=context, epilog=_epilog(self._words))(function)
        command = get_command(app)
        assert isinstance(command, TyperCommand)  # noqa: S101 - it has no callback
        return command


class _Named(TyperGroup):
    """A group that names the place of a command which another group has."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - click's own types are private
        """Return the command of the first argument; refuse another one."""
        if args and args[0] not in self.commands and (places := _places(args[0])):
            ctx.fail(f"No such command {args[0]!r}. Write {' or '.join(places)}.")
        return super().resolve_command(ctx, args)


class _Group(_Named):
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


def root_command() -> TyperGroup:
    """Return the command line, with every command of the table."""
    app = _app(add_completion=True)
    app.callback()(_options)
    root = get_command(app)
    assert isinstance(root, TyperGroup)  # noqa: S101 - it has a callback
    for name, each in {**COMMANDS, **OLDER_COMMANDS}.items():
        root.add_command(_made(name, each))
    return root


def _places(name: str) -> list[str]:
    """Return the commands and groups of this name.

    >>> _places("explain"), _places("archive")
    (['`tidewheel explain`', '`tidewheel admin cron explain`'], ['`tidewheel admin archive`'])
    """
    words = dict.fromkeys(
        " ".join(found[: number + 1])
        for found in (words.split() for words, _ in every_command())
        for number, part in enumerate(found)
        if part == name
    )
    return [f"`tidewheel {each}`" for each in words]


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
        cls=_Named,
        help="A distributed job scheduler: PostgreSQL is the truth, Kafka carries the work.",
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
