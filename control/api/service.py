"""The API process: its socket, the server's thread, the workers, and a reaper.

The reaper ends the leases of executors where no Python executor runs.
"""

import logging
import socket
import threading

import uvicorn

from tidewheel.control.api.app import make_app
from tidewheel.control.api.connections import connection_type
from tidewheel.control.api.workers import Pools
from tidewheel.errors import SettingsError
from tidewheel.executor.reaper import Reaper
from tidewheel.postgres.session import Session
from tidewheel.process.service import Shutdown
from tidewheel.settings.api import ApiSettings
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.api")

_ONE_FOR_ALL = (
    "TIDEWHEEL_API_TOKEN opens the calls of executors for all tenants and queues until release 0.3: give each executor"
    " a key of `tidewheel admin api-key create NAME --scope execute` in its place"
)
_CONNECTIONS = 1000  # open at once; with so many requests in progress, the server answers others with 503
_IDLE_SECONDS = 75  # from the opening or the last response to a complete head: longer than any heartbeat interval
_GRACE_SECONDS = 5  # for requests in progress at a stop
_HEAD_BYTES = 16 * 1024  # limit of a request's line and headers


class Api:
    """The HTTP API as a service."""

    def __init__(self, settings: ApiSettings, url: str, installation: Installation, stop: Shutdown) -> None:
        self._settings, self._stop, self._rates = settings, stop, installation.rates
        self._socket = _listen(settings)
        self._pools = Pools(url, installation, threads=settings.api_threads, stop=stop)
        self._reaper = Reaper(
            Session(url, "tidewheel-api-reap"),
            installation,
            lease=settings.lease,
            max_lost=settings.max_lost,
            stop=stop,
        )
        config = uvicorn.Config(
            make_app(settings, installation, self._pools, stop=stop),
            http=connection_type(settings.api_connections_per_address, settings.api_trusted_proxies),
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=settings.api_trusted_proxies is not None,
            forwarded_allow_ips=settings.api_trusted_proxies,
            ws="none",
            lifespan="off",
            limit_concurrency=_CONNECTIONS,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            h11_max_incomplete_event_size=_HEAD_BYTES,
        )
        self._server = uvicorn.Server(config)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._socket.getsockname()[1])

    def run(self) -> None:
        """Serve until a stop is requested."""
        # Not on the main thread: uvicorn would replace the signal handlers of `stop` there.
        serving = threading.Thread(target=self._server.run, args=([self._socket],), name="http", daemon=True)
        serving.start()
        self._reaper.start()
        _LOG.info("listening on %s port %d", self._settings.api_host, self.port)
        if self._settings.api_token is not None:
            _LOG.warning(_ONE_FOR_ALL)
        while not self._stop.wait(1.0) and serving.is_alive():
            pass
        self._server.should_exit = True
        serving.join(timeout=_GRACE_SECONDS * 2)
        self._stop.request()
        self._reaper.join()
        self._pools.close()
        self._rates.close()


def _listen(settings: ApiSettings) -> socket.socket:
    """Return the listening socket."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            settings.api_host, settings.api_port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address, family=family)
    except OSError as error:
        where = f"{settings.api_host} port {settings.api_port}"
        message = f"TIDEWHEEL_API_HOST, TIDEWHEEL_API_PORT: cannot listen on {where}: {error}"
        raise SettingsError(message) from error
