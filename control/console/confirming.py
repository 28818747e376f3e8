"""Confirmation of what changes many things: it is bound to the things that the dialog has counted.

The form has the number that its dialog showed, and the instant of its count. The action concerns only what existed at
that instant. If this is more than the number, the dialog is shown again with the new one.
"""

from collections.abc import Sequence
from datetime import datetime

from tidewheel.control.console.actions import Field
from tidewheel.control.console.forms import Form
from tidewheel.errors import refuse
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import format_timestamp, parse_timestamp

FREELY = 100
"""So many things a click may change."""


def bound(count: int, until: datetime) -> Sequence[Field]:
    """Return the hidden fields that bind an action to what its dialog has counted.

    Args:
        count: The number of things that it shows.
        until: The instant of the count.
    """
    return (
        Field("counted", "", kind="hidden", value=str(count)),
        Field("counted_at", "", kind="hidden", value=format_timestamp(until)),
    )


def confirmation(count: int) -> Sequence[Field]:
    """Return the field that asks for a number; none for a few things."""
    if count <= FREELY:
        return ()
    return (Field("typed", f"Type {count} to confirm", kind="number", required=True, help="Nothing can undo it."),)


def until_of(form: Form, now: datetime) -> datetime:
    """Return the instant of the count of a form's dialog; never a later one than now."""
    try:
        return min(parse_timestamp(form.get("counted_at", "")), now)
    except InvalidValue:
        return now


def ensure_counted(form: Form, count: int) -> None:
    """Refuse a change of more things than the dialog has counted.

    Raises:
        InvalidInput: There are more.
    """
    counted = counted_of(form)
    if counted is not None and count > counted:
        refuse("typed", f"{count:,} match now, and {counted:,} when they were counted", "read the new number")


def counted_of(form: Form) -> int | None:
    """Return the number of things that a form's dialog has counted; None for a form of no dialog."""
    return _number(form, "counted")


def ensure_confirmed(form: Form, count: int) -> None:
    """Refuse a change of more than a hundred things without their number.

    The number may be that which the dialog showed: meanwhile there may be fewer.

    Raises:
        InvalidInput: The number is missing, or is another one, or there are more things than it.
    """
    ensure_counted(form, count)
    if count > FREELY and _number(form, "typed") not in {count, counted_of(form) or count}:
        refuse("typed", f"it is not the number of things that change, {count}", "type the number")


def _number(form: Form, name: str) -> int | None:
    digits = "".join(each for each in form.get(name, "")[:40] if each.isascii() and each.isdecimal())
    return int(digits) if digits else None
