"""Settings of intake, of schedulers, of relays and of the HTTP API."""

import re
from datetime import timedelta
from hashlib import sha256
from ipaddress import ip_network
from typing import Final, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from tidewheel.jobs.values import format_duration
from tidewheel.settings.connections import Connections
from tidewheel.settings.executor import LEASE, MAX_LOST, MESSAGE_SIGNATURES, SWEEP
from tidewheel.settings.sources import Duration
from tidewheel.settings.verification import is_loopback

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

_BASE_PATH: Final = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*", re.ASCII)
DEV_TOKEN: Final = "dev-"  # noqa: S105 - a part of it
"""The beginning of the token that `tidewheel dev` sets: its API warns of no token that an operator has not set."""
_API_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]{16,}=*", re.ASCII)  # Source: RFC 6750, section 2.1


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
        description="runs are written at most this long before they are due",
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
        " their runs at the latest; the end of a failed run's traceback stays with its copy",
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


class ApiSettings(Connections):
    """Settings of the HTTP API."""

    api_host: str = Field("127.0.0.1", description="address on which the API listens")
    api_port: int = Field(8080, ge=0, le=65535, description="port of the API; 0 picks a free one")
    api_token: SecretStr | None = Field(
        None,
        validate_default=True,
        description="bearer token of executors without an API key of their own; without one the API listens on loopback"
        " addresses only",
    )
    api_threads: int = Field(
        8, ge=1, le=64, description="most calls of executors served at once, each with a database connection"
    )
    api_connections_per_address: int = Field(
        64,
        ge=1,
        le=500,
        description="open connections of one address that have not shown the token; those of trusted proxies are not"
        " counted",
    )
    api_trusted_proxies: str | None = Field(
        None,
        description="addresses and networks of reverse proxies, separated by commas, such as `10.0.0.7,10.1.0.0/16`;"
        " their X-Forwarded-For and X-Forwarded-Proto name the client and its scheme, those of others are ignored",
    )
    api_key_rate: float = Field(
        100.0,
        gt=0,
        le=1_000_000,
        description="requests a second of each API key without a rate of its own, in each process; more get 429",
    )
    api_base_path: str | None = Field(
        None,
        description="path below which a reverse proxy serves API and console, such as `/ops/tidewheel`; it may pass"
        " the path on or remove it",
    )
    console_name: str | None = Field(
        None, max_length=40, description="name of the installation in the console, such as `production`"
    )
    console_plain_http: bool = Field(
        default=False,
        description="true lets keys sign in to the console by plain HTTP from other machines, who can read them there",
    )
    api_heartbeat: Duration = Field(
        timedelta(seconds=1),
        gt=timedelta(0),
        description="heartbeat interval of executors in other languages; a cancel reaches them with the response",
    )
    sweep: Duration = SWEEP
    message_signatures: Literal["refuse", "warn"] = MESSAGE_SIGNATURES
    lease: Duration = LEASE
    max_lost: int = MAX_LOST

    @field_validator("api_token")
    @classmethod
    def _guards_what_others_reach(cls, token: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        """Refuse an API that other machines reach without a token: any client could read payloads."""
        host = str(info.data.get("api_host", ""))
        if token is None and not is_loopback(host):
            raise ValueError(f"is required when TIDEWHEEL_API_HOST is {host}; set it, or listen on 127.0.0.1")
        if token is not None and not _API_TOKEN.fullmatch(token.get_secret_value()):
            raise ValueError(
                "is not a bearer token; write at least 16 letters and digits, for example from `openssl rand -hex 24`"
            )
        return token

    @field_validator("api_trusted_proxies")
    @classmethod
    def _are_addresses(cls, proxies: str | None) -> str | None:
        """Refuse names: uvicorn would compare them with addresses, and trust none."""
        for each in (proxies or "").split(",") if proxies is not None else ():
            try:
                ip_network(each.strip())
            except ValueError as error:
                message = f"names {each.strip()!r}, which is not an address; write, for example, 10.0.0.7,10.1.0.0/16"
                raise ValueError(message) from error
        return proxies

    @field_validator("api_base_path")
    @classmethod
    def _is_a_path(cls, path: str | None) -> str | None:
        """Refuse a base path that would make other links than those of the proxy."""
        if path is not None and not _BASE_PATH.fullmatch(path):
            raise ValueError("is not a path; write one such as /ops/tidewheel, without a trailing slash")
        return path
