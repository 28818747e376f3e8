"""Refusing what was written on the command line, in the words of every refusal: where, what, and what to write."""

from typing import Never

from tidewheel.errors import FieldError, InvalidInput


def refuse(path: str, problem: str, remedy: str) -> Never:
    """Refuse a flag or a field.

    Raises:
        InvalidInput: Always.
    """
    raise InvalidInput([FieldError(path, problem, remedy)])
