"""The API's port of `tidewheel dev`, free before anything starts."""

import psutil

from tidewheel.control.supervise.log import Log
from tidewheel.errors import refuse
from tidewheel.local.ports import free_port, is_free
from tidewheel.settings.api import ApiSettings


def choose_api_port(given: int | None, log: Log) -> tuple[str, int]:
    """Return the API's address and port: the one given or set, else the default, else a free one.

    Raises:
        InvalidInput: The port that was given or set is in use.
    """
    settings = ApiSettings.load(api_port=given)
    port = settings.api_port
    if port == 0:
        return settings.api_host, free_port()
    if is_free(port):
        return settings.api_host, port
    problem = f"port {port} is in use by {_owner(port)}"
    if "api_port" in settings.model_fields_set:
        name = "--api-port" if given is not None else "TIDEWHEEL_API_PORT"
        refuse(name, problem, "end that process, or choose another port; 0 is a free one")
    chosen = free_port()
    log.report(f"{problem}: the API listens on {chosen}", level="warning")
    return settings.api_host, chosen


def _owner(port: int) -> str:
    """Return the process that listens on a port, as far as this user may see it."""
    try:
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port and each.pid:
                return f"{psutil.Process(each.pid).name()} (pid {each.pid})"
    except psutil.Error:
        pass
    return "another process"
