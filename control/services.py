"""`tidewheel service …`: wait for the dependencies, then run one service until SIGTERM.

Each function imports its own service: all of them together take 20 MB, which a process would hold for ever.

The environment (`TIDEWHEEL_…`) or the file that TIDEWHEEL_CONFIG names can set every setting. Flags exist for the
settings that differ between processes.
"""

import logging
import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Annotated, TypeVar
from uuid import UUID, uuid4

import psycopg

from tidewheel import task_token_keys
from tidewheel.control.cli.dev import Handlers, LogLevel, joined
from tidewheel.control.cli.parser import option, switch
from tidewheel.errors import SettingsError, Unavailable
from tidewheel.kafka.clients import bootstrap_check, why_kafka_is_away
from tidewheel.migrations.runner import require_current
from tidewheel.migrations.stored_schemas import lookup_in
from tidewheel.postgres.fences import epoch
from tidewheel.postgres.session import Conn, connect, connect_configured
from tidewheel.presence import Presence
from tidewheel.process import tracing
from tidewheel.process.health import health, serve_health
from tidewheel.process.logs import configure_logging
from tidewheel.process.metrics import job_labels
from tidewheel.process.service import (
    Shutdown,
    end_process_late,
    end_process_with_threads,
    keep_little_free_memory,
    tune_garbage_collector,
    wait_until_available,
)
from tidewheel.schemas.codec import install_lookup, install_registry
from tidewheel.schemas.registry import Registry, lookup_in_registry
from tidewheel.settings.connections import Connections
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.settings.services import ApiSettings, IntakeSettings, RelaySettings, SchedulerSettings
from tidewheel.settings.verification import unverified_brokers, unverified_database
from tidewheel.transitions.installation import Installation, read_installation, record_topic_prefix

R = TypeVar("R")

STOP_SECONDS = 15.0  # beside the drain; half of what Kubernetes grants by default

_WITH_TASK_TOKENS = ("intake", "executor", "api")  # each of them signs or reads task tokens
_WITHOUT_SESSIONS = "api"  # the one service without locks, settings and notifications of a session (ADR 0090)

_LOG = logging.getLogger("tidewheel.process.service")
_POOLED_SESSIONS = "the database is behind a pooler that keeps a session for each connection"
_POOLED_SETTINGS = "the database is behind a pooler: each transaction sets what it needs of a session"

MetricsPort = Annotated[
    int | None, option("PORT", "Serve /metrics, /healthz and /readyz on this port of 127.0.0.1; 0 picks a free one.")
]
FailFast = Annotated[
    bool | None,
    switch("Exit with an error if PostgreSQL or Kafka is unreachable at the start; do not wait.", "--fail-fast"),
]


def intake(log_level: LogLevel = "info", metrics_port: MetricsPort = None, fail_fast: FailFast = None) -> None:
    """Apply the requests from the requests topic."""
    from tidewheel.intake.service import Intake

    configure_logging(log_level)
    settings = IntakeSettings.load(metrics_port=metrics_port, fail_fast=fail_fast)
    start = _Start("intake", settings)
    url, installation = start.database()
    kafka = start.kafka(installation)
    start.announce()
    Intake(settings, url, kafka, installation, start.stop).run()
    start.leave()


def scheduler(log_level: LogLevel = "info", metrics_port: MetricsPort = None, fail_fast: FailFast = None) -> None:
    """Create the runs of due occurrences."""
    from tidewheel.scheduler.loop import Scheduler

    configure_logging(log_level)
    settings = SchedulerSettings.load(metrics_port=metrics_port, fail_fast=fail_fast)
    start = _Start("scheduler", settings)
    url, installation = start.database()
    start.announce()
    Scheduler(settings, url, installation, start.stop).run()
    start.leave()


def relay(log_level: LogLevel = "info", metrics_port: MetricsPort = None, fail_fast: FailFast = None) -> None:
    """Publish outbox rows to Kafka."""
    from tidewheel.relay.loop import Relay

    configure_logging(log_level)
    settings = RelaySettings.load(metrics_port=metrics_port, fail_fast=fail_fast)
    start = _Start("relay", settings)
    url, installation = start.database()
    kafka = start.kafka(installation)
    start.announce()
    named = settings.model_copy(update={"topic_prefix": installation.topics.prefix})
    Relay(named, url, kafka, start.stop).run()
    start.leave()


