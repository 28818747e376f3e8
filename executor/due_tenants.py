"""The tenants with due runs in each queue and lane, and the turns in which the sweep serves them.

The index of due runs has the tenant before the time. So a poll finds the oldest runs of each tenant, however many
another one has. The turns of a tenant come at random times, as often as its weight. Executors need no common memory for
this, and a tenant whose runs cannot be claimed delays no other. The runs of one tenant stay in their order.

A tenant takes a turn only if this executor can start one of its oldest runs. Where it may be able to start one behind
these, the tenant is doubtful: a quarter of a poll is left to such tenants.

The tenants are looked up every quarter of a second at most, and for a twentieth of the time. The look-up starts at the
front of the index, which may be full of deleted entries.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from operator import itemgetter
from typing import NamedTuple, Protocol, TypeVar, cast

from tidewheel.postgres.low_water import FullScanPacer
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Lane, Move, sources

_FIND_DUE_TENANTS = Statements("tidewheel.executor")["find_due_tenants"]

HELD_AGE = timedelta(milliseconds=250)
"""The age at which the sweep claims a run that a relay may hold back. Its message may lie with a full executor."""
_EVERY = HELD_AGE
_MOST_TENANTS = 64  # of one queue and lane that one poll reads
_DOUBTFUL = 16  # of these, while more tenants have a run that the executor can start
_SPREAD = 4  # times the runs that a poll can start are read of all tenants together: most have few
_LEAST_RUNS = 4  # of each tenant

_TenantRow = tuple[str, str, str, int, bool, bool]


class Part(NamedTuple):
    """The runs of one tenant that a poll reads."""

    queue: str
    lane: Lane
    tenant: str
    limit: int


class OfTenant(Protocol):
    """A run, as far as it decides about turns."""

    @property
    def tenant(self) -> str:
        """Its tenant."""
        ...


R = TypeVar("R", bound=OfTenant)


class DueTenants:
    """The tenants with due runs that one executor knows; a sweep claims runs of the age `every` elsewhere."""

    def __init__(self, session: Session, queues: Sequence[str], handlers: Sequence[str], every: timedelta) -> None:
        self._session, self._handlers, self._every = session, handlers, every
        self._lanes = [(queue, lane) for lane in Lane for queue in queues]
        self._able: dict[tuple[str, Lane], list[str]] = {}
        self._doubtful: dict[tuple[str, Lane], list[str]] = {}
        self._weights: dict[str, int] = {}
        self._held: set[tuple[str, Lane]] = set()
        self._pacer = FullScanPacer(min(_EVERY, every).total_seconds())

    @property
    def pause(self) -> timedelta:
        """The longest pause between two polls."""
        return min(self._every, HELD_AGE) if self._held else self._every

    def refresh(self) -> None:
        """Look the tenants up if that is due."""
        if not self._pacer.start():
            return
        columns = {
            "queues": [queue for queue, _ in self._lanes],
            "lanes": [lane for _, lane in self._lanes],
            "sources": sources(Move.CLAIM),
            "handlers": self._handlers,
        }
        with self._session.transaction() as connection:
            found = connection.execute(_FIND_DUE_TENANTS, columns, binary=True).fetchall()
        self._pacer.finish()
        self._able, self._doubtful, self._weights, self._held = {}, {}, {}, set()
        for queue, name, tenant, weight, can_start, is_held in cast("list[_TenantRow]", found):
            lane = queue, Lane(name)
            (self._able if can_start else self._doubtful).setdefault(lane, []).append(tenant)
            self._weights[tenant] = weight
            if is_held:
                self._held.add(lane)

    def parts(self, limits: Iterable[tuple[str, Lane, int]]) -> tuple[list[Part], bool]:
        """Return what one poll reads for the runs that can start, and True if it leaves tenants out."""
        parts: list[Part] = []
        left_out = False
        for queue, lane, limit in limits:
            able, doubtful = (kind.get((queue, lane), []) for kind in (self._able, self._doubtful))
            tenants = [*able, *doubtful]
            if len(tenants) > _MOST_TENANTS:
                left_out = True
                some = random.sample(able, min(len(able), _MOST_TENANTS - min(len(doubtful), _DOUBTFUL)))
                tenants = [*some, *random.sample(doubtful, min(len(doubtful), _MOST_TENANTS - len(some)))]
            share = max(limit * _SPREAD // max(len(tenants), 1), _LEAST_RUNS)
            parts += [Part(queue, lane, tenant, min(limit, share)) for tenant in tenants]
        return parts, left_out

    def left(self, queue: str, lane: Lane, age: timedelta) -> timedelta:
        """Return how much longer a run of this age is left to its message."""
        return (min(self._every, HELD_AGE) if (queue, lane) in self._held else self._every) - age

    def is_held(self, queue: str, lane: Lane) -> bool:
        """Return True if a relay holds runs of the lane back, which the sweep starts as a rule."""
        return (queue, lane) in self._held

    def deal(self, runs: Iterable[R]) -> list[R]:
        """Return the runs in turns of their tenants."""
        return deal(runs, self._weights, random.expovariate)


def deal(runs: Iterable[R], weights: Mapping[str, int], next_turn: Callable[[float], float]) -> list[R]:
    """Return runs in turns of their tenants, those of each tenant in their order.

    The next turn of a tenant comes after an exponential time by its weight, by default 1. So each tenant is the next
    one as often as its weight says, however many turns there are. `next_turn` returns such a time, of this rate.
    """
    at: defaultdict[str, float] = defaultdict(float)
    turns: list[tuple[float, R]] = []
    for run in runs:
        at[run.tenant] += next_turn(weights.get(run.tenant, 1))
        turns.append((at[run.tenant], run))
    turns.sort(key=itemgetter(0))
    return [run for _, run in turns]
