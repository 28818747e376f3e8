"""Every setting, one frozen model per service.

Flags win over the environment (`TIDEWHEEL_…`), which wins over the file named by `TIDEWHEEL_CONFIG` (TOML). Where no
database or broker is named, libpq's `PG*` variables and then the running local stack apply. `docs/settings.md` is
generated from here.
"""

import os
import re
import ssl
from collections.abc import Callable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import BeforeValidator, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from tidewheel.errors import SettingsError
from tidewheel.jobs.allow_lists import AllowLists, ProgramPattern, read_folder, read_host_pattern, read_port
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
    """Return a duration in any form that requests accept; a number, also as text, is seconds."""
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


def _entries(value: object) -> object:
    """Return the entries of a list: of the file, or of a variable, separated by commas or line ends."""
    parts = re.split(r"[,\n]", value) if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        message = "write entries separated by commas or line ends, or a list in the file"
        raise ValueError(message)  # noqa: TRY004 - pydantic reports a ValueError
    return tuple(entry for part in cast("list[object]", parts) if (entry := str(part).strip()))


Entries = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_entries)]


class Connections(BaseSettings):
    """Connections to PostgreSQL and Kafka, and settings that all services share."""

    model_config = SettingsConfigDict(env_prefix="TIDEWHEEL_", frozen=True, extra="ignore", defer_build=True)

    database_url: SecretStr | None = Field(
        None, description="libpq URL of the database; default: `PG*` variables, else the running local stack"
    )
    database_password_file: Path | None = Field(
        None, description="file with the password, for a URL without one or `PG*` variables: a secret of a container"
    )
    kafka_bootstrap: str | None = Field(
        None, description="brokers, `host:port` separated by commas; default: the running local stack"
    )
    kafka_properties: Path | None = Field(
        None,
        description="file of Kafka client settings, lines `sasl.password=…`; it may name the brokers; "
        "`TIDEWHEEL_KAFKA_CONFIG_…` wins over it",
    )
    topic_prefix: str = Field("tidewheel", pattern=r"^[a-zA-Z0-9._-]{1,64}$", description="first part of every topic")
    replication: int = Field(1, ge=1, le=7, description="copies of each partition; 3 in production")
    runs_partitions: int = Field(
        6,
        ge=1,
        le=10_000,
        description="partitions of each runs topic; at least the executors of a queue, unless share groups are used",
    )
    events_partitions: int = Field(
        12, ge=1, le=10_000, description="partitions of `completions` and `events`; fixed early, for they have an order"
    )
    events_encoding: Literal["avro", "json"] = Field(
        "avro", description="encoding of completions, events and dead letters"
    )
    source: str = Field("tidewheel", description="name of this installation: `ce_source` of every event")
    misfire_after: Duration = Field(
        timedelta(seconds=60),
        ge=timedelta(seconds=1),
        le=timedelta(hours=1),
        description="an unfired occurrence older than this is missed: `catch_up` applies; the same in all processes",
    )
    max_clock_skew: Duration = Field(
        timedelta(seconds=2),
        gt=timedelta(0),
        le=timedelta(hours=1),
        description="a larger clock skew against the database logs a warning and has no other effect",
    )
    catch_up_rate: float = Field(
        1000.0,
        gt=0,
        le=1_000_000,
        description="most missed occurrences that fire per second, over all schedulers; the same in all processes",
    )
    outputs_topic: bool = Field(
        default=False, description="publish the output of attempts to the topic `<prefix>.outputs`"
    )
    fail_fast: bool = Field(
        default=False,
        description="a service that starts while PostgreSQL or Kafka is away ends with an error instead of waiting",
    )
    http_allow_private: bool = Field(
        default=False, description="allow HTTP targets on loopback, private and link-local addresses"
    )
    http_hosts: Entries = Field(
        ("*",), description="hosts that HTTP targets may call: names, addresses, `*.example.org` (all below it), `*`"
    )
    http_ports: Entries = Field(
        (),
        description="ports that HTTP targets may call, or `*`; without entries 80 and 443, and any port while "
        "http_allow_private is on",
    )
    kafka_topics: Entries = Field(
        (),
        description="topics that Kafka targets may write to, such as `orders.*`; an executor of such targets needs it",
    )
    lambda_functions: Entries = Field(
        (),
        description="functions that Lambda targets may invoke, as jobs name them, such as "
        "`arn:aws:lambda:eu-west-1:123456789012:function:report-*`; an executor of such targets needs it",
    )
    shell_allow: Entries = Field(
        (),
        description="command lines that shell targets may run: an absolute path and a pattern for each argument, "
        "`...` for any further ones; an executor of such targets needs it",
    )
    shell_cwd: Entries = Field(
        (), description="folders that shell targets may name as cwd, with all below them; without entries none"
    )
    shell_job_env: Entries = Field(
        (),
        description="variables that a job may set, unless shell_allow is `*`; interpreters run some of them as code "
        "(BASH_ENV, PYTHONPATH)",
    )
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="serve /metrics, /healthz and /readyz; 0 picks a free port, no value turns them off",
    )
    metrics_host: str = Field(
        "127.0.0.1", description="address on which metrics and health are served; 0.0.0.0 for a Prometheus elsewhere"
    )
    metrics_hosts: str = Field(
        "",
        description="names under which metrics may be requested, separated by commas; addresses and `localhost` always",
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
        """Read flags, then environment, then the TOML file, and nothing else."""
        del dotenv_settings, file_secret_settings
        path = os.environ.get("TIDEWHEEL_CONFIG")
        if not path:
            return (init_settings, env_settings)
        if not Path(path).is_file():
            message = f"TIDEWHEEL_CONFIG names {path}, which is not a file; correct the path or unset the variable"
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
        """Refuse a URL that libpq cannot read: libpq's own error would show the password."""
        try:
            conninfo_to_dict(url.get_secret_value() if url else "")
        except psycopg.ProgrammingError:
            message = "is not a libpq connection string; write postgresql://user:password@host:5432/name"
            raise ValueError(message) from None
        return url

    @field_validator("http_hosts", "http_ports", "shell_allow", "shell_cwd")
    @classmethod
    def _can_be_read(cls, entries: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        """Refuse an entry that would never match, or not as it is meant."""
        for entry in entries:
            _READERS[info.field_name or ""](entry)
        return entries

    def allow_lists(self, topic_prefix: str | None = None, *, enforces: bool = False) -> AllowLists:
        """Return the allow-lists of targets.

        Args:
            topic_prefix: The installation's, if it differs from the setting.
            enforces: True for an executor.
        """
        ports = {read_port(entry) for entry in self.http_ports}
        defaults = {None} if self.http_allow_private else {80, 443}
        numbers = {port for port in ports or defaults if port is not None}
        return AllowLists(
            enforces=enforces,
            topic_prefix=topic_prefix or self.topic_prefix,
            allow_private=self.http_allow_private,
            hosts=tuple(read_host_pattern(entry) for entry in self.http_hosts),
            ports=None if None in (ports or defaults) else frozenset(numbers),
            topics=self.kafka_topics,
            functions=self.lambda_functions,
            programs=tuple(ProgramPattern.read(entry) for entry in self.shell_allow),
            folders=self.shell_cwd,
            variables=frozenset(self.shell_job_env),
        )

    @classmethod
    def load(cls, **flags: object) -> Self:
        """Read flags, environment and file.

        Raises:
            SettingsError: A value is invalid; the message names the variable and its valid values.
        """
        try:
            return cls(**{name: value for name, value in flags.items() if value is not None})  # type: ignore[arg-type]
        except ValidationError as error:
            raise SettingsError(_readable(error)) from None

    def database(self) -> str:
        """Return the libpq connection string.

        Raises:
            SettingsError: No database is named and no local stack is running, or the password's file cannot be read.
        """
        if self.database_url:
            return self._with_password(self.database_url.get_secret_value())
        if any(os.environ.get(name) for name in _LIBPQ):
            return self._with_password("")
        local = _running_stack()
        if local is None:
            message = f"no database: {_start_stack()}, or set TIDEWHEEL_DATABASE_URL"
            raise SettingsError(message)
        return local.database_url

    def _with_password(self, url: str) -> str:
        if self.database_password_file is None:
            return url
        try:
            password = self.database_password_file.read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            message = (
                f"TIDEWHEEL_DATABASE_PASSWORD_FILE cannot be read: {error}; correct the path or unset the variable"
            )
            raise SettingsError(message) from error
        return make_conninfo(url, password=password)

    def bootstrap(self) -> str:
        """Return the brokers, `host:port` separated by commas.

        Raises:
            SettingsError: No broker is named and no local stack is running.
        """
        return self.kafka_config()["bootstrap.servers"]

    def kafka_config(self) -> dict[str, str]:
        """Return the configuration of every Kafka client, `bootstrap.servers` and passwords included.

        Raises:
            SettingsError: No broker is named and no local stack is running, or the properties file cannot be read.
        """
        given = self.kafka_client()
        if brokers := self.named_brokers():
            return given | {"bootstrap.servers": brokers}
        local = _running_stack()
        if local is None:
            message = f"no Kafka broker: {_start_stack()}, or set TIDEWHEEL_KAFKA_BOOTSTRAP"
            raise SettingsError(message)
        return given | dict(local.kafka)

    def named_brokers(self) -> str | None:
        """Return the brokers that the settings name; None where the local stack's apply."""
        return self.kafka_bootstrap or self.kafka_client().get("bootstrap.servers")

    def kafka_client(self) -> dict[str, str]:
        """Return the Kafka client settings of the file and of the environment.

        Raises:
            SettingsError: The file cannot be read.
        """
        return (_read_properties(self.kafka_properties) if self.kafka_properties else {}) | client_config(os.environ)


_READERS: Final[Mapping[str, Callable[[str], object]]] = {
    "http_hosts": read_host_pattern,
    "http_ports": read_port,
    "shell_allow": ProgramPattern.read,
    "shell_cwd": read_folder,
}


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
        description="finished runs, their inputs, attempts and output are deleted by whole days after this time",
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
    member_timeout: Duration = Field(
        timedelta(seconds=10), description="a relay without a heartbeat for this long owns no slices"
    )
    delivery_timeout: Duration = Field(
        timedelta(seconds=120),
        ge=timedelta(seconds=10),
        description="time for which the producer retries a message; then the relay reads the row again",
    )


# Shared by executors and the API, which serves executors in other languages.
_LEASE: Final[timedelta] = Field(
    timedelta(seconds=15),
    gt=timedelta(0),
    description="an executor without a heartbeat for this long loses its attempts; the longer lease applies: its own "
    "or the observer's",
)
_SWEEP: Final[timedelta] = Field(
    timedelta(seconds=1),
    gt=timedelta(0),
    description="executors claim a run from the table, without its message, once it is overdue by this long",
)
_MESSAGE_SIGNATURES: Final[Literal["refuse", "warn"]] = Field(
    "refuse",
    description="what happens to a run message that no relay has signed: `refuse` leaves it to the sweep; `warn` uses "
    "it, while relays are upgraded that do not sign yet; both count it",
)
_MAX_LOST: Final[int] = Field(10, ge=1, description="a run fails after this many lost executors")


class ExecutorSettings(Connections):
    """Settings of executors."""

    queues: str = Field("default", description="the queues served, separated by commas")
    targets: Entries = Field(
        ("handler", "http"),
        description="types of targets that this executor runs: handler, http, kafka, shell, lambda; it lends jobs its "
        "rights, so name what jobs need; runs of other types wait for an executor that runs them",
    )
    handlers: str | None = Field(None, description="modules with handlers to import, separated by commas")
    slots: int | None = Field(None, ge=1, le=10000, description="most runs at once; default 100, of which 8 on threads")
    threads: int = Field(8, ge=1, le=1000, description="most synchronous handlers at once")
    worker_processes: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="worker processes for isolated handlers, 60 MB each; default: the number of CPUs, at least 2",
    )
    worker_memory_bytes: int | None = Field(
        None,
        ge=128 << 20,
        description="limit on the address space of a worker process; libraries reserve more than they use",
    )
    stall_after: Duration = Field(
        timedelta(seconds=1),
        ge=timedelta(milliseconds=100),
        description="an event loop blocked for this long is logged, and its queued runs are released",
    )
    executor_group: Literal["auto", "consumer", "classic", "share"] = Field(
        "auto",
        description="Kafka group protocol, checked at start; auto takes `consumer` (KIP-848) where takeover is quick "
        "enough, else `classic`; `share` (KIP-932) is a preview",
    )
    heartbeat: Duration = Field(
        timedelta(seconds=5), gt=timedelta(0), description="interval of the heartbeats that renew the lease"
    )
    lease: Duration = _LEASE
    sweep: Duration = _SWEEP
    message_signatures: Literal["refuse", "warn"] = _MESSAGE_SIGNATURES
    drain_timeout: Duration = Field(
        timedelta(seconds=30),
        ge=timedelta(0),
        description="time for running attempts to end after SIGTERM; then they are released",
    )
    max_lost: int = _MAX_LOST
    cancel_grace: Duration = Field(
        timedelta(seconds=10),
        ge=timedelta(0),
        description="time for an attempt to end after its cancel is requested; then it ends without its report",
    )
    http_ca_file: Path | None = Field(
        None, description="PEM file of an internal authority; HTTP targets may use its certificates besides public ones"
    )
    webhook_secrets: SecretStr | None = Field(
        None,
        description="secrets that sign HTTP requests, each for one host: `host=whsec_…`, separated by blanks; several "
        "for one host, for rotation, all sign",
    )
    shell_env: str = Field(
        "PATH,HOME,LANG,TZ",
        description="environment variables of the executor that shell targets inherit, separated by commas",
    )
    shell_memory_bytes: int | None = Field(
        None,
        ge=1 << 20,
        description="limit on the address space of each process of a shell target; Java, Go and node reserve far more "
        "than they use",
    )
    shell_cpu_seconds: int | None = Field(
        None, ge=1, description="limit on the CPU time of each process of a shell target"
    )
    shell_processes: int = Field(
        4096,
        ge=1,
        description="a shell target starts no process while the executor's user has this many processes and threads; "
        "not enforced for root",
    )
    shell_file_bytes: int = Field(10 << 30, ge=0, description="largest file that a shell target may write: 10 GiB")

    @field_validator("lease")
    @classmethod
    def _outlasts_a_heartbeat(cls, lease: timedelta, info: ValidationInfo) -> timedelta:
        """Refuse a lease that would be over before the next heartbeat."""
        heartbeat = info.data.get("heartbeat")
        if isinstance(heartbeat, timedelta) and lease <= heartbeat:
            message = (
                f"must be longer than TIDEWHEEL_HEARTBEAT, {format_duration(heartbeat)}; three times as long is good"
            )
            raise ValueError(message)
        return lease

    @field_validator("http_ca_file")
    @classmethod
    def _has_certificates(cls, file: Path | None) -> Path | None:
        """Refuse a file without a certificate: each call would fail."""
        if file is not None:
            try:
                ssl.create_default_context(cafile=file)
            except OSError as error:  # ssl.SSLError is one
                message = f"has no certificate in PEM: {error.strerror or error}; name a readable file"
                raise ValueError(message) from None
        return file

    @field_validator("webhook_secrets")
    @classmethod
    def _are_secrets(cls, written: SecretStr | None) -> SecretStr | None:
        """Refuse a secret that receivers could not verify signatures with."""
        read_secrets(written.get_secret_value() if written else "")
        return written

    @field_validator("shell_env")
    @classmethod
    def _lets_no_secret_through(cls, listed: str) -> str:
        """Refuse the names of the executor's own passwords and keys."""
        for name in listed.split(","):
            if name.strip().upper().startswith(_NOT_PASSED):
                message = f"{name.strip()} belongs to the executor; set the variables of a job in its env"
                raise ValueError(message)
        return listed


class ApiSettings(Connections):
    """Settings of the HTTP API."""

    api_host: str = Field("127.0.0.1", description="address on which the API listens")
    api_port: int = Field(8080, ge=0, le=65535, description="port of the API; 0 picks a free one")
    api_token: SecretStr | None = Field(
        None,
        validate_default=True,
        description="bearer token that executors send; without one the API listens on loopback addresses only",
    )
    api_threads: int = Field(
        8, ge=1, le=64, description="most calls of executors served at once, each with a database connection"
    )
    api_connections_per_address: int = Field(
        64,
        ge=1,
        le=500,
        description="open connections of one address that have not shown the token; raise it behind a proxy",
    )
    api_heartbeat: Duration = Field(
        timedelta(seconds=1),
        gt=timedelta(0),
        description="heartbeat interval of executors in other languages; a cancel reaches them with the response",
    )
    sweep: Duration = _SWEEP
    message_signatures: Literal["refuse", "warn"] = _MESSAGE_SIGNATURES
    lease: Duration = _LEASE
    max_lost: int = _MAX_LOST

    @field_validator("api_token")
    @classmethod
    def _guards_what_others_reach(cls, token: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        """Refuse an API that other machines reach without a token: any client could read payloads."""
        host = str(info.data.get("api_host", ""))
        if token is None and not is_loopback(host):
            message = f"is missing while TIDEWHEEL_API_HOST is {host}: set one, or listen on 127.0.0.1"
            raise ValueError(message)
        if token is not None and not _API_TOKEN.fullmatch(token.get_secret_value()):
            message = (
                "is not a bearer token: write at least 16 letters and digits, such as `openssl rand -hex 24` prints"
            )
            raise ValueError(message)
        return token


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches an address.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def client_config(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the Kafka client settings in an environment.

    >>> client_config({"TIDEWHEEL_KAFKA_CONFIG_SASL_USERNAME": "ann", "HOME": "/"})
    {'sasl.username': 'ann'}
    """
    return {
        name.removeprefix(_KAFKA_PREFIX).lower().replace("_", ".").replace("log.level", "log_level"): value
        for name, value in environment.items()
        if name.startswith(_KAFKA_PREFIX)
    }


def client_variables(config: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that has these Kafka client settings.

    >>> client_variables({"sasl.username": "ann"})
    {'TIDEWHEEL_KAFKA_CONFIG_SASL_USERNAME': 'ann'}
    """
    return {f"{_KAFKA_PREFIX}{name.upper().replace('.', '_')}": value for name, value in config.items()}


def _read_properties(path: Path) -> dict[str, str]:
    """Read a file of lines `name=value`; blank lines and those that begin with # are ignored."""
    at = f"TIDEWHEEL_KAFKA_PROPERTIES names {path}"
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        message = f"{at}, which cannot be read: {error}; correct it or unset the variable"
        raise SettingsError(message) from error
    read: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, separator, value = (part.strip() for part in line.partition("="))
        if not separator:
            message = f"{at}, whose line {number} is not `name=value`; correct it"  # not shown: it may be a password
            raise SettingsError(message)
        read[name] = value
    return read


def _refuse_unknown(given: Mapping[str, object], path: str) -> None:
    """Refuse names that are not a setting: a misspelt one would be ignored silently."""
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
        expected = detail["msg"].removeprefix("Value error, ")
        lines.append(f"TIDEWHEEL_{name.upper()}: {expected}{shown}")
    return "; ".join(lines)
