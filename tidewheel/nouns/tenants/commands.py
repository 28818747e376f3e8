"""`tidewheel admin tenant …`: flags and texts that their declarations lack; deletion and retention."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, cast

import typer

from tidewheel.audit import ALL_TENANTS
from tidewheel.control.cli.options import DEFAULT_TENANT, Yes, confirm, read_duration, requesting
from tidewheel.control.cli.output import (
    Output,
    OutputOption,
    Shown,
    Table,
    moment,
    print_document,
    print_facts,
    print_record,
    print_result,
    print_table,
)
from tidewheel.control.cli.parser import argument, option, switch
from tidewheel.control.cli.tables import Cell
from tidewheel.control.instants import typed_number, typed_whole
from tidewheel.doors.cli import Flag, command
from tidewheel.errors import refuse
from tidewheel.nouns.tenants.operations import Tenants
from tidewheel.nouns.tenants.reads import (
    ChangedTenant,
    Count,
    KeptState,
    Limits,
    TenantDeletion,
    TenantSummary,
    TenantUsage,
)

Name = Annotated[str, argument("NAME", "The tenant.")]
_SIZE = re.compile(r"(\d{1,9})\s*(|B|kB|KB|KiB|MB|MiB)", re.ASCII)
_BYTES = {"": 1, "B": 1, "kB": 1000, "KB": 1000, "KiB": 1024, "MB": 1_000_000, "MiB": 1024 * 1024}


def _number(flag: str, text: str) -> float:
    if (found := typed_number(text.removesuffix("/s"))) is None:
        refuse(flag, f"{text!r} is not a number", "write a number such as 100, or none")
    return found


def _whole(flag: str, text: str) -> int:
    if (found := typed_whole(text)) is None:
        refuse(flag, f"{text[:20]!r} is not a whole number of up to 9 digits", "write a number such as 500, or none")
    return found


def _size(flag: str, text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None:
        refuse(flag, f"{text!r} is not a size", "write bytes, or a size such as 64KiB, or none")
    return int(found[1]) * _BYTES[found[2]]


_READERS: Mapping[str, Callable[[str, str], object]] = {
    **dict.fromkeys(Limits.__annotations__, _whole),
    **dict.fromkeys(("triggers_per_second", "key_rate"), _number),
    "payload_bytes": _size,
    "timezone": lambda _, text: text,
}


def _read_limits(arguments: dict[str, Any], _: Mapping[str, Any]) -> None:
    """Read the limits that are named; `none` lifts one."""
    for name, read in _READERS.items():
        text = arguments.pop(name)
        if text is not None:
            flag = f"--{name.removesuffix('_bytes').replace('_', '-')}"
            arguments[name] = None if text == "none" else read(flag, text)


def _show_created(shown: Shown) -> None:
    found: ChangedTenant = shown.found
    name = found.tenant.tenant
    limits = {each: value for each, value in shown.arguments.items() if each in _READERS}
    if found.unchanged and not limits.items() <= asdict(found.tenant).items():
        remedy = f"change them with `tidewheel admin tenant limits {name}`"
        refuse("NAME", f"tenant {name} already exists, with other limits", remedy)
    _show_changed("created", "the tenant already exists", shown)


def _show_changed(done: str, unchanged: str, shown: Shown) -> None:
    found: ChangedTenant = shown.found
    name, text = found.tenant.tenant, f"unchanged: {unchanged}" if found.unchanged else done
    print_result([f"tenant {name}: {text}"], {"tenant": name, "unchanged": found.unchanged}, shown.output)


def _show(facts: Callable[[Any], Iterator[tuple[str, str | None]]], shown: Shown) -> None:
    print_record(facts(shown.found), shown.found, shown.output)


class _LimitsCommand(command):
    """`tenant limits`: it grants roles too, and without an option shows the limits."""

    def __post_init__(self) -> None:
        super().__post_init__()
        vars(self)["__doc__"] += "\n\nWithout an option, show the limits. The value none removes a limit."

    def __call__(self, **given: Any) -> None:  # noqa: ANN401 - as typer has read them
        """Change the limits and the roles, or show them."""
        name, grant, revoke, output = (given[each] for each in ("tenant", "grant_role", "revoke_role", "output"))
        changes = {each: given[each] for each in _READERS}
        _read_limits(changes, {})
        if not (changes or grant or revoke):
            show(tenant=name, output=output)
            return
        with requesting(DEFAULT_TENANT) as client:
            changed = grant is not None and client.tenants.grant_role(name, grant)
            changed |= revoke is not None and client.tenants.revoke_role(name, revoke)
            changed |= bool(changes and client.tenants.limit(name, **cast("Limits", changes)))
            now = client.tenants.get(name) if name != ALL_TENANTS else None
        if output is not Output.TEXT:
            print_document({"tenant": now, "unchanged": not changed}, output)
            return
        typer.echo(f"tenant {name}: {'changed' if changed else 'unchanged: these limits are already set'}")
        if now is not None:
            print_facts(_facts(now))


def delete(
    name: Name,
    *,
    yes: Yes = False,
    grace: Annotated[str, option("DURATION", "Grace period in which --undo cancels the deletion; 0s for none.")] = "1d",
    undo: Annotated[bool, switch("Cancel a deletion during its grace period.", "--undo")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete a tenant with its jobs, runs and all else, a day later; --undo cancels the deletion."""
    if not undo:
        confirm(f"Delete tenant {name} with its jobs, its runs and all else?", yes=yes)
    span = read_duration(grace, "--grace")
    with requesting(DEFAULT_TENANT) as client:
        found = client.tenants.undelete(name) if undo else client.tenants.delete(name, grace=span)
    at = found.tenant.delete_at
    if undo:
        text = "unchanged: no deletion was requested" if found.unchanged else "stays"
    elif at is not None:
        text = (
            f"will be deleted at {moment(at, None)}; `tidewheel admin tenant delete {name} --undo` cancels the deletion"
        )
    else:
        text = f"is being deleted; `tidewheel admin tenant show {name}` shows the progress"
    if found.unchanged and not undo:
        text = f"unchanged: its deletion was already accepted; it {text}"
    print_result([f"tenant {name}: {text}"], found, output)


