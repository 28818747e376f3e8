"""Read the jobs of a tenant whose timers come due, by bins of time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import cast

from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_COUNT_UPCOMING = Statements("tidewheel.control")["count_upcoming"]

COUNTED = 10_000
"""The timers that are counted: more are shown as at least so many."""
_LEAST_OF_SHARD = 20


@dataclass(frozen=True, slots=True)
class UpcomingBin:
    """The jobs whose timers come due in a span of time.

    Args:
        at: Its begin.
        jobs: Their number. A job counts once, at its next time.
    """

    at: datetime
    jobs: int


@dataclass(frozen=True, slots=True)
class UpcomingJobs:
    """Bins, the earliest first.

    Args:
        bins: One for each span.
        jobs: The number of all of them.
        at_least: True if there are more timers than are counted.
    """

    bins: tuple[UpcomingBin, ...]
    jobs: int
    at_least: bool


def read_upcoming(connection: Conn, tenant: str, shards: int, edges: Sequence[datetime]) -> UpcomingJobs:
    """Return the jobs whose timers come due between the first and the last edge.

    Args:
        edges: The begin of each bin, and the end of the last one, in ascending order.
    """
    per_shard = max(COUNTED // shards, _LEAST_OF_SHARD)
    columns = {"tenant": tenant, "shards": list(range(shards)), "edges": list(edges), "look": per_shard}
    counts = [0] * (len(edges) - 1)
    cut = False
    rows = connection.execute(_COUNT_UPCOMING, columns, binary=True).fetchall()
    for place, jobs, is_cut in cast("list[tuple[int, int, bool]]", rows):
        counts[place] += jobs
        cut |= is_cut
    bins = tuple(UpcomingBin(begin, jobs) for (begin, _), jobs in zip(pairwise(edges), counts, strict=True))
    return UpcomingJobs(bins, sum(counts), cut)
