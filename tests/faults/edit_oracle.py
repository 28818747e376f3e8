"""What a history of edits must have led to, from the requests, their answers and what was fired alone.

Nothing of Tidewheel's is asked or imported: an instant is an integer, microseconds since 1970, and a schedule is a grid
of them. Each change took effect at some moment between the sending of its request and the arrival of its answer; the
first instant that the answer names narrows this down. The history is right if such moments exist, in order, that
between each two of them exactly the instants of the definition then in force have fired, each once, by that version.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

SECOND = 1_000_000
_NEAR = 3 * SECOND  # what is shown around a fault
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
        """Whether this is one of them."""
        return (at - self.phase) % self.every == 0


@dataclass(frozen=True, slots=True)
class Act:
    """A request and its answer.

    Args:
        kind: `submit`, `pause`, `resume`, `delete`, `skip` or `unskip`.
        sent: The database's clock before it was sent.
        told: The same after its answer had come.
        token: What the definition hands to its handler; tells definitions apart.
        grid: When the definition fires; None never.
        paused: Whether a new job is to begin paused.
        fits: Whether the request is one that can be accepted at all.
        at: The occurrence that is skipped or not.
        accepted: The answer: whether.
        unchanged: The answer: whether it changed nothing.
        version: The answer: the job's version.
        next_run_at: The answer: the next instant.
    """

    kind: str
    sent: int
    told: int = 0
    token: int = 0
    grid: Grid | None = None
    paused: bool = False
    fits: bool = True
    at: int = 0
    accepted: bool = True
    unchanged: bool = False
    version: int | None = None
    next_run_at: int | None = None

    def __str__(self) -> str:
        fits = "" if self.fits else ", which cannot be,"
        what = f"{self.kind} {self.token or ''}{clock(self.at) if self.at else ''} {self.grid or ''}{fits}"
        said = "unchanged" if self.unchanged else "accepted" if self.accepted else "rejected"
        following = f", next {clock(self.next_run_at)}" if self.next_run_at else ""
        return f"{clock(self.sent)} to {clock(self.told)}  {what}: {said}, version {self.version}{following}"


@dataclass(frozen=True, slots=True)
class Fired:
    """A run that completed."""

    at: int
    run_id: str
    version: int
    status: str
    token: object
    reason: str | None = None

    def __str__(self) -> str:
        return f"{clock(self.at)} by version {self.version}, {self.status}"


@dataclass(frozen=True, slots=True)
class Standing:
    """What a job is between two changes."""

    exists: bool = False
    paused: bool = False
    version: int = 0
    token: int = 0
    grid: Grid | None = None
    skipped: frozenset[int] = frozenset()

    def after(self, act: Act) -> "Standing":
        """What an accepted request makes of it."""
        match act.kind:
            case "submit":
                paused = self.paused if self.exists else act.paused
                return replace(
                    self, exists=True, paused=paused, version=self.version + 1, token=act.token, grid=act.grid
                )
            case "delete":
                return Standing(version=self.version)
            case "skip":
                return replace(self, skipped=self.skipped | {act.at})
            case "unskip":
                return replace(self, skipped=self.skipped - {act.at})
            case _:
                return replace(self, paused=act.kind == "pause")

    def answer(self, act: Act) -> tuple[bool, bool]:
        """Whether a request must be accepted, and must then have changed nothing."""
        match act.kind:
            case "submit":
                return act.fits, self.exists and act.token == self.token
            case "delete":
                return self.exists, False
            case "skip":
                return self.exists and self.grid is not None and self.grid.holds(act.at), act.at in self.skipped
            case "unskip":
                return self.exists and act.at in self.skipped, False
            case _:
                return self.exists, self.paused == (act.kind == "pause")

    def fires(self, after: int, until: int) -> list[int]:
        """What must fire meanwhile."""
        if not self.exists or self.paused or self.grid is None:
            return []
        return [at for at in self.grid.within(after, until) if at not in self.skipped]


@dataclass(frozen=True, slots=True)
class Change:
    """Where one standing gave way to the next: some moment from `low` to `high`."""

    low: int
    high: int
    act: Act
    then: Standing


@dataclass
class Verdict:
    """What was wrong with one job's history, and how much of it there was."""

    key: str
    acts: Sequence[Act]
    fired: Sequence[Fired]
    problems: list[str] = field(default_factory=list[str])
    changes: list[Change] = field(default_factory=list[Change])

    def judge(self) -> "Verdict":
        """Look at everything."""
        self.changes = self._in_order(list(self._changes()))
        self._check_repeats()
        self._check_spans()
        if not self.problems:
            self._check_order()
        return self

    def missing(self) -> list[int]:
        """Instants that must have fired and have not, so far."""
        changes = self._in_order(list(self._changes()))
        there = {(fired.at, fired.version) for fired in self.fired}
        return [
            at
            for change, following in pairwise(changes)
            for at in change.then.fires(change.high, following.low)
            if (at, change.then.version) not in there
        ]

    def _changes(self) -> Iterator[Change]:
        """The requests that changed something; what is wrong with the answers is noted."""
        standing = Standing()
        for act in self.acts:
            accepted, unchanged = standing.answer(act)
            if (act.accepted, act.accepted and act.unchanged) != (accepted, accepted and unchanged):
                wanted = ("unchanged" if unchanged else "accepted") if accepted else "rejected"
                self._note(f"a request must be {wanted}", act.sent, act.told)
            if not accepted or unchanged:
                continue
            standing = standing.after(act)
            if act.version is not None and act.version != standing.version:
                self._note(f"the answer names version {act.version}, not {standing.version}", act.sent, act.told)
            yield self._narrowed(Change(act.sent, act.told, act, standing))

    def _narrowed(self, change: Change) -> Change:
        """By the first instant that the answer names: the change came before it, and not before the one before that."""
        following, grid = change.act.next_run_at, change.then.grid
        if change.act.kind not in ("submit", "resume") or change.then.paused or grid is None:
            return change
        if following is None or not grid.holds(following):
            self._note("the answer does not name the next instant", change.low, change.high)
            return change
        return replace(change, low=max(change.low, grid.before(following)), high=min(change.high, following - 1))

    def _in_order(self, changes: list[Change]) -> list[Change]:
        """The same, none able to come before the one before it."""
        low = 0
        for number, change in enumerate(changes):
            low = max(low, change.low)
            changes[number] = replace(change, low=low)
        high = changes[-1].high if changes else 0
        for number, change in reversed(list(enumerate(changes))):
            high = min(high, change.high)
            changes[number] = replace(changes[number], high=high)
            if changes[number].low > high:
                self._note("the answers name instants that do not follow each other", change.low, change.high)
        return changes

    def _check_repeats(self) -> None:
        runs: defaultdict[int, list[Fired]] = defaultdict(list)
        for fired in self.fired:
            runs[fired.at].append(fired)
        for at, found in runs.items():
            if len(found) > 1:
                self._note(f"{clock(at)} fired {len(found)} times", at, at)

    def _check_spans(self) -> None:
        """What is certain, whatever moments are chosen."""
        tokens = {change.then.version: change.then.token for change in self.changes if change.then.exists}
        deleted = [change.high for change in self.changes if change.act.kind == "delete"]
        for fired in self.fired:
            if fired.version not in tokens:
                self._note(f"{fired} was made from a version that nobody was told of", fired.at, fired.at)
            elif fired.status == "cancelled" and fired.reason == "job_deleted" and fired.at <= max(deleted, default=0):
                pass  # it had not begun when its job was deleted
            elif fired.status != "succeeded" or fired.token != tokens[fired.version]:
                self._note(f"{fired} was given {fired.token}, not {tokens[fired.version]}", fired.at, fired.at)
        ends = [*self.changes[1:], None]
        for change, end in zip(self.changes, ends, strict=True):
            until = end.low if end else max(change.high, self._last())
            self._check_span(change, until)

    def _check_span(self, change: Change, until: int) -> None:
        """Between two changes: exactly what the definition says."""
        wanted = dict.fromkeys(change.then.fires(change.high, until), change.then.version)
        for fired in self.fired:
            if not change.high < fired.at <= until:
                continue
            if wanted.pop(fired.at, None) != fired.version:
                self._note(f"{fired} does not belong to what was acknowledged before it", fired.at, fired.at)
        for at in wanted:
            if not any(fired.at == at for fired in self.fired):
                self._note(f"{clock(at)} is lost", at, at)

    def _check_order(self) -> None:
        """That moments can be chosen so that everything fits: from change to change, which are still possible."""
        if not self.changes:
            return
        first = self.changes[0]
        if any(fired.at <= first.low for fired in self.fired):
            self._note("something fired before the job was there", first.low, first.high)
        possible = [at for at in self._moments(0) if not any(fired.at <= at for fired in self.fired)]
        for number in range(1, len(self.changes)):
            before = self.changes[number - 1].then
            reached = [
                to for to in self._moments(number) if any(at <= to and self._fits(before, at, to) for at in possible)
            ]
            if not reached:
                change = self.changes[number]
                self._note("no moment of this change explains what fired around it", change.low, change.high)
                return
            possible = reached
        if not any(self._fits(self.changes[-1].then, at, max(at, self._last())) for at in possible):
            self._note("something fired after the end", self.changes[-1].low, self.changes[-1].high)

    def _last(self) -> int:
        return max((fired.at for fired in self.fired), default=0)

    def _fits(self, standing: Standing, after: int, until: int) -> bool:
        found = sorted((fired.at, fired.version) for fired in self.fired if after < fired.at <= until)
        return found == [(at, standing.version) for at in standing.fires(after, until)]

    def _moments(self, number: int) -> list[int]:
        """The moments of a change that differ in what they leave to the definition before it."""
        change = self.changes[number]
        grids = [self.changes[near].then.grid for near in (number - 1, number) if near >= 0]
        instants = {at for grid in grids if grid for at in grid.within(change.low, change.high)}
        instants |= {fired.at for fired in self.fired if change.low <= fired.at <= change.high}
        return sorted({change.low, *instants})

    def _note(self, problem: str, low: int, high: int) -> None:
        """Keep a problem with the history around it."""
        acts = [f"    {act}" for act in self.acts if act.told >= low - _NEAR and act.sent <= high + _NEAR]
        fired = [
            f"    {one}" for one in sorted(self.fired, key=lambda one: one.at) if low - _NEAR <= one.at <= high + _NEAR
        ]
        near = "\n".join(["  asked and answered:", *acts, "  fired:", *fired])
        self.problems.append(f"{self.key}: {problem}\n{near}")


def judge(acts: Mapping[str, Sequence[Act]], fired: Mapping[str, Sequence[Fired]]) -> list[Verdict]:
    """The verdict on each job's history."""
    return [Verdict(key, acts[key], fired.get(key, [])).judge() for key in acts]
