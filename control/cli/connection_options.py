"""How commands reach the database: checked first, so that what is missing is said in one line."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import typer
from psycopg import IsolationLevel

from tidewheel.control.client.client import Client
from tidewheel.errors import Unavailable
from tidewheel.migrations.runner import require_current
from tidewheel.postgres.session import Conn, Session, connect
from tidewheel.settings import Connections

Tenant = Annotated[str, typer.Option(metavar="NAME", help="Whose job it is.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The job's key.")]

DEFAULT_TENANT = "default"


@contextmanager
def reading() -> Generator[Conn]:
    """A transaction to read by: all of it is of one moment.

    Raises:
        Unavailable: The database does not answer; the message says by which setting it was looked for.
        MigrationError: It lacks migrations.
    """
    session = Session(checked(), "tidewheel-cli")
    try:
        session.connection().isolation_level = IsolationLevel.REPEATABLE_READ
        with session.transaction() as connection:
            yield connection
    finally:
        session.close()


@contextmanager
def asking(tenant: str) -> Generator[Client]:
    """A client to send requests by; raises as `reading` does."""
    checked()
    with Client(tenant=tenant) as client:
        yield client


def checked() -> str:
    """The URL of the database, once it has answered; raises as `reading` does."""
    url = Connections.load().database()
    try:
        with connect(url, "tidewheel-cli", autocommit=True) as connection:
            require_current(connection)
    except Unavailable as error:
        message = (
            f"the database does not answer: {error}; TIDEWHEEL_DATABASE_URL names it, else `tidewheel up` makes one"
        )
        raise Unavailable(message) from error
    return url
