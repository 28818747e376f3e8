"""`tidewheel admin tenant`: tenants, their limits, pauses and deletion."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tidewheel.audit import ALL_TENANTS
from tidewheel.control.cli.options import DEFAULT_TENANT, Limit, Reason, confirm_by_name, reading, requesting
from tidewheel.control.cli.output import (
    Output,
    OutputOption,
    moment,
    print_document,
    print_facts,
    print_result,
    print_table,
)
from tidewheel.control.cli.tables import Cell
from tidewheel.control.instants import typed_number
from tidewheel.control.reads import tenants as read
from tidewheel.control.reads.tenants import tenant_periods
from tidewheel.errors import refuse
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import parse_duration

if TYPE_CHECKING:
    from tidewheel.control.client.tenants import Limits

Name = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.")]
Weight = Annotated[
    str | None, typer.Option(metavar="N", help="Runs in each of its turns while a queue is held back, 1 to 100.")
]
TriggersPerSecond = Annotated[
    str | None, typer.Option(metavar="N", help="Runs a second that may become due; more are delayed.")
]
InFlight = Annotated[str | None, typer.Option(metavar="N", help="Runs that may be active at once; more wait.")]
Jobs = Annotated[str | None, typer.Option(metavar="N", help="Jobs of the tenant; more are refused.")]
PayloadSize = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Size of a payload, such as 64KiB; a larger one is refused.")
]
Keys = Annotated[
    str | None, typer.Option(metavar="N", help="API keys that the tenant's own keys may create; 20 if none.")
]
KeyRate = Annotated[
    str | None, typer.Option(metavar="N", help="Requests a second of all its API keys, in each process.")
]

_SIZE = re.compile(r"(\d{1,9})\s*(|B|kB|KB|KiB|MB|MiB)", re.ASCII)
_BYTES = {"": 1, "B": 1, "kB": 1000, "KB": 1000, "KiB": 1024, "MB": 1_000_000, "MiB": 1024 * 1024}


def create(
    name: Name,
    *,
    weight: Weight = None,
    triggers_per_second: TriggersPerSecond = None,
    in_flight: InFlight = None,
    jobs: Jobs = None,
    payload: PayloadSize = None,
    keys: Keys = None,
    key_rate: KeyRate = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create a tenant, with limits or without."""
    limits = _limits(
        weight=weight,
        triggers_per_second=triggers_per_second,
        in_flight=in_flight,
        jobs=jobs,
        payload_bytes=payload,
        keys=keys,
        key_rate=key_rate,
    )
    with requesting(DEFAULT_TENANT) as client:
        made = client.tenants.create(name, **limits)
        if not made and not limits.items() <= asdict(client.tenants.get(name)).items():
            remedy = f"change them with `tidewheel admin tenant limits {name}`"
            refuse("NAME", f"tenant {name} exists, with other limits", remedy)
    text = "created" if made else "unchanged: it exists already"
    print_result([f"tenant {name}: {text}"], {"tenant": name, "unchanged": not made}, output)


def list_tenants(
    *,
    after: Annotated[
        str, typer.Option(metavar="NAME", help="Begin after this tenant; the last line of a page names it.")
    ] = "",
    number: Limit = 50,
    output: OutputOption = Output.TEXT,
) -> None:
    """List tenants by name, each with its limits."""
    with reading() as connection:
        found = read.list_tenants(connection, after=after, limit=number + 1)
    page, more = found[:number], len(found) > number
    if output is not Output.TEXT:
        print_document({"tenants": page, "next_cursor": page[-1].tenant if more else None}, output)
    elif page:
        headings = ("tenant", "state", "weight", "triggers/s", "in flight", "jobs", "payload", "created")
        print_table(headings, map(_row, page))
        if more:
            typer.echo(f"more: add --after {page[-1].tenant!r}")
    else:
        typer.echo("no tenants")


def show(name: Name, output: OutputOption = Output.TEXT) -> None:
    """Show a tenant: its state, its limits, the progress of its deletion."""
    with reading() as connection:
        found = read.show_tenant(connection, name)
    if output is not Output.TEXT:
        print_document(found, output)
    else:
        print_facts(_facts(found))


