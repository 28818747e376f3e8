"""`batches`: seconds of a batch of 10,000 no-ops by a client and by the topic, and of its resume."""

import json
from collections.abc import Callable
from typing import cast
from uuid import UUID

from tidewheel.bench import baselines
from tidewheel.bench.complete import until
from tidewheel.bench.environment import Environment
from tidewheel.bench.measurement import Incomplete
from tidewheel.bench.scenarios.pipeline import all_services
from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.client import Client
from tidewheel.jobs.batches import MAX_RUNS
from tidewheel.kafka.clients import producer
from tidewheel.postgres.session import Conn

_WARM_RUNS = 500
_WAIT_SECONDS = 300.0
_BATCHES = "SELECT count(*) FROM batches"
_CALLED = """
SELECT count(*) FROM finished_runs AS r JOIN jobs AS j ON j.job_id = r.job_id WHERE j.key = 'called'
"""
_NEWEST = "SELECT batch_id FROM batches ORDER BY batch_id DESC LIMIT 1"


def measure(environment: Environment) -> dict[str, float]:
    """Submit a batch by each door, until the job that it triggers has ended; cancel one and resume it."""
    with (
        environment.connect(autocommit=True) as connection,
        all_services(environment),
        Client(environment.url) as client,
    ):
        for key in ("noop", "called"):
            client.submit({"key": key, "schedule": "manual", "target": "noop"})

        sender, topic = producer(environment.kafka, role="bench-requests"), environment.installation.topics.requests

        def by_client(runs: int) -> None:
            client.batches.submit(_runs(runs), on=_ON)

        def by_topic(runs: int) -> None:
            text = json.dumps({"type": "batch.submit", "runs": _runs(runs), "on": _ON}).encode()
            before = _value(connection, _BATCHES)
            baselines.produce(environment, topic, [(b"batch", text, [])], client=sender)
            until(lambda: _value(connection, _BATCHES) != before, "the batch is accepted")

        figures: dict[str, float] = {}
        for name, submit in (("client", by_client), ("topic", by_topic)):
            _time(connection, submit, _WARM_RUNS)
            accepted, called = _time(connection, submit, MAX_RUNS)
            figures |= {f"{name}_accepted_seconds": accepted, f"{name}_called_seconds": called}
        _check(connection)
        return figures | _resume(connection, client)


_ON = {"finished": {"key": "called"}}


def _runs(number: int, **fields: object) -> list[dict[str, object]]:
    return [{"ref": f"run-{place}", "key": "noop", **fields} for place in range(number)]


def _time(connection: Conn, submit: Callable[[int], None], runs: int) -> tuple[float, float]:
    """Return the seconds until a batch is accepted, and until the job that its end triggers has ended."""
    before, began = _value(connection, _CALLED), monotonic_seconds()
    submit(runs)
    accepted = monotonic_seconds() - began
    until(lambda: _value(connection, _CALLED) != before, "the callback")
    return accepted, monotonic_seconds() - began


def _resume(connection: Conn, client: Client) -> dict[str, float]:
    """Return the seconds of a resume of as many cancelled runs, and until all of them have ended."""
    batch = client.batches.submit(_runs(MAX_RUNS, delay="1h"))
    client.batches.cancel(batch)
    client.batches.wait(batch, timeout=_WAIT_SECONDS)
    began = monotonic_seconds()
    client.batches.resume(batch)
    resumed = monotonic_seconds() - began
    found = client.batches.wait(batch, timeout=_WAIT_SECONDS).summary
    if found.succeeded != MAX_RUNS:
        message = f"{found.succeeded} of {MAX_RUNS} runs of a resumed batch have succeeded"
        raise Incomplete(message)
    return {"resume_seconds": resumed, "resume_ended_seconds": monotonic_seconds() - began}


def _check(connection: Conn) -> None:
    newest = cast("UUID", _value(connection, _NEWEST))
    row = connection.execute("SELECT total, succeeded FROM batches WHERE batch_id = %s", [newest]).fetchone()
    if row != (MAX_RUNS, MAX_RUNS):
        message = f"{row} runs of the newest batch were written and have succeeded, not {MAX_RUNS}"
        raise Incomplete(message)


def _value(connection: Conn, query: str) -> object:
    row = connection.execute(query.encode()).fetchone()
    return None if row is None else row[0]
