"""Create the ASGI application: routes, authorization, and errors as problem documents."""

from starlette.applications import Starlette
from starlette.middleware import Middleware

from tidewheel.control.api.bearer import Guard
from tidewheel.control.api.executors import ExecutorsApi
from tidewheel.control.api.health import HealthApi
from tidewheel.control.api.problems import HANDLERS
from tidewheel.control.api.runs import RunsApi
from tidewheel.control.api.schemas import SchemasApi
from tidewheel.control.api.workers import Pools
from tidewheel.executor.message_check import MessageCheck
from tidewheel.message_signatures import MessageKeys
from tidewheel.process.service import Shutdown
from tidewheel.settings.api import ApiSettings
from tidewheel.transitions.installation import Installation


def make_app(settings: ApiSettings, installation: Installation, pools: Pools, *, stop: Shutdown) -> Starlette:
    """Return the HTTP API on these workers."""
    keys = MessageKeys()
    check = MessageCheck(keys, settings.message_signatures)
    apis = (
        ExecutorsApi(pools.executors, installation, settings, keys, check),
        RunsApi(pools.reports, installation),
        SchemasApi(pools.strangers),
        HealthApi(pools.probes, stop),
    )
    app = Starlette(
        routes=[route for api in apis for route in api.routes()],
        middleware=[Middleware(Guard, settings=settings, task_token_key=installation.task_token_key)],
        exception_handlers=HANDLERS,
    )
    app.router.redirect_slashes = False  # a redirect would go to the host that the caller names
    return app
