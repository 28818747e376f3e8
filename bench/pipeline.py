"""No-op runs/s from due to the completion event on Kafka, with every service running."""

from datetime import timedelta
from uuid import uuid4

from confluent_kafka import Consumer

from bench.load import database_now, load_jobs
from bench.stage import Stage
from tidewheel.clock import monotonic_seconds
from tidewheel.schemas.codec import decode
from tidewheel.schemas.records import RunCompleted

JOBS = 60_000
_GIVE_UP_SECONDS = 180.0


def measure(stage: Stage) -> dict[str, float]:
    """Jobs that all fall due at one moment: the time until each has its completion event."""
    consumer = Consumer(
        {"bootstrap.servers": stage.bootstrap, "group.id": f"bench-{uuid4()}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([stage.installation.topics.completions])
    with stage.services(["relay"], ["executor", "--handlers", "bench.handlers"], ["scheduler"]):
        with stage.connect() as connection:
            due_at = database_now(connection) + timedelta(seconds=25)
            load_jobs(connection, stage.installation, JOBS, due_at=due_at, prefix="pipeline")
        arrivals, lateness = _consume(consumer)
    consumer.close()
    tenth, ninetieth = arrivals[JOBS // 10], arrivals[JOBS * 9 // 10]
    lateness.sort()
    return {
        "runs_per_second": JOBS * 0.8 / (ninetieth - tenth),
        "runs_per_second_whole": JOBS / (arrivals[-1] - arrivals[0]),
        "start_p50_seconds": lateness[len(lateness) // 2],
        "start_p99_seconds": lateness[len(lateness) * 99 // 100],
    }


def _consume(consumer: Consumer) -> tuple[list[float], list[float]]:
    """When each distinct completion arrived (monotonic), and how late its run had started."""
    seen: set[str] = set()
    arrivals: list[float] = []
    lateness: list[float] = []
    deadline = monotonic_seconds() + _GIVE_UP_SECONDS
    while len(seen) < JOBS:
        assert monotonic_seconds() < deadline, f"{len(seen)} of {JOBS} after {_GIVE_UP_SECONDS} s"
        for message in consumer.consume(1000, 0.2):
            event = decode(message.value() or b"", RunCompleted)
            assert event.status == "succeeded", event
            if event.run_id not in seen and event.started_at:
                seen.add(event.run_id)
                arrivals.append(monotonic_seconds())
                lateness.append((event.started_at - event.scheduled_at).total_seconds())
    return arrivals, lateness
