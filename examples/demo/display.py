"""The demo in the terminal: live on a terminal, plain lines elsewhere, and its summary."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from examples.demo.checks import Check, History, figures, lateness, percentile
from examples.demo.consumer import Read
from examples.demo.receiver import Call
from examples.demo.requests import Line
from tidewheel.clock import monotonic_seconds
from tidewheel.local.progress import Step
from tidewheel.schemas.generated.records import ReplyStatus, RunStatus

_NAMED = 4  # errors shown of one rejection
_LINE_EVERY_SECONDS = 5.0
_PLAIN_WIDTH = 110
_COLUMNS = ("", "effects", "succeeded", "skipped", "failed", "attempts retried")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of the demo at one instant: the counts of `_COLUMNS` of each family, and the refusals."""

    elapsed_seconds: float
    services: Mapping[str, tuple[int, str]]
    families: Mapping[str, Sequence[int]]
    answered: int
    news: Sequence[str]


def snapshot_of(
    elapsed_seconds: float,
    services: Mapping[str, tuple[int, str]],
    lines: Sequence[Line],
    read: Read,
    calls: Sequence[Call],
) -> Snapshot:
    """Count the observations so far. Pure."""
    family_of = {line.key: line.family for line in lines}
    ends = Counter((family_of.get(run.job_key, ""), run.status) for run in read.runs.values())
    effects = Counter(family_of.get(call.job_key, "") for call in calls if call.effective)
    retried: Counter[str] = Counter()
    for run in read.runs.values():
        retried[family_of.get(run.job_key, "")] += max(run.attempt - 1, 0)
    counted = (RunStatus.SUCCEEDED, RunStatus.SKIPPED, RunStatus.FAILED)
    families = {
        name: (jobs, effects[name], *(ends[name, status] for status in counted), retried[name])
        for name, jobs in Counter(line.family for line in lines if line.job is not None).items()
    }
    return Snapshot(elapsed_seconds, services, families, len(read.replies), list(_news(read)))


def _news(read: Read) -> Iterable[str]:
    for reply in read.replies.values():
        if reply.status is not ReplyStatus.ACCEPTED:
            errors = (f"{error.path}: {error.problem} ({error.remedy})" for error in reply.errors[:_NAMED])
            yield f"rejected {reply.key}: {'; '.join(errors)}"
    for letter in read.dead_letters.values():
        error = f"{letter.error.type}: {letter.error.message}" if letter.error else letter.reason
        yield f"dead letter {letter.job_key}: failed after {letter.attempt} attempts, last error {error}"


class Screen:
    """The demo's output; a context manager that leaves the last display on the terminal."""

    def __init__(self) -> None:
        probe = Console()
        self.console = probe if probe.is_terminal else Console(width=_PLAIN_WIDTH, highlight=False)
        self._live = Live(console=self.console, refresh_per_second=5) if self.console.is_terminal else None
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
        """Show a step of the stack's start or stop."""
        amount = f" {step.done_bytes / 1e6:.0f} of {step.total_bytes / 1e6:.0f} MB" if step.total_bytes else ""
        self.phase(step.words + amount if self._live else step.what)

    def phase(self, phase: str) -> None:
        """Show the current phase."""
        if self._live:
            self._live.update(Group(Text(f"\n{phase} …", style="bold"), self._tables()))
        else:
            self._once(phase)

    def note(self, text: str) -> None:
        """Print a permanent line once."""
        self._once(f"· {text}")

    def print_line(self, text: str, style: str = "") -> None:
        """Print a line, wrapped only on a terminal."""
        self.console.print(Text(text, style=style), soft_wrap=not self.console.is_terminal)

    def show(self, phase: str, snapshot: Snapshot) -> None:
        """Show a snapshot."""
        self._last = snapshot
        for news in snapshot.news:
            self.note(news)
        if self._live or not snapshot.elapsed_seconds:
            self.phase(phase)
        elif monotonic_seconds() >= self._next_line:
            self._next_line = monotonic_seconds() + _LINE_EVERY_SECONDS
            self.print_line(_line(phase, snapshot))

    def _once(self, text: str) -> None:
        if text not in self._printed:
            self._printed.add(text)
            self.print_line(text)

    def _tables(self) -> Group:
        return Group(_services(self._last), _families(self._last)) if self._last else Group()


def _line(phase: str, snapshot: Snapshot) -> str:
    _, effects, succeeded, skipped, _, retried = map(sum, zip(*snapshot.families.values(), strict=True))
    return (
        f"{snapshot.elapsed_seconds:4.0f} s  {phase}: {snapshot.answered} replies, {effects} effects, "
        f"{succeeded} runs succeeded, {skipped} skipped, {retried} attempts retried"
    )


def _services(snapshot: Snapshot) -> Text:
    text = Text(f"{snapshot.elapsed_seconds:4.0f} s", overflow="ellipsis", no_wrap=True)
    for name, (pid, state) in snapshot.services.items():
        text.append(f"  {name} {pid}", style="dim")
        if state != "running":
            text.append(f" {state}", style="bold red")
    return text


def _families(snapshot: Snapshot) -> Table:
    table = _table("jobs", *_COLUMNS)
    for name, numbers in snapshot.families.items():
        table.add_row(name, *(str(number) if number else "" for number in numbers))
    return table


def _table(first: str, *numbers: str) -> Table:
    table = Table(first)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def print_summary(screen: Screen, history: History, checks: Sequence[Check]) -> None:
    """Print figures and checks. A failed check names the run to look at."""
    counts = _table("figure", "")
    counts.add_column("counted by")
    for name, number, source in figures(history):
        counts.add_row(name, f"{number:,}", source)
    late = _table("lateness of HTTP calls, in ms", "runs", "p50", "p99", "max")
    for name, found in lateness(history):
        shown = percentile(found, 50), percentile(found, 99), found[-1] if found else 0.0
        late.add_row(name, f"{len(found):,}", *(f"{number:,.0f}" for number in shown))
    for table in (counts, late):
        screen.print_line("")
        screen.console.print(table)
    for line in ("", *_news(history.read), ""):
        screen.print_line(line)
    for check in checks:
        screen.print_line(f"✓ {check}" if check.holds else f"✗ {check}", "green" if check.holds else "bold red")
    wrong = sum(not check.holds for check in checks)
    text = f"{wrong} of {len(checks)} checks failed: see ✗ above" if wrong else f"all {len(checks)} checks passed"
    screen.print_line(f"\n{text}", "bold red" if wrong else "bold green")
