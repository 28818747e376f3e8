"""For users' tests: handlers without services, schedules without a clock, the stack as a fixture.

The documented names are resolved at their first use. A handler's test needs no database, and pytest loads the plugin in
every run, also where no test uses it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidewheel.executor.context_parts import Parent
    from tidewheel.testing.handlers import HandlerResult, run_chunk, run_chunk_async, run_handler, run_handler_async
    from tidewheel.testing.simulation import Simulated, simulate
    from tidewheel.testing.stack import Stack, Tidewheel

__all__ = [
    "HandlerResult",
    "Parent",
    "Simulated",
    "Stack",
    "Tidewheel",
    "run_chunk",
    "run_chunk_async",
    "run_handler",
    "run_handler_async",
    "simulate",
]

_WHERE = {
    "Parent": "tidewheel.executor.context_parts",
    "HandlerResult": "tidewheel.testing.handlers",
    "run_chunk": "tidewheel.testing.handlers",
    "run_chunk_async": "tidewheel.testing.handlers",
    "run_handler": "tidewheel.testing.handlers",
    "run_handler_async": "tidewheel.testing.handlers",
    "Simulated": "tidewheel.testing.simulation",
    "simulate": "tidewheel.testing.simulation",
    "Stack": "tidewheel.testing.stack",
    "Tidewheel": "tidewheel.testing.stack",
}


def __getattr__(name: str) -> object:
    """Import a documented name from where it is defined."""
    if name not in _WHERE:
        raise AttributeError(f"module 'tidewheel.testing' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
