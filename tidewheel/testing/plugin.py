"""The pytest plugin: `tidewheel`, all of it for one test, and `tidewheel_stack`, what the tests of a session share.

Loaded by pytest wherever Tidewheel is installed, so nothing is imported before a test asks for one of the two.
`TIDEWHEEL_TEST_DATABASE_URL` and `TIDEWHEEL_TEST_KAFKA_BOOTSTRAP` name servers of your own, as in CI; databases and
topics for the tests are made there and removed again. Else the embedded ones are started, in a folder of their own.
"""

import os
import signal
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidewheel.testing.stack import Stack, Tidewheel

DATABASE_VARIABLE = "TIDEWHEEL_TEST_DATABASE_URL"
KAFKA_VARIABLE = "TIDEWHEEL_TEST_KAFKA_BOOTSTRAP"


@pytest.fixture(scope="session")
def tidewheel_stack(tmp_path_factory: pytest.TempPathFactory) -> "Generator[Stack]":
    """A PostgreSQL and a Kafka for all tests, started once; gone at the end, also after Ctrl-C or SIGTERM."""
    from tidewheel.local.stack import LocalStack
    from tidewheel.local.state import HOME_VARIABLE
    from tidewheel.testing.stack import Stack

    database_url, bootstrap = os.environ.get(DATABASE_VARIABLE), os.environ.get(KAFKA_VARIABLE)
    with pytest.MonkeyPatch.context() as patch:
        # What a test makes without saying where must not go to an installation that the environment names.
        patch.delenv("TIDEWHEEL_DATABASE_URL", raising=False)
        patch.delenv("TIDEWHEEL_KAFKA_BOOTSTRAP", raising=False)
        patch.delenv("TIDEWHEEL_TOPIC_PREFIX", raising=False)
        if database_url and bootstrap:
            given = Stack(database_url, bootstrap)
            yield given
            given.close()
            return
        local = LocalStack(
            tmp_path_factory.mktemp("tidewheel"), brokers=1, database_url=database_url, bootstrap=bootstrap
        )
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # pytest tears down after an interrupt only
        patch.setenv(HOME_VARIABLE, str(local.home))
        try:
            info = local.up()
            made = Stack(info.database_url, info.bootstrap, stack=local)
            yield made
            made.close()
        finally:
            local.down(erase=True)
            signal.signal(signal.SIGTERM, before)


@pytest.fixture
def tidewheel(tidewheel_stack: "Stack") -> "Generator[Tidewheel]":
    """All of Tidewheel on an empty database, its clock standing still."""
    from tidewheel.testing.stack import Tidewheel

    url = tidewheel_stack.template.take()
    made = Tidewheel(tidewheel_stack, url)
    try:
        yield made
    finally:
        made.close()
        tidewheel_stack.template.give_back(url)
