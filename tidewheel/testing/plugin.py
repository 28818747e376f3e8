"""The pytest plugin: fixtures `tidewheel`, for one test, and `tidewheel_stack`, for a session.

Pytest loads it wherever Tidewheel is installed, so it imports nothing before a test uses one of the two.
`TIDEWHEEL_TEST_DATABASE_URL` and `TIDEWHEEL_TEST_KAFKA_BOOTSTRAP` name servers of your own, as in CI. Databases and
topics for the tests are created there and removed again. Else the embedded servers are started, in a folder of their
own. The workers of pytest-xdist share one embedded stack: the first one starts it, the controller stops it.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tidewheel.testing.stack import Stack, Tidewheel

DATABASE_VARIABLE = "TIDEWHEEL_TEST_DATABASE_URL"
KAFKA_VARIABLE = "TIDEWHEEL_TEST_KAFKA_BOOTSTRAP"

_SHARED = pytest.StashKey[Path]()
_SHARED_HOME = "tidewheel_home"  # in what the controller passes to each worker of pytest-xdist


@pytest.fixture(scope="session")
def tidewheel_stack(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> "Generator[Stack]":
    """PostgreSQL and Kafka for all tests, started once; removed at the end, also after Ctrl-C."""
    from tidewheel.distribution import require
    from tidewheel.settings.connections import Connections
    from tidewheel.testing.stack import Stack

    database_url, bootstrap = os.environ.get(DATABASE_VARIABLE), os.environ.get(KAFKA_VARIABLE)
    with pytest.MonkeyPatch.context() as patch:
        # What a test makes without saying where must not go to an installation that the environment names.
        patch.delenv("TIDEWHEEL_DATABASE_URL", raising=False)
        patch.delenv("TIDEWHEEL_KAFKA_BOOTSTRAP", raising=False)
        patch.delenv("TIDEWHEEL_TOPIC_PREFIX", raising=False)
        if bootstrap is None:
            patch.delenv("TIDEWHEEL_KAFKA_PROPERTIES", raising=False)
        kafka = Connections.load(kafka_bootstrap=bootstrap).kafka_client()
        if database_url and bootstrap:
            given = Stack(database_url, kafka | {"bootstrap.servers": bootstrap})
            yield given
            given.close()
            return
        require("local", f"the fixture `tidewheel` without {DATABASE_VARIABLE} and {KAFKA_VARIABLE}")
        from tidewheel.local.stack import LocalStack
        from tidewheel.local.state import HOME_VARIABLE

        shared = getattr(pytestconfig, "workerinput", {}).get(_SHARED_HOME)
        home = Path(shared) if shared else tmp_path_factory.mktemp("tidewheel")
        local = LocalStack(home, brokers=1, database_url=database_url, bootstrap=bootstrap, client=kafka, lasting=False)
        patch.setenv(HOME_VARIABLE, str(local.home))
        before = _interrupt_on_sigterm()
        try:
            info = local.up()  # waits while another worker starts it
            created = Stack(info.database_url, info.kafka, stack=local)
            yield created
            created.close()
        finally:
            if not shared:
                local.down(erase=True)
            signal.signal(signal.SIGTERM, before)


@pytest.fixture
def tidewheel(tidewheel_stack: "Stack") -> "Generator[Tidewheel]":
    """All of Tidewheel on an empty database with a stopped clock."""
    from tidewheel.testing.stack import Tidewheel

    url = tidewheel_stack.template.take()
    created = Tidewheel(tidewheel_stack, url)
    try:
        yield created
    finally:
        created.close()
        tidewheel_stack.template.give_back(url)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401 - pytest-xdist has no types
    """Give each worker of pytest-xdist the folder of the stack that they share."""
    shared = node.config.stash.get(_SHARED, None)
    if shared is None:
        shared = node.config.stash[_SHARED] = Path(tempfile.mkdtemp(prefix="tidewheel-tests-"))
        before = _interrupt_on_sigterm()
        node.config.add_cleanup(lambda: signal.signal(signal.SIGTERM, before))
    node.workerinput[_SHARED_HOME] = str(shared)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the stack that workers have shared: all of them have ended."""
    shared = config.stash.get(_SHARED, None)
    if shared is None:
        return
    if any(shared.iterdir()):
        from tidewheel.local.stack import LocalStack

        LocalStack(shared).down(erase=True)
    shutil.rmtree(shared)


def _interrupt_on_sigterm() -> Any:  # noqa: ANN401 - what signal.signal returns and takes
    """Turn SIGTERM into Ctrl-C, after which alone pytest tears down; return the old handler."""
    return signal.signal(signal.SIGTERM, signal.default_int_handler)
