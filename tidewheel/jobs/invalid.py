"""How a reader of one value says that it does not fit, before anybody knows the value's path."""

from collections.abc import Sequence
from dataclasses import dataclass

from tidewheel.errors import FieldError


class Misfit(ValueError):
    """One value, or parts of it, that do not fit; becomes an InvalidInput once its path is known.

    Args:
        problem: What was read and why it does not fit.
        remedy: What to write instead.
        path: Which part of the value, when not the whole of it.
    """

    def __init__(self, *, problem: str, remedy: str = "", path: str = "") -> None:
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.errors: tuple[FieldError, ...] = (FieldError(path, problem, remedy),)

    @classmethod
    def of(cls, errors: Sequence[FieldError]) -> "Misfit":
        """Return one misfit that carries several errors."""
        made = cls(problem="; ".join(str(error) for error in errors))
        made.errors = tuple(errors)
        return made


@dataclass(frozen=True, slots=True)
class Misread:
    """Stands in a document where a value should be that could not be read for certain; no field accepts it."""

    problem: str
    remedy: str = "write it so that it can be read in one way only"
