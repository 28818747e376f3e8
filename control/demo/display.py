"""The demo in the terminal: a display that changes in place, or plain lines where standard output is no terminal.

What the display shows at one moment, counted anew from what was seen so far. Pure.

The summary: the figures, the checks, and where to look next.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tidewheel.clock import monotonic_seconds
from tidewheel.control.demo.checks import Check, Figures, Lateness
from tidewheel.control.demo.consumer import Read
from tidewheel.control.demo.observations import Call, History
from tidewheel.control.demo.requests import Line
from tidewheel.local.progress import Step
from tidewheel.schemas.generated.records import DeadLetter, Reply, ReplyStatus, RunStatus

_NAMED = 4  # error texts are cut to the first of them


@dataclass(frozen=True, slots=True)
class Family:
    """One row of the display.

    Args:
        name: The label `family` of its jobs.
        jobs: Requests that submit one.
        effects: Calls that took effect.
        succeeded: Runs that did.
        skipped: Runs whose job's turn was taken.
        failed: Runs that were given up.
        retried: Attempts beyond a run's first, so far as their runs have ended.
    """

    name: str
    jobs: int
    effects: int
    succeeded: int
    skipped: int
    failed: int
    retried: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment.

    Args:
        elapsed_seconds: Since the file was sent; 0 before.
        services: Pid and state of each, by name.
        families: In the order of the file.
        answered: Replies read.
        news: What is worth a line, oldest first; grows from moment to moment.
    """

    elapsed_seconds: float
    services: Mapping[str, tuple[int, str]]
    families: Sequence[Family]
    answered: int
    news: Sequence[str]


def snapshot_of(
    *,
    elapsed_seconds: float,
    services: Mapping[str, tuple[int, str]],
    lines: Sequence[Line],
    read: Read,
    calls: Sequence[Call],
) -> Snapshot:
    """Count what was seen so far."""
    family_of = {line.key: line.family for line in lines}
    runs = {event.run_id: event for event in read.completions}.values()
    ends = Counter((family_of.get(run.job_key, ""), run.status) for run in runs)
    retried: Counter[str] = Counter()
    for run in runs:
        retried[family_of.get(run.job_key, "")] += max(run.attempt - 1, 0)
    effects = Counter(family_of.get(call.job_key, "") for call in calls if call.effective)
    jobs = Counter(line.family for line in lines if line.job is not None)
    return Snapshot(
        elapsed_seconds,
        services,
        [
            Family(
                name,
                count,
                effects[name],
                ends[name, RunStatus.SUCCEEDED],
                ends[name, RunStatus.SKIPPED],
                ends[name, RunStatus.FAILED],
                retried[name],
            )
            for name, count in jobs.items()
        ],
        len(read.replies),
        list(_news(read)),
    )


def refusal(reply: Reply) -> str:
    """A rejection in one line: every field with what is wrong and what to write instead."""
    return f"refused {reply.key}: " + "; ".join(
        f"{error.path}: {error.problem} ({error.remedy})" for error in reply.errors[:_NAMED]
    )


def dead_letter(letter: DeadLetter) -> str:
    """A dead letter in one line."""
    error = f"{letter.error.type}: {letter.error.message}" if letter.error else letter.reason
    return f"dead letter {letter.job_key}: given up after {letter.attempt} attempts, the last one {error}"


def _news(read: Read) -> Iterable[str]:
    for _, reply in read.replies:
        if reply.status is not ReplyStatus.ACCEPTED:
            yield refusal(reply)
    for letter in read.dead_letters:
        yield dead_letter(letter)


_LINE_EVERY_SECONDS = 5.0
_PLAIN_WIDTH = 110


class Screen:
    """Where the demo shows itself; a context manager, which leaves the last picture standing."""

    def __init__(self) -> None:
        probe = Console()
        self.console = probe if probe.is_terminal else Console(width=_PLAIN_WIDTH, highlight=False)
        self._live = Live(console=self.console, refresh_per_second=5) if self.console.is_terminal else None
        self._phase = ""
        self._last: Snapshot | None = None
        self._told: set[str] = set()
        self._next_line = 0.0

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.update(self._tables())
            self._live.stop()

    def step(self, step: Step) -> None:
        """Show what the stack is doing; takes the place of a progress bar."""
        amount = f" {step.done_bytes / 1e6:.0f} of {step.total_bytes / 1e6:.0f} MB" if step.total_bytes else ""
        what, _, _ = step.what.partition(":")
        if self._live:
            self._phase = step.what + amount
            self._draw()
        else:
            self._once(what)

    def phase(self, phase: str) -> None:
        """Say what is going on now."""
        self._phase = phase
        if self._live:
            self._draw()
        else:
            self._once(phase)

    def note(self, text: str) -> None:
        """A line that stays."""
        if text not in self._told:
            self._told.add(text)
            self.say(f"· {text}")

    def say(self, text: str, style: str = "") -> None:
        """A line of any length; where standard output is no terminal, it is not broken."""
        self.console.print(Text(text, style=style), soft_wrap=not self.console.is_terminal)

    def show(self, phase: str, snapshot: Snapshot) -> None:
        """Show a moment."""
        self._phase, self._last = phase, snapshot
        for news in snapshot.news:
            self.note(news)
        if self._live:
            self._draw()
        elif not snapshot.elapsed_seconds:
            self._once(phase)
        elif monotonic_seconds() >= self._next_line:
            self._next_line = monotonic_seconds() + _LINE_EVERY_SECONDS
            self.say(_line(phase, snapshot))

    def _once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.say(text)

    def _draw(self) -> None:
        if self._live:
            self._live.update(Group(Text(f"\n{self._phase} …", style="bold"), self._tables()))

    def _tables(self) -> Group:
        return Group(_services(self._last), _families(self._last)) if self._last else Group()


