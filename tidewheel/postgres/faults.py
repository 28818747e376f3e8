"""Name errors of PostgreSQL: an installation's own faults, and the kind of an error.

No row is the cause of either. An operator corrects the first; the second ends by itself. This table is the only place
that decides which SQLSTATE belongs to an installation.
"""

from collections.abc import Mapping
from types import MappingProxyType

import psycopg

from tidewheel.errors import InstallationFault, Unavailable

_SCHEMA = "the schema is not this release's: run `tidewheel migrate`, or start the release that migrated it"
_SPACE = "give the database server more space, memory or connections"

# By SQLSTATE, else by its class.
_REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        "42501": "grant the rights of this service's role again: `tidewheel migrate` does so for those of `--roles`",
        "42": _SCHEMA,
        "0A": _SCHEMA,  # also a statement that was prepared before its table changed
        "3F": _SCHEMA,
        "53100": "free disk space on the database server, or add some",
        "53": _SPACE,
        "25006": "name the primary in TIDEWHEEL_DATABASE_URL, or let the database accept writes again",
        "28": "correct the role or the password in TIDEWHEEL_DATABASE_URL, or its line in pg_hba.conf",
        "XX": "check the server's log and the storage: PostgreSQL reports an internal error",
    }
)
MAX_ALIKE = 3
"""Jobs that one kind of error quarantines within an hour; requests that it rejects in a row (docs/adr/0029)."""


def without_rows_fault(error: psycopg.Error) -> Unavailable:
    """Return the error to raise for one that no row has caused."""
    state = error.sqlstate or ""
    remedy = _REMEDIES.get(state) or _REMEDIES.get(state[:2])
    problem = first_line(error)
    return Unavailable(problem) if remedy is None else InstallationFault(problem, remedy, state)


def without_partition(error: psycopg.Error, failure: psycopg.Error) -> InstallationFault:
    """Return the error to raise for a row whose partition is missing and cannot be created."""
    remedy = f"it cannot be created: {first_line(failure)}; end the transaction that locks the table"
    return InstallationFault(first_line(error), remedy, error.sqlstate or "")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, without the detail, which may quote a row."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


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
