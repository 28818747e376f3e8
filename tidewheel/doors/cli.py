"""Commands of operations: arguments, flags and help of each, from its signature.

A parameter without a default is an argument unless it is an instant, and so are the ids of a filter. All others are
flags. An operation that nothing can undo needs `--yes`.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from functools import cached_property
from inspect import Parameter as Argument
from inspect import Signature
from keyword import iskeyword
from types import SimpleNamespace
from typing import Annotated, Any, cast, get_args
from uuid import UUID

import typer
from typer.models import OptionInfo

from tidewheel.audit import Door, process_actor
from tidewheel.control.cli.options import (
    DEFAULT_TENANT,
    After,
    DryRun,
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
from tidewheel.control.cli.output import Output, OutputOption, Shown, Table, print_document
from tidewheel.control.cli.parser import argument, option, switch
from tidewheel.control.instants import read_instant
from tidewheel.errors import refuse
from tidewheel.jobs.values import Key, Queue
from tidewheel.nouns.operation import Call, Noun, Operation, Parameter, as_document, operations, participle
from tidewheel.settings.connections import Connections

_METAVARS: Mapping[Any, str] = {
    dict: "NAME=VALUE", datetime: "TIME", int: "N", float: "N", UUID: "ID", Key: "KEY",
    Queue: "NAME",
}  # fmt: skip
"""The words for values by type; one of few values has the name of its parameter."""
_KINDS: Mapping[str, Any] = {
    "after": After,
    "limit": Limit,
    "reason": Reason,
    "request_id": RequestId,
    "dry_run": DryRun,
}


@dataclass(frozen=True, slots=True)
class Flag:
    """Parts of a flag in place of those that its parameter declares."""

    name: str | None = None
    metavar: str | None = None
    kind: Any = None  # the whole annotation
    default: object = None
    help: str | None = None
    read: Callable[[str], object] | None = None


@dataclass(frozen=True)
class _Command:
    """The command of an operation, which typer reads as a function."""

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

    def __post_init__(self) -> None:
        read = self._signature()
        hints = {each.name: each.annotation for each in read.parameters.values()}
        vars(self).update(__signature__=read, __annotations__=hints, __doc__=self.declared.words, __name__=self.name)

    @cached_property
    def declared(self) -> Operation:
        """The operation."""
        return operations(self.noun)[self.name]

    def _signature(self) -> Signature:
        """Return the arguments and flags: the filter's, the others, those of every command."""
        own = [_argument(each, flag) for each, flag in self._flagged()]
        if self.declared.danger:
            kind = Annotated[bool, switch("Confirm; required without --dry-run.", "--yes")]
            own.append(_flag("yes", kind, default=False))
        own += [_flag(name, kind, default=None) for name, kind in self.options.items()]
        if self.local_times or any(each.accepts(datetime) for each, _ in self._flagged() if each.name != "after"):
            own.append(_flag("timezone", Tz, default=None))
        if "tenant" not in {*self.flags, *(each.name for each in own)}:
            own.append(_flag("tenant", Tenant, default=DEFAULT_TENANT))
        own.append(_flag("output", OutputOption, default=Output.TEXT))
        return Signature(sorted(own, key=lambda each: each.kind))

    def __call__(self, **given: Any) -> None:  # noqa: ANN401 - as typer has read them
        """Run it, and show the result."""
        if self.dry_run is not None and given["dry_run"]:
            replace(self, name=self.dry_run[0], show=self.dry_run[1], dry_run=None)(**given)
            return
        zone, tenant, output = given.get("timezone"), given.get("tenant", DEFAULT_TENANT), given["output"]
        arguments = {each.name: _value(each, flag, given[_variable(each)], zone) for each, flag in self._flagged()}
        self.prepare(arguments, given)
        if self.declared.danger and not given["dry_run"] and not given["yes"]:
            refuse("--yes", f"is missing: {self.declared.danger}", "try --dry-run, then add --yes")
        with self._call(tenant) as call:
            found = self.declared.call(self.noun, call, self.declared.checked(arguments))
            if arguments.get("dry_run") and self.table is not None:
                self._print_dry_run(self.table, found, output)
                return
        self.show(Shown(as_document(found, self.declared), arguments, given, zone, tenant, output))

    def _flagged(self) -> Sequence[tuple[Parameter, Flag]]:
        found = [(each, self.flags.get(each.name, Flag())) for each in self.declared.parameters]
        return [(each, flag) for each, flag in found if flag is not None]

    @contextmanager
    def _call(self, tenant: str) -> Generator[Call]:
        if self.declared.route.startswith("GET"):
            read = SimpleNamespace(tenant=tenant, all_tenants=True, snapshot=lambda all_tenants=False: reading())
            read.installation = Connections.load()  # as far as reads need it
            yield cast("Call", read)
            return
        from tidewheel.control.client.connection import Connection  # imports all of intake, which no list needs

        with closing(Connection(checked_url(), tenant=tenant, actor=process_actor(Door.CLI))) as connection:
            yield connection

    def _print_dry_run(self, table: Table, found: Any, output: Output) -> None:  # noqa: ANN401 - as the operation returns it
        if output is not Output.TEXT:
            print_document({"matched": found.matched, "at_least": found.at_least, "first": found.first}, output)
            return
        many = f"{'at least ' if found.at_least else ''}{found.matched:,}"
        typer.echo(f"{table.noun}s that would be {participle(self.declared.verb)}: {many}")
        if found.first:
            table.print(found.first)


