"""Large payloads of one tenant fill an executor; the runs of other tenants start (review of issue 39)."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.executor.handlers import GATES, Gate
from tests.executor.running import Executing
from tests.fixtures.services import until
from tests.transitions.acts import apply_batch, submission, submit, trigger
from tidewheel.control.client.client import Client
from tidewheel.runs import RunState

pytestmark = pytest.mark.kafka

LARGE_BYTES = 250_000
FULL = 56  # attempts whose payload, in three forms each, is more than 40 MiB


@pytest.fixture
def large_gate() -> Iterator[str]:
    """A gate whose name is a large payload."""
    name = uuid4().hex.ljust(LARGE_BYTES, "x")
    GATES[name] = Gate()
    yield name
    GATES[name].opened.set()


def test_large_payloads_of_one_tenant_stop_no_other_tenant_and_no_critical_run(
    executing: Executing, large_gate: str
) -> None:
    database = executing.database
    with Client(database.url) as client:
        client.tenants.create("acme")
    of_acme = {
        "small": submission("small", target="acts.echo"),
        "batch": submission("batch", target="acts.echo", lane="batch"),
        "large": submission("large", target="acts.order", payload={"to": "y" * LARGE_BYTES}),
    }
    submit(database, "held", target="acts.wait", payload=large_gate)
    apply_batch(database, *(each | {"tenant": "acme"} for each in of_acme.values()))
    with executing.running(slots=100):
        for number in range(FULL):
            trigger(database, "held")
            until(lambda: len(GATES[large_gate].entered) == number + 1, "it runs")  # noqa: B023 - called at once
        beyond = trigger(database, "held")
        critical = executing.trigger("acts.echo", 1, lane="critical")
        assert executing.ended(critical).state == "succeeded"
        for key in of_acme:
            assert executing.ended(trigger(database, key, tenant="acme")).state == "succeeded"
        published = trigger(database, "small", tenant="acme")
        executing.publish(published)
        assert executing.ended(published).state == "succeeded"
        assert executing.state(beyond) is RunState.QUEUED
        GATES[large_gate].opened.set()
        until(lambda: str(beyond) in GATES[large_gate].entered, "it runs once there is room")
