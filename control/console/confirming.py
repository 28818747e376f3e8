"""Confirmation of what changes many things: it is bound to the things that the dialog has counted.

The form has the number that its dialog showed, and the instant of its count. The action concerns only what existed at
that instant. If this is more than the number, the dialog is shown again with the new one. An action on one thing is
bound to the state that its dialog shows.
"""

from collections.abc import Sequence
from datetime import datetime

from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import Field, request_id_of
from tidewheel.control.console.forms import Form
from tidewheel.errors import refuse
from tidewheel.intake.apply import has_reply
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import format_timestamp, parse_timestamp

FREELY = 100
"""So many things a click may change."""


def bound(count: int, until: datetime) -> Sequence[Field]:
    """Return the hidden fields that bind an action to what its dialog has counted."""
    return (
        Field("counted", "", kind="hidden", value=str(count)),
        Field("counted_at", "", kind="hidden", value=format_timestamp(until)),
    )


def as_shown(state: str) -> Field:
    """Return the hidden field that binds an action to the state that its dialog shows."""
    return Field("shown", "", kind="hidden", value=state)


def ensure_as_shown(connection: Connection, form: Form, state: str, news: str) -> None:
    """Refuse to change what is no longer as the dialog has shown it. A repeat gets its first reply.

    Args:
        form: The form of the dialog; one without the field is of no dialog.
        news: The sentence about it.

    Raises:
        InvalidInput: Another person has changed it.
    """
    if form.get("shown", state) == state:
        return
    request_id = request_id_of(form)
    with connection.snapshot() as reading:
        if request_id is not None and has_reply(reading, connection.tenant, request_id):
            return
    refuse("", news, "nothing was changed: read the dialog again, then decide")


def confirmation(count: int, what: str = "") -> Sequence[Field]:
    """Return the field that asks for a number; none for a few things.

    Args:
        what: Its name, if a box of the dialog decides it; empty for the number itself.
    """
    if count <= FREELY:
        return ()
    label = f"Type {what or count} to confirm"
    return (Field("typed", label, kind="number", required=True, help="Nothing can undo it."),)


def until_of(form: Form, now: datetime) -> datetime:
    """Return the instant of the count of a form's dialog; never a later one than now."""
    try:
        return min(parse_timestamp(form.get("counted_at", "")), now)
    except InvalidValue:
        return now


def ensure_counted(form: Form, count: int) -> None:
    """Refuse a change of more things than the dialog has counted."""
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
        refuse("typed", f"this is not the number {count:,}", f"type {count} to confirm")


def _number(form: Form, name: str) -> int | None:
    digits = "".join(each for each in form.get(name, "")[:40] if each.isascii() and each.isdecimal())
    return int(digits) if digits else None
