"""Users see what the golden files of this folder hold: `python -m tests.golden` writes them.

Metrics, settings, errors and messages have generated pages, which `tests/docs/test_reference.py` compares.
"""

import asyncio
import json
from collections.abc import Iterator

import pytest

from tests.control.api.answering import answering
from tests.control.console.seeded import seed
from tests.fixtures.database import ClockedDatabase, Database, own_installation
from tests.golden.command_help import help_tree
from tests.golden.console_pages import page_texts
from tests.golden.files import check
from tests.golden.signatures import Signatures
from tidewheel.control.client.async_client import AsyncClient
from tidewheel.control.client.client import Client
from tidewheel.testing.databases import Template


@pytest.fixture
def unused(clocked_template: Template) -> Iterator[ClockedDatabase]:
    """A database whose sequences start at 1: pages show the ids of dead letters."""
    made = ClockedDatabase(clocked_template.copy(), own_installation(clocked_template))
    yield made
    made.close()


def test_help_of_the_command_line() -> None:
    check({"help.txt": help_tree()})


def test_signatures_of_the_package(shared_database: Database) -> None:
    waiting = AsyncClient(shared_database.url)
    with Client(shared_database.url) as client:
        text = Signatures({"Client": client, "AsyncClient": waiting}).text()
    asyncio.run(waiting.close())
    check({"client.txt": text})


def test_openapi_document(shared_database: Database) -> None:
    with answering(shared_database) as client:
        document = client.get("/api/v1/openapi.json").json()
    document["info"]["version"] = "VERSION"
    check({"openapi.json": json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"})


def test_pages_of_the_console(unused: ClockedDatabase) -> None:
    ids = seed(unused)
    with answering(unused) as client:
        check(page_texts(client, ids))
