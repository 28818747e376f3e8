"""Findings about an installation, each with its evidence and a remedy."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated
from uuid import UUID

from pydantic import Field


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
    tenant: Annotated[str | None, Field(description="The tenant of `run_id`.")] = None
    run_id: Annotated[UUID | None, Field(description="A run that shows it.")] = None