def executor(
    handlers: Handlers = None,
    queues: Annotated[list[str] | None, option("NAMES", "Queues to serve, separated by commas; repeatable.")] = None,
    slots: Annotated[int | None, option("N", "Maximum number of runs that this executor executes in parallel.")] = None,
    *,
    log_level: LogLevel = "info",
    metrics_port: MetricsPort = None,
    fail_fast: FailFast = None,
) -> None:
    """Claim and execute runs, and record their outcomes."""
    configure_logging(log_level)
    settings = ExecutorSettings.load(
        handlers=joined(handlers), queues=joined(queues), slots=slots, metrics_port=metrics_port, fail_fast=fail_fast
    )
    _run_executor(settings)


def api(
    host: Annotated[str | None, option("ADDRESS", "Address to listen on; 127.0.0.1 by default.")] = None,
    port: Annotated[int | None, option("PORT", "Port to listen on; 0 picks a free one.")] = None,
    log_level: LogLevel = "info",
    metrics_port: MetricsPort = None,
    fail_fast: FailFast = None,
) -> None:
    """Serve REST: jobs, runs and dead letters, executors in other languages, and task tokens."""
    from tidewheel.control.api.app import Api

    configure_logging(log_level)
    settings = ApiSettings.load(api_host=host, api_port=port, metrics_port=metrics_port, fail_fast=fail_fast)
    start = _Start("api", settings)
    if (replica := settings.read_database()) is not None:
        _warn(unverified_database(replica, "TIDEWHEEL_READ_DATABASE_URL"))
    url, installation = start.database()
    keep_little_free_memory()  # clients choose how large pages are
    service = Api(settings, url, installation, start.stop)
    start.announce()
    service.run()
    start.leave()


def _run_executor(settings: ExecutorSettings) -> None:
    """Execute runs until SIGTERM, then drain."""
    import uvloop

    from tidewheel.executor.handlers import import_handlers, registered
    from tidewheel.executor.lanes import choose_lanes
    from tidewheel.executor.loop import Executor
    from tidewheel.executor.output_capture import captured
    from tidewheel.executor.programs.process import hide_from_programs
    from tidewheel.executor.runners.runner import target_kinds
    from tidewheel.jobs.targets import TARGETS
    from tidewheel.kafka.topics import queue_names

    kinds = target_kinds(settings)  # before anything is connected to
    import_handlers(settings.handlers)
    handlers = registered()
    health.requires("executor", lambda: "has not registered yet")
    if not settings.handlers:
        _LOG.info("no handlers named (TIDEWHEEL_HANDLERS): this executor runs no Python")
    if any(TARGETS[kind].runs_programs for kind in kinds):
        hide_from_programs()
    start = _Start("executor", settings, drain=settings.drain_timeout)
    url, installation = start.database()
    if url and settings.database_password_file is None:  # of the local stack, or a flag: handlers find it as elsewhere
        os.environ.setdefault("TIDEWHEEL_DATABASE_URL", url)
    kafka = start.kafka(installation)
    queues = queue_names(settings.queues)
    lanes = start.wait(lambda: choose_lanes(settings, kafka, installation.topics, queues))
    executor = Executor(
        settings, url, kafka, installation=installation, handlers=handlers, stop=start.stop, lanes=lanes
    )
    start.announce(executor.executor_id)
    health.requires("executor", executor.why_not_ready)
    with captured():
        uvloop.run(executor.run())
    start.leave()
    tracing.stop()
    # A handler's thread that does not end must not block the exit: its attempt was released.
    logging.shutdown()
    os._exit(0)


