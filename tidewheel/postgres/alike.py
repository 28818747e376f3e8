"""Name the kind of an error, to recognize work that fails too much alike for its own data."""

import psycopg

MAX_ALIKE = 3
"""Jobs that one kind of error quarantines within an hour; requests that it rejects in a row (docs/adr/0029)."""


def cause_of(error: BaseException) -> BaseException:
    """Return the error that another one was raised from, else the error itself."""
    return error.__cause__ or error


def kind_of(error: BaseException) -> str:
    """Return the SQLSTATE with its constraint or column, or the type of another error."""
    cause = cause_of(error)
    if isinstance(cause, psycopg.Error) and cause.sqlstate:
        named = cause.diag.constraint_name or cause.diag.column_name
        return f"SQLSTATE {cause.sqlstate} ({named})" if named else f"SQLSTATE {cause.sqlstate}"
    return type(cause).__name__
