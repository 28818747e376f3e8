"""Findings about an installation, each with its evidence and a remedy."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated
from uuid import UUID

from pydantic import Field

from tidewheel.control.reads.waits import AFTER_LOSS


class Severity(StrEnum):
    """The effect of a finding on work."""

    WARNING = "warning"
    """Work goes on, but less safely, or not all of it."""
    ERROR = "error"
    """Work waits until an operator acts."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    check: Annotated[str, Field(description="The check that found it.")]
    severity: Annotated[Severity, Field(description="Its effect on work.")]
    what: Annotated[str, Field(description="The fault, as a sentence.")]
    evidence: Annotated[str, Field(description="The figures that show it.")]
    remedy: Annotated[str, Field(description="A command, or a change, that corrects it.")]
    runs: Annotated[int | None, Field(description="The number of runs that it concerns, if they are counted.")] = None
    tenant: Annotated[str | None, Field(description="The tenant of `run_id`.")] = None
    run_id: Annotated[UUID | None, Field(description="A run that shows it.")] = None


def lost_words(runs: int, *, lives: bool = True) -> str:
    """Return what becomes of the runs of silent executors, which the reaper of a live one ends.

    >>> lost_words(2, lives=False)
    '2 runs held: the next executor ends the attempts as lost; each run is retried, or fails if its job is at_most_once'
    """
    if not runs:
        return "no run held"
    who = "a live executor" if lives else "the next executor"
    if runs == 1:
        return f"1 run held: {who} ends its attempt as lost; the run {AFTER_LOSS}"
    return f"{runs:,} runs held: {who} ends the attempts as lost; each run {AFTER_LOSS}"
