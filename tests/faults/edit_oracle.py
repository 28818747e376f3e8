"""Oracle of random edits: judge a history by its requests, replies and fired runs alone.

The oracle imports nothing of Tidewheel and queries none of its tables. Each change took effect between the sending of
its request and the arrival of its reply. The first instant that the reply names narrows this interval down. The
history is right if moments of effect exist in the order of the changes. Between two of them exactly the instants of the
definition then in force have fired, each once and by that version. An occurrence that was moved counts at its new time.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tests.faults.edit_model import SECOND, Act, Fired, Standing, clock

_NEAR = 3 * SECOND  # what is shown around a fault


@dataclass(frozen=True, slots=True)
class Change:
    """The moment between `low` and `high` at which one state replaced another."""

    low: int
    high: int
    act: Act
    then: Standing


@dataclass
class Verdict:
    """The faults of one job's history, and its size."""

    key: str
    acts: Sequence[Act]
    fired: Sequence[Fired]
    problems: list[str] = field(default_factory=list[str])
    changes: list[Change] = field(default_factory=list[Change])
    _moves: dict[int, set[int]] = field(default_factory=dict[int, set[int]])

    def __post_init__(self) -> None:
        for act in self.acts:
            if act.kind == "move" and act.accepted:
                self._moves.setdefault(act.at, {act.at}).add(act.to)

    def judge(self) -> "Verdict":
        """Look at everything."""
        self.changes = self._in_order(list(self._changes()))
        self._check_repeats()
        self._check_spans()
        if not self.problems:
            self._check_order()
        return self

    def missing(self) -> list[int]:
        """Occurrences that must have fired and have not, so far."""
        changes = self._in_order(list(self._changes()))
        there = {(fired.at, fired.version) for fired in self.fired}
        return [
            at
            for change, following in pairwise(changes)
            for _, at in change.then.fires(change.high, following.low)
            if (at, change.then.version) not in there
        ]

    def _changes(self) -> Iterator[Change]:
        """Yield the requests that changed something; record the problems of the replies."""
        standing = Standing()
        for act in self.acts:
            accepted, unchanged = standing.answer(act)
            if (act.accepted, act.accepted and act.unchanged) != (accepted, accepted and unchanged):
                wanted = ("unchanged" if unchanged else "accepted") if accepted else "rejected"
                self._note(f"a request must be {wanted}", act.sent, act.answered)
            if not accepted or unchanged:
                continue
            standing = standing.after(act)
            if act.version is not None and act.version != standing.version:
                self._note(f"the answer names version {act.version}, not {standing.version}", act.sent, act.answered)
            yield self._narrowed(Change(act.sent, act.answered, act, standing))

    def _narrowed(self, change: Change) -> Change:
        """Bound a change by the first instant in its reply: it came before that one and after the previous."""
        following, grid = change.act.next_run_at, change.then.grid
        if change.act.kind not in ("submit", "resume") or change.then.paused or grid is None:
            return change
        if following is None or not change.then.may_fire_at(following):
            self._note("the answer does not name the next instant", change.low, change.high)
            return change
        passed = [at for place, at in change.then.fires(change.low - _NEAR, following - 1) if place == at]
        low = max([change.low, *passed]) if grid.holds(following) else change.low
        return replace(change, low=low, high=min(change.high, following - 1))

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
        """Return the facts that hold for every choice of moments."""
        tokens = {change.then.version: change.then.token for change in self.changes if change.then.exists}
        deleted = [change.high for change in self.changes if change.act.kind == "delete"]
        for fired in self.fired:
            if fired.done < self._place(fired):
                self._note(f"{fired} was done before its time", fired.at, fired.at)
            if fired.version not in tokens:
                self._note(f"{fired} was made from a version that no reply has named", fired.at, fired.at)
            elif (
                fired.status == "cancelled"
                and fired.reason == "job_deleted"
                and self._place(fired) <= max(deleted, default=0)
            ):
                pass  # it had not begun when its job was deleted
            elif fired.status != "succeeded" or fired.token != tokens[fired.version]:
                self._note(f"{fired} was given {fired.token}, not {tokens[fired.version]}", fired.at, fired.at)
        ends = [*self.changes[1:], None]
        for change, end in zip(self.changes, ends, strict=True):
            until = end.low if end else max(change.high, self._last())
            self._check_span(change, until)

    def _check_span(self, change: Change, until: int) -> None:
        """Between two changes: exactly what the definition says."""
        wanted = {at: (place, change.then.version) for place, at in change.then.fires(change.high, until)}
        for fired in self.fired:
            if not change.high < self._place(fired) <= until or fired.at in change.then.doubtful:
                continue
            if wanted.pop(fired.at, None) != (self._place(fired), fired.version):
                self._note(f"{fired} does not belong to what was acknowledged before it", fired.at, fired.at)
        for at in wanted:
            if not any(fired.at == at for fired in self.fired):
                self._note(f"{clock(at)} is lost", at, at)

    def _check_order(self) -> None:
        """That moments can be chosen so that everything fits: from change to change, which are still possible."""
        if not self.changes:
            return
        first = self.changes[0]
        if any(self._place(fired) <= first.low for fired in self.fired):
            self._note("something fired before the job was there", first.low, first.high)
        possible = [at for at in self._moments(0) if not any(self._place(fired) <= at for fired in self.fired)]
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
        return max((self._place(fired) for fired in self.fired), default=0)

    def _fits(self, standing: Standing, after: int, until: int) -> bool:
        found = [
            (self._place(fired), fired.at, fired.version)
            for fired in self.fired
            if after < self._place(fired) <= until and fired.at not in standing.doubtful
        ]
        return sorted(found) == [(*pair, standing.version) for pair in standing.fires(after, until)]

    def _moments(self, number: int) -> list[int]:
        """The moments of a change that differ in what they leave to the definition before it."""
        change = self.changes[number]
        near = [self.changes[each].then for each in (number - 1, number) if each >= 0]
        instants = {at for standing in near for at, _ in standing.fires(change.low, change.high)}
        instants |= {place for fired in self.fired if change.low <= (place := self._place(fired)) <= change.high}
        return sorted({change.low, *instants})

    def _place(self, fired: Fired) -> int:
        """Return the due time of a run: its instant, or the time it was moved to."""
        places = self._moves.get(fired.at)
        if places is None:
            return fired.at
        return max((at for at in places if at <= (fired.left or fired.done)), default=min(places))

    def _note(self, problem: str, low: int, high: int) -> None:
        """Keep a problem with the history around it."""
        acts = [f"    {act}" for act in self.acts if act.answered >= low - _NEAR and act.sent <= high + _NEAR]
        fired = [
            f"    {one}" for one in sorted(self.fired, key=lambda one: one.at) if low - _NEAR <= one.at <= high + _NEAR
        ]
        near = "\n".join(["  asked and answered:", *acts, "  fired:", *fired])
        self.problems.append(f"{self.key}: {problem}\n{near}")


def judge(acts: Mapping[str, Sequence[Act]], fired: Mapping[str, Sequence[Fired]]) -> list[Verdict]:
    """The verdict on each job's history."""
    return [Verdict(key, acts[key], fired.get(key, [])).judge() for key in acts]