def retention(
    name: Name,
    *,
    days: Annotated[str | None, option("N", "Keep finished runs for this many days; none removes the period.")] = None,
    state: Annotated[str, option("STATE", "Only runs that ended in this state.")] = "any",
    output: OutputOption = Output.TEXT,
) -> None:
    """Keep a tenant's finished runs for a shorter time, in all final states or in one.

    Without --days, show the periods.
    """
    with requesting(DEFAULT_TENANT) as client:
        if days is None:
            found = client.tenants.retention(name)
        else:
            number = None if days == "none" else _whole("--days", days)
            found = client.tenants.keep(name, number, state=cast("KeptState", state))
    if output is not Output.TEXT:
        print_document(found, output)
        return
    if days is not None:
        typer.echo(f"tenant {name}: {'unchanged: this period is already set' if found.unchanged else 'changed'}")
    if found.periods:
        rows = [(each.state, str(each.days or "none"), str(each.kept_since or "")) for each in found.periods]
        print_table(("state", "days", "kept since"), rows)
    else:
        typer.echo("no period of its own: runs are kept for TIDEWHEEL_RETENTION")


def _row(each: TenantSummary) -> tuple[Cell, ...]:
    return (
        each.tenant,
        each.state,
        str(each.weight),
        _bound(each.triggers_per_second),
        _bound(each.in_flight),
        _bound(each.jobs),
        _bytes(each.payload_bytes),
        each.created_at,
    )