def _line(phase: str, snapshot: Snapshot) -> str:
    total = snapshot.families
    return (
        f"{snapshot.elapsed_seconds:4.0f} s  {phase}: {snapshot.answered} answers, "
        f"{sum(one.effects for one in total)} effects, {sum(one.succeeded for one in total)} runs succeeded, "
        f"{sum(one.skipped for one in total)} skipped, {sum(one.retried for one in total)} attempts repeated"
    )


def _services(snapshot: Snapshot) -> Text:
    text = Text(f"{snapshot.elapsed_seconds:4.0f} s", overflow="ellipsis", no_wrap=True)
    for name, (pid, state) in snapshot.services.items():
        text.append(f"  {name} {pid}", style="dim")
        if state != "running":
            text.append(f" {state}", style="bold red")
    return text


def _families(snapshot: Snapshot) -> Table:
    table = Table(title=None, expand=False)
    table.add_column("jobs")
    for name in ("", "effects", "succeeded", "skipped", "failed", "attempts repeated"):
        table.add_column(name, justify="right")
    for one in snapshot.families:
        numbers = (one.jobs, one.effects, one.succeeded, one.skipped, one.failed, one.retried)
        table.add_row(one.name, *(str(number) if number else "" for number in numbers))
    return table


def print_summary(screen: Screen, history: History, figures: Figures, checks: Sequence[Check]) -> None:
    """Print figures and checks; a check that does not hold says which run to look at."""
    for table in (_counts(figures), _lateness(figures)):
        screen.say("")
        screen.console.print(table)
    screen.say("")
    for reply in figures.rejections:
        screen.say(refusal(reply))
    for letter in {letter.event_id: letter for letter in history.dead_letters}.values():
        screen.say(dead_letter(letter))
    screen.say("")
    for check in checks:
        screen.say(f"✓ {check}" if check.holds else f"✗ {check}", "green" if check.holds else "bold red")
    wrong = sum(not check.holds for check in checks)
    screen.say("")
    if wrong:
        screen.say(f"{wrong} of {len(checks)} checks do not add up: see ✗ above", "bold red")
    else:
        screen.say(f"all {len(checks)} checks hold", "bold green")


def _counts(figures: Figures) -> Table:
    table = Table("figure", "", "counted by", title="Held against an independent count", title_justify="left")
    table.columns[1].justify = "right"
    ends = ", ".join(f"{figures.ends[status]} {status}" for status in RunStatus if figures.ends.get(status))
    rows = (
        ("requests sent", figures.sent, f"the producer; {figures.accepted} accepted, by their replies"),
        ("occurrences due", figures.due, "arithmetic over the requests"),
        ("runs", figures.runs, "PostgreSQL"),
        ("completion events", figures.events, f"the consumer: {ends}; {figures.repeated_events} repeats"),
        ("runs that had an effect", figures.effective_runs, "the receiver"),
        ("second effects", figures.second_effects, "the receiver; by a higher attempt, after the kill"),
        ("attempts that failed", figures.failures, "the receiver; as the file says"),
        ("attempts the kill ended", figures.lost, "completions less the receiver's"),
    )
    for name, number, source in rows:
        table.add_row(name, f"{number:,}", source)
    return table


def _lateness(figures: Figures) -> Table:
    table = Table("lateness of HTTP calls, in ms", "runs", "p50", "p99", "max")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, late in (("due before the kill", figures.undisturbed), ("all, the kill included", figures.overall)):
        table.add_row(name, *_numbers(late))
    return table


def _numbers(late: Lateness) -> tuple[str, str, str, str]:
    return f"{late.runs:,}", f"{late.p50_ms:,.0f}", f"{late.p99_ms:,.0f}", f"{late.max_ms:,.0f}"
