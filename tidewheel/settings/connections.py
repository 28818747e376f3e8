"""Settings of every service: PostgreSQL, Kafka, allow-lists of targets, metrics."""

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import Field, SecretStr, ValidationInfo, field_validator

from tidewheel.distribution import install_command, is_installed
from tidewheel.errors import NotRunning, SettingsError, Unavailable
from tidewheel.jobs.allow_lists import AllowLists, ProgramPattern, read_folder, read_host_pattern, read_port
from tidewheel.redaction import is_secret, protect
from tidewheel.settings.sources import Duration, Entries, Settings, client_config, read_properties
from tidewheel.settings.verification import unverified_brokers, unverified_database

if TYPE_CHECKING:
    from tidewheel.local.stack import StackInfo

MOST_COPIES: Final = 7
"""The most copies of a partition that Tidewheel creates."""

ALLOW_LIST_VARIABLES: Final = tuple(
    f"TIDEWHEEL_{name}"
    for name in (
        "HTTP_ALLOW_PRIVATE", "HTTP_HOSTS", "HTTP_PORTS", "KAFKA_TOPICS", "LAMBDA_FUNCTIONS", "SHELL_ALLOW",
        "SHELL_CWD", "SHELL_JOB_ENV",
    )
)  # fmt: skip
"""The variables by which clients and services refuse a job's target, and which must be equal for all of them."""

_LIBPQ: Final = ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE")

_READERS: Final[Mapping[str, Callable[[str], object]]] = {
    "http_hosts": read_host_pattern,
    "http_ports": read_port,
    "shell_allow": ProgramPattern.read,
    "shell_cwd": read_folder,
}


