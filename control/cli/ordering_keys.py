"""`tidewheel admin ordering-key list | unblock`: ordering keys that a failed run blocks."""

from typing import Annotated

import typer

from tidewheel.control.cli.options import DEFAULT_TENANT, Limit, Tenant, requesting
from tidewheel.control.cli.output import Output, OutputOption, print_document, print_result, print_table
from tidewheel.control.cli.tables import Cell
from tidewheel.control.reads.limits import BlockedKey

Key = Annotated[str, typer.Argument(metavar="KEY", help="The ordering key.")]


def blocked(*, number: Limit = 50, tenant: Tenant = DEFAULT_TENANT, output: OutputOption = Output.TEXT) -> None:
    """List ordering keys that a failed run blocks, the longest first."""
    with requesting(tenant) as client:
        found = client.ordering_keys.blocked(limit=number)
    if output is not Output.TEXT:
        print_document({"keys": found}, output)
    elif found:
        heads = ("key", "blocked by", "since", "retried by", "waiting")
        print_table(heads, (_row(each) for each in found))
    else:
        typer.echo("no key is blocked")


def unblock(
    key: Key,
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


def _row(key: BlockedKey) -> tuple[Cell, ...]:
    retry = "" if key.retried_by is None else str(key.retried_by)
    return key.key, str(key.blocked_by), key.blocked_at, retry, str(key.waiting)
