"""The demo in the terminal: a display that changes in place, or plain lines where standard output is no terminal."""

from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tidewheel.clock import monotonic_seconds
from tidewheel.control.demo.snapshot import Snapshot
from tidewheel.local.progress import Step

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
