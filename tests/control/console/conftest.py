"""A browser, and a console on a seeded installation: both as long as a module's tests."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.control.api.answering import ApiClient, answering
from tests.control.console.browser import chromium
from tests.control.console.pages import HTML
from tests.control.console.seeded import Ids, seed
from tests.fixtures.database import ClockedDatabase, Database
from tidewheel.testing.databases import Template


@pytest.fixture
def pages(
    request: pytest.FixtureRequest,
    template: Template,  # else no fixture of the test shows that it needs PostgreSQL
) -> Iterator[ApiClient]:
    """A console that needs no key, on the database of the test, whose clock it may move."""
    database: Database = request.getfixturevalue("clocked" if "clocked" in request.fixturenames else "database")
    with answering(database) as client:
        client.headers.update(HTML)
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium. Not for the session: its event loop is in the way of those of other modules' tests."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def seeded(clocked_template: Template) -> Iterator[tuple[ApiClient, Ids]]:
    """A console that needs no key on a seeded installation, and the ids of its seeds."""
    database = ClockedDatabase(clocked_template.copy(), clocked_template.installation)
    ids = seed(database)
    with answering(database) as client:
        yield client, ids
    database.close()
