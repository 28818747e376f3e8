"""Every setting, one frozen model per service.

Flags win over the environment (`TIDEWHEEL_…`), which wins over the file named by `TIDEWHEEL_CONFIG` (TOML). Where no
database or broker is named, libpq's `PG*` variables and then the running local stack are taken. `docs/settings.md` is
generated from here.
"""

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pydantic import BeforeValidator, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from tidewheel.errors import SettingsError
from tidewheel.jobs.values import format_duration, parse_duration
from tidewheel.local import INSTALL, is_installed
from tidewheel.webhooks import read_secrets

if TYPE_CHECKING:
    from tidewheel.local.stack import StackInfo

_KAFKA_PREFIX = "TIDEWHEEL_KAFKA_CONFIG_"
_NOT_PASSED = ("TIDEWHEEL_", "PG", "AWS_")  # passwords, tokens and keys
_LIBPQ = ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE")
_API_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,}=*", re.ASCII)  # Source: RFC 6750, section 2.1
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,9})?", re.ASCII)


def _duration(value: object) -> timedelta:
    """A span of time in any form that requests know; a number is seconds, also as the text of a variable."""
    match value:
        case timedelta():
            return value
        case str():
            bare = value.strip()
            return parse_duration(float(bare) if _NUMBER.fullmatch(bare) else bare)
        case int() | float() if not isinstance(value, bool):
            return parse_duration(value)
        case _:
            message = "write a duration such as 10s, 5m or 250ms, or a number of seconds"
            raise ValueError(message)


Duration = Annotated[timedelta, BeforeValidator(_duration)]


