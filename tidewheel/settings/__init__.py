"""Every setting, one frozen model per service.

Flags win over the environment (`TIDEWHEEL_…`), which wins over the file named by `TIDEWHEEL_CONFIG` (TOML). Where no
database or broker is named, libpq's `PG*` variables and then the running local stack apply. `docs/settings.md` is
generated from here.
"""

from tidewheel.settings.connections import Connections
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.settings.services import ApiSettings, IntakeSettings, RelaySettings, SchedulerSettings
from tidewheel.settings.sources import client_config, client_variables

__all__ = [
    "ApiSettings",
    "Connections",
    "ExecutorSettings",
    "IntakeSettings",
    "RelaySettings",
    "SchedulerSettings",
    "client_config",
    "client_variables",
]
