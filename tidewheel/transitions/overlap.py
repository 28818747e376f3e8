"""Apply the overlap policies to the runs of one job that are about to start: pure.

Runs are decided in the order of their scheduled time, each by its own policy, against the job's active run at that
point and the runs that wait. `cancel_other` and `terminate_other` replace the active run. Of several such runs only the
newest is kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from uuid import UUID

from tidewheel.runs import Overlap, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyProperties:
    """The properties of a policy that decide which rows a claim reads and locks."""

    replaces: bool = False
    depends_on_waiting: bool = False


_PROPERTIES: Mapping[Overlap, PolicyProperties] = MappingProxyType(
    {
        Overlap.SKIP: PolicyProperties(),
        Overlap.BUFFER_ONE: PolicyProperties(depends_on_waiting=True),
        Overlap.BUFFER_ALL: PolicyProperties(),
        Overlap.CANCEL_OTHER: PolicyProperties(replaces=True, depends_on_waiting=True),
        Overlap.TERMINATE_OTHER: PolicyProperties(replaces=True, depends_on_waiting=True),
        Overlap.ALLOW_ALL: PolicyProperties(),
    }
)
REPLACING = frozenset(policy for policy in Overlap if _PROPERTIES[policy].replaces)
DEPENDS_ON_WAITING = frozenset(policy for policy in Overlap if _PROPERTIES[policy].depends_on_waiting)
STARTED = frozenset({RunState.RUNNING, RunState.CANCELLING})


class HolderAction(StrEnum):
    """The action on an active run that started earlier."""

    KEEP = "keep"
    REQUEST_CANCEL = "request_cancel"
    END = "end"


@dataclass(frozen=True, slots=True)
class Contender:
    """A run that is about to start, or that waits to become active.

    Args:
        scheduled_at: Its scheduled time, which decides the order.
        attempt: Its attempt number; 0 if it never started.
        queued: True if it can be skipped or buffered; a run between two attempts cannot.
        busy: True if it waits and another transaction holds its row, so that no run can replace it now.
    """

    run_id: UUID
    overlap: str
    scheduled_at: datetime
    attempt: int = 0
    queued: bool = True
    busy: bool = False

    @property
    def age(self) -> tuple[datetime, UUID]:
        """Sort key: the oldest first."""
        return self.scheduled_at, self.run_id

    @property
    def replaces(self) -> bool:
        """True if its policy replaces the active run."""
        return self.overlap in REPLACING


@dataclass(slots=True)
class OverlapDecision:
    """The decision about all runs of one job.

    Args:
        holder_action: The action on the active run so far, unless it is one of those about to start.
        cancelled: Runs with earlier attempts that were about to start again and are replaced instead.
        undecided: Runs that stay queued, to be claimed again.
    """

    active: UUID
    holder_action: HolderAction = HolderAction.KEEP
    skipped: list[UUID] = field(default_factory=list[UUID])
    cancelled: list[UUID] = field(default_factory=list[UUID])
    buffered: list[UUID] = field(default_factory=list[UUID])
    undecided: list[UUID] = field(default_factory=list[UUID])


def decide(
    holder: UUID, state: RunState | None, waiting: Sequence[Contender], arrivals: Sequence[Contender]
) -> OverlapDecision:
    """Decide about the runs of one job that are about to start.

    Args:
        holder: The active run: one of `arrivals`, or a run that started earlier.
        state: The state of that earlier run; None if another transaction holds its row or no policy needs it.
        waiting: The runs that wait: all that replace, and at least one of the rest if there is any.

    >>> from datetime import UTC
    >>> a, b = (Contender(UUID(int=n), "buffer_one", datetime(2026, 1, n, tzinfo=UTC)) for n in (1, 2))
    >>> decision = decide(UUID(int=9), None, [], [a, b])
    >>> decision.buffered == [a.run_id], decision.skipped == [b.run_id]
    (True, True)
    """
    by_id = {each.run_id: each for each in arrivals}
    resolution = _Resolution(OverlapDecision(holder), state, list(waiting), by_id)
    for arrival in sorted(arrivals, key=lambda each: each.age):
        if arrival.run_id != holder:
            resolution.add(arrival)
    return resolution.decision


@dataclass(slots=True)
class _Resolution:
    """The decision so far, and the runs that wait then."""

    decision: OverlapDecision
    state: RunState | None
    waiting: list[Contender]
    arrivals: dict[UUID, Contender]

    def add(self, arrival: Contender) -> None:
        if not arrival.queued:
            self.decision.undecided.append(arrival.run_id)
            return
        match Overlap(arrival.overlap):
            case Overlap.BUFFER_ALL:
                self._buffer(arrival)
            case Overlap.BUFFER_ONE if not self.waiting:
                self._buffer(arrival)
            case Overlap.CANCEL_OTHER | Overlap.TERMINATE_OTHER:
                self._replace(arrival)
            case _:
                self.decision.skipped.append(arrival.run_id)

    def _buffer(self, arrival: Contender) -> None:
        self.waiting.append(arrival)
        self.decision.buffered.append(arrival.run_id)

    def _replace(self, arrival: Contender) -> None:
        about_to_start = self.decision.active in self.arrivals
        holder_busy = not about_to_start and self.state is None
        if holder_busy or any(each.replaces and each.busy for each in self.waiting):
            self.decision.undecided.append(arrival.run_id)
            return
        if any(each.replaces and each.age > arrival.age for each in self.waiting):
            self.decision.skipped.append(arrival.run_id)
            return
        self._skip_older_replacements()
        if arrival.overlap == Overlap.CANCEL_OTHER and not about_to_start and self.state in STARTED:
            self.decision.holder_action = HolderAction.REQUEST_CANCEL
            self._buffer(arrival)
        else:
            self._end_active()
            self.decision.active = arrival.run_id

    def _skip_older_replacements(self) -> None:
        """Skip the runs that wait to replace the active run: a newer one does so."""
        older = [each for each in self.waiting if each.replaces]
        self.waiting = [each for each in self.waiting if not each.replaces]
        for each in older:
            self.decision.skipped.append(each.run_id)
            if each.run_id in self.decision.buffered:
                self.decision.buffered.remove(each.run_id)

    def _end_active(self) -> None:
        replaced = self.arrivals.get(self.decision.active)
        if replaced is None:
            self.decision.holder_action = HolderAction.END
        elif replaced.attempt:
            self.decision.cancelled.append(replaced.run_id)
        else:
            self.decision.skipped.append(replaced.run_id)
