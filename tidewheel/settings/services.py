"""Settings of intake, of schedulers and of relays."""

from datetime import timedelta
from hashlib import sha256
from typing import Final, Literal

from pydantic import Field, SecretStr

from tidewheel.jobs.values import format_duration
from tidewheel.settings.connections import Connections
from tidewheel.settings.sources import Duration

_SHARED: Final = (
    "source",
    "events_encoding",
    "events_runs",
    "misfire_after",
    "catch_up_rate",
    "outputs_topic",
    "message_signatures",
    "max_lost",
    "requests_kept",
    "lookahead",
    "overdue_after",
    "retention",
    "output_retention",
    "failed_retention",
    "webhook_secrets",
    "api_token",
)
NOT_SET: Final = "not set"
_DIGITS = 8  # of the digest of a secret: enough to see a difference, useless to find a random secret


class IntakeSettings(Connections):
    """Settings of intake."""

    intake_batch: int = Field(2000, ge=1, le=5000, description="most requests applied in one transaction")
    requests_kept: Duration = Field(
        timedelta(days=8),
        description="time for which a request_id is remembered: a repeated request gets the original reply",
    )


class SchedulerSettings(Connections):
    """Settings of schedulers."""

    lookahead: Duration = Field(
        timedelta(seconds=5),
        ge=timedelta(0),
        le=timedelta(seconds=60),
        description="runs are written this long before they are due",
    )
    fire_batch: int = Field(2000, ge=1, le=20000, description="most timers taken in one transaction")
    scheduler_poll: Duration = Field(
        timedelta(milliseconds=500), gt=timedelta(0), description="longest pause between two polls of the timers"
    )
    overdue_after: Duration = Field(
        timedelta(seconds=3),
        description="any scheduler takes a timer that is later than this, whichever scheduler owns its shard",
    )
    member_timeout: Duration = Field(
        timedelta(seconds=10), description="a scheduler without a heartbeat for this long owns no shards"
    )
    retention: Duration = Field(
        timedelta(days=90),
        ge=timedelta(days=1),
        description="finished runs, their inputs and attempts are deleted by whole days after this time; so are skips,"
        " occurrences of workflows, batches, backfills, and jobs that were deleted or finished",
    )
    output_retention: Duration = Field(
        timedelta(days=14),
        ge=timedelta(days=1),
        description="results, tracebacks and output of attempts are deleted by whole days after this time, and with"
        " their runs at the latest",
    )
    failed_retention: Duration = Field(
        timedelta(days=365),
        ge=timedelta(days=1),
        description="copies of failed and timed-out runs, and dead letters, are deleted after this time, and not before"
        " their runs",
    )
    statistics_retention: Duration = Field(
        timedelta(days=730),
        ge=timedelta(days=1),
        description="counts, durations and lateness of each job by day are deleted after this time",
    )
    audit_retention: Duration = Field(
        timedelta(days=400),
        ge=timedelta(days=31),
        description="entries of the audit log are deleted after this time; the database refuses it before 30 days",
    )


class RelaySettings(Connections):
    """Settings of relays."""

    relay_batch: int = Field(10_000, ge=1, le=20000, description="most rows published and acknowledged together")
    relay_poll: Duration = Field(
        timedelta(milliseconds=200), gt=timedelta(0), description="longest pause between two polls of the outbox"
    )
    producer_batch: int = Field(
        1000,
        ge=1,
        le=10_000,
        description="most messages in one Kafka batch; 20 with share groups, where one executor gets a whole batch",
    )
    fairness: Literal["on", "off"] = Field(
        "on",
        description="off: runs leave in the order of their times, however many wait; on: the relay holds back what"
        " executors cannot take yet, and deals it out by tenant and priority",
    )
    member_timeout: Duration = Field(
        timedelta(seconds=10), description="a relay without a heartbeat for this long owns no slices"
    )
    delivery_timeout: Duration = Field(
        timedelta(seconds=120),
        ge=timedelta(seconds=10),
        description="time for which the producer retries a message; then the relay reads the row again",
    )


class ArchiveSettings(Connections):
    """Settings of `tidewheel admin archive`."""

    archive_retention: Duration = Field(
        timedelta(days=730),
        ge=timedelta(days=1),
        description="`tidewheel admin archive run` removes the runs of archived days after this time",
    )


def shared_settings(settings: Connections) -> dict[str, str]:
    """Return those of the settings that all processes must share, by name; of a secret a digest."""
    return {name: _text(getattr(settings, name)) for name in _SHARED if name in type(settings).model_fields}


def _text(value: object) -> str:
    if isinstance(value, SecretStr):
        return f"secret {sha256(value.get_secret_value().encode()).hexdigest()[:_DIGITS]}"
    if isinstance(value, timedelta):
        return format_duration(value)
    return NOT_SET if value is None else str(value)