class Connections(BaseSettings):
    """How to reach PostgreSQL and Kafka, and the names used there."""

    model_config = SettingsConfigDict(env_prefix="TIDEWHEEL_", frozen=True, extra="ignore")

    database_url: SecretStr | None = Field(
        None, description="libpq URL of the database; else `PG*`, else the local stack that is running"
    )
    kafka_bootstrap: str | None = Field(None, description="host:port list of brokers; else the local stack's")
    topic_prefix: str = Field("tidewheel", pattern=r"^[a-zA-Z0-9._-]{1,64}$", description="first part of every topic")
    replication: int = Field(1, ge=1, le=7, description="copies of each partition; 3 in production")
    events_encoding: Literal["avro", "json"] = Field(
        "avro", description="how completions, events and dead letters are written"
    )
    source: str = Field("tidewheel", description="`ce_source` of every event: the name of this installation")
    misfire_after: Duration = Field(
        timedelta(seconds=60),
        ge=timedelta(seconds=1),
        le=timedelta(hours=1),
        description="later than this, an occurrence is missed; the same for every process, edits settle by it too",
    )
    max_clock_skew: Duration = Field(
        timedelta(seconds=2),
        gt=timedelta(0),
        le=timedelta(hours=1),
        description="a process whose clock is further from the database's says so; nothing waits or fires for it",
    )
    catch_up_rate: float = Field(
        1000.0,
        gt=0,
        le=1_000_000,
        description="runs a second that make up for missed occurrences, of the whole fleet; the same for every process",
    )
    outputs_topic: bool = Field(
        default=False, description="send all that attempts write to the topic `<prefix>.outputs`, while Kafka is there"
    )
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="serve /metrics, /healthz and /readyz on 127.0.0.1; 0 picks a free port, none is off",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then environment, then the TOML file: nothing else is read."""
        del dotenv_settings, file_secret_settings
        path = os.environ.get("TIDEWHEEL_CONFIG")
        if not path:
            return (init_settings, env_settings)
        if not Path(path).is_file():
            message = f"TIDEWHEEL_CONFIG names {path}, which is no file; correct the path or unset the variable"
            raise SettingsError(message)
        try:
            file = TomlConfigSettingsSource(settings_cls, Path(path))
        except (OSError, ValueError) as error:  # no TOML, no UTF-8: both are ValueErrors
            message = f"TIDEWHEEL_CONFIG names {path}, which cannot be read: {error}; correct it or unset the variable"
            raise SettingsError(message) from error
        _refuse_unknown(file.toml_data, path)
        return (init_settings, env_settings, file)

    @field_validator("database_url")
    @classmethod
    def _is_a_connection_string(cls, url: SecretStr | None) -> SecretStr | None:
        """Refuse what libpq cannot read: its own message would show it, password and all, and be tried for ever."""
        try:
            conninfo_to_dict(url.get_secret_value() if url else "")
        except psycopg.ProgrammingError:
            message = "is no libpq connection string; write postgresql://user:password@host:5432/name"
            raise ValueError(message) from None
        return url

    @classmethod
    def load(cls, **flags: object) -> Self:
        """Read flags, environment and file.

        Raises:
            SettingsError: A value does not fit; the message names the variable and what it must be.
        """
        try:
            return cls(**{name: value for name, value in flags.items() if value is not None})  # type: ignore[arg-type]
        except ValidationError as error:
            raise SettingsError(_readable(error)) from None

    def database(self) -> str:
        """The libpq connection string.

        Raises:
            SettingsError: No database is named and no local stack is running.
        """
        if self.database_url:
            return self.database_url.get_secret_value()
        if any(os.environ.get(name) for name in _LIBPQ):
            return ""
        local = _running_stack()
        if local is None:
            message = f"no database: {_start_stack()}, or set TIDEWHEEL_DATABASE_URL"
            raise SettingsError(message)
        return local.database_url

    def bootstrap(self) -> str:
        """The brokers, `host:port` separated by commas.

        Raises:
            SettingsError: No broker is named and no local stack is running.
        """
        if self.kafka_bootstrap:
            return self.kafka_bootstrap
        local = _running_stack()
        if local is None:
            message = f"no Kafka broker: {_start_stack()}, or set TIDEWHEEL_KAFKA_BOOTSTRAP"
            raise SettingsError(message)
        return local.bootstrap

    def kafka_config(self) -> dict[str, str]:
        """What is passed through to every Kafka client: TIDEWHEEL_KAFKA_CONFIG_SASL_USERNAME is `sasl.username`."""
        return client_config(os.environ) | {"bootstrap.servers": self.bootstrap()}


class IntakeSettings(Connections):
    """How requests are read."""

    intake_batch: int = Field(2000, ge=1, le=5000, description="requests applied in one transaction, at most")
    requests_kept: Duration = Field(timedelta(days=8), description="how long a first answer is remembered")


class SchedulerSettings(Connections):
    """How due occurrences become runs."""

    lookahead: Duration = Field(
        timedelta(seconds=5), ge=timedelta(0), le=timedelta(seconds=60), description="how long ahead runs are written"
    )
    fire_batch: int = Field(2000, ge=1, le=20000, description="timers taken in one transaction, at most")
    scheduler_poll: Duration = Field(
        timedelta(milliseconds=500), gt=timedelta(0), description="longest sleep between two looks at the timers"
    )
    overdue_after: Duration = Field(
        timedelta(seconds=3), description="a timer later than this is taken by any scheduler, whoever owns its shard"
    )
    member_timeout: Duration = Field(
        timedelta(seconds=10), description="a member silent for this long is no longer counted"
    )


class RelaySettings(Connections):
    """How outbox rows reach Kafka."""

    relay_batch: int = Field(10_000, ge=1, le=20000, description="rows published and awaited together, at most")
    relay_poll: Duration = Field(
        timedelta(milliseconds=200), gt=timedelta(0), description="longest sleep between two looks at the outbox"
    )
    producer_batch: int = Field(
        1000,
        ge=1,
        le=10_000,
        description="messages in one Kafka batch, at most; 20 for executors in share groups, where one gets it whole",
    )
    member_timeout: Duration = Field(
        timedelta(seconds=10), description="a relay silent for this long no longer counts in dividing the slices"
    )
    delivery_timeout: Duration = Field(
        timedelta(seconds=120),
        ge=timedelta(seconds=10),
        description="how long the producer tries one message; the row stays and is tried again after that",
    )


# Executors and the HTTP door, which has executors of its own, go by the same three.
_LEASE: Final[timedelta] = Field(
    timedelta(seconds=15),
    gt=timedelta(0),
    description="how long an executor's counter may stand still before its attempts end; the longer one counts, of "
    "the executor's own and of who watches it",
)
_SWEEP: Final[timedelta] = Field(
    timedelta(seconds=1), gt=timedelta(0), description="open runs due for this long are claimed from the table"
)
_MAX_LOST: Final[int] = Field(10, ge=1, description="losses of its executor after which a run fails")


class ExecutorSettings(Connections):
    """How runs are executed."""

    queues: str = Field("default", description="the queues served, separated by commas")
    handlers: str | None = Field(None, description="modules with handlers to import, separated by commas")
    slots: int | None = Field(None, ge=1, le=10000, description="runs at once; 100 unless told, 8 of them on threads")
    threads: int = Field(8, ge=1, le=1000, description="synchronous handlers at once")
    worker_processes: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="handlers in processes of their own at once, 60 MB each; as many as CPUs unless told, at least 2",
    )
    worker_memory_bytes: int | None = Field(
        None,
        ge=128 << 20,
        description="address space of such a process, which libraries reserve more of than they use; none is no limit",
    )
    stall_after: Duration = Field(
        timedelta(seconds=1),
        ge=timedelta(milliseconds=100),
        description="an event loop that stands still this long is reported, and what waits for it goes elsewhere",
    )
    executor_group: Literal["auto", "consumer", "classic", "share"] = Field(
        "auto",
        description="Kafka group protocol, checked at start; auto takes `consumer` (KIP-848) where takeover is quick "
        "enough, else `classic`; `share` (KIP-932) is a preview",
    )
    heartbeat: Duration = Field(
        timedelta(seconds=5), gt=timedelta(0), description="how often the lease's counter is raised"
    )
    lease: Duration = _LEASE
    sweep: Duration = _SWEEP
    drain_timeout: Duration = Field(
        timedelta(seconds=30), ge=timedelta(0), description="how long running attempts may end after SIGTERM"
    )
    max_lost: int = _MAX_LOST
    cancel_grace: Duration = Field(
        timedelta(seconds=10), ge=timedelta(0), description="between asking an attempt to stop and fencing it off"
    )
    http_allow_private: bool = Field(
        default=False, description="let HTTP targets reach loopback, private and link-local addresses"
    )
    webhook_secret: SecretStr | None = Field(
        None, description="what HTTP requests are signed with: `whsec_…`; several, for rotation, separated by blanks"
    )
    shell: bool = Field(default=False, description="run shell targets: who submits jobs then runs programs here")
    shell_allow: str | None = Field(
        None, description="programs that shell targets may name, separated by commas, as they name them; none is all"
    )
    shell_env: str = Field(
        "PATH,HOME,LANG,TZ", description="variables of the executor that shell targets get, separated by commas"
    )
    shell_job_env: str = Field(
        "",
        description="variables that a job may set where programs are restricted, separated by commas; a script's "
        "interpreter reads some as code (BASH_ENV, PYTHONPATH)",
    )
    shell_memory_bytes: int | None = Field(
        None,
        ge=1 << 20,
        description="address space of each process of a shell target; Java, Go and node reserve far more than they use",
    )
    shell_cpu_seconds: int | None = Field(None, ge=1, description="processor time of each process of a shell target")
    shell_processes: int = Field(
        4096,
        ge=1,
        description="processes and threads of the executor's user, all together, above which a shell target starts no "
        "more; does not bind root",
    )
    shell_file_bytes: int = Field(10 << 30, ge=0, description="largest file that a shell target may write: 10 GiB")

    @field_validator("lease")
    @classmethod
    def _outlasts_a_heartbeat(cls, lease: timedelta, info: ValidationInfo) -> timedelta:
        """Refuse a lease that would be over before the next heartbeat."""
        beat = info.data.get("heartbeat")
        if isinstance(beat, timedelta) and lease <= beat:
            message = f"must be longer than TIDEWHEEL_HEARTBEAT, {format_duration(beat)}; three times as long is good"
            raise ValueError(message)
        return lease

    @field_validator("webhook_secret")
    @classmethod
    def _are_secrets(cls, written: SecretStr | None) -> SecretStr | None:
        """Refuse what nobody could verify signatures with."""
        read_secrets(written.get_secret_value() if written else "")
        return written

    @field_validator("shell_env")
    @classmethod
    def _lets_no_secret_through(cls, listed: str) -> str:
        """Refuse what an executor's own passwords and keys are called."""
        for name in listed.split(","):
            if name.strip().upper().startswith(_NOT_PASSED):
                message = f"{name.strip()} is the executor's own; give jobs what they need in their env"
                raise ValueError(message)
        return listed


