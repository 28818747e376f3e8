"""The number that an operator types before more than a hundred things change for good."""

from collections.abc import Sequence

from tidewheel.control.console.actions import Field
from tidewheel.control.console.forms import Form
from tidewheel.errors import refuse

FREELY = 100
"""So many things a click may change."""


def confirmation(count: int) -> Sequence[Field]:
    """Return the fields that ask for a number; none for a few things."""
    if count <= FREELY:
        return ()
    return (
        Field("counted", "", kind="hidden", value=str(count)),
        Field("typed", f"Type {count} to confirm", kind="number", required=True, help="Nothing can undo it."),
    )


def ensure_confirmed(form: Form, count: int) -> None:
    """Refuse a change of more than a hundred things without their number.

    The number may be that which the dialog showed: meanwhile there may be more or fewer.

    Raises:
        InvalidInput: The number is missing, or is another one.
    """
    if count <= FREELY:
        return
    typed = "".join(each for each in form.get("typed", "") if each.isdecimal())
    if typed not in {str(count), form.get("counted", "")} or not typed:
        refuse("typed", f"it is not the number of things that change, {count}", "type the number")
