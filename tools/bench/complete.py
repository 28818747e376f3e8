"""Wait for all runs of a round and verify that each happened exactly once and on time."""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import LiteralString

from psycopg import sql

from tidewheel.clock import monotonic_seconds
from tidewheel.postgres.session import Conn
from tidewheel.runs import RunState
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import RunCompleted, RunStatus
from tools.bench.environment import Environment
from tools.bench.measurement import Figure, Incomplete, Points, Spent, percentile
from tools.bench.messages import STALL_SECONDS, Ends, reader
from tools.bench.starts import Start

_EARLY_SECONDS = 0.001  # what two readings of one clock may differ by
_POLL_SECONDS = 0.05
_COUNTS: LiteralString = """
SELECT (SELECT count(*) FROM runs),
       (SELECT count(*) FROM runs WHERE state = %(succeeded)s AND attempt = 1),
       (SELECT count(*) FROM runs WHERE state = %(succeeded)s AND attempt = 2),
       (SELECT count(*) FROM runs WHERE started_at < scheduled_at),
       (SELECT count(*) FROM job_runs),
       (SELECT coalesce(sum(occurrences), 0) FROM skips)
"""
_WORDS = (
    "runs", "succeeded at the first attempt", "at the second", "began early", "open runs", "occurrences passed over"
)  # fmt: skip


def wait_for(number: Callable[[], int], wanted: int, what: str) -> None:
    """Wait until a number that grows is there."""
    seen, since = -1, monotonic_seconds()
    while (found := number()) < wanted:
        if found > seen:
            seen, since = found, monotonic_seconds()
        if monotonic_seconds() - since > STALL_SECONDS:
            message = f"{found:,} of {wanted:,} {what}, and none for {STALL_SECONDS:.0f} s"
            raise Incomplete(message)
        threading.Event().wait(_POLL_SECONDS)


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    wait_for(lambda: int(condition()), 1, what)


def until_empty(environment: Environment, *tables: str) -> None:
    """Wait until tables have no rows; each look is a transaction of its own."""
    for table in tables:
        empty = sql.SQL("SELECT (NOT EXISTS (SELECT FROM {}))::int").format(sql.Identifier(table))
        wait_for(partial(environment.count, empty), 1, f"{table} is empty")


def check_runs(
    connection: Conn, expected: int, handled: int, *, retried: int = 0, may_be_released: bool = False
) -> None:
    """Verify that each run succeeded at its first attempt, by `handled` calls of handlers.

    `retried` runs succeeded at their second attempt, with two calls. If others `may_be_released`, they may have
    succeeded at their second attempt with one call: an executor releases attempts that it has claimed beyond its slots.
    """
    row = connection.execute(_COUNTS, {"succeeded": RunState.SUCCEEDED}).fetchone()
    connection.rollback()
    assert row is not None
    found = tuple(int(str(number)) for number in row)
    released = found[2] - retried if may_be_released else 0
    first = expected - retried - released
    if (*found, handled) != (expected, first, retried + released, 0, 0, 0, first + released + 2 * retried):
        counts = ", ".join(f"{count:,} {words}" for count, words in zip(found, _WORDS, strict=True))
        message = f"{expected:,} runs were expected; {counts}, {handled:,} calls of handlers"
        raise Incomplete(message)


def check_starts(starts: Sequence[Start], expected: int) -> None:
    """Verify that each run was started once, and none early."""
    distinct = len({start.run for start in starts})
    early = sum(start.at < start.due - _EARLY_SECONDS for start in starts)
    if (len(starts), distinct, early) != (expected, expected, 0):
        calls = f"{len(starts):,} calls, of {distinct:,} runs, {early:,} of them early"
        message = f"{expected:,} runs were expected; {calls}"
        raise Incomplete(message)


def check_events(environment: Environment, expected: int) -> None:
    """Read all completion events; each run must have one of success. A repeat is allowed."""
    topic = environment.topics.completions
    left, client = Ends(environment, topic).count(), reader(environment, topic)
    seen: defaultdict[RunStatus, set[str]] = defaultdict(set)
    while left > 0:
        for message in client.consume(1000, 1.0):
            event = decode(message.value() or b"", RunCompleted)
            seen[event.status].add(event.run_id)
            left -= 1
    client.close()
    ended = {status: len(runs) for status, runs in seen.items()}
    if ended != {RunStatus.SUCCEEDED: expected}:
        fault = f"{expected:,} runs were expected; by their events {ended}"
        raise Incomplete(fault)


def starts_since(environment: Environment, due_at: datetime, expected: int) -> list[Start]:
    """Return the starts of the runs that were due since an instant, verified by `check_starts`."""
    found = [start for start in environment.starts().read() if start.due >= due_at.timestamp()]
    check_starts(found, expected)
    return found


def lateness(starts: Sequence[Start], spent: Spent | None = None, name: str = "start") -> dict[str, Figure]:
    """Return how late runs were begun, with their cost."""
    late = [(start.at - start.due) * 1000 for start in starts]
    figures = {part: Figure(percentile(late, part), "ms", spent if part == 99 else None) for part in (50, 99, 100)}
    return {f"{name}_{'max' if part == 100 else f'p{part}'}_ms": figure for part, figure in figures.items()}


def p99_by_second(starts: Sequence[Start]) -> dict[str, Points]:
    """Return the series of the p99 lateness of each second, in milliseconds."""
    first = min(start.due for start in starts)
    seconds: defaultdict[int, list[float]] = defaultdict(list)
    for start in starts:
        seconds[int(start.due - first)].append((start.at - start.due) * 1000)
    points = [(float(second), percentile(late, 99)) for second, late in sorted(seconds.items())]
    return {"due to start, p99 of a second, ms": points}
