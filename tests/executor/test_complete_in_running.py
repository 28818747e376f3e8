"""Handlers of a running executor complete their runs themselves: later events change nothing."""

from collections.abc import Iterator
from uuid import UUID

import pytest

from tests.executor.own_handlers import own_handlers
from tests.executor.own_transactions import MAKE_EFFECTS, effects
from tests.executor.running import Ended, Executing
from tests.fixtures.database import Database, Template
from tests.transitions.acts import attempts
from tidewheel.local.stack import StackInfo

pytestmark = pytest.mark.kafka

SOON = {"max_attempts": 3, "initial": "10ms", "jitter": "0%"}


@pytest.fixture(scope="module")
def executing(template: Template, info: StackInfo) -> Iterator[Executing]:
    """One executor for all tests here, on a database that holds an application's rows too."""
    database = Database(template.copy(), template.installation)
    database.execute(MAKE_EFFECTS)
    made = Executing(database, info.kafka)
    made.make_topics()
    with made.running(known=own_handlers()):
        yield made
    database.close()


def run(executing: Executing, handler: str, what: str = "nothing", **job: object) -> tuple[UUID, Ended]:
    payload = {"url": executing.database.url, "do": what}
    run_id = executing.trigger(f"own.{handler}", payload, retry=SOON, **job)
    return run_id, executing.ended(run_id)


@pytest.mark.parametrize("handler", ["thread", "process", "async"])
def test_return_value_after_completion_is_not_the_result(executing: Executing, handler: str) -> None:
    run_id, ended = run(executing, handler)
    assert (ended.state, ended.result) == ("succeeded", b'{"attempt":1}')
    assert effects(executing.database, run_id) == 1


@pytest.mark.parametrize("handler", ["thread", "process"])
def test_exception_after_completion_is_no_failure(executing: Executing, handler: str) -> None:
    run_id, ended = run(executing, handler, "raise-after")
    assert (ended.state, ended.attempt) == ("succeeded", 1)
    assert attempts(executing.database, run_id) == [(1, "succeeded")]


def test_timeout_after_completion_is_no_failure(executing: Executing) -> None:
    run_id, ended = run(executing, "async", "overrun", start_to_close="1s")
    assert (ended.state, effects(executing.database, run_id)) == ("succeeded", 1)


@pytest.mark.parametrize("handler", ["thread", "process"])
def test_failure_before_completion_is_retried_with_one_effect(executing: Executing, handler: str) -> None:
    run_id, ended = run(executing, handler, "raise-before")
    assert (ended.state, ended.attempt, effects(executing.database, run_id)) == ("succeeded", 2, 1)


@pytest.mark.parametrize("handler", ["thread", "process"])
def test_success_without_a_commit_is_a_failure_with_its_reason(executing: Executing, handler: str) -> None:
    """Its effect is gone: a success on record would lose it."""
    run_id, ended = run(executing, handler, "forget-to-commit")
    assert (ended.state, ended.attempt, effects(executing.database, run_id)) == ("succeeded", 2, 1)
    assert attempts(executing.database, run_id) == [(1, "failed"), (2, "succeeded")]
    told = executing.database.rows(
        "SELECT error_type, error_message FROM ended_attempts WHERE attempt = 1 AND run_id = %s", [run_id]
    )
    [(error_type, error_message)] = told
    assert error_type == "NotCommitted"
    assert "commit it first" in error_message
