"""Run scenarios round by round, report progress, and print the figures."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from statistics import median
from typing import cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tidewheel.bench.calibration import loop_ms
from tidewheel.bench.environment import Server
from tidewheel.bench.interpreter import WITHOUT_PGO, read_build
from tidewheel.bench.measurement import Incomplete, Line, Options, Round, Speed, changed_speed, summarise
from tidewheel.bench.registry import SCENARIOS, Part

Report = Callable[[int, str], None]


@dataclass(slots=True)
class Found:
    """The figures and failures of a benchmark run.

    Args:
        rounds: Of each scenario, in order.
        failed: The reason of each scenario without figures, or with fewer rounds than requested.
    """

    rounds: dict[str, list[Round]] = field(default_factory=dict[str, list[Round]])
    failed: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def lines(self) -> list[Line]:
        """A line for each figure."""
        return [line for name, rounds in self.rounds.items() for line in summarise(name, rounds)]

    @property
    def changed_speed(self) -> dict[str, list[int]]:
        """The numbers of the rounds during which the machine changed speed, by scenario."""
        marks = iter(changed_speed([each.speed for rounds in self.rounds.values() for each in rounds]))
        numbered = {name: enumerate(rounds, start=1) for name, rounds in self.rounds.items()}
        return {name: [number for number, _ in rounds if next(marks)] for name, rounds in numbered.items()}


def run_scenario(
    server: Server, name: str, found: Found, options: Options, *, rounds: int | None, report: Report
) -> None:
    """Run one scenario; what goes wrong is kept in `found`, and other scenarios go on."""
    for number, (part, label) in enumerate(turns_of(name, rounds)):
        report(number, f"{name} {label}")
        reporting = replace(options, report=partial(report_part, report, number, f"{name} {label}"))
        if not run_part(server, name, part, found, reporting, label=label):
            return


def run_part(server: Server, name: str, part: Part, found: Found, options: Options, *, label: str) -> bool:
    """One round of one measurement; returns whether it has its figures."""
    before_ms = loop_ms()
    try:
        measured = part.measure(server, options)
    except Incomplete as error:
        found.failed[name] = f"{label}: {error}"
        return False
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this round's, and hours may lie behind and before it
        found.failed[name] = f"{label}: {type(error).__name__}: {error}"
        return False
    found.rounds.setdefault(name, []).append(replace(measured, speed=Speed(before_ms, loop_ms())))
    return True


def report_failures(found: Found) -> None:
    """Print the scenarios without figures on standard error, with the reason."""
    for name, why in found.failed.items():
        print(f"tidewheel: bench {name}: {why}", file=sys.stderr)


def report_part(report: Report, done: int, part: str, text: str) -> None:
    """Report the current step of a part."""
    report(done, f"{part}: {text}")


def turns_of(name: str, rounds: int | None) -> list[tuple[Part, str]]:
    """The measurements of a scenario in order, each with what it is called."""
    found: list[tuple[Part, str]] = []
    for part in SCENARIOS[name]:
        count = rounds or (1 if part.once else 5)
        found += [(part, f"round {number + 1}/{count}") for number in range(count)]
    return found


@contextmanager
def progress(total: int) -> Generator[Report]:
    """Show a progress bar on a terminal's standard error, else a line for each step."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, text: console.print(
            f"[{done}/{total}] {text}", markup=False, highlight=False, soft_wrap=True
        )
        return
    with Progress(BarColumn(30), TimeElapsedColumn(), TextColumn("{task.description}"), console=console) as shown:
        task = shown.add_task("starting", total=total)
        yield lambda done, text: shown.update(task, completed=done, description=text)


def document(found: Found, about: Mapping[str, object]) -> str:
    """Everything as one JSON document: `results` has a line for each figure, `raw` every round."""
    changed = found.changed_speed
    raw = [
        {
            "scenario": name,
            "round": number,
            "calibration_ms": each.speed and [each.speed.before_ms, each.speed.after_ms],
            "machine_changed_speed": number in changed[name],
            "figures": {figure: asdict(value) for figure, value in each.figures.items()},
            "series": {series: list(points) for series, points in each.series.items()},
        }
        for name, rounds in found.rounds.items()
        for number, each in enumerate(rounds, start=1)
    ]
    results = [asdict(line) for line in found.lines]
    counts = {
        name: Counter(figure for each in rounds for figure in each.figures) for name, rounds in found.rounds.items()
    }
    return json.dumps({**about, "rounds": counts, "results": results, "failed": found.failed, "raw": raw}, default=str)


def about_words(about: Mapping[str, object]) -> str:
    """Machine, versions and settings for people."""
    parts = [about["machine"], about["versions"], about["settings"]]
    lines = [", ".join(f"{name} {value}" for name, value in cast("dict[str, object]", part).items()) for part in parts]
    return "\n".join([*lines, *interpreter_words(), "everything on this machine; other load shows in the range"])


def interpreter_words() -> list[str]:
    """The interpreter's build for people, with the cost of one without PGO."""
    build = read_build()
    return [str(build)] if build.pgo else [str(build), WITHOUT_PGO]


def speed_words(found: Found) -> list[str]:
    """A line for each scenario with rounds during which the machine changed speed."""
    lines: list[str] = []
    for name, numbers in found.changed_speed.items():
        if numbers:
            speeds = [speed for at in numbers if (speed := found.rounds[name][at - 1].speed)]
            readings = ", ".join(f"{number(each.before_ms)} to {number(each.after_ms)} ms" for each in speeds)
            rounds = f"round{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
            lines.append(f"{name:<11} machine changed speed: {rounds} (calibration loop {readings})")
    return lines


def words(name: str, rounds: Sequence[Round]) -> list[str]:
    """A scenario's figures for people."""
    lines: list[str] = []
    for line in summarise(name, rounds):
        beside = ""
        if line.floor is not None and line.ratio is not None:
            beside = f"  floor {number(line.floor)}, ratio {line.ratio:.3f}"
        spread = f"[{number(line.min)} to {number(line.max)}]"
        lines.append(f"{name:<11} {line.figure:<34} {number(line.median):>10} {line.unit:<14} {spread}{beside}")
        if line.cpu_us_per_run and line.cpu_us_per_run_min:
            least = line.cpu_us_per_run_min
            cpu = ", ".join(f"{process} {us:.1f} ({least[process]:.1f})" for process, us in line.cpu_us_per_run.items())
            lines.append(f"{'':<12}CPU µs a run, median (min): {cpu}")
            lines.append(f"{'':<12}bytes a run: {_bytes(line, rounds)}")
    return lines


def number(value: float) -> str:
    """As many digits as mean something.

    >>> number(12345.678), number(3.14159), number(0.012)
    ('12,346', '3.14', '0.012')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _bytes(line: Line, rounds: Sequence[Round]) -> str:
    spent = [each.figures[line.figure].spent for each in rounds if line.figure in each.figures]
    kafka = [each.kafka_bytes / each.runs for each in spent if each and each.kafka_bytes is not None]
    lines = f"{line.wal_bytes_per_run or 0:,.0f} of WAL"
    return f"{lines}, {median(kafka):,.0f} of Kafka's log" if kafka else lines