def limits(
    name: Name,
    *,
    weight: Weight = None,
    triggers_per_second: TriggersPerSecond = None,
    in_flight: InFlight = None,
    jobs: Jobs = None,
    payload: PayloadSize = None,
    keys: Keys = None,
    key_rate: KeyRate = None,
    grant_role: Annotated[
        str | None, typer.Option(metavar="ROLE", help="Let a database role call the SQL functions for the tenant.")
    ] = None,
    revoke_role: Annotated[
        str | None, typer.Option(metavar="ROLE", help="Revoke that; a role without another one has no tenant.")
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Change limits of a tenant; none lifts one, and those that are not named stay.

    Without an option this shows the limits. With --grant-role and --revoke-role the name '*' means all tenants.
    """
    changes = _limits(
        weight=weight,
        triggers_per_second=triggers_per_second,
        in_flight=in_flight,
        jobs=jobs,
        payload_bytes=payload,
        keys=keys,
        key_rate=key_rate,
    )
    if not (changes or grant_role or revoke_role):
        show(name, output)
        return
    with requesting(DEFAULT_TENANT) as client:
        changed = grant_role is not None and client.tenants.grant_role(name, grant_role)
        changed |= revoke_role is not None and client.tenants.revoke_role(name, revoke_role)
        changed |= bool(changes) and client.tenants.limit(name, **changes)
        now = client.tenants.get(name) if name != ALL_TENANTS else None
    if output is not Output.TEXT:
        print_document({"tenant": now, "unchanged": not changed}, output)
        return
    typer.echo(f"tenant {name}: {'changed' if changed else 'unchanged: all is as before'}")
    if now is not None:
        print_facts(_facts(now))


def pause(name: Name, *, reason: Reason = None, output: OutputOption = Output.TEXT) -> None:
    """Start no run of a tenant until it is resumed; what runs goes on."""
    with requesting(DEFAULT_TENANT) as client:
        changed = client.tenants.pause(name, reason=reason)
    text = "paused" if changed else "unchanged: it was paused already"
    print_result([f"tenant {name}: {text}"], {"tenant": name, "unchanged": not changed}, output)


def resume(name: Name, output: OutputOption = Output.TEXT) -> None:
    """End the pause of a tenant; on_resume of its jobs decides what came due meanwhile."""
    with requesting(DEFAULT_TENANT) as client:
        changed = client.tenants.resume(name)
    text = "resumed" if changed else "unchanged: it was not paused"
    print_result([f"tenant {name}: {text}"], {"tenant": name, "unchanged": not changed}, output)


def delete(
    name: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for the name; needed without a terminal.")] = False,
    grace: Annotated[
        str, typer.Option(metavar="DURATION", help="Time in which --undo takes the deletion back; 0s for none.")
    ] = "1d",
    undo: Annotated[bool, typer.Option("--undo", help="Take a deletion back in its time of grace.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete a tenant with its jobs, runs and all else, a day later; --undo takes that back."""
    if undo:
        with requesting(DEFAULT_TENANT) as client:
            kept = client.tenants.undelete(name)
            now = client.tenants.get(name)
        text = "stays" if kept else "unchanged: no deletion was requested"
        print_result([f"tenant {name}: {text}"], {"tenant": now, "unchanged": not kept}, output)
        return
    what, look = "the jobs and runs of a deleted tenant do not come back", f"`tidewheel admin tenant usage {name}`"
    confirm_by_name(name, what, f"look with {look}", yes=yes)
    try:
        span = parse_duration(grace)
    except InvalidValue as error:
        refuse("--grace", error.errors[0].problem, error.errors[0].remedy)
    with requesting(DEFAULT_TENANT) as client:
        accepted = client.tenants.delete(name, grace=span)
        now = client.tenants.get(name)
    if now.delete_at is not None:
        text = (
            f"will be deleted at {moment(now.delete_at, None)}; `tidewheel admin tenant delete {name} --undo` keeps it"
        )
    else:
        text = f"is being deleted; `tidewheel admin tenant show {name}` has the progress"
    text = text if accepted else f"unchanged: its deletion was accepted before; it {text}"
    print_result([f"tenant {name}: {text}"], {"tenant": now, "unchanged": not accepted}, output)


def usage(name: Name, output: OutputOption = Output.TEXT) -> None:
    """Show what a tenant uses now, beside its limits."""
    with reading() as connection:
        found = read.tenant_usage(connection, name)
    if output is not Output.TEXT:
        print_document(found, output)
    else:
        print_facts(_usage(found))


def retention(
    name: Name,
    *,
    days: Annotated[
        str | None, typer.Option(metavar="N", help="Keep finished runs for so many days; none lifts the period.")
    ] = None,
    state: Annotated[str, typer.Option(metavar="STATE", help="Only runs that ended in this state.")] = "any",
    output: OutputOption = Output.TEXT,
) -> None:
    """Keep finished runs of a tenant for a shorter time, of all states or of one.

    Without --days this shows the periods.
    """
    changed = None
    if days is not None:
        with requesting(DEFAULT_TENANT) as client:
            changed = client.tenants.keep(name, None if days == "none" else _whole("--days", days), state=state)
    with reading() as connection:
        found = tenant_periods(connection, name)
    if output is not Output.TEXT:
        print_document({"tenant": name, "periods": found, "unchanged": changed is False}, output)
        return
    if changed is not None:
        typer.echo(f"tenant {name}: {'changed' if changed else 'unchanged: the period is as before'}")
    if found:
        rows = [(each.state, str(each.days or "none"), str(each.kept_since or "")) for each in found]
        print_table(("state", "days", "kept since"), rows)
    else:
        typer.echo("no period of its own: runs are kept for TIDEWHEEL_RETENTION")


def _limits(**given: str | None) -> "Limits":
    found = {
        name: None if text == "none" else _READ[name](f"--{_FLAGS.get(name, name).replace('_', '-')}", text)
        for name, text in given.items()
        if text is not None
    }
    return cast("Limits", found)


def _number(flag: str, text: str) -> float:
    if (found := typed_number(text.removesuffix("/s"))) is None:
        refuse(flag, f"{text!r} is not a number", "write a number such as 100, or none")
    return found


def _whole(flag: str, text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) > 9:
        refuse(flag, f"{text[:20]} is too large", "write a number of at most 999999999, or none")
    if not (text.isascii() and text.isdecimal()):
        refuse(flag, f"{text!r} is not a whole number", "write a number such as 500, or none")
    return int(text)


def _size(flag: str, text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None:
        refuse(flag, f"{text!r} is not a size", "write bytes, or a size such as 64KiB, or none")
    return int(found[1]) * _BYTES[found[2]]


_FLAGS = {"payload_bytes": "payload"}  # where the flag has another name than the limit
_READ: Mapping[str, Callable[[str, str], float]] = {
    "weight": _whole,
    "triggers_per_second": _number,
    "in_flight": _whole,
    "jobs": _whole,
    "payload_bytes": _size,
    "keys": _whole,
    "key_rate": _number,
}


def _row(each: read.TenantSummary) -> tuple[Cell, ...]:
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


def _facts(each: read.TenantSummary) -> Iterator[tuple[str, str | None]]:
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
    yield "API keys", _bound(each.keys) or "20 by its own keys"
    yield "API requests/s", _bound(each.key_rate) or "no common limit"
    yield "roles", " ".join(each.roles) or None


def _deletion(each: read.TenantDeletion) -> Iterator[tuple[str, str | None]]:
    yield "deleted", moment(each.accepted_at, None)
    yield "jobs deleted", f"{each.jobs:,}"
    yield "runs ended", f"{each.runs:,}"
    yield "removing", each.at_table
    for table, rows in sorted(each.removed.items()):
        yield f"  {table}", f"{rows:,} rows removed"
    yield "ended", moment(each.finished_at, None) if each.finished_at else None
    yield "name free", moment(each.free_at, None) if each.free_at else None


def _usage(found: read.TenantUsage) -> Iterator[tuple[str, str | None]]:
    limits = found.tenant
    yield "tenant", limits.tenant
    yield "state", limits.state
    yield "open runs", _count(found.open_runs)
    yield "in flight", _of(found.in_flight, limits.in_flight)
    yield "waiting", _count(found.waiting)
    yield "ended, 24 h", _count(found.finished_runs)
    yield "jobs", _of(found.jobs, limits.jobs)


def _count(found: read.Count) -> str:
    return f"{'at least ' if found.at_least else ''}{found.count:,}"


def _of(found: read.Count, limit: int | None) -> str:
    return _count(found) if limit is None else f"{_count(found)} of {limit:,}"


def _bound(limit: float | None) -> str:
    return "" if limit is None else f"{limit:,g}" if isinstance(limit, float) else f"{limit:,}"


def _bytes(size: int | None) -> str:
    if size is None:
        return ""
    return f"{size // 1024} KiB" if size % 1024 == 0 else f"{size:,} bytes"
