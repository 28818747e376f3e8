"""Create the ASGI application: routes, authorization, and errors as problem documents."""

from starlette.applications import Starlette
from starlette.middleware import Middleware

from tidewheel.control.api.bearer import Guard
from tidewheel.control.api.executors import ExecutorsApi
from tidewheel.control.api.health import HealthApi
from tidewheel.control.api.problems import HANDLERS
from tidewheel.control.api.runs import RunsApi
from tidewheel.control.api.schemas import SchemasApi
from tidewheel.control.api.workers import Workers
from tidewheel.executor.message_check import MessageCheck
from tidewheel.message_signatures import MessageKeys
from tidewheel.process.service import Shutdown
from tidewheel.settings import ApiSettings
from tidewheel.transitions.installation import Installation


def make_app(settings: ApiSettings, installation: Installation, workers: Workers, *, stop: Shutdown) -> Starlette:
    """Return the HTTP API on these workers."""
    keys = MessageKeys()
    check = MessageCheck(keys, settings.message_signatures)
    apis = (
        ExecutorsApi(workers, installation, settings, keys, check),
        RunsApi(workers, installation),
        SchemasApi(workers),
        HealthApi(workers, stop),
    )
    return Starlette(
        routes=[route for api in apis for route in api.routes()],
        middleware=[Middleware(Guard, settings=settings)],
        exception_handlers=HANDLERS,
    )
