"""The connections to PostgreSQL that each process opens, for dimensioning an installation.

`tests/system/test_pgbouncer.py` counts those of each role on the server, and compares.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Connections:
    """The connections of one process.

    Args:
        usual: Under load, as `tidewheel bench capacity` counts them; of the API at rest.
        most: All that it may open at once.
        per_queue: How many an executor adds for each queue beyond the first one.
    """

    usual: int
    most: int
    per_queue: int = 0

    def bound(self, queues: int = 1) -> int:
        """Return the most that a process with so many queues opens at once.

        >>> CONNECTIONS["executor"].bound(queues=2) - CONNECTIONS["executor"].bound()
        3
        """
        return self.most + self.per_queue * (queues - 1)


# Four of the most of intake, scheduler and API reserve places of tenants with rates (transitions/tenant_rates.py). A
# thread of the API may have two: of calls by executors, by default 8, and of seventeen other ones. Eight notify.
CONNECTIONS: Mapping[str, Connections] = MappingProxyType(
    {
        "intake": Connections(usual=6, most=12),
        "scheduler": Connections(usual=10, most=17),
        "relay": Connections(usual=7, most=8),
        "executor": Connections(usual=19, most=21, per_queue=3),
        "api": Connections(usual=2, most=64),
    }
)
