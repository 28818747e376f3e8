"""Attempts for runners, without a database: what a claim and its message would have given them."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from tidewheel.executor.attempt import Attempt
from tidewheel.executor.lease import ENDLESS, Lease
from tidewheel.executor.outcome import Outcome
from tidewheel.executor.runners.runner import Runner
from tidewheel.jobs.spec import JobSpec
from tidewheel.schemas.codec import encode
from tidewheel.schemas.definitions import definition_record
from tidewheel.schemas.generated.records import Cause, RunRequest
from tidewheel.transitions.claim import Started

RUN = UUID("019d3a1c-7f00-8123-8456-789abcdef012")
NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)


class Reports(list[Outcome]):
    """Reports of an attempt, and the number of times it released its slot."""

    released = 0


def attempt_of(
    job: dict[str, Any] | None = None,
    *,
    tenant: str = "default",
    reports: Reports | None = None,
    number: int = 1,
    failed_attempts: int = 0,
    lease: Lease = ENDLESS,
    **run: object,
) -> Attempt:
    """An attempt at a job; `run` is what the run carries itself, such as payload and labels."""
    spec = JobSpec.model_validate({"key": "job", "schedule": "manual", "target": "a"} | (job or {}))
    definition = definition_record(spec, tenant=tenant, job_id=str(UUID(int=7)), job_version=1)
    request = RunRequest(
        run_id=str(RUN),
        job_id=str(UUID(int=7)),
        job_version=1,
        attempt=number,
        cause=Cause.TRIGGER,
        shard=0,
        scheduled_at=NOON,
        publish_at=NOON,
        definition=encode(definition),
    )
    kept = Reports() if reports is None else reports

    def released(_: Attempt) -> None:
        kept.released += 1

    return Attempt(
        Started(RUN, number, failed_attempts, 0, NOON, NOON),
        replace(request, **run),
        definition,
        on_report=lambda _, outcome: kept.append(outcome),
        on_release=released,
        lease=lease,
    )


def run_attempts(make: Callable[[], Runner], *attempts: Attempt, seconds: float = 60.0) -> list[Outcome]:
    """Run attempts to their ends, one after another, by a runner of their own; each has so many seconds."""

    async def work() -> list[Outcome]:
        runner, outcomes = make(), list[Outcome]()
        try:
            for attempt in attempts:
                async with asyncio.timeout(seconds):
                    outcomes.append(await runner.run(attempt))
        finally:
            await runner.close()
        return outcomes

    return asyncio.run(work())


def run_attempt(make: Callable[[], Runner], attempt: Attempt) -> Outcome:
    [outcome] = run_attempts(make, attempt)
    return outcome
