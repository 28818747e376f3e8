"""Compare this build with another checkout, interleaved: `tidewheel admin bench … --against CHECKOUT`.

A shared machine changes speed by more than most changes of the code. So a pair of turns is this build and the other,
then the other and this build: a drift falls on both. A ratio is taken within a pair. A turn is a process of the
build's own interpreter, which runs each scenario once, on PostgreSQL and Kafka that it starts, warms up and removes.
The servers of the build that does not run are stopped: idle, its broker takes 3 to 4 % of a core.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from tidewheel.errors import Unusable, refuse
from tools.bench.measurement import Options, Progress

THIS, OTHER = "this", "other"
ROUNDS = 5

Document = Mapping[str, Any]
Shown = Callable[[int], AbstractContextManager[Callable[[int, str], None]]]

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = Path(".venv", "bin", "tidewheel")
# Each build has its own modules and servers.
_NOT_INHERITED = frozenset(
    {"PYTHONPATH", "TIDEWHEEL_DATABASE_URL", "TIDEWHEEL_KAFKA_BOOTSTRAP", "TIDEWHEEL_KAFKA_PROPERTIES"}
)
_SHOWN_OF_LOG = 5  # lines


@dataclass(frozen=True, slots=True)
class Compared:
    """One measure of both builds: their medians, and the median, least and greatest of the pairs' ratios.

    `measure` is `value` in `unit`, `cpu_us_per_run` of a process or of all (`total`), or `wal_bytes_per_run`.
    """

    scenario: str
    figure: str
    measure: str
    unit: str
    this: float
    other: float
    ratio: float
    ratio_min: float
    ratio_max: float
    pairs: int


def run(
    scenarios: Sequence[str], other: Path, *, rounds: int | None, options: Options, as_json: bool, shown: Shown
) -> bool:
    """Measure both builds in turns and print their ratios; return True if all figures are there.

    Raises:
        Refused: The other checkout cannot be used.
        Unusable: A build gives no figures at all.
    """
    command = [sys.executable, "-m", "tidewheel.control.cli"]
    programs = {THIS: (command, _ROOT), OTHER: ([str(check_checkout(other))], other.absolute())}
    documents: list[tuple[str, Document]] = []
    order = sides(rounds or ROUNDS)
    with shown(len(order)) as report:
        for done, side in enumerate(order):
            report(done, side)
            program, folder = programs[side]

            def told(text: str, done: int = done, side: str = side) -> None:
                report(done, f"{side}: {text}")

            documents.append((side, run_turn([*program, "bench", *scenarios, *_arguments(options)], folder, told)))
    found = compare([dict(documents[at : at + 2]) for at in range(0, len(documents), 2)])
    failed = [f"{side}: {name}: {why}" for side, each in documents for name, why in each.get("failed", {}).items()]
    print(as_document(found, documents) if as_json else "\n".join(words(found)))
    for why in failed:
        print(f"tidewheel: bench {why}", file=sys.stderr)
    return not failed


def check_checkout(other: Path) -> Path:
    """Return the program of another checkout; refuse a folder that is none, or has no environment."""
    other = other.absolute()
    if not (other / "pyproject.toml").exists() or not (other / "tidewheel").exists():
        refuse("--against", f"{other} is no checkout of Tidewheel", "name the folder of a clone")
    if not (other / _PROGRAM).is_file():
        refuse("--against", f"{other} has no {_PROGRAM}", f"run make -C {other} setup")
    return other / _PROGRAM


def sides(rounds: int) -> list[str]:
    """Return the order of the turns: A B, B A, A B, ….

    >>> sides(3)
    ['this', 'other', 'other', 'this', 'this', 'other']
    """
    return [side for number in range(rounds) for side in ((THIS, OTHER) if number % 2 == 0 else (OTHER, THIS))]


def run_turn(command: Sequence[str], folder: Path, report: Progress) -> Document:
    """Run one build's command in a process, which cleans up first if this one is interrupted.

    Raises:
        Unusable: It printed no document.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    log: list[str] = []
    with tempfile.TemporaryFile("w+") as document:
        # In a session of its own: Ctrl-C would reach it twice, by the terminal and by terminate(), while it cleans up.
        process = subprocess.Popen(
            command, cwd=folder, env=kept, stdout=document, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        assert process.stderr is not None
        try:
            for line in process.stderr:
                log.append(line.rstrip())
                report(log[-1])
            process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
            process.stderr.close()
        document.seek(0)
        text = document.read()
    try:
        return cast("Document", json.loads(text))
    except ValueError:
        why = " / ".join(log[-_SHOWN_OF_LOG:])
        message = f"bench --against: {folder} ended with {process.returncode} and no figures: {why}"
        raise Unusable(message) from None


def _arguments(options: Options) -> list[str]:
    """Return the options of one round, as the command line has them; an older build knows them all."""
    sizes = {name: getattr(options, name) for name in ("jobs", "seconds", "rate", "minutes")}
    given = [part for name, value in sizes.items() if value is not None for part in (f"--{name}", str(value))]
    return [*given, "--rounds", "1", "--output", "json"]


def compare(pairs: Sequence[Mapping[str, Document]]) -> list[Compared]:
    """Compare every measure that both builds have in some pair. Either may lack fields that the other has."""
    measured = [{side: _measures(document) for side, document in pair.items()} for pair in pairs]
    units = {key: unit for pair in measured for each in pair.values() for key, (unit, _) in each.items()}
    found: list[Compared] = []
    for key, unit in units.items():
        both = [(pair[THIS][key][1], pair[OTHER][key][1]) for pair in measured if all(key in pair[s] for s in pair)]
        ratios = [this / other for this, other in both if other]
        if ratios:
            this, other = (statistics.median(values) for values in zip(*both, strict=True))
            spread = (statistics.median(ratios), min(ratios), max(ratios))
            found.append(Compared(*key, unit, this, other, *spread, len(both)))
    return found


def _measures(document: Document) -> dict[tuple[str, str, str], tuple[str, float]]:
    """Return unit and value of each measure of one document, by scenario, figure and measure."""
    found: dict[tuple[str, str, str], tuple[str, float]] = {}
    for line in document.get("results", ()):
        scenario, figure = str(line["scenario"]), str(line["figure"])
        found[scenario, figure, "value"] = (str(line["unit"]), float(line["median"]))
        for process, us in cast("dict[str, float]", line.get("cpu_us_per_run") or {}).items():
            found[scenario, figure, f"cpu_us_per_run {process}"] = ("µs", float(us))
        if (size := line.get("wal_bytes_per_run")) is not None:
            found[scenario, figure, "wal_bytes_per_run"] = ("bytes", float(size))
    return found


def as_document(found: Sequence[Compared], documents: Sequence[tuple[str, Document]]) -> str:
    """Return the comparison as JSON: a line for each measure, and each build's own document."""
    turns = [{"side": side, "document": document} for side, document in documents]
    return json.dumps({"compared": [asdict(each) for each in found], "turns": turns})


def words(found: Sequence[Compared]) -> list[str]:
    """Return the comparison for people."""
    lines = [f"{'':<11} {'':<34} {'this':>10} {'other':>10}  this to other, median of pairs [range]"]
    for each in found:
        name = f"{each.scenario:<11} {each.figure:<34}" if each.measure == "value" else f"{'':<13} {each.measure:<32}"
        spread = f"{each.ratio:.3f} [{each.ratio_min:.3f} to {each.ratio_max:.3f}]"
        lines.append(f"{name} {each.this:>10,.4g} {each.other:>10,.4g}  {spread} {each.unit}")
    return lines
