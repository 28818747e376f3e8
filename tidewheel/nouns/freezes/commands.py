"""`tidewheel freeze | thaw | freezes`: flags and texts that their declarations lack."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from tidewheel.audit import process_user
from tidewheel.control.cli.options import Yes, confirm, reading
from tidewheel.control.cli.output import Shown, Table, print_result
from tidewheel.control.cli.parser import switch
from tidewheel.control.cli.tables import Cell
from tidewheel.doors.cli import Flag, command
from tidewheel.errors import refuse
from tidewheel.nouns.freezes.model import MAX_WAITING, FreezeSummary
from tidewheel.nouns.freezes.operations import Freezes
from tidewheel.nouns.freezes.reads import list_freezes

_SHOWN = 20  # jobs of a preview
_NARROW = ("queue", "labels", "key_prefix")


def _name_scope(arguments: dict[str, Any], options: Mapping[str, Any]) -> None:
    fleet, everything = options["fleet"], options["all"]
    if fleet and everything:
        refuse("--all", "--fleet already covers all tenants", "leave one out")
    arguments["scope"] = "fleet" if fleet else "tenant" if everything else None
    if not any(arguments[name] for name in ("scope", *_NARROW)):
        remedy = "write --fleet, --all, --queue, --label or --key-prefix; `tidewheel job pause KEY` holds one job"
        refuse("scope", "is missing", remedy)


def _prepare_freeze(arguments: dict[str, Any], options: Mapping[str, Any]) -> None:
    _name_scope(arguments, options)
    if options["fleet"] and not any(arguments[name] for name in _NARROW):
        confirm("Hold the new runs of all tenants?", yes=options["yes"])
    arguments["by"] = arguments["by"] or process_user()


def _show_frozen(shown: Shown) -> None:
    text = "frozen" if shown.found else "unchanged: this scope is already frozen"
    print_result([text], {"unchanged": not shown.found}, shown.output)


def _show_preview(shown: Shown) -> None:
    found = shown.found
    print_result([*found.words, *(each.words for each in found.jobs[:_SHOWN])], asdict(found), shown.output)


def _show_thawed(shown: Shown) -> None:
    with reading() as connection:
        left = list_freezes(connection, shown.tenant)
    others = f"; {len(left)} other freeze{'' if len(left) == 1 else 's'} left" if left else ""
    print_result([f"thawed{others}"], {"unchanged": not shown.found, "left": left}, shown.output)


def _row(found: FreezeSummary) -> tuple[Cell, ...]:
    freeze = found.freeze
    waiting, held = _count(found.waiting), _count(found.held)
    return freeze.scope, freeze.since, freeze.by or "", freeze.reason or "", waiting, held


def _count(number: int) -> str:
    return f"{number:,} or more" if number >= MAX_WAITING else f"{number:,}"


_FREEZES = Table("freeze", ("scope", "since", "by", "why", "waiting runs", "held jobs"), _row)
_FLAGS = {
    "scope": None,  # two flags in its place
    "key_prefix": Flag(metavar="TEXT"),
    "by": Flag(metavar="NAME", help="The operator's name; by default the user of this process."),
}
_SCOPES = {
    "fleet": Annotated[bool, switch("The runs of all tenants; with --queue those of that queue.", "--fleet")],
    "all": Annotated[bool, switch("All runs of the tenant.", "--all")],
}
_DRY_RUN = switch("Only show which occurrences would fire, and which would be skipped.", "--dry-run")

freeze = command(
    Freezes, "freeze", _show_frozen, flags=_FLAGS, options={**_SCOPES, "yes": Yes}, prepare=_prepare_freeze
)
thaw = command(
    Freezes, "thaw", _show_thawed, flags=_FLAGS, options={**_SCOPES, "dry_run": Annotated[bool, _DRY_RUN]},
    prepare=_name_scope, dry_run=("preview_thaw", _show_preview),
)  # fmt: skip
list_all = command(Freezes, "list", partial(_FREEZES.show, nothing="nothing is frozen"))