class ApiSettings(Connections):
    """How the HTTP door is opened."""

    api_host: str = Field("127.0.0.1", description="the address it listens on")
    api_port: int = Field(8080, ge=0, le=65535, description="its port; 0 picks a free one")
    api_token: SecretStr | None = Field(
        None,
        validate_default=True,
        description="what executors have to show; without one it listens on loopback addresses only",
    )
    api_threads: int = Field(8, ge=1, le=64, description="requests worked on at once, each with a database connection")
    api_beat: Duration = Field(
        timedelta(seconds=1),
        gt=timedelta(0),
        description="how often executors in other languages are to beat: a cancel reaches them with the answer",
    )
    sweep: Duration = _SWEEP
    lease: Duration = _LEASE
    max_lost: int = _MAX_LOST

    @field_validator("api_token")
    @classmethod
    def _guards_what_others_reach(cls, token: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        """Refuse an open door that other machines can reach: whoever registers there is given work and its payload."""
        host = str(info.data.get("api_host", ""))
        if token is None and not is_loopback(host):
            message = f"is missing while TIDEWHEEL_API_HOST is {host}: set one, or listen on 127.0.0.1"
            raise ValueError(message)
        if token is not None and not _API_TOKEN.fullmatch(token.get_secret_value()):
            message = "is no bearer token: write 16 letters and digits or more, such as `openssl rand -hex 24` makes"
            raise ValueError(message)
        return token


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def client_config(environment: Mapping[str, str]) -> dict[str, str]:
    """The Kafka client settings in an environment.

    >>> client_config({"TIDEWHEEL_KAFKA_CONFIG_SASL_USERNAME": "ann", "HOME": "/"})
    {'sasl.username': 'ann'}
    """
    return {
        name.removeprefix(_KAFKA_PREFIX).lower().replace("_", "."): value
        for name, value in environment.items()
        if name.startswith(_KAFKA_PREFIX)
    }


def _refuse_unknown(given: Mapping[str, object], path: str) -> None:
    """Refuse names that are no setting of any service: one that is misspelt would be ignored in silence."""
    models = (Connections, IntakeSettings, SchedulerSettings, RelaySettings, ExecutorSettings, ApiSettings)
    known = sorted({name for model in models for name in model.model_fields})
    problems: list[str] = []
    for name in given:
        if name in known:
            continue
        bare = name.lower().removeprefix("tidewheel_")
        near = get_close_matches(bare, known, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else "docs/settings.md names them all"
        if bare.startswith("kafka_config"):
            remedy = f"Kafka clients' settings are read from the environment: {_KAFKA_PREFIX}<KEY>"
        problems.append(f"there is no setting {name!r}; {remedy}")
    if problems:
        message = f"TIDEWHEEL_CONFIG names {path}: {'; '.join(problems)}"
        raise SettingsError(message)


def _running_stack() -> "StackInfo | None":
    """Return the running local stack. None where none runs or its packages are not installed."""
    if not is_installed():
        return None
    from tidewheel.local.stack import running_stack  # not at the top: its packages are an extra

    return running_stack()


def _start_stack() -> str:
    return "run `tidewheel up`" if is_installed() else f"run `{INSTALL}` and `tidewheel up`"


def _readable(error: ValidationError) -> str:
    lines: list[str] = []
    for detail in error.errors(include_url=False, include_context=False):
        name = "_".join(str(part) for part in detail["loc"])
        read = detail["input"]
        given = format_duration(read) if isinstance(read, timedelta) else repr(read)
        shown = "" if any(word in name for word in ("url", "password", "token", "secret")) else f" (read {given})"
        wanted = detail["msg"].removeprefix("Value error, ")
        lines.append(f"TIDEWHEEL_{name.upper()}: {wanted}{shown}")
    return "; ".join(lines)
