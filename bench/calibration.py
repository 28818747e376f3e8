"""Measure the machine's speed before and after each round by a fixed loop of pure Python.

A shared machine has several speeds, up to 1.65 apart, for seconds to minutes at a time. A round at another speed than
the rest is no evidence, so it is marked.
"""

import time

_REPEATS = 3
_ITEMS = 4_000_000  # 0.14 to 0.28 s: long enough to see a slow second, short beside a round


def loop_ms() -> float:
    """CPU milliseconds of one thread for the loop: the least of three, which other load hardly changes."""
    return min(_loop_ms() for _ in range(_REPEATS))


def _loop_ms() -> float:
    started, total = time.thread_time(), 0
    for number in range(_ITEMS):
        total += (number & 255) * 3 % 7
    assert total
    return (time.thread_time() - started) * 1000
