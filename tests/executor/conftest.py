"""Fixtures of executors, and tests that are coroutines."""

import asyncio
import inspect
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.executor.handlers import GATES, Gate
from tests.executor.running import Executing
from tests.fixtures.database import Database
from tidewheel.local.stack import StackInfo


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True


@pytest.fixture
def executing(database: Database, info: StackInfo) -> Executing:
    return Executing(database, info.kafka).with_topics()


@pytest.fixture
def gate() -> Iterator[str]:
    name = uuid4().hex
    GATES[name] = Gate()
    yield name
    GATES[name].opened.set()
