"""`tidewheel freeze | thaw | freezes`: start no run of a scope, from one moment to another."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tidewheel.audit import process_user
from tidewheel.control.cli.options import DEFAULT_TENANT, Reason, Tenant, Yes, confirm, read_labels, reading, requesting
from tidewheel.control.cli.output import Output, OutputOption, print_document, print_result, print_table
from tidewheel.control.cli.tables import Cell
from tidewheel.control.reads.freezes import MAX_WAITING, FreezeSummary, list_freezes
from tidewheel.errors import refuse

if TYPE_CHECKING:
    from tidewheel.control.client.freezes import Scope

_SHOWN = 20  # jobs of a preview

Fleet = Annotated[bool, typer.Option("--fleet", help="The runs of all tenants; with --queue those of that queue.")]
WholeTenant = Annotated[bool, typer.Option("--all", help="All runs of the tenant.")]
Queue = Annotated[str | None, typer.Option(metavar="NAME", help="Only runs of this queue.")]
LabelOption = Annotated[
    list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="Only runs of jobs with this label.")
]
KeyPrefix = Annotated[str | None, typer.Option(metavar="TEXT", help="Only runs of jobs whose keys begin so.")]


def freeze(
    *,
    fleet: Fleet = False,
    everything: WholeTenant = False,
    queue: Queue = None,
    label: LabelOption = None,
    key_prefix: KeyPrefix = None,
    reason: Reason = None,
    yes: Yes = False,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="The operator; by default the user of this process.")
    ] = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Start no run of a scope until its thaw; what runs goes on."""
    scope = _scope(fleet, everything, queue, label, key_prefix)
    if fleet and not any((queue, label, key_prefix)):
        confirm("Hold the new runs of all tenants?", yes=yes)
    with requesting(tenant) as client:
        changed = client.freezes.freeze(reason=reason, by=by or process_user(), **scope)
    print_result(
        ["frozen" if changed else "unchanged: this scope was frozen already"], {"unchanged": not changed}, output
    )


def thaw(
    *,
    fleet: Fleet = False,
    everything: WholeTenant = False,
    queue: Queue = None,
    label: LabelOption = None,
    key_prefix: KeyPrefix = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show which occurrences fire, and which are skipped.")
    ] = False,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """End the freeze of a scope; on_resume decides what came due meanwhile."""
    scope = _scope(fleet, everything, queue, label, key_prefix)
    with requesting(tenant) as client:
        if dry_run:
            found = client.freezes.preview_thaw(**scope)
            print_result([*found.words, *(each.words for each in found.jobs[:_SHOWN])], asdict(found), output)
            return
        client.freezes.thaw(**scope)
        left = client.freezes.list()
    others = f"; {len(left)} other freeze{'' if len(left) == 1 else 's'} left" if left else ""
    print_result([f"thawed{others}"], {"unchanged": False, "left": left}, output)


def list_all(*, tenant: Tenant = DEFAULT_TENANT, output: OutputOption = Output.TEXT) -> None:
    """List what is frozen: since when, by whom, why, and what waits."""
    with reading() as connection:
        found = list_freezes(connection, tenant)
    if output is not Output.TEXT:
        print_document({"freezes": found}, output)
    elif found:
        print_table(("scope", "since", "by", "why", "runs that wait", "jobs held"), map(_row, found))
    else:
        typer.echo("nothing is frozen")


def _scope(
    fleet: bool,  # noqa: FBT001 - the options of two commands, in their order
    everything: bool,  # noqa: FBT001
    queue: str | None,
    label: list[str] | None,
    key_prefix: str | None,
) -> "Scope":
    if fleet and everything:
        refuse("--all", "--fleet names all tenants already", "leave one of the two out")
    if not any((fleet, everything, queue, label, key_prefix)):
        remedy = "write --fleet, --all, --queue, --label or --key-prefix; `tidewheel job pause KEY` holds one job"
        refuse("scope", "none is named", remedy)
    labels: Mapping[str, str] | None = read_labels(label) if label else None
    return {
        "scope": "fleet" if fleet else "tenant" if everything else None,
        "queue": queue,
        "labels": labels,
        "key_prefix": key_prefix,
    }


def _row(found: FreezeSummary) -> tuple[Cell, ...]:
    freeze = found.freeze
    return (
        freeze.scope,
        freeze.since,
        freeze.by or "",
        freeze.reason or "",
        _count(found.waiting),
        _count(found.held),
    )


def _count(number: int) -> str:
    return f"{number:,} or more" if number >= MAX_WAITING else f"{number:,}"
