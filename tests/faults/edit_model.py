"""Model of the random edits: the state of a job by its requests alone.

Nothing of Tidewheel's is imported: an instant is an integer, microseconds since 1970, and a schedule is a grid of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

SECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(at: datetime) -> int:
    """An instant as the oracle counts."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def clock(at: int) -> str:
    """An instant as people read it."""
    return f"{_EPOCH + timedelta(microseconds=at):%H:%M:%S.%f}"


@dataclass(frozen=True, slots=True)
class Grid:
    """The instants `phase + n * every`."""

    phase: int
    every: int

    def within(self, after: int, until: int) -> Iterator[int]:
        """Its instants later than `after` and not later than `until`."""
        at = after - (after - self.phase) % self.every + self.every
        while at <= until:
            yield at
            at += self.every

    def before(self, at: int) -> int:
        """The last one earlier than `at`."""
        return at - ((at - self.phase - 1) % self.every + 1)

    def holds(self, at: int) -> bool:
        """Return True if this is one of them."""
        return (at - self.phase) % self.every == 0


@dataclass(frozen=True, slots=True)
class Act:
    """A request and its answer."""

    kind: str  # `submit`, `pause`, `resume`, `delete`, `skip`, `move` or `unskip`
    sent: int  # the database's clock before it was sent
    answered: int = 0  # the same after its reply had come
    token: int = 0  # what the definition hands to its handler; tells definitions apart
    grid: Grid | None = None  # when the definition fires; None never
    paused: bool = False  # whether a new job is to begin paused
    fits: bool = True  # whether the request is one that can be accepted at all
    at: int = 0  # the occurrence that is skipped, moved or restored
    to: int = 0  # when it fires instead
    accepted: bool = True
    unchanged: bool = False
    version: int | None = None
    next_run_at: int | None = None

    def __str__(self) -> str:
        about = [str(self.token)] if self.token else [clock(at) for at in (self.at, self.to) if at]
        what = " ".join(
            [self.kind, *about, *([str(self.grid)] if self.grid else []), *([] if self.fits else ["(bad)"])]
        )
        said = "unchanged" if self.unchanged else "accepted" if self.accepted else "rejected"
        following = f", next {clock(self.next_run_at)}" if self.next_run_at else ""
        return f"{clock(self.sent)} to {clock(self.answered)}  {what}: {said}, version {self.version}{following}"


@dataclass(frozen=True, slots=True)
class Fired:
    """A run that completed."""

    at: int  # the occurrence it was made of
    run_id: str
    version: int
    status: str
    token: object  # what its handler was given
    reason: str | None = None  # why, where it did not succeed
    done: int = 0  # when its handler did it; where it never ran, when it ended
    left: int = 0  # when its message was to leave; 0 where that is not known

    def __str__(self) -> str:
        return f"{clock(self.at)} by version {self.version}, {self.status}"


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a job between two changes."""

    exists: bool = False
    paused: bool = False
    version: int = 0
    token: int = 0  # what its definition hands to its handler
    grid: Grid | None = None
    skipped: frozenset[int] = frozenset()  # occurrences that were left out by hand
    moved: frozenset[tuple[int, int]] = frozenset()  # occurrences that fire at another time, with that time
    doubtful: frozenset[int] = frozenset()  # occurrences whose fate hangs on which came first

    def after(self, act: Act) -> "Standing":
        """Return the state after an accepted request."""
        others = frozenset(pair for pair in self.moved if pair[0] != act.at)
        late = {act.at} if act.answered >= self._comes(act.at) else set[int]()  # it may have come before it was heard
        match act.kind:
            case "submit":
                return self._edited(act)
            case "delete":
                return Standing(version=self.version, doubtful=self.doubtful | {at for at, _ in self.moved})
            case "skip":
                return replace(self, skipped=self.skipped | {act.at}, moved=others, doubtful=self.doubtful | late)
            case "move":
                moved = others | {(act.at, act.to)}
                return replace(self, skipped=self.skipped - {act.at}, moved=moved, doubtful=self.doubtful | late)
            case "unskip":
                return replace(self, skipped=self.skipped - {act.at}, moved=others, doubtful=self.doubtful | late)
            case _:
                return replace(self, paused=act.kind == "pause")

    def _edited(self, act: Act) -> "Standing":
        # A moved occurrence that is still ahead is one of the new definition's, or is forgotten; one whose own instant
        # has passed fires all the same, by whatever definition there is, unless that never fires. One that was moved
        # to a time that has passed has fired there, or was passed over in a pause, and does neither again.
        keeps = {pair for pair in self.moved if act.grid and (min(pair) <= act.sent or act.grid.holds(pair[0]))}
        doubtful = {at for at, _ in self.moved if act.grid is None or act.sent < at <= act.answered}
        # Where the new definition lacks it: the edit may come before the time it was moved to, or after it.
        doubtful |= {
            at
            for at, to in self.moved
            if act.grid and not act.grid.holds(at) and act.sent < at and act.sent < to <= act.answered
        }
        return replace(
            self,
            exists=True,
            paused=self.paused if self.exists else act.paused,
            version=self.version + 1,
            token=act.token,
            grid=act.grid,
            moved=frozenset(keeps),
            doubtful=self.doubtful | doubtful,
        )

    def answer(self, act: Act) -> tuple[bool, bool]:
        """Return True if a request must be accepted and change nothing."""
        match act.kind:
            case "submit":
                return act.fits, self.exists and act.token == self.token
            case "delete":
                return self.exists, False
            case "skip" | "move" | "unskip" if act.answered >= min(act.at, act.to or act.at, self._comes(act.at)):
                return act.accepted, act.unchanged
            case "skip" | "move":
                coming = self.exists and self.grid is not None and self.grid.holds(act.at)
                said = act.at in self.skipped if act.kind == "skip" else (act.at, act.to) in self.moved
                return coming, said
            case "unskip":
                return self.exists and (act.at in self.skipped or act.at in dict(self.moved)), False
            case _:
                return self.exists, self.paused == (act.kind == "pause")

    def _comes(self, at: int) -> int:
        """Return the time after which an occurrence is fixed: its instant, or an earlier time it was moved to."""
        return min(at, dict(self.moved).get(at, at))

    def may_fire_at(self, instant: int) -> bool:
        """Return True if an occurrence fires at this instant, its own or the moved one; doubtful ones may."""
        places = dict(self.moved)
        own = self.grid is not None and self.grid.holds(instant) and instant not in self.skipped | places.keys()
        return own or instant in places.values() or instant in self.doubtful

    def fires(self, after: int, until: int) -> list[tuple[int, int]]:
        """Return the occurrences that must fire meanwhile, with their times."""
        if not self.exists or self.paused or self.grid is None:
            return []
        said = self.skipped | {at for at, _ in self.moved}
        plain = [(at, at) for at in self.grid.within(after, until) if at not in said]
        moved = [(to, at) for at, to in self.moved if after < to <= until and at not in self.doubtful]
        return sorted([*(pair for pair in plain if pair[1] not in self.doubtful), *moved])
