"""Commands of operations: arguments, flags and help of each, from its signature.

A parameter without a default is an argument, and so are the ids of a filter. All others are flags. An operation that
nothing can undo needs `--yes`.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from inspect import Parameter as Argument
from inspect import Signature
from typing import Annotated, Any, ParamSpec, cast
from uuid import UUID

import typer

from tidewheel.api_keys import Scope
from tidewheel.audit import Door, process_actor
from tidewheel.control.cli.options import (
    DEFAULT_TENANT,
    After,
    Limit,
    Reason,
    RequestId,
    Tenant,
    Tz,
    checked_url,
    read_labels,
    read_place,
    reading,
)
from tidewheel.control.cli.output import Output, OutputOption, print_document, print_table
from tidewheel.control.cli.tables import Cell
from tidewheel.control.instants import read_instant
from tidewheel.errors import refuse
from tidewheel.nouns.operation import Call, Found, Noun, Operation, Parameter, as_document, operations
from tidewheel.postgres.session import Conn

P = ParamSpec("P")

_KINDS: Mapping[str, Any] = {
    "after": After,
    "limit": Limit,
    "reason": Reason,
    "request_id": RequestId,
    "dry_run": Annotated[bool, typer.Option("--dry-run", help="Print their number and the first ten; change nothing.")],
}


@dataclass(frozen=True, slots=True)
class Flag:
    """Parts of a flag in place of those that its parameter declares."""

    name: str | None = None
    metavar: str = "TEXT"
    help: str | None = None
    read: Callable[[str], object] | None = None
    complete: Callable[[typer.Context, str], list[str]] | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """A result that a command shows."""

    found: Any
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]  # the values of the command's own flags
    zone: str | None
    tenant: str
    output: Output


@dataclass(frozen=True, slots=True)
class Table:
    """The table of a noun's records."""

    noun: str
    headings: Sequence[str]
    row: Callable[[Any], tuple[Cell, ...]]

    def print(self, records: Sequence[object], *, spare: Sequence[str] = ()) -> None:
        """Print records in columns."""
        print_table(self.headings, map(self.row, records), spare=spare)


@dataclass(frozen=True, slots=True)
class _Command:
    """The command of an operation."""

    noun: type[Noun]
    name: str  # of the operation's method
    show: Callable[[Shown], None]
    _: KW_ONLY
    table: Table | None = None  # of the first things that a bulk operation would change
    flags: Mapping[str, Flag | None] = field(default_factory=dict[str, Flag | None])  # None: this parameter has no flag
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])  # further flags, for `prepare` and `show`
    local_times: bool = False  # the output has times, which `--tz` shows as local ones
    prepare: Callable[[dict[str, Any], Mapping[str, Any]], None] = lambda arguments, options: None  # asks, or refuses
    dry_run: tuple[str, Callable[[Shown], None]] | None = None  # the operation that its option `dry_run` runs instead

    @property
    def declared(self) -> Operation:
        """The operation."""
        return operations(self.noun)[self.name]

    def signature(self) -> Signature:
        """Return the arguments and flags: the filter's, the others, those of every command."""
        own = [_argument(each, flag) for each, flag in self._flagged()]
        if self.declared.danger:
            words = "Confirm it; needed without --dry-run."
            own.append(_flag("yes", Annotated[bool, typer.Option("--yes", help=words)], default=False))
        own += [_flag(name, kind, default=False) for name, kind in self.options.items()]
        if self.local_times or any(each.accepts(datetime) for each, _ in self._flagged() if each.name != "after"):
            own.append(_flag("timezone", Tz, default=None))
        own += [_flag("tenant", Tenant, default=DEFAULT_TENANT), _flag("output", OutputOption, default=Output.TEXT)]
        return Signature(sorted(own, key=lambda each: each.kind))

    def run(self, given: Mapping[str, Any]) -> None:
        """Run it, and show the result."""
        if self.dry_run is not None and given["dry_run"]:
            replace(self, name=self.dry_run[0], show=self.dry_run[1], dry_run=None).run(given)
            return
        zone, tenant, output = given.get("timezone"), given["tenant"], given["output"]
        arguments = {each.name: _value(each, flag, given[each.spoken], zone) for each, flag in self._flagged()}
        options = {name: given[name] for name in self.options}
        self.prepare(arguments, options)
        self._ensure_meant(given)
        with self._call(tenant) as call:
            found = self.declared.call(self.noun, call, self.declared.checked(arguments))
            if arguments.get("dry_run"):
                self._print_dry_run(found, output)
                return
        self.show(Shown(as_document(found, self.declared), arguments, options, zone, tenant, output))

    def _flagged(self) -> Sequence[tuple[Parameter, Flag]]:
        found = [(each, self.flags.get(each.name, Flag())) for each in self.declared.parameters]
        return [(each, flag) for each, flag in found if flag is not None]

    def _ensure_meant(self, given: Mapping[str, object]) -> None:
        if self.declared.danger and not given["dry_run"] and not given["yes"]:
            refuse("--yes", f"is missing: {self.declared.danger}", "try --dry-run, then add --yes")

    @contextmanager
    def _call(self, tenant: str) -> Generator[Call]:
        if self.declared.scope is Scope.READ:
            yield cast("Call", _Reading(tenant))  # a read calls nothing else
            return
        from tidewheel.control.client.connection import Connection  # imports all of intake, which no list needs

        connection = Connection(checked_url(), tenant=tenant, actor=process_actor(Door.CLI))
        try:
            yield connection
        finally:
            connection.close()

    def _print_dry_run(self, found: Found, output: Output) -> None:
        if output is not Output.TEXT:
            print_document({"matched": found.matched, "at_least": found.at_least, "first": found.first}, output)
            return
        noun = self.table.noun if self.table else "thing"
        many = f"{'at least ' if found.at_least else ''}{found.matched:,}"
        typer.echo(f"{noun}s that would be {self.declared.participle}: {many}")
        if found.first and self.table:
            self.table.print(found.first)


