"""`tidewheel admin limit …` and `ordering-key …`: limits of concurrency keys; blocked ordering keys."""

from typing import Annotated

import typer

from tidewheel.control.cli.options import DEFAULT_TENANT, Limit, Tenant, reading, requesting
from tidewheel.control.cli.output import Output, OutputOption, print_document, print_result, print_table
from tidewheel.control.cli.tables import Cell
from tidewheel.control.client.limits import ChangedLimit
from tidewheel.control.reads.limits import COUNTED, BlockedKey, KeyInUse, LimitSummary, list_keys, list_limits

After = Annotated[str, typer.Option(metavar="KEY", help="Begin after this line; the last line of a page names it.")]
Pattern = Annotated[str, typer.Argument(metavar="KEY", help="A key, or 'PREFIX*' for each key that begins so.")]
OrderingKey = Annotated[str, typer.Argument(metavar="KEY", help="The ordering key.")]


def set_limit(
    key: Pattern,
    *,
    at_once: Annotated[int | None, typer.Option(metavar="N", help="Runs of a key that are active at once.")] = None,
    rate: Annotated[str | None, typer.Option(metavar="N/UNIT", help="Starts of a key, such as 100/min.")] = None,
    burst: Annotated[int | None, typer.Option(metavar="N", help="Starts at once after a rest; 1 by default.")] = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Set the limit of a key or of each key with a prefix; it replaces those of jobs.

    A raised limit starts waiting runs at once. A lower one ends no run.
    """
    with requesting(tenant) as client:
        changed = client.limits.set(key, at_once=at_once, rate=rate, burst=burst)
    print_result(_lines("set", changed), changed, output)


def remove(key: Pattern, *, tenant: Tenant = DEFAULT_TENANT, output: OutputOption = Output.TEXT) -> None:
    """Remove the limit of a key or a prefix; a shorter prefix or the jobs decide again."""
    with requesting(tenant) as client:
        changed = client.limits.remove(key)
    words = "unchanged: no limit is set for exactly this key or prefix" if changed.unchanged else "removed"
    print_result(_lines(words, changed), changed, output)


def list_all(
    *,
    after: After = "",
    number: Limit = 50,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """List limits, each with what runs and waits under it."""
    with reading() as connection:
        found = list_limits(connection, tenant, after=after or None, limit=number + 1)
    page, more = found[:number], len(found) > number
    if output is not Output.TEXT:
        print_document({"limits": page, "next_cursor": page[-1].key if more else None}, output)
    elif page:
        print_table(("key", "at once", "rate", "burst", "keys", "running", "waiting", "set", "by"), map(_limit, page))
        if more:
            typer.echo(f"more: add --after {page[-1].key!r}")
    else:
        typer.echo("no limits are set; those of jobs apply")


def keys(
    prefix: Annotated[str, typer.Argument(metavar="[PREFIX]", help="Only keys that begin so.")] = "",
    *,
    after: After = "",
    number: Limit = 50,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """List keys in use, each with its limit, and what runs and waits."""
    with reading() as connection:
        found = list_keys(connection, tenant, prefix=prefix, after=after, limit=number + 1)
    page, more = found[:number], len(found) > number
    if output is not Output.TEXT:
        print_document({"keys": page, "next_cursor": page[-1].key if more else None}, output)
    elif page:
        print_table(("key", "at once", "rate", "burst", "running", "waiting", "next start"), map(_key, page))
        if more:
            typer.echo(f"more: add --after {page[-1].key!r}")
    else:
        typer.echo("no key is in use")


def blocked(*, number: Limit = 50, tenant: Tenant = DEFAULT_TENANT, output: OutputOption = Output.TEXT) -> None:
    """List ordering keys that a failed run blocks, the longest first."""
    with requesting(tenant) as client:
        found = client.ordering_keys.blocked(limit=number)
    if output is not Output.TEXT:
        print_document({"keys": found}, output)
    elif found:
        heads = ("key", "blocked by", "since", "retried by", "waiting")
        print_table(heads, (_blocked_row(each) for each in found))
    else:
        typer.echo("no key is blocked")


def unblock(
    key: OrderingKey,
    *,
    skip: Annotated[bool, typer.Option("--skip", help="Let the next run start without a retry.")] = False,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Retry the failed run of an ordering key: its success lets the next run start."""
    with requesting(tenant) as client:
        unblocked = client.ordering_keys.unblock(key, skip=skip)
    text = f"skipped run {unblocked.run_id}" if skip else f"run {unblocked.run_id}"
    print_result([text], unblocked, output)


def _lines(words: str, changed: ChangedLimit) -> list[str]:
    if changed.started:
        words += f"; {changed.started} waiting {'run gets' if changed.started == 1 else 'runs get'} a place"
    return [words if changed.complete else f"{words}; further runs within a minute"]


def _limit(one: LimitSummary) -> tuple[Cell, ...]:
    return (
        one.key, *_bounds(one.at_once, one.rate, one.burst), _count(one.keys), str(one.running),
        _count(one.waiting), one.set_at, one.set_by,
    )  # fmt: skip


def _key(one: KeyInUse) -> tuple[Cell, ...]:
    return (
        one.key, *_bounds(one.at_once, one.rate, one.burst), str(one.running),
        _count(one.waiting), one.next_at or "",
    )  # fmt: skip


def _bounds(at_once: int | None, rate: str | None, burst: int) -> tuple[str, str, str]:
    return "" if at_once is None else f"{at_once:,}", rate or "", f"{burst:,}" if rate else ""


def _count(number: int) -> str:
    return f"{number:,} or more" if number >= COUNTED else str(number)


def _blocked_row(key: BlockedKey) -> tuple[Cell, ...]:
    retry = "" if key.retried_by is None else str(key.retried_by)
    return key.key, str(key.blocked_by), key.blocked_at, retry, str(key.waiting)
