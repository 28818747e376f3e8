"""Start each service: check its dependencies, then run its loop until SIGTERM.

Each function imports its own service: all of them together take 20 MB, which a process would hold for ever.
"""

import logging
import os

from tidewheel.errors import Unavailable
from tidewheel.kafka.clients import check_bootstrap, why_kafka_is_away
from tidewheel.migrations.runner import require_current
from tidewheel.migrations.stored_schemas import lookup_in
from tidewheel.postgres.session import Conn, connect
from tidewheel.process.health import health, serve_health
from tidewheel.process.service import Shutdown, end_process_with_threads, tune_garbage_collector
from tidewheel.schemas.codec import install_lookup
from tidewheel.settings import (
    ApiSettings,
    Connections,
    ExecutorSettings,
    IntakeSettings,
    RelaySettings,
    SchedulerSettings,
)
from tidewheel.transitions.installation import Installation, read_installation, record_topic_prefix

_LOG = logging.getLogger("tidewheel.process.service")


def run_intake(settings: IntakeSettings) -> None:
    """Apply requests until SIGTERM."""
    from tidewheel.intake.service import Intake

    url, kafka, installation, stop = _prepare("intake", settings)
    Intake(settings, url, kafka, installation, stop).run()


def run_scheduler(settings: SchedulerSettings) -> None:
    """Create the runs of due occurrences until SIGTERM; needs no Kafka."""
    from tidewheel.scheduler.loop import Scheduler

    stop = _prepare_process()
    url, installation = _prepare_database(settings)
    _announce("scheduler", settings)
    Scheduler(settings, url, installation, stop).run()


def run_relay(settings: RelaySettings) -> None:
    """Publish outbox rows until SIGTERM."""
    from tidewheel.relay.loop import Relay

    url, kafka, installation, stop = _prepare("relay", settings)
    named = settings.model_copy(update={"topic_prefix": installation.topics.prefix})
    Relay(named, url, kafka, stop).run()


def run_executor(settings: ExecutorSettings) -> None:
    """Execute runs until SIGTERM, then drain."""
    import uvloop

    from tidewheel.executor.handlers import import_handlers, registered
    from tidewheel.executor.loop import Executor
    from tidewheel.executor.output_capture import captured
    from tidewheel.executor.programs.process import hide_from_programs

    import_handlers(settings.handlers)
    handlers = registered()
    health.requires("executor", lambda: "has not entered yet")
    if not settings.handlers:
        _LOG.info("no handlers named (TIDEWHEEL_HANDLERS): this executor runs no Python")
    if settings.shell:
        hide_from_programs()
    url, kafka, installation, stop = _prepare("executor", settings)
    executor = Executor(settings, url, kafka, installation=installation, handlers=handlers, stop=stop)
    health.requires("executor", executor.why_not_ready)
    with captured():
        uvloop.run(executor.run())
    # A handler's thread that does not end must not block the exit: its attempt was released.
    logging.shutdown()
    os._exit(0)


def run_api(settings: ApiSettings) -> None:
    """Serve HTTP until SIGTERM; needs no Kafka."""
    from tidewheel.control.api.service import Api

    stop = _prepare_process()
    url, installation = _prepare_database(settings)
    api = Api(settings, url, installation, stop)
    _announce("api", settings)
    api.run()


def _prepare(role: str, settings: Connections) -> tuple[str, dict[str, str], Installation, Shutdown]:
    stop = _prepare_process()
    kafka = settings.kafka_config()
    url, installation = _prepare_database(settings)
    check_bootstrap(kafka)
    health.requires("kafka", why_kafka_is_away(kafka, installation.topics.completions))
    _announce(role, settings)
    return url, kafka, installation, stop


def _named(url: str) -> Conn:
    """Connect to the configured database; the error names the setting of its address."""
    try:
        return connect(url, "tidewheel-start")
    except Unavailable as error:
        message = (
            f"the database does not answer: {error}; TIDEWHEEL_DATABASE_URL names it, else `tidewheel up` makes one"
        )
        raise Unavailable(message) from error


def _why_away(url: str) -> str | None:
    try:
        connect(url, "tidewheel-ready").close()
    except Unavailable as error:
        return f"does not answer: {error}"
    return None


def _prepare_process() -> Shutdown:
    tune_garbage_collector()
    stop = Shutdown()
    health.requires("service", lambda: "stop requested" if stop.requested() else None)
    stop.on_signals()
    end_process_with_threads()
    return stop


def _prepare_database(settings: Connections) -> tuple[str, Installation]:
    """Check that the database answers and is migrated.

    Raises:
        Unavailable: It does not answer.
        MigrationError: It lacks migrations.
    """
    url = settings.database()
    with _named(url) as connection:
        require_current(connection)
        record_topic_prefix(connection, settings)
        installation = read_installation(connection, settings)
    install_lookup(lookup_in(url))
    health.requires("database", lambda: _why_away(url))
    return url, installation


def _announce(role: str, settings: Connections) -> None:
    port = serve_health(settings.metrics_port)
    _LOG.info("%s started%s", role, f", metrics on port {port}" if port else "")
