"""The demo in the terminal: its progress and its summary."""

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from examples.demo.checks import Check, History, figures
from examples.demo.consumer import Seen
from tidewheel.clock import monotonic_seconds
from tidewheel.local.daemon import Step
from tidewheel.schemas.generated.records import RunStatus

_LINE_EVERY_SECONDS = 4.0
_PLAIN_WIDTH = 110
_SHOWN = 5  # faults of a check


class Screen:
    """The demo's output."""

    def __init__(self) -> None:
        probe = Console()
        self._console = probe if probe.is_terminal else Console(width=_PLAIN_WIDTH, highlight=False)
        self._began = monotonic_seconds()
        self._last = ""
        self._next_line = 0.0

    @property
    def seconds(self) -> float:
        """The seconds since the demo began."""
        return monotonic_seconds() - self._began

    def step(self, step: Step) -> None:
        """Print a step of the stack's start or stop."""
        if step.what != self._last:
            self.note(step.what)
        self._last = step.what

    def note(self, text: str) -> None:
        """Print a line with the time."""
        self.print(f"{self.seconds:4.0f} s  {text}")

    def show(self, phase: str, seen: Seen) -> None:
        """Print every few seconds what was seen so far."""
        if monotonic_seconds() < self._next_line:
            return
        self._next_line = monotonic_seconds() + _LINE_EVERY_SECONDS
        ends = Counter(run.status for run in seen.ends.values())
        ended = ", ".join(f"{ends[status]:,} {status}" for status in RunStatus if ends[status])
        self.note(f"{phase}: {len(seen.replies):,} replies, {len(seen.ends):,} runs ended{ended and ': '}{ended}")

    def print(self, text: str | Table, style: str = "") -> None:
        """Print a table, or a line that is wrapped only on a terminal."""
        shown = Text(text, style=style) if isinstance(text, str) else text
        self._console.print(shown, soft_wrap=not self._console.is_terminal)


def print_summary(screen: Screen, history: History, audit: str, checks: Sequence[Check]) -> None:
    """Print figures, the audit and checks. A failed check names the run to look at."""
    counts = Table("figure", Column("", justify="right"), "counted by")
    for row in figures(history):
        counts.add_row(*row)
    screen.print(counts)
    for line in (*_exceptions(history.seen), "", "tidewheel admin audit --completions", *audit.splitlines(), ""):
        screen.print(line)
    for check in checks:
        screen.print(f"{'✗' if check.faults else '✓'} {check.promise}", "bold red" if check.faults else "green")
        for fault in check.faults[:_SHOWN]:
            screen.print(f"    {fault}")
    wrong = sum(bool(check.faults) for check in checks)
    text = f"{wrong} of {len(checks)} checks failed: see ✗ above" if wrong else f"all {len(checks)} checks passed"
    screen.print(f"\n{text} after {screen.seconds:.0f} s", "bold red" if wrong else "bold green")


def _exceptions(seen: Seen) -> Iterator[str]:
    """Yield a line for each rejected request and each dead letter."""
    for reply in seen.rejections:
        errors = (f"{error.path}: {error.problem} ({error.remedy})" for error in reply.errors)
        yield f"rejected {reply.key}: {'; '.join(errors)}"
    for letter in seen.dead_letters.values():
        error = f"{letter.error.type}: {letter.error.message}" if letter.error else letter.reason
        yield f"dead letter {letter.job_key}: failed after {letter.attempt} attempts, last error {error}"