class Connections(Settings):
    """Connections to PostgreSQL and Kafka, and settings that all services share."""

    database_url: SecretStr | None = Field(
        None, description="libpq URL of the database; default: `PG*` variables, else the running local stack"
    )
    database_password_file: Path | None = Field(
        None, description="file with the password, for a URL without one or `PG*` variables: a secret of a container"
    )
    read_database_url: SecretStr | None = Field(
        None,
        description="libpq URL of a standby of the database: the API reads lists, explanations and pages there, if it "
        "has all that the primary has committed",
    )
    database_schema: str | None = Field(
        None,
        pattern=r"^[a-z_][a-z0-9_]{0,39}$",  # channels and a schema of restored days add to it
        description="schema of Tidewheel's tables, which `tidewheel migrate` creates: one for each installation in one "
        "database; the same in all processes; default: the first of the role's search path, `public`",
    )
    verify_servers: bool = Field(
        default=False,
        description="refuse a database, a broker or a token endpoint on another machine unless TLS verifies its "
        "certificate; "
        "otherwise services warn of it when they start",
    )
    role_prefix: str = Field(
        "tidewheel",
        pattern=r"^[a-z_][a-z0-9_]{0,50}$",
        description="first part of the names of the roles that `tidewheel migrate --roles` creates: "
        "another one for each installation on one server",
    )
    tenant_role: str | None = Field(
        None,
        max_length=63,
        description="role as which the API and `Client` act for a tenant; `tidewheel migrate` creates and records it; "
        "default: `<role_prefix>_tenant`; empty: they act as the owner of the tables, without row-level security",
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
    replication: int = Field(1, ge=1, le=MOST_COPIES, description="copies of each partition; 3 in production")
    runs_partitions: int = Field(
        6,
        ge=1,
        le=10_000,
        description="partitions of each runs topic; at least the executors of a queue",
    )
    events_partitions: int = Field(
        12, ge=1, le=10_000, description="partitions of `completions` and `events`; fixed early, for they have an order"
    )
    tenant_partitions: int = Field(
        1, ge=1, le=24, description="partitions of each topic of a tenant's own; each tenant has two such topics"
    )
    events_encoding: Literal["avro", "json", "registry"] = Field(
        "avro",
        description="encoding of completions, events and dead letters; `registry` is the wire format of a Confluent "
        "schema registry, after `tidewheel admin schemas register`",
    )
    schema_registry_url: SecretStr | None = Field(
        None, description="address of a Confluent schema registry, with user and password if it needs them"
    )
    events_runs: Literal["ends", "all"] = Field(
        "ends",
        description="events of runs: their ends alone, or `run.started` and `run.retrying` on `events` too; "
        "the same in all processes",
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
    archive: str | None = Field(
        None,
        description="folder or `s3://bucket/prefix` of the archive, for `tidewheel admin archive`, and for `run "
        "show` and "
        "the API to find archived runs",
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
    metrics_jobs: int = Field(
        0,
        ge=0,
        le=10_000,
        description="jobs whose ended runs have series of their own, the first ones that a run of this process ends; "
        "the others share a series; 0: none",
    )

    traces: bool = Field(
        default=False,
        description="export traces by OTLP over HTTP where `OTEL_EXPORTER_OTLP_ENDPOINT` says; needs the extra"
        " `telemetry`",
    )

    @field_validator("database_url", "read_database_url")
    @classmethod
    def _is_a_connection_string(cls, url: SecretStr | None) -> SecretStr | None:
        """Refuse a URL that libpq cannot read: libpq's own error would show the password."""
        try:
            parts = conninfo_to_dict(url.get_secret_value() if url else "")
        except psycopg.ProgrammingError:
            message = "is not a libpq connection string; write postgresql://user:password@host:5432/name"
            raise ValueError(message) from None
        hosts = len(str(parts.get("host") or parts.get("hostaddr") or "").split(","))
        ports = len(str(parts.get("port") or "").split(","))
        if ports not in (1, hosts):
            message = f"names {hosts} hosts but {ports} ports; write one port, or one per host: host1:5432,host2:5432"
            raise ValueError(message)
        return url

    @field_validator("database_schema")
    @classmethod
    def _is_free(cls, schema: str | None) -> str | None:
        """Refuse schemas of PostgreSQL, `public`, which needs no setting, and those of restored days."""
        if schema and (schema in {"public", "information_schema"} or schema.startswith(("pg_", "tidewheel_archive"))):
            message = f"{schema} has another use; write another name, or none for the tables in public"
            raise ValueError(message)
        return schema

    @property
    def role_of_tenants(self) -> str | None:
        """The role as which sessions act for a tenant; None if they act as the owner of the tables."""
        return (f"{self.role_prefix}_tenant" if self.tenant_role is None else self.tenant_role) or None

    @field_validator("http_hosts", "http_ports", "shell_allow", "shell_cwd")
    @classmethod
    def _can_be_read(cls, entries: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        """Refuse an entry that would never match, or not as it is meant."""
        for entry in entries:
            _READERS[info.field_name or ""](entry)
        return entries

    def allow_lists(self, topic_prefix: str | None = None, *, enforces: bool = False) -> AllowLists:
        """Return the allow-lists of targets; `topic_prefix` is the installation's, if it differs."""
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

    def database(self) -> str:
        """Return the libpq connection string; raise Unavailable while `tidewheel dev` starts the stack."""
        return self._checked(self._database(), "TIDEWHEEL_DATABASE_URL")

    def read_database(self) -> str | None:
        """Return the libpq connection string of the read replica; None without one."""
        if not self.read_database_url:
            return None
        return self._checked(
            self._with_password(self.read_database_url.get_secret_value()), "TIDEWHEEL_READ_DATABASE_URL"
        )

    def _checked(self, named: str, variable: str) -> str:
        """Return a connection string with the schema; logs leave its secrets out."""
        url = self.in_schema(named)
        protect(*_secrets(conninfo_to_dict(url)), os.environ.get("PGPASSWORD"))
        self._refuse(unverified_database(url, variable))
        return url

    def _database(self) -> str:
        if self.database_url:
            return self._with_password(self.database_url.get_secret_value())
        if any(os.environ.get(name) for name in _LIBPQ):
            return self._with_password("")
        return _running_stack("database", "TIDEWHEEL_DATABASE_URL").database_url

    def _with_password(self, url: str) -> str:
        if self.database_password_file is None:
            return url
        try:
            password = self.database_password_file.read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"TIDEWHEEL_DATABASE_PASSWORD_FILE cannot be read: {error}; correct the path or unset the variable"
            ) from error
        return make_conninfo(url, password=password)

    def in_schema(self, url: str) -> str:
        """Return the URL whose sessions have the schema alone in their search path."""
        if self.database_schema is None:
            return url
        given = str(conninfo_to_dict(url).get("options") or os.environ.get("PGOPTIONS", ""))
        # As `postgres.own_schema.schema_options`, which settings do not import.
        own = f"-c search_path={self.database_schema} -c tidewheel.own_schema=on"
        if own in given:  # of `tidewheel env`
            return url
        return make_conninfo(url, options=f"{given} {own}".strip())

    def _refuse(self, unverified: str | None) -> None:
        if self.verify_servers and unverified is not None:
            raise SettingsError(f"{unverified}; TIDEWHEEL_VERIFY_SERVERS refuses such servers")

    def bootstrap(self) -> str:
        """Return the brokers, `host:port` separated by commas."""
        return self.kafka_config()["bootstrap.servers"]

    def kafka_config(self) -> dict[str, str]:
        """Return the configuration of every Kafka client, `bootstrap.servers` and passwords included."""
        config = self._kafka_config()
        protect(*_secrets(config))
        self._refuse(unverified_brokers(config))
        return config

    def _kafka_config(self) -> dict[str, str]:
        given = self.kafka_client()
        if brokers := self.named_brokers():
            return given | {"bootstrap.servers": brokers}
        return given | dict(_running_stack("Kafka broker", "TIDEWHEEL_KAFKA_BOOTSTRAP").kafka)

    def named_brokers(self) -> str | None:
        """Return the brokers that the settings name; None where the local stack's apply."""
        return self.kafka_bootstrap or self.kafka_client().get("bootstrap.servers")

    def kafka_client(self) -> dict[str, str]:
        """Return the Kafka client settings of the file and of the environment."""
        return (read_properties(self.kafka_properties) if self.kafka_properties else {}) | client_config(os.environ)


def _secrets(given: Mapping[str, object]) -> list[str]:
    return [str(value) for name, value in given.items() if is_secret(name)]


def _running_stack(part: str, variable: str) -> "StackInfo":
    """Return the running local stack."""
    start = "`tidewheel dev` or `tidewheel up`"
    if not is_installed("local"):
        start = f"`{install_command('local')}`, then {start}"
    else:
        from tidewheel.local.stack import running_stack  # not at the top: its packages are an extra
        from tidewheel.local.state import default_home, living_dev

        if (found := running_stack()) is not None:
            return found
        if living_dev(default_home()) is not None:
            message = f"the {part} is starting: `tidewheel dev` starts the local stack; try again in a few seconds"
            raise Unavailable(message)
    raise NotRunning(f"no {part}: run {start}, or set {variable}")
