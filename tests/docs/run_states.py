"""Write docs/run-states.md: `python -m tests.docs.run_states`. A test compares them."""

import ast
import sys
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from tidewheel import runs
from tidewheel.runs import DEAD_LETTERED, FINAL, MOVES, SKIP_WORDS, Move, RunState, SkipReason

PAGE = Path(__file__).parents[2] / "docs" / "run-states.md"

_HEAD = """\
# Run states

<!-- Generated from `tidewheel/runs.py` by `python -m tests.docs.run_states`; a test compares the two. Edit the table
and the sentences there. -->

A **run** is created for an occurrence or a trigger. An **attempt** is one claim of it. A run has one state at a time
and moves only by the [moves](#moves) below. REST, messages and the command line show the state as `status`, Python as
`run.state`. Every statement that writes a state takes its allowed sources and its target from one table. So no other
move is possible. The most common moves:

![The life of a run](images/life-of-a-run.svg)
"""
_SKIPS = """\
## Reasons of a skip

A run that is `skipped` has one of these reasons, and so has an [occurrence](occurrences.md) that did not fire.

| Reason | It was skipped because |
| --- | --- |"""
_TAIL = """\
## What holds in every state

- A terminal run never changes. One transaction deletes its row in `job_runs`, writes the row in `finished_runs` and
  appends its completion event. A retry on request is a new run.
- `lost` is an attempt's outcome, never a run's state: the run goes back to `retrying`, and only `max_lost` such losses
  make it `failed`.
- A claim raises `attempt` by one, and (run, attempt) is never issued twice. Every later write names the attempt and the
  executor that owns it. A write that does not match changes nothing.
- A run that is `cancelling` can only become `cancelled`, even if its handler succeeds, or if its executor is lost or
  releases it.
- `queued` is shown as `scheduled` while the run's `publish_at` is in the future, by the database's clock. No executor
  claims it before.
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE.name}\n")


def page() -> str:
    """Return the page's text."""
    return "\n".join([_HEAD, "## States", "", _states(), "## Moves", "", _moves(), _SKIPS, *_skips(), _TAIL])


def sentences(enum: type[StrEnum], source: str) -> dict[str, str]:
    """Return the text below each member in the source as one line, by the member's value."""
    tree = ast.parse(source)
    [body] = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == enum.__name__]
    found: dict[str, str] = {}
    for member, sentence in pairwise(body):
        match member, sentence:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(text))):
                found[enum[name].value] = " ".join(text.split())
            case _:
                pass
    return found


def _source() -> str:
    return Path(runs.__file__).read_text(encoding="utf-8")


def _states() -> str:
    rows = ["| State | Terminal | Meaning |", "| --- | --- | --- |"]
    meanings = sentences(RunState, _source())
    for state in RunState:
        ends = "yes, with a dead letter" if state in DEAD_LETTERED else "yes" if state in FINAL else ""
        rows.append(f"| `{state}` | {ends} | {meanings[state]} |")
    return "\n".join([*rows, ""])


def _moves() -> str:
    rows = ["| Move | From | To | When |", "| --- | --- | --- | --- |"]
    meanings = sentences(Move, _source())
    for move in Move:
        sources = ", ".join(f"`{state}`" for state in RunState if state in MOVES[move].sources)
        rows.append(f"| `{move}` | {sources} | `{MOVES[move].target}` | {meanings[move]} |")
    return "\n".join([*rows, ""])


def _skips() -> list[str]:
    return [f"| `{each}` | {SKIP_WORDS[each]} |" for each in SkipReason] + [""]


if __name__ == "__main__":
    main()
