"""Findings about an installation, each with its evidence and a remedy."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """The effect of a finding on work."""

    WARNING = "warning"
    """Work goes on, but less safely, or not all of it."""
    ERROR = "error"
    """Work waits until an operator acts."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Args:
        check: The check that found it.
        severity: Its effect on work.
        what: The fault, as a sentence.
        evidence: The figures that show it.
        remedy: A command, or a change, that corrects it.
    """

    check: str
    severity: Severity
    what: str
    evidence: str
    remedy: str
