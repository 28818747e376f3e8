"""Compare this build with another checkout, interleaved: `tidewheel admin bench … --against CHECKOUT`.

A shared machine changes speed by more than most changes of the code. So a pair of turns is this build and the other,
then the other and this build: a drift falls on both. A ratio is taken within a pair. A turn is a process of the
build's own interpreter, which runs each scenario once, on PostgreSQL and Kafka that it starts, warms up and removes.
The servers of the build that does not run are stopped: idle, its broker takes 3 to 4 % of a core.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tidewheel.errors import Unusable, refuse
from tools.bench.measurement import Options

THIS, OTHER = "this", "other"

Document = Mapping[str, Any]

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = Path(".venv", "bin", "tidewheel")
# Each build has its own modules and servers.
_NOT_INHERITED = {"PYTHONPATH", "TIDEWHEEL_DATABASE_URL", "TIDEWHEEL_KAFKA_BOOTSTRAP", "TIDEWHEEL_KAFKA_PROPERTIES"}


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

    def __str__(self) -> str:
        first = self.measure == "value"
        name = f"{self.scenario:<11} {self.figure:<34}" if first else f"{'':<13} {self.measure:<32}"
        spread = f"{self.ratio:.3f} [{self.ratio_min:.3f} to {self.ratio_max:.3f}]"
        return f"{name} {self.this:>10,.4g} {self.other:>10,.4g}  {spread} {self.unit}"


def run(
    scenarios: Sequence[str], other: Path, rounds: int, options: Options, *, as_json: bool
) -> tuple[str, list[str]]:
    """Measure both builds in turns; return their ratios as text, and what failed.

    Raises:
        Refused: The other checkout cannot be used.
        Unusable: A build gives no figures at all.
    """
    sizes = {name: getattr(options, name) for name in ("jobs", "seconds", "rate", "minutes")}
    given = [part for name, value in sizes.items() if value is not None for part in (f"--{name}", str(value))]
    arguments = ["bench", *scenarios, *given, "--rounds", "1", "--output", "json"]  # an older build has them all
    this = [sys.executable, "-m", "tidewheel.control.cli", *arguments]
    programs = {THIS: (this, _ROOT), OTHER: ([str(check_checkout(other)), *arguments], other.absolute())}
    turns: list[tuple[str, Document]] = []
    for number in range(rounds):
        for side in (THIS, OTHER) if number % 2 == 0 else (OTHER, THIS):
            print(f"round {number + 1}/{rounds}: {side}", file=sys.stderr, flush=True)
            turns.append((side, run_turn(*programs[side])))
    found = compare([dict(turns[at : at + 2]) for at in range(0, len(turns), 2)])
    failed = [f"{side}: {name}: {why}" for side, each in turns for name, why in each.get("failed", {}).items()]
    if as_json:
        documents = [{"side": side, "document": document} for side, document in turns]
        return json.dumps({"compared": [asdict(each) for each in found], "turns": documents}), failed
    head = f"{'':<11} {'':<34} {'this':>10} {'other':>10}  this to other, median of pairs [range]"
    return "\n".join([head, *map(str, found)]), failed


def check_checkout(other: Path) -> Path:
    """Return the program of another checkout; refuse a folder that is none, or has no environment."""
    other = other.absolute()
    if not (other / "pyproject.toml").exists() or not (other / "tidewheel").exists():
        refuse("--against", f"{other} is no checkout of Tidewheel", "name the folder of a clone")
    if not (other / _PROGRAM).is_file():
        refuse("--against", f"{other} has no {_PROGRAM}", f"run make -C {other} setup")
    return other / _PROGRAM


def run_turn(command: Sequence[str], folder: Path) -> Document:
    """Run one build's command in a process, which cleans up first if this one is interrupted.

    Raises:
        Unusable: It printed no document.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    # In a session of its own: Ctrl-C would reach it twice, by the terminal and by terminate(), while it cleans up.
    with subprocess.Popen(
        command, cwd=folder, env=kept, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            text, _ = process.communicate()
        except BaseException:
            process.terminate()
            raise
    try:
        found: Document = json.loads(text)
    except ValueError:
        message = f"bench --against: {folder} ended with {process.returncode} and no figures"
        raise Unusable(message) from None
    return found


def compare(pairs: Sequence[Mapping[str, Document]]) -> list[Compared]:
    """Compare every measure that both builds have in some pair. Either may lack fields that the other has."""
    measured = [{side: _measures(document) for side, document in pair.items()} for pair in pairs]
    found: list[Compared] = []
    for key in dict.fromkeys(key for pair in measured for each in pair.values() for key in each):
        both = [(pair[THIS][key], pair[OTHER][key]) for pair in measured if all(key in each for each in pair.values())]
        ratios = [this / other for this, other in both if other]
        if ratios:
            this, other = (median(values) for values in zip(*both, strict=True))
            found.append(Compared(*key, this, other, median(ratios), min(ratios), max(ratios), len(both)))
    return found


def _measures(document: Document) -> dict[tuple[str, str, str, str], float]:
    """Return each measure of one document, by scenario, figure, measure and unit."""
    found: dict[tuple[str, str, str, str], float] = {}
    for line in document.get("results", ()):
        measures = {
            ("value", line["unit"]): line["median"],
            ("wal_bytes_per_run", "bytes"): line.get("wal_bytes_per_run"),
        }
        measures |= {(f"cpu_us_per_run {name}", "µs"): us for name, us in (line.get("cpu_us_per_run") or {}).items()}
        found |= {
            (line["scenario"], line["figure"], *measure): us for measure, us in measures.items() if us is not None
        }
    return found