def _for_typer(make: Callable[P, _Command]) -> Callable[P, Callable[..., None]]:
    def command(*args: P.args, **kwargs: P.kwargs) -> Callable[..., None]:
        made = make(*args, **kwargs)

        def run(**given: Any) -> None:  # noqa: ANN401 - as typer has read them
            made.run(given)

        read = made.signature()
        run.__doc__ = made.declared.words
        run.__annotations__ = {each.name: each.annotation for each in read.parameters.values()}
        vars(run)["__signature__"] = read
        return run

    return command


command = _for_typer(_Command)
"""Makes the function of a command."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """The call of a read: one snapshot, without the code of requests, whose import no list needs."""

    tenant: str
    all_tenants: bool = True

    def snapshot(self, **_: bool) -> AbstractContextManager[Conn]:
        return reading()


def _value(each: Parameter, flag: Flag, given: Any, zone: str | None) -> object:  # noqa: ANN401 - as typer has read it
    if given is None or given == []:
        return None
    if flag.read is not None:
        return flag.read(given)
    if each.accepts(dict):
        return read_labels(given)
    if each.name == "after":
        return read_place(given)
    return read_instant(given, f"--{each.spoken}", zone) if each.accepts(datetime) else given


def _argument(each: Parameter, flag: Flag) -> Argument:
    """Return the argument or the flag of a parameter."""
    if each.required or each.accepts(Sequence):
        kind: Any = UUID if each.accepts(UUID) else int
        words = flag.help or each.help
        kind = kind if each.required else list[kind] | None
        default = Argument.empty if each.required else None
        declared = Annotated[kind, typer.Argument(metavar=flag.metavar, help=words)]
        return Argument(each.spoken, Argument.POSITIONAL_OR_KEYWORD, annotation=declared, default=default)
    return _flag(each.spoken, _KINDS.get(each.name) or _option(each, flag), default=each.default)


def _option(each: Parameter, flag: Flag) -> Any:  # noqa: ANN401 - an annotation
    name = f"--{each.spoken.replace('_', '-')}"
    words = flag.help or _with_choices(each)
    if each.accepts(bool) and each.default is False:
        return Annotated[bool, typer.Option(name, help=words)]
    if each.accepts(bool):
        return Annotated[bool | None, typer.Option(f"{name}/--not-{each.spoken}", help=words)]
    kind: Any = int if each.accepts(int) else str
    if each.accepts(dict):  # repeatable
        name, kind = name.removesuffix("s"), list[str]
    metavar = "TIME" if each.accepts(datetime) else flag.metavar
    return Annotated[
        kind | None, typer.Option(flag.name or name, metavar=metavar, help=words, autocompletion=flag.complete)
    ]


def _with_choices(each: Parameter) -> str:
    """Return the description of a parameter with its values, if only a few are allowed."""
    *rest, last = each.choices or ("",)
    return f"{each.help.removesuffix('.')}: {', '.join(rest)} or {last}." if rest else each.help


def _flag(name: str, kind: object, *, default: object) -> Argument:
    return Argument(name, Argument.KEYWORD_ONLY, annotation=kind, default=default)
