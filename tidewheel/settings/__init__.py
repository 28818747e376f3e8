"""Every setting, one frozen model per service.

Flags win over the environment (`TIDEWHEEL_…`), which wins over the file named by `TIDEWHEEL_CONFIG` (TOML). Where no
database or broker is named, libpq's `PG*` variables and then the running local stack apply. `docs/settings.md` is
generated from here.
"""

from tidewheel.settings.connections import Connections

__all__ = ["Connections"]
