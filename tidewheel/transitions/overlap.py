"""What becomes of runs of one job that find its turn taken: pure.

The runs that are about to start are judged one after another, oldest first, each by its own policy, against whoever has
the turn then and whoever waits for it. `cancel_other` and `terminate_other` replace: of the runs that would replace the
holder only the newest is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from tidewheel.runs import Overlap, RunState

REPLACING = frozenset({Overlap.CANCEL_OTHER, Overlap.TERMINATE_OTHER})
ACTIVE = frozenset({RunState.RUNNING, RunState.CANCELLING})


class Fate(StrEnum):
    """What becomes of a holder that does not start now."""

    STAYS = "stays"
    ASKED = "asked"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Contender:
    """A run that is about to start, or that waits for the turn.

    Args:
        run_id: The run.
        overlap: Its policy.
        scheduled_at: Its nominal instant: who is older.
        attempt: 0 where it has never begun.
        queued: Whether it can be refused; a run between two attempts cannot.
    """

    run_id: UUID
    overlap: str
    scheduled_at: datetime
    attempt: int = 0
    queued: bool = True

    @property
    def age(self) -> tuple[datetime, UUID]:
        """Sorts the oldest first."""
        return self.scheduled_at, self.run_id

    @property
    def replaces(self) -> bool:
        """Whether its policy does away with the holder."""
        return self.overlap in REPLACING


@dataclass(slots=True)
class Verdict:
    """What becomes of everybody.

    Args:
        turn: Who has the turn from now on.
        fate: What becomes of the holder, where it is none of those about to start.
        skipped: Runs that end skipped.
        cancelled: Runs that had begun before, are about to start again and are replaced instead.
        buffered: Runs that wait from now on.
        left: Runs about which nothing is decided now; they are claimed again.
    """

    turn: UUID
    fate: Fate = Fate.STAYS
    skipped: list[UUID] = field(default_factory=list[UUID])
    cancelled: list[UUID] = field(default_factory=list[UUID])
    buffered: list[UUID] = field(default_factory=list[UUID])
    left: list[UUID] = field(default_factory=list[UUID])


def decide(
    holder: UUID, standing: RunState | None, waiting: Sequence[Contender], arrivals: Sequence[Contender]
) -> Verdict:
    """Judge the runs of one job that are about to start.

    Args:
        holder: Who has the turn; one of `arrivals`, or another run.
        standing: Where that other run stands; None where somebody has its row, or nobody asked.
        waiting: Who waits already: all that replace, and at least one of the others if there is any.
        arrivals: Who is about to start.

    >>> from datetime import UTC
    >>> a, b = (Contender(UUID(int=n), "buffer_one", datetime(2026, 1, n, tzinfo=UTC)) for n in (1, 2))
    >>> verdict = decide(UUID(int=9), None, [], [a, b])
    >>> verdict.buffered == [a.run_id], verdict.skipped == [b.run_id]
    (True, True)
    """
    contest = _Contest(Verdict(holder), holder, standing, list(waiting), {each.run_id: each for each in arrivals})
    for arrival in sorted(arrivals, key=lambda each: each.age):
        if arrival.run_id != holder:
            contest.judge(arrival)
    return contest.verdict


@dataclass(slots=True)
class _Contest:
    verdict: Verdict
    holder: UUID
    standing: RunState | None
    line: list[Contender]
    arrivals: dict[UUID, Contender]

    def judge(self, arrival: Contender) -> None:
        if not arrival.queued:
            self.verdict.left.append(arrival.run_id)
            return
        match Overlap(arrival.overlap):
            case Overlap.BUFFER_ALL:
                self._buffer(arrival)
            case Overlap.BUFFER_ONE if not self.line:
                self._buffer(arrival)
            case Overlap.CANCEL_OTHER | Overlap.TERMINATE_OTHER:
                self._replace(arrival)
            case _:
                self.verdict.skipped.append(arrival.run_id)

    def _buffer(self, arrival: Contender) -> None:
        self.line.append(arrival)
        self.verdict.buffered.append(arrival.run_id)

    def _replace(self, arrival: Contender) -> None:
        about_to_start = self.verdict.turn in self.arrivals
        if not about_to_start and self.standing is None:
            self.verdict.left.append(arrival.run_id)
            return
        if any(each.replaces and each.age > arrival.age for each in self.line):
            self.verdict.skipped.append(arrival.run_id)
            return
        self._supersede()
        if arrival.overlap == Overlap.CANCEL_OTHER and not about_to_start and self.standing in ACTIVE:
            self.verdict.fate = Fate.ASKED
            self._buffer(arrival)
        else:
            self._dethrone()
            self.verdict.turn = arrival.run_id

    def _supersede(self) -> None:
        """Whoever waits to replace the holder makes way for a newer one."""
        superseded = [each for each in self.line if each.replaces]
        self.line = [each for each in self.line if not each.replaces]
        for each in superseded:
            self.verdict.skipped.append(each.run_id)
            if each.run_id in self.verdict.buffered:
                self.verdict.buffered.remove(each.run_id)

    def _dethrone(self) -> None:
        replaced = self.arrivals.get(self.verdict.turn)
        if replaced is None:
            self.verdict.fate = Fate.ENDED
        elif replaced.attempt:
            self.verdict.cancelled.append(replaced.run_id)
        else:
            self.verdict.skipped.append(replaced.run_id)
