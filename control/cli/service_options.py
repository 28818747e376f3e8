"""Options of commands that start services or the local stack; they import nothing of either."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

Home = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Folder of the stack's data; default: TIDEWHEEL_HOME, else one in the user's data folder."
    ),
]
Handlers = Annotated[
    list[str] | None,
    typer.Option(metavar="MODULES", help="Modules with @tidewheel.handler functions, separated by commas; repeatable."),
]
LogLevel = Annotated[str, typer.Option(metavar="LEVEL", help="Log level: debug, info, warning or error.")]


def joined(names: Sequence[str] | None) -> str | None:
    """Return the names of a repeatable option as the one list of its setting; None where it is not given."""
    return ",".join(names) if names else None
