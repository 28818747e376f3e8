"""The demo in the terminal: a live table on a terminal, plain lines elsewhere, and the summary."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from examples.demo.checks import Check, History, figures
from examples.demo.consumer import Seen
from examples.demo.receiver import Call
from examples.demo.requests import Line
from tidewheel.clock import monotonic_seconds
from tidewheel.local.progress import Step
from tidewheel.schemas.generated.records import RunStatus

_LINE_EVERY_SECONDS = 5.0
_PLAIN_WIDTH = 110
_COLUMNS = ("jobs", "effects", "succeeded", "skipped", "failed", "attempts retried")


def count_families(lines: Sequence[Line], seen: Seen, calls: Sequence[Call]) -> Mapping[str, Sequence[int]]:
    """Return the counts of `_COLUMNS` so far, by family. Pure."""
    family_of = {line.key: line.family for line in lines if line.family}
    effects = Counter(family_of.get(call.job_key) for call in calls if call.effective)
    ends = Counter((family_of.get(run.job_key), run.status) for run in seen.ends.values())
    retried = Counter(family_of.get(run.job_key) for run in seen.ends.values() for _ in range(1, run.attempt))
    counted = (RunStatus.SUCCEEDED, RunStatus.SKIPPED, RunStatus.FAILED)
    return {
        name: (jobs, effects[name], *(ends[name, status] for status in counted), retried[name])
        for name, jobs in Counter(family_of.values()).items()
    }


class Screen:
    """The demo's output; a context manager that leaves the last table on the terminal."""

    def __init__(self) -> None:
        probe = Console()
        self.console = probe if probe.is_terminal else Console(width=_PLAIN_WIDTH, highlight=False)
        self._live = Live(console=self.console, refresh_per_second=5) if self.console.is_terminal else None
        self._families: Mapping[str, Sequence[int]] = {}
        self._phase = ""
        self._next_line = 0.0

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.update(self._table())
            self._live.stop()

    def step(self, step: Step) -> None:
        """Show a step of the stack's start or stop."""
        amount = f" {step.done_bytes / 1e6:.0f} of {step.total_bytes / 1e6:.0f} MB" if step.total_bytes else ""
        self.phase(step.words + amount if self._live else step.what)

    def phase(self, phase: str) -> None:
        """Show the current phase."""
        if self._live:
            self._live.update(Group(Text(f"\n{phase} …", style="bold"), self._table()))
        elif phase != self._phase:
            self.print_line(phase)
        self._phase = phase

    def note(self, text: str) -> None:
        """Print a permanent line."""
        self.print_line(f"· {text}")

    def print_line(self, text: str, style: str = "") -> None:
        """Print a line, wrapped only on a terminal."""
        self.console.print(Text(text, style=style), soft_wrap=not self.console.is_terminal)

    def show(self, phase: str, seconds: float, families: Mapping[str, Sequence[int]]) -> None:
        """Show the phase and the counts at a second; off a terminal, their sums every five."""
        self._families = families
        if self._live or not families:
            self.phase(phase)
        elif monotonic_seconds() >= self._next_line:
            self._next_line = monotonic_seconds() + _LINE_EVERY_SECONDS
            _, effects, succeeded, skipped, failed, retried = map(sum, zip(*families.values(), strict=True))
            ended = f"{succeeded} runs succeeded, {skipped} skipped, {failed} failed"
            self.print_line(f"{seconds:4.0f} s  {phase}: {effects} effects, {ended}, {retried} attempts retried")

    def _table(self) -> Table | Text:
        if not self._families:
            return Text()
        table = _table("", *_COLUMNS)
        for name, numbers in self._families.items():
            table.add_row(name, *(f"{number:,}" if number else "" for number in numbers))
        return table


def print_summary(screen: Screen, history: History, audit: str, checks: Sequence[Check]) -> None:
    """Print figures, the audit and checks. A failed check names the run to look at."""
    table = _table("figure", "")
    table.add_column("counted by")
    for row in figures(history):
        table.add_row(*row)
    screen.console.print("", table, "")
    for line in (*_exceptions(history.seen), "", "tidewheel admin audit --completions", *audit.splitlines(), ""):
        screen.print_line(line)
    for check in checks:
        screen.print_line(f"{'✗' if check.faults else '✓'} {check}", "bold red" if check.faults else "green")
    wrong = sum(bool(check.faults) for check in checks)
    text = f"{wrong} of {len(checks)} checks failed: see ✗ above" if wrong else f"all {len(checks)} checks passed"
    screen.print_line(f"\n{text}", "bold red" if wrong else "bold green")


def _exceptions(seen: Seen) -> Iterator[str]:
    """Yield a line for each rejected request and each dead letter."""
    for reply in seen.rejections:
        errors = (f"{error.path}: {error.problem} ({error.remedy})" for error in reply.errors)
        yield f"rejected {reply.key}: {'; '.join(errors)}"
    for letter in seen.dead_letters.values():
        error = f"{letter.error.type}: {letter.error.message}" if letter.error else letter.reason
        yield f"dead letter {letter.job_key}: failed after {letter.attempt} attempts, last error {error}"


def _table(first: str, *numbers: str) -> Table:
    table = Table(first)
    for name in numbers:
        table.add_column(name, justify="right")
    return table
