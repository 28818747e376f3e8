"""The most connections to PostgreSQL that each process opens: the only declaration of them.

`tidewheel capacity` computes with them, and tests compare the table of docs/operations.md and the measured costs.
`tests/system/test_pgbouncer.py` counts those of each role on the server.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Connections:
    """The connections of one process.

    Args:
        most: All that it may open at once.
        per_queue: How many an executor adds for each queue beyond the first one.
    """

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
        "intake": Connections(most=12),
        "scheduler": Connections(most=18),
        "relay": Connections(most=8),
        "executor": Connections(most=21, per_queue=3),
        "api": Connections(most=64),
    }
)
