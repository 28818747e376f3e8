"""Errors of a single value, raised by its reader before the value's path is known."""

from collections.abc import Sequence
from dataclasses import dataclass

from tidewheel.errors import FieldError


class InvalidValue(ValueError):
    """A value that its reader refuses, whole or in part; becomes an `InvalidInput` once its path is known.

    Args:
        path: The invalid part of the value; empty for all of it.
    """

    def __init__(self, *, problem: str, remedy: str = "", path: str = "") -> None:
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.errors: tuple[FieldError, ...] = (FieldError(path, problem, remedy),)

    @classmethod
    def of(cls, errors: Sequence[FieldError]) -> "InvalidValue":
        """Return one error that carries several field errors."""
        combined = cls(problem="; ".join(str(error) for error in errors))
        combined.errors = tuple(errors)
        return combined


@dataclass(frozen=True, slots=True)
class UnreadableValue:
    """Placeholder in a document for a value that can be read in more than one way; no field accepts it."""

    problem: str
    remedy: str = "write it so that only one reading is possible"