class _Start:
    """The start of a service: signals and health, then PostgreSQL and Kafka as soon as they answer.

    What no time mends ends the process: a refused password, a database that does not exist or lacks migrations.
    """

    def __init__(self, role: str, settings: Connections, *, drain: timedelta = timedelta(0)) -> None:
        self._role, self._settings = role, settings
        self.stop = Shutdown()
        tune_garbage_collector()
        health.requires("service", lambda: "stop requested" if self.stop.requested() else self._why_waiting)
        self.stop.on_signals()
        end_process_with_threads()
        end_process_late(self.stop, STOP_SECONDS + drain.total_seconds())
        self._why_waiting: str | None = "is starting"
        self._refresh: Callable[[Conn], None] | None = None
        if settings.traces:
            tracing.start(role)
        job_labels.limit = settings.metrics_jobs
        names = [name.strip() for name in settings.metrics_hosts.split(",") if name.strip()]
        self._port = serve_health(settings.metrics_port, host=settings.metrics_host, names=names)

    def database(self) -> tuple[str, Installation]:
        """Wait until the database answers, and read the installation; if it must fail fast, do not wait."""
        self._url = url = self._settings.database()
        _warn(unverified_database(url))
        pooled = self._role == _WITHOUT_SESSIONS
        installation = self.wait(lambda: _read(url, self._settings, self.stop, pooled=pooled))
        install_lookup(lookup_in(url))
        if (registry := self._settings.schema_registry_url) is not None:
            install_registry(lookup_in_registry(Registry(registry.get_secret_value())))
        health.requires("database", lambda: _why_away(url))
        if self._role in _WITH_TASK_TOKENS:
            self._refresh = partial(task_token_keys.refresh, installation.task_tokens)
            with connect_configured(url, "tidewheel-start", pooled=pooled) as connection:
                self._refresh(connection)
        return url, installation

    def kafka(self, installation: Installation) -> dict[str, str]:
        """Wait until a broker answers; return the configuration of clients."""
        config = self._settings.kafka_config()
        _warn(unverified_brokers(config))
        self.wait(bootstrap_check(config))
        health.requires("kafka", why_kafka_is_away(config, installation.topics.completions))
        return config

    def announce(self, process_id: UUID | None = None) -> None:
        """Log that the service has started, and keep its row in `processes` from now on."""
        self._why_waiting = None
        self._presence = Presence(
            self._url, self._settings, role=self._role, process_id=process_id or uuid4(), refresh=self._refresh
        )
        self._presence.start()
        _LOG.info("%s started%s", self._role, f", {self._metrics}" if self._port else "")

    def leave(self) -> None:
        """Delete the row of this process; never raises."""
        self._presence.leave()

    def wait(self, ask: Callable[[], R]) -> R:
        """Return what `ask` returns, as soon as PostgreSQL and Kafka answer it; a refusal is a SettingsError."""

        def ask_once() -> R:
            try:
                return ask()
            except Unavailable as error:
                self._why_waiting = f"waiting to start: {error}"
                if self._settings.fail_fast:
                    raise SettingsError(str(error)) from error
                raise

        what = f"{self._role} ({self._metrics})" if self._port else self._role
        return wait_until_available(self.stop, what, ask_once)

    @property
    def _metrics(self) -> str:
        return f"metrics on port {self._port}"


def _read(url: str, settings: Connections, stop: Shutdown, *, pooled: bool) -> Installation:
    """Check that the database answers and is migrated, and read the installation."""
    with connect_configured(url, "tidewheel-start", pooled=pooled) as connection:
        if connection.settings is not None:
            _LOG.info(_POOLED_SETTINGS if pooled else _POOLED_SESSIONS)
        try:
            require_current(connection)
            connection.begin()  # it has ended the transaction, and with that the settings behind a pooler
            epoch.note(connection, stop.request)
            record_topic_prefix(connection, settings)
            return read_installation(connection, settings)
        except psycopg.OperationalError as error:
            raise Unavailable(f"the database does not answer: {error}") from error


def _warn(problem: str | None) -> None:
    if problem is not None:
        _LOG.warning("%s; TIDEWHEEL_VERIFY_SERVERS=true refuses such servers", problem)


def _why_away(url: str) -> str | None:
    try:
        connect(url, "tidewheel-ready", pooled=True).close()
    except Unavailable as error:
        return f"does not answer: {error}"
    return None
