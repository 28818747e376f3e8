"""Queues and lanes whose runs relays hold back, since executors take them more slowly than they come."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg.rows import class_row

from tidewheel.control.reads.findings import Finding, Severity
from tidewheel.jobs.values import format_second
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_READ_HELD_LANES = Statements("tidewheel.control")["read_held_lanes"]

_LONG = timedelta(seconds=10)  # a burst that is over by then needs no operator
_NAMED = 3  # tenants in a sentence


@dataclass(frozen=True, slots=True)
class HeldLane:
    """A queue and lane whose runs wait in the outbox.

    Args:
        queue: The queue.
        lane: The lane.
        since: When they were first held back.
        runs: The number of runs that wait.
        at_least: True if there may be more.
        tenants: The number of their tenants.
        largest: The runs of the tenants that have the most.
    """

    queue: str
    lane: str
    since: datetime
    runs: int
    at_least: bool
    tenants: int
    largest: Mapping[str, int]

    @property
    def by_size(self) -> list[str]:
        """The tenants in `largest`, the one with the most runs first."""
        return sorted(self.largest, key=lambda tenant: (-self.largest[tenant], tenant))

    @property
    def words(self) -> str:
        """The runs with their tenants, in one line."""
        named = [f"{tenant} {self.largest[tenant]:,}" for tenant in self.by_size[:_NAMED]]
        others = [f"and of {self.tenants - len(named)} others"] if self.tenants > len(named) else []
        least, wait = "at least " if self.at_least else "", "run waits" if self.runs == 1 else "runs wait"
        return f"{least}{self.runs:,} {wait} since {format_second(self.since)}: {', '.join([*named, *others])}"


def read_held_lanes(connection: Conn) -> tuple[HeldLane, ...]:
    """Return what live relays hold back, as of the last two seconds, by queue and lane."""
    with connection.cursor(row_factory=class_row(HeldLane), binary=True) as cursor:
        return tuple(cursor.execute(_READ_HELD_LANES))


def held_findings(held: Sequence[HeldLane], now: datetime) -> Iterator[Finding]:
    """Yield a finding for each queue and lane that is held back for long."""
    for each in held:
        if now - each.since < _LONG:
            continue
        what = f"queue {each.queue!r}, lane {each.lane}: executors take runs more slowly than they become due"
        remedy = "start more executors, or more slots"
        if each.tenants > 1:
            limit = f"tidewheel admin tenant limits {each.by_size[0]} --in-flight N"
            remedy += f"; {limit}, below the number of slots, leaves some to other tenants"
        yield Finding("fairness", Severity.WARNING, what, each.words, remedy)