command = _Command
"""Makes the function of a command."""


def _value(each: Parameter, flag: Flag, given: Any, zone: str | None) -> object:  # noqa: ANN401 - as typer has read it
    if given is None or given == []:
        return None
    if flag.read is not None:
        return flag.read(given)
    if each.accepts(dict):
        return read_labels(given)
    if each.accepts(tuple):
        return read_place(given, next(kind for kind in (UUID, int, str) if each.accepts(kind)))
    return read_instant(given, f"--{each.spoken}", zone) if each.accepts(datetime) else given


def _argument(each: Parameter, flag: Flag) -> Argument:
    """Return the argument or the flag of a parameter."""
    default = Argument.empty if each.required else each.default if flag.default is None else flag.default
    kind: Any = flag.kind or _argument_kind(each, flag) or _KINDS.get(each.name) or _option(each, flag)
    where = Argument.KEYWORD_ONLY if isinstance(get_args(kind)[1], OptionInfo) else Argument.POSITIONAL_OR_KEYWORD
    return Argument(_variable(each), where, annotation=kind, default=default)


def _variable(each: Parameter) -> str:
    return f"{each.spoken}_" if iskeyword(each.spoken) else each.spoken


def _argument_kind(each: Parameter, flag: Flag) -> Any:  # noqa: ANN401 - an annotation
    if (not each.required and not each.accepts(Sequence)) or each.accepts(datetime):
        return None
    kind: Any = next((kind for kind in (UUID, int) if each.accepts(kind)), str)
    kind = kind if each.required else list[kind] | None
    return Annotated[kind, argument(_metavar(each, flag), flag.help or each.help)]


def _option(each: Parameter, flag: Flag) -> Any:  # noqa: ANN401 - an annotation
    name = f"--{each.spoken.replace('_', '-')}"
    words = flag.help or _with_choices(each)
    if each.accepts(bool) and each.default is False:
        return Annotated[bool, switch(words, name)]
    if each.accepts(bool):
        return Annotated[bool | None, switch(words, f"{name}/--not-{each.spoken}")]
    kind: Any = int if each.accepts(int) and flag.read is None else str
    if each.accepts(dict):  # repeatable
        name, kind = name.removesuffix("s"), list[str]
    return Annotated[kind | None, option(_metavar(each, flag), words, flag.name or name)]


def _metavar(each: Parameter, flag: Flag) -> str:
    otherwise = each.spoken.upper() if each.choices else "TEXT"
    return flag.metavar or next((word for kind, word in _METAVARS.items() if each.accepts(kind)), otherwise)


def _with_choices(each: Parameter) -> str:
    """Return the description of a parameter with its values, if only a few are allowed."""
    *rest, last = each.choices or ("",)
    return f"{each.help.removesuffix('.')}: {', '.join(rest)} or {last}." if rest else each.help


def _flag(name: str, kind: object, *, default: object) -> Argument:
    return Argument(name, Argument.KEYWORD_ONLY, annotation=kind, default=default)
