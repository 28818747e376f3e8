"""Run scenarios round by round, report progress, and print the figures."""

import json
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from shutil import which
from statistics import median
from typing import cast

import psutil
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tidewheel.bench.environment import Server, where
from tidewheel.bench.measurement import Incomplete, Line, Options, Round, summarise
from tidewheel.bench.registry import SCENARIOS, Part
from tidewheel.settings import ExecutorSettings, RelaySettings, SchedulerSettings

Report = Callable[[int, str], None]

_LIBRARIES = ("tidewheel", "psycopg", "confluent-kafka", "fastavro", "pydantic", "uvloop")
_SHOWN_SETTINGS = (SchedulerSettings, RelaySettings, ExecutorSettings)
_HIDDEN = frozenset({"database_url", "kafka_bootstrap", "webhook_secret", "topic_prefix"})


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
    try:
        measured = part.measure(server, options)
    except Incomplete as error:
        found.failed[name] = f"{label}: {error}"
        return False
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this round's, and hours may lie behind and before it
        found.failed[name] = f"{label}: {type(error).__name__}: {error}"
        return False
    found.rounds.setdefault(name, []).append(measured)
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


def machine() -> dict[str, object]:
    """Describe this machine."""
    return {
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_before": psutil.getloadavg()[0],
    }


def versions(server: Server) -> dict[str, str]:
    """Return the versions of all parts."""
    with server.connect_admin() as connection:
        row = connection.execute("SHOW server_version").fetchone()
    assert row is not None
    libraries = {name: version(name) for name in _LIBRARIES}
    return {
        "build": _build(),
        "python": platform.python_version(),
        "postgresql": str(row[0]),
        "kafka": server.kafka_version(),
        **libraries,
    }


def _build() -> str:
    """The commit of the clone that this is run from, or the release."""
    root = Path(__file__).resolve().parents[1]
    if (root / ".git").exists() and (git := which("git")):
        command = [git, "-C", str(root), "describe", "--always", "--dirty"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout.strip()
    return version("tidewheel")


def settings(server: Server) -> dict[str, object]:
    """Return PostgreSQL's settings of durability and all changed settings of Tidewheel."""
    names = (
        "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "wal_compression",
        "checkpoint_timeout", "autovacuum_naptime",
    )  # fmt: skip
    with server.connect_admin() as connection:
        rows = connection.execute("SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name", [list(names)])
        shown: dict[str, object] = {f"postgresql.{name}": value for name, value in rows.fetchall()}
    for model in _SHOWN_SETTINGS:
        loaded = model.load()
        for name in sorted(loaded.model_fields_set - _HIDDEN):
            shown[f"tidewheel.{name}"] = str(getattr(loaded, name))
    return {**shown, "database": where(server.info.database_url), "replication": server.info.replication}


def document(found: Found, about: Mapping[str, object]) -> str:
    """Everything as one JSON document: `results` has a line for each figure, `raw` every round."""
    raw = [
        {
            "scenario": name,
            "round": number,
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
    return "\n".join([*lines, "everything on this machine; other load shows in the range"])


def words(name: str, rounds: Sequence[Round]) -> list[str]:
    """A scenario's figures for people."""
    lines: list[str] = []
    for line in summarise(name, rounds):
        beside = ""
        if line.floor is not None and line.ratio is not None:
            beside = f"  floor {number(line.floor)}, ratio {line.ratio:.3f}"
        spread = f"[{number(line.min)} to {number(line.max)}]"
        lines.append(f"{name:<11} {line.figure:<34} {number(line.median):>10} {line.unit:<14} {spread}{beside}")
        if line.cpu_us_per_run:
            cpu = ", ".join(f"{process} {us:.1f}" for process, us in line.cpu_us_per_run.items())
            lines.append(f"{'':<12}CPU µs a run: {cpu}")
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


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
