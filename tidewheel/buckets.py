"""Counts of durations in logarithmic buckets, whose sums give the quantiles of any span of days.

Bucket n holds durations above 1.1^(n-1) ms and up to 1.1^n ms, bucket 0 those of at most 1 ms. So an estimate is within
5 % of a duration with the rank of the quantile. The bounds are fixed, since counts of years are stored by them. SQL has
them too (`bucket` in scheduler/queries.sql).
"""

from collections import Counter
from collections.abc import Iterable, Mapping

_RATIO = 1.1
_COUNT_BITS = 32


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
