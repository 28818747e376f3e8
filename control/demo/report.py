"""The summary: the figures, the checks, and where to look next."""

from collections.abc import Sequence

from rich.table import Table

from tidewheel.control.demo.figures import Figures, Lateness
from tidewheel.control.demo.history import History
from tidewheel.control.demo.screen import Screen
from tidewheel.control.demo.snapshot import dead_letter, refusal
from tidewheel.control.demo.tally import Check
from tidewheel.schemas.generated.records import RunStatus


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
