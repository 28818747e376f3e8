"""Files of the product that `python -m tests.golden` writes from the code."""

from tests.fixtures.database import Database
from tests.golden.async_stub import async_stub
from tests.golden.command_help import docstrings
from tests.golden.files import check
from tidewheel.control.client.client import Client

_CONTROL = "../../control"


def test_docstrings_of_commands() -> None:
    check({f"{_CONTROL}/cli/commands.json": docstrings()})


def test_methods_of_the_client_for_coroutines(shared_database: Database) -> None:
    with Client(shared_database.url) as client:
        check({f"{_CONTROL}/client/async_client.pyi": async_stub(client)})