def _facts(each: TenantSummary) -> Iterator[tuple[str, str | None]]:
    yield "tenant", each.tenant
    yield "state", each.state
    yield "created", moment(each.created_at, None)
    if each.deletion is not None:
        yield from _deletion(each.deletion)
        return
    yield "deleted at", moment(each.delete_at, None) if each.delete_at else None
    yield "paused", moment(each.paused_at, None) if each.paused_at else None
    yield "weight", str(each.weight)
    yield "triggers/s", _bound(each.triggers_per_second) or "no limit"
    yield "in flight", _bound(each.in_flight) or "no limit"
    yield "jobs", _bound(each.jobs) or "no limit"
    yield "payload", _bytes(each.payload_bytes) or "no limit"
    yield "API keys", _bound(each.keys) or "20 created by its own keys"
    yield "API requests/s", _bound(each.key_rate) or "no common limit"
    yield "time zone", each.timezone
    yield "roles", " ".join(each.roles) or None


def _deletion(each: TenantDeletion) -> Iterator[tuple[str, str | None]]:
    yield "deleted", moment(each.accepted_at, None)
    yield "jobs deleted", f"{each.jobs:,}"
    yield "runs ended", f"{each.runs:,}"
    yield "removing", each.at_table
    for table, rows in sorted(each.removed.items()):
        yield f"  {table}", f"{rows:,} rows removed"
    yield "ended", moment(each.finished_at, None) if each.finished_at else None
    yield "name free", moment(each.free_at, None) if each.free_at else None


def _usage(found: TenantUsage) -> Iterator[tuple[str, str | None]]:
    limits = found.tenant
    yield "tenant", limits.tenant
    yield "state", limits.state
    yield "open runs", _count(found.open_runs)
    yield "in flight", _of(found.in_flight, limits.in_flight)
    yield "waiting", _count(found.waiting)
    yield "ended, 24 h", _count(found.finished_runs)
    yield "jobs", _of(found.jobs, limits.jobs)


def _count(found: Count) -> str:
    return f"{'at least ' if found.at_least else ''}{found.count:,}"


def _of(found: Count, limit: int | None) -> str:
    return _count(found) if limit is None else f"{_count(found)} of {limit:,}"


def _bound(limit: float | None) -> str:
    return "" if limit is None else f"{limit:,g}" if isinstance(limit, float) else f"{limit:,}"


def _bytes(size: int | None) -> str:
    if size is None:
        return ""
    return f"{size // 1024} KiB" if size % 1024 == 0 else f"{size:,} bytes"


_NUMBER, _ONE = Flag(metavar="N", read=str), Flag(metavar="NAME", help="The tenant.")
_LIMITS: Mapping[str, Flag | None] = {
    **dict.fromkeys(_READERS, _NUMBER), "name": _ONE,
    "payload_bytes": Flag(
        "--payload", "SIZE", help="Size of a payload, such as 64KiB; a larger one is refused.", read=str
    ),
    "timezone": Flag(metavar="ZONE", read=str),
}  # fmt: skip
_ROLES = {
    "grant_role": Annotated[
        str | None, option("ROLE", "Let a database role call the SQL functions for the tenant; '*' for all tenants.")
    ],
    "revoke_role": Annotated[str | None, option("ROLE", "Revoke the permission; a role without any has no tenant.")],
}
_HEADINGS = ("tenant", "state", "weight", "triggers/s", "in flight", "jobs", "payload", "created")

_tenant = partial(command, Tenants, flags={"name": _ONE})
create = command(Tenants, "create", _show_created, flags=_LIMITS, prepare=_read_limits)
list_tenants = command(
    Tenants, "list", partial(Table("tenant", _HEADINGS, _row).show, nothing="no tenants"), flags={"tenant": None}
)
show = _tenant("get", partial(_show, _facts))
limits = _LimitsCommand(Tenants, "limit", partial(_show, _facts), flags=_LIMITS, options=_ROLES)
pause = _tenant("pause", partial(_show_changed, "paused", "the tenant was already paused"))
resume = _tenant("resume", partial(_show_changed, "resumed", "the tenant was not paused"))
usage = _tenant("usage", partial(_show, _usage))
