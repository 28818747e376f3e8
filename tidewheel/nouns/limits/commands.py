"""`tidewheel admin limit …` and `ordering-key …`: flags and texts that their declarations lack."""

from functools import partial
from typing import Annotated

from tidewheel.control.cli.output import Shown, Table, print_result
from tidewheel.control.cli.parser import argument
from tidewheel.control.cli.tables import Cell
from tidewheel.doors.cli import Flag, command
from tidewheel.nouns.limits.operations import (
    COUNTED,
    BlockedKey,
    BoundedKey,
    ChangedLimit,
    KeyInUse,
    Limits,
    LimitSummary,
    OrderingKeys,
)


def _show_changed(words: str, shown: Shown) -> None:
    changed: ChangedLimit = shown.found
    if changed.unchanged:
        words = "unchanged: no limit is set for exactly this key or prefix"
    if changed.started:
        words += f"; {changed.started} waiting {'run gets' if changed.started == 1 else 'runs get'} a place"
    print_result([words if changed.complete else f"{words}; more within a minute"], changed, shown.output)


def _show_unblocked(shown: Shown) -> None:
    found = shown.found
    print_result([f"{'skipped ' * found.skipped}run {found.run_id}"], found, shown.output)


def _limit_row(one: LimitSummary) -> tuple[Cell, ...]:
    return one.key, *_bounds(one), _count(one.keys), str(one.running), _count(one.waiting), one.set_at, one.set_by


def _key_row(one: KeyInUse) -> tuple[Cell, ...]:
    return one.key, *_bounds(one), str(one.running), _count(one.waiting), one.next_at or ""


def _blocked_row(one: BlockedKey) -> tuple[Cell, ...]:
    retry = "" if one.retried_by is None else str(one.retried_by)
    return one.key, str(one.blocked_by), one.blocked_at, retry, str(one.waiting)


def _bounds(one: BoundedKey) -> tuple[str, str, str]:
    return "" if one.at_once is None else f"{one.at_once:,}", one.rate or "", f"{one.burst:,}" if one.rate else ""


def _count(number: int) -> str:
    return f"{number:,} or more" if number >= COUNTED else str(number)


_PATTERN = Flag(metavar="KEY", help="A key, or 'PREFIX*' for each key with this prefix.")
_FLAGS = {
    "key": _PATTERN,
    "at_once": Flag(help="Maximum number of active runs of a key."),
    "rate": Flag(metavar="N/UNIT", help="Maximum rate of starts of a key, such as 100/min."),
    "burst": Flag(help="Starts at once after idle time; 1 by default."),
}
_PREFIX = Annotated[str | None, argument("[PREFIX]", "Only keys that begin with this text.")]
_LIMITS = Table("limit", ("key", "at once", "rate", "burst", "keys", "running", "waiting", "set", "by"), _limit_row)
_KEYS = Table("key", ("key", "at once", "rate", "burst", "running", "waiting", "next start"), _key_row)
_BLOCKED = Table("key", ("key", "blocked by", "since", "retried by", "waiting"), _blocked_row)

set_limit = command(Limits, "set", partial(_show_changed, "set"), flags=_FLAGS)
remove = command(Limits, "remove", partial(_show_changed, "removed"), flags=_FLAGS)
list_all = command(Limits, "list", partial(_LIMITS.show, nothing="no limits are set; the jobs' own limits apply"))
keys = command(
    Limits, "keys", partial(_KEYS.show, nothing="no keys in use"), flags={"prefix": Flag(kind=_PREFIX)}
)  # fmt: skip
blocked = command(OrderingKeys, "blocked", partial(_BLOCKED.show, nothing="no blocked keys"))
unblock = command(
    OrderingKeys, "unblock", _show_unblocked,
    flags={"key": Flag(metavar="KEY"), "skip": Flag(help="Let the next run start without a retry.")},
)  # fmt: skip
