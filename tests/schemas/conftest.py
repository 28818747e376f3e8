"""An example record."""

from datetime import UTC, datetime

import pytest

from tidewheel.schemas.generated.records import Cause, Lane, RunCompleted, RunStatus

_AT = datetime(2026, 3, 29, 6, 0, 0, 250_000, tzinfo=UTC)
A_COMPLETION = RunCompleted(
    event_id="01234567-89ab-5cde-8f01-23456789abcd", run_id="019d3a1c-7f00-8123-8456-789abcdef012",
    job_id="5f0c1e2d-3b4a-5987-8a6b-5c4d3e2f1a0b", job_key="daily-report", job_version=3, tenant="default",
    lane=Lane.CRITICAL, cause=Cause.TIMER, status=RunStatus.SUCCEEDED, scheduled_at=_AT, published_at=_AT,
    started_at=_AT, finished_at=_AT, attempt=1, max_attempts=4, executor_id="executor-1", result=b'{"pages":3}',
    labels={"team": "billing"}, sequence=2,
)  # fmt: skip


@pytest.fixture
def a_completion() -> RunCompleted:
    return A_COMPLETION
