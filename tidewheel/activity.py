"""Figures of ended runs for plots: counted after COMMIT, written each 5 seconds.

ADR 0086 has the reasons. Each process has one set of counts, and `Presence` writes it. A process that dies loses those
of its last seconds.

Durations are counted in logarithmic buckets, whose sums give the quantiles of any span of days. Bucket n holds
durations above 1.1^(n-1) ms and up to 1.1^n ms, bucket 0 those of at most 1 ms. So an estimate is within 5 % of a
duration with the rank of the quantile. The bounds are fixed, since counts of years are stored by them. SQL has them too
(`bucket` in scheduler/queries.sql).
"""

import math
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from heapq import nlargest
from operator import itemgetter
from typing import Final, NamedTuple

from psycopg.types.json import Jsonb

from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_ADD_ACTIVITY = Statements("tidewheel")["add_activity"]
GRAINS: Final = (timedelta(seconds=5), timedelta(minutes=1), timedelta(hours=1))
"""The time that a row counts, by its column `grain`."""
SLOWEST: Final = 3
"""The runs whose ids a row keeps."""
MOST: Final = 10_000
"""The classes that are counted before they are written: about 10 MB. A process without `Presence` writes none."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STAGE_BITS = 16
_COUNT_BITS = 32
_RATIO = 1.1  # of a bucket's bounds
_BY_RATIO = 1 / math.log(_RATIO)


class Stage(IntEnum):
    """A stage of a run that has a lateness, with its number in the column `stages`."""

    WRITTEN = 0
    CLAIMED = 1
    ENDED = 2


class Class(NamedTuple):
    """The runs that one row counts."""

    at: datetime
    tenant: str
    queue: str
    lane: str
    state: str


class Figures:
    """The figures of one class."""

    __slots__ = ("runs", "slowest", "stages")

    def __init__(self) -> None:
        self.runs = 0
        self.stages = Counter[int]()
        self.slowest: list[tuple[float, str]] = []

    def late(self, stage: Stage, seconds: Iterable[float]) -> None:
        """Count the lateness of runs at a stage."""
        first, log, ceil = stage << _STAGE_BITS, math.log, math.ceil
        self.stages.update([first + ceil(log(each * 1000) * _BY_RATIO) if each > 0.001 else first for each in seconds])

    def ran(self, runs: Sequence[tuple[float, str]]) -> None:
        """Keep the ids of the runs that are among the slowest; of equal ones the first."""
        self.slowest = nlargest(SLOWEST, [*self.slowest, *runs], key=itemgetter(0))


class Activity:
    """The counts of this process that are not written yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._figures: dict[Class, Figures] = {}

    def of(self, counted: Class) -> Figures:
        """Return the figures of a class, to be changed under the lock; one class too many forgets all others."""
        found = self._figures.get(counted)
        if found is None:
            if len(self._figures) >= MOST:
                self._figures.clear()
            found = self._figures[counted] = Figures()
        return found

    @property
    def lock(self) -> threading.Lock:
        """The lock of all figures."""
        return self._lock

    def write(self, connection: Conn) -> None:
        """Write the figures, a row for each class; they are gone from memory whether that succeeds or not."""
        with self._lock:
            figures, self._figures = self._figures, {}
        if figures:
            connection.execute(_ADD_ACTIVITY, {"rows": Jsonb([_row(*each) for each in figures.items()])})


def begin_of(at: datetime) -> datetime:
    """Return the begin of the 5 seconds of an instant.

    >>> begin_of(datetime(2026, 11, 21, 22, 13, 4, 118000, tzinfo=UTC)).isoformat()
    '2026-11-21T22:13:00+00:00'
    """
    return at - (at - _EPOCH) % GRAINS[0]


def unpack_stages(packed: Sequence[tuple[int, int]]) -> dict[Stage, Counter[int]]:
    """Return the count of each bucket by stage, from keys without their counts."""
    found = {stage: Counter[int]() for stage in Stage}
    for key, count in packed:
        found[Stage(key >> _STAGE_BITS)][key & ((1 << _STAGE_BITS) - 1)] += count
    return found


def _row(counted: Class, figures: Figures) -> dict[str, object]:
    return {
        **counted._asdict(),
        "at": counted.at.isoformat(),
        "runs": figures.runs,
        "stages": [key << _COUNT_BITS | count for key, count in sorted(figures.stages.items())],
        "took": [seconds for seconds, _ in figures.slowest],
        "slowest": [run_id for _, run_id in figures.slowest],
    }


activity: Final = Activity()
"""The counts of this process."""


def unpack(packed: Iterable[int]) -> Counter[int]:
    """Return the count of each bucket, from the form in which a column has them.

    >>> unpack([(3 << 32) + 7, (4 << 32) + 1, (3 << 32) + 1])
    Counter({3: 8, 4: 1})
    """
    counts = Counter[int]()
    for each in packed:
        counts[each >> _COUNT_BITS] += each & ((1 << _COUNT_BITS) - 1)
    return counts


def quantile(counts: Mapping[int, int], part: float) -> float | None:
    """Return the seconds that so large a part of the durations does not exceed; None without durations.

    >>> f"{quantile({0: 1, 100: 8, 120: 1}, 0.5):.2f}"
    '13.12'
    """
    rank = part * sum(counts.values())
    for bucket in sorted(counts):
        rank -= counts[bucket]
        if rank <= 0:
            # The value that is as near to the one bound of the bucket as to the other, in proportion.
            return 2 * _RATIO**bucket / (1 + _RATIO) / 1000 if bucket else 0.001
    return None
