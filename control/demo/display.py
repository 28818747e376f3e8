"""Display the demo in the terminal and print its summary.

The display is live on a terminal, and plain lines elsewhere.
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

_NAMED = 4  # errors shown of one rejection
_LINE_EVERY_SECONDS = 5.0
_PLAIN_WIDTH = 110


@dataclass(frozen=True, slots=True)
class Family:
    """One row of the display.

    Args:
        name: The label `family` of its jobs.
        jobs: Requests that submit a job.
        effects: Calls that took effect.
        succeeded: Runs that succeeded.
        skipped: Runs that overlap skipped.
        failed: Runs that failed.
        retried: Attempts after the first of each ended run.
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
    """The state of the demo at one instant.

    Args:
        elapsed_seconds: Seconds since the file was sent, 0 before that.
        services: Pid and state of each, by name.
        families: In the order of the file.
        answered: Replies read.
        news: Rejections and dead letters so far, oldest first.
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
    """Count the observations so far. Pure."""
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


def format_rejection(reply: Reply) -> str:
    """Format a rejection as one line: each field with its problem and remedy."""
    return f"rejected {reply.key}: " + "; ".join(
        f"{error.path}: {error.problem} ({error.remedy})" for error in reply.errors[:_NAMED]
    )


def format_dead_letter(letter: DeadLetter) -> str:
    """Format a dead letter as one line."""
    error = f"{letter.error.type}: {letter.error.message}" if letter.error else letter.reason
    return f"dead letter {letter.job_key}: failed after {letter.attempt} attempts, last error {error}"


def _news(read: Read) -> Iterable[str]:
    for _, reply in read.replies:
        if reply.status is not ReplyStatus.ACCEPTED:
            yield format_rejection(reply)
    for letter in read.dead_letters:
        yield format_dead_letter(letter)


class Screen:
    """The demo's output; a context manager that leaves the last display on the terminal."""

    def __init__(self) -> None:
        probe = Console()
        self.console = probe if probe.is_terminal else Console(width=_PLAIN_WIDTH, highlight=False)
        self._live = Live(console=self.console, refresh_per_second=5) if self.console.is_terminal else None
        self._phase = ""
        self._last: Snapshot | None = None
        self._printed: set[str] = set()
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
        """Show a step of the stack's start or stop in place of a progress bar."""
        amount = f" {step.done_bytes / 1e6:.0f} of {step.total_bytes / 1e6:.0f} MB" if step.total_bytes else ""
        if self._live:
            self._phase = step.words + amount
            self._draw()
        else:
            self._once(step.what)

    def phase(self, phase: str) -> None:
        """Show the current phase."""
        self._phase = phase
        if self._live:
            self._draw()
        else:
            self._once(phase)

    def note(self, text: str) -> None:
        """Print a permanent line once."""
        if text not in self._printed:
            self._printed.add(text)
            self.print_line(f"· {text}")

    def print_line(self, text: str, style: str = "") -> None:
        """Print a line, wrapped only on a terminal."""
        self.console.print(Text(text, style=style), soft_wrap=not self.console.is_terminal)

    def show(self, phase: str, snapshot: Snapshot) -> None:
        """Show a snapshot."""
        self._phase, self._last = phase, snapshot
        for news in snapshot.news:
            self.note(news)
        if self._live:
            self._draw()
        elif not snapshot.elapsed_seconds:
            self._once(phase)
        elif monotonic_seconds() >= self._next_line:
            self._next_line = monotonic_seconds() + _LINE_EVERY_SECONDS
            self.print_line(_line(phase, snapshot))

    def _once(self, text: str) -> None:
        if text not in self._printed:
            self._printed.add(text)
            self.print_line(text)

    def _draw(self) -> None:
        if self._live:
            self._live.update(Group(Text(f"\n{self._phase} …", style="bold"), self._tables()))

    def _tables(self) -> Group:
        return Group(_services(self._last), _families(self._last)) if self._last else Group()


def _line(phase: str, snapshot: Snapshot) -> str:
    total = snapshot.families
    return (
        f"{snapshot.elapsed_seconds:4.0f} s  {phase}: {snapshot.answered} replies, "
        f"{sum(one.effects for one in total)} effects, {sum(one.succeeded for one in total)} runs succeeded, "
        f"{sum(one.skipped for one in total)} skipped, {sum(one.retried for one in total)} attempts retried"
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
    for name in ("", "effects", "succeeded", "skipped", "failed", "attempts retried"):
        table.add_column(name, justify="right")
    for one in snapshot.families:
        numbers = (one.jobs, one.effects, one.succeeded, one.skipped, one.failed, one.retried)
        table.add_row(one.name, *(str(number) if number else "" for number in numbers))
    return table


def print_summary(screen: Screen, history: History, figures: Figures, checks: Sequence[Check]) -> None:
    """Print figures and checks. A failed check names the run to look at."""
    for table in (_counts(figures), _lateness(figures)):
        screen.print_line("")
        screen.console.print(table)
    screen.print_line("")
    for reply in figures.rejections:
        screen.print_line(format_rejection(reply))
    for letter in {letter.event_id: letter for letter in history.dead_letters}.values():
        screen.print_line(format_dead_letter(letter))
    screen.print_line("")
    for check in checks:
        screen.print_line(f"✓ {check}" if check.holds else f"✗ {check}", "green" if check.holds else "bold red")
    wrong = sum(not check.holds for check in checks)
    screen.print_line("")
    if wrong:
        screen.print_line(f"{wrong} of {len(checks)} checks failed: see ✗ above", "bold red")
    else:
        screen.print_line(f"all {len(checks)} checks passed", "bold green")


def _counts(figures: Figures) -> Table:
    table = Table("figure", "", "counted by", title="Independent counts", title_justify="left")
    table.columns[1].justify = "right"
    ends = ", ".join(f"{figures.ends[status]} {status}" for status in RunStatus if figures.ends.get(status))
    rows = (
        ("requests sent", figures.sent, f"the producer; the replies accept {figures.accepted}"),
        ("occurrences due", figures.due, "arithmetic over the requests"),
        ("runs", figures.runs, "PostgreSQL"),
        ("completion events", figures.events, f"the consumer: {ends}; {figures.repeated_events} repeats"),
        ("runs that had an effect", figures.effective_runs, "the receiver"),
        ("second effects", figures.second_effects, "the receiver; by a higher attempt after the kill"),
        ("attempts that failed", figures.failures, "the receiver; as the file scripts"),
        ("attempts ended by the kill", figures.lost, "attempts in the events minus the receiver's"),
    )
    for name, number, source in rows:
        table.add_row(name, f"{number:,}", source)
    return table


def _lateness(figures: Figures) -> Table:
    table = Table("lateness of HTTP calls, in ms", "runs", "p50", "p99", "max")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, late in (("due before the kill", figures.undisturbed), ("all, including the kill", figures.overall)):
        table.add_row(name, *_numbers(late))
    return table


def _numbers(late: Lateness) -> tuple[str, str, str, str]:
    return f"{late.runs:,}", f"{late.p50_ms:,.0f}", f"{late.p99_ms:,.0f}", f"{late.max_ms:,.0f}"
