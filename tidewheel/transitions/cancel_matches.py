"""Count the open runs that a cancellation by filter matches, before it and at its acceptance."""

from collections.abc import Mapping
from typing import cast

from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import OPEN, RunState

_COUNT_CANCEL_MATCHES = Statements("tidewheel.transitions")["count_cancel_matches"]
_STATES = sorted(OPEN - {RunState.CANCELLING})

LOOKED_AT = 250_000
"""Open runs of a bounded count: about a tenth of a second."""


def count_matches(connection: Conn, columns: Mapping[str, object], look: int | None = LOOKED_AT) -> tuple[int, bool]:
    """Return how many of the first `look` open runs a cancellation would end; True if there may be more."""
    row = connection.execute(
        _COUNT_CANCEL_MATCHES, {**columns, "states": _STATES, "look": look}, binary=True
    ).fetchone()
    matched, seen = cast("tuple[int, int]", row)
    return matched, look is not None and seen >= look
