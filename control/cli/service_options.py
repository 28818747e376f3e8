"""Options of commands that start services or the local stack; they import nothing of either."""

from pathlib import Path
from typing import Annotated

import typer

Home = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Folder of the stack's data; default: TIDEWHEEL_HOME, else one in the user's data folder."
    ),
]
LogLevel = Annotated[str, typer.Option(metavar="LEVEL", help="Log level: debug, info, warning or error.")]
