"""Starting each service: checks first, with a clear message, then its loop until SIGTERM."""

import logging
import os

import uvloop

from tidewheel.db import Conn, connect
from tidewheel.errors import Unavailable
from tidewheel.executor.handlers import import_handlers, registered
from tidewheel.executor.loop import Executor
from tidewheel.intake.consume import Intake
from tidewheel.kafka import check_bootstrap
from tidewheel.metrics import serve_metrics
from tidewheel.migrations.runner import require_current
from tidewheel.migrations.stored_schemas import lookup_in
from tidewheel.relay.loop import Relay
from tidewheel.scheduler.loop import Scheduler
from tidewheel.schemas.codec import install_lookup
from tidewheel.service import Stop, end_process_with_threads
from tidewheel.settings import (
    Connections,
    ExecutorSettings,
    IntakeSettings,
    RelaySettings,
    SchedulerSettings,
)
from tidewheel.transitions.installation import Installation, read_installation

_LOG = logging.getLogger("tidewheel.service")


def run_intake(settings: IntakeSettings) -> None:
    """Take in requests until asked to stop."""
    url, kafka, installation, stop = _prepare("intake", settings)
    Intake(settings, url, kafka, installation, stop).run()


def run_scheduler(settings: SchedulerSettings) -> None:
    """Fire what is due until asked to stop; needs no Kafka."""
    stop = _stop()
    url, installation = _prepare_database(settings)
    _announce("scheduler", settings)
    Scheduler(settings, url, installation, stop).run()


def run_relay(settings: RelaySettings) -> None:
    """Publish outbox rows until asked to stop."""
    url, kafka, _, stop = _prepare("relay", settings)
    Relay(settings, url, kafka, stop).run()


def run_executor(settings: ExecutorSettings) -> None:
    """Execute runs until asked to stop, then drain."""
    import_handlers(settings.handlers)
    handlers = registered()
    if not settings.handlers:
        _LOG.info("no handlers named (TIDEWHEEL_HANDLERS): this executor runs HTTP targets only")
    url, kafka, installation, stop = _prepare("executor", settings)
    executor = Executor(settings, url, kafka, installation=installation, handlers=handlers, stop=stop)
    uvloop.run(executor.run())
    # A handler's thread that does not end must not keep the process: its attempt was handed back.
    logging.shutdown()
    os._exit(0)


def _prepare(role: str, settings: Connections) -> tuple[str, dict[str, str], Installation, Stop]:
    stop = _stop()
    kafka = settings.kafka_config()
    url, installation = _prepare_database(settings)
    check_bootstrap(kafka)
    _announce(role, settings)
    return url, kafka, installation, stop


def _named(url: str) -> Conn:
    """A connection to the configured database; when there is none, the message says which setting it goes by."""
    try:
        return connect(url, "tidewheel-start")
    except Unavailable as error:
        message = (
            f"the database does not answer: {error}; TIDEWHEEL_DATABASE_URL names it, else `tidewheel up` makes one"
        )
        raise Unavailable(message) from error


def _stop() -> Stop:
    stop = Stop()
    stop.on_signals()
    end_process_with_threads()
    return stop


def _prepare_database(settings: Connections) -> tuple[str, Installation]:
    """See that the database answers and is migrated.

    Raises:
        Unavailable: It does not answer.
        MigrationError: It lacks migrations.
    """
    url = settings.database()
    with _named(url) as connection:
        require_current(connection)
        installation = read_installation(connection, settings)
    install_lookup(lookup_in(url))
    return url, installation


def _announce(role: str, settings: Connections) -> None:
    port = serve_metrics(settings.metrics_port)
    _LOG.info("%s started%s", role, f", metrics on port {port}" if port else "")
