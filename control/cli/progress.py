"""Progress of long work: a bar on standard error where that is a terminal, nothing elsewhere."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def bar(what: str, total: int | None) -> Generator[Callable[[int], None]]:
    """Show how much is done; what is yielded takes how many of `total` are; None: nobody knows."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _unseen
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done if total is None else min(done, total))


def _unseen(done: int) -> None:
    del done
