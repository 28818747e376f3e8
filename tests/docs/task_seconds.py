"""Measure the tasks on docs/tasks.md: ``python -m tests.docs.task_seconds`` writes the page's table.

It runs the commands against a `tidewheel dev` of its own. The seconds of a task are those of its commands, one after
another. Blocks that prepare a task, and the start of `tidewheel dev`, are left out.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import typer

from tests.docs.pages import Shell, blocks, fits, follow
from tests.strict_types import ROOT

PAGE = ROOT / "docs" / "tasks.md"
_TABLE = re.compile(r"^\| Task \| Commands \| Seconds \|\n(?:\|.*\n)+", re.MULTILINE)
_TIMEOUT_SECONDS = 600.0  # 100,000 runs are written first
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


def main() -> None:
    """Run the page, print each output that differs from the shown one, and write the table."""
    text = PAGE.read_text(encoding="utf-8")
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEWHEEL_", "PG"))}
        environment |= {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}",
            "TIDEWHEEL_HOME": str(Path(folder) / "home"),
            "TASK_RUNS": os.environ.get("TASK_RUNS", "100000"),
        }
        for block, printed, took in follow(PAGE, Shell(Path(folder), environment, _TIMEOUT_SECONDS)):
            if block.what == "run" and not block.name:
                task = task_of(text, block.line)
                seconds[task] = seconds.get(task, 0.0) + took
            elif block.what == "output" and not fits(block.text, printed):
                typer.echo(f"line {block.line} shows\n{block.text}and got\n{printed}")
    rows = [
        f"| {_link(task)} | {commands_of(text, task)} | {seconds[task]:.1f} |"
        if task in seconds
        else f"| {_link(task)} | | not measured |"
        for task in _HEADING.findall(text)
    ]
    table = "\n".join(("| Task | Commands | Seconds |", "| --- | --- | --- |", *rows, ""))
    typer.echo(table)
    PAGE.write_text(_TABLE.sub(table, text), encoding="utf-8")


def commands_of(text: str, task: str) -> int:
    """Return the number of commands of a task; a program counts as one."""
    runs = [block for block in blocks(PAGE) if block.what == "run" and not block.name]
    shown = [block for block in runs if task_of(text, block.line) == task]
    return sum(block.text.replace("\\\n", " ").count("\n") if block.language == "sh" else 1 for block in shown)


def task_of(text: str, line: int) -> str:
    """Return the heading above a line of the page."""
    above = "\n".join(text.splitlines()[:line])
    return _HEADING.findall(above)[-1]


def _link(task: str) -> str:
    return f"[{task}](#{re.sub(r'[^a-z0-9 -]', '', task.lower()).replace(' ', '-')})"


if __name__ == "__main__":
    main()
