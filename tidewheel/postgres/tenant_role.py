"""The role as which a transaction acts for one tenant; row-level security hides all other rows.

Sessions are used for one tenant after another. So the role, the tenant and the search path end with the transaction.
`migrations/row_security.py` makes the role and the policies.
"""

from collections.abc import Sequence
from typing import LiteralString

import psycopg

from tidewheel.errors import InstallationFault
from tidewheel.postgres.installation_faults import first_line
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel")
_ACT_FOR_TENANT = _SQL["act_for_tenant"]
_READ_SEARCH_PATH = _SQL["read_search_path"]
_REMEDY = "create the role again, or run `tidewheel migrate` with TIDEWHEEL_TENANT_ROLE set to the role that exists"


def read_search_path(connection: Conn) -> str:
    """Return the schemas of the session, whose `"$user"` a change of the role would change."""
    [(path,)] = connection.execute(_READ_SEARCH_PATH).fetchall()
    return str(path)


def begin_for_tenant(
    connection: Conn, role: str, tenant: str, search_path: str, *, first: Sequence[LiteralString] = ()
) -> None:
    """Begin a transaction that acts as the role for a tenant, in one round trip.

    Args:
        tenant: The only tenant whose rows exist for this transaction.
    """
    try:
        with connection.pipeline():
            for statement in first:
                connection.execute(statement)
            connection.execute(_ACT_FOR_TENANT, {"role": role, "tenant": tenant, "search_path": search_path})
    except psycopg.errors.InvalidParameterValue as error:
        raise InstallationFault(first_line(error), _REMEDY, error.sqlstate or "") from error
