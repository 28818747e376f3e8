"""How every command answers: text for people, JSON for scripts."""

from enum import StrEnum
from typing import Annotated

import typer


class Output(StrEnum):
    """How a command answers."""

    TEXT = "text"
    JSON = "json"


Answer = Annotated[Output, typer.Option("--output", help="How to answer.")]
