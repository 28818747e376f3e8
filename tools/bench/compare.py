"""Compare two builds in turns: `python -m tools.bench.compare OLD_CHECKOUT SCENARIO`.

A machine changes speed by more than most changes of the code. So the builds run on one PostgreSQL and one broker in
turns, A B, B A, and a ratio is taken within a pair. A pair in which others took too much of the machine is left out.
The other arguments are those of `tidewheel admin bench`, which runs each turn with the code of its checkout.
"""

import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tidewheel.settings.sources import client_variables
from tools.bench.environment import open_server
from tools.bench.flow import warm_up_server
from tools.bench.measurement import SHARED_PERCENT

ROOT = Path(__file__).resolve().parents[2]

Document = Mapping[str, Any]
Measure = tuple[str, str, str]
"""A scenario, its figure, and `value` or a cost."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One measure of both builds: the median of each, and the ratios of their pairs."""

    measure: Measure
    new: float
    old: float
    ratios: Sequence[float]

    def __str__(self) -> str:
        spread = f"{median(self.ratios):.3f} [{min(self.ratios):.3f} to {max(self.ratios):.3f}] of {len(self.ratios)}"
        scenario, figure, cost = self.measure
        name = f"{scenario:<11} {figure:<34}" if cost == "value" else f"{'':<13} {cost:<32}"
        return f"{name} {self.new:>10,.4g} {self.old:>10,.4g}  {spread}"


def compare(pairs: Sequence[tuple[Document, Document]]) -> list[Compared]:
    """Compare every measure that both builds have in some pair. Either may lack fields that the other has."""
    measured = [(_measures(new, old), _measures(old, new)) for new, old in pairs]
    found: list[Compared] = []
    for key in dict.fromkeys(key for first, _ in measured for key in first):
        both = [(first[key], last[key]) for first, last in measured if first.get(key) and last.get(key)]
        if both:
            new, old = (median(values) for values in zip(*both, strict=True))
            found.append(Compared(key, new, old, [first / last for first, last in both]))
    return found


def _measures(document: Document, other: Document) -> dict[Measure, float]:
    """Return the measures of a document.

    A broker that the other build does not see is no part of the total.
    """
    sees_broker = {_name_of(line) for line in other["results"] if "broker" in (line.get("cpu_us_per_run") or {})}
    found: dict[Measure, float] = {}
    for line in document["results"]:
        if line.get("shared_percent", 0.0) > SHARED_PERCENT:
            continue
        cpu: dict[str, float] = {**(line.get("cpu_us_per_run") or {}), **(line.get("cpu_us_per_run_by_part") or {})}
        if "broker" in cpu and _name_of(line) not in sees_broker:
            cpu["total"] -= cpu.pop("broker")
        costs: dict[str, float | None] = {
            "value": line["median"],
            **{f"CPU µs a run: {name}": us for name, us in cpu.items()},
            "CPU µs a run of others": line.get("others_us_per_run"),
            "bytes of WAL a run": line.get("wal_bytes_per_run"),
        }
        found |= {(line["scenario"], line["figure"], name): cost for name, cost in costs.items() if cost is not None}
    return found


def _name_of(line: Document) -> tuple[str, str]:
    return line["scenario"], line["figure"]


def turns(old: Path, pairs: int, arguments: Sequence[str]) -> list[tuple[Document, Document]]:
    """Run both builds in turns; return the documents of each pair, the new build's first."""
    found: list[tuple[Document, Document]] = []
    with open_server() as server:
        warm_up_server(server)
        servers = {**client_variables(server.info.kafka), "TIDEWHEEL_DATABASE_URL": server.info.database_url}
        for number in range(pairs):
            order = (ROOT, old) if number % 2 == 0 else (old, ROOT)
            documents = {build: _turn(build, servers, arguments) for build in order}
            found.append((documents[ROOT], documents[old]))
    return found


def _turn(build: Path, servers: Mapping[str, str], arguments: Sequence[str]) -> Document:
    """Run one round by a checkout's own code."""
    program = [str(build / ".venv/bin/python"), "-m", "tidewheel.control.cli", "bench", *arguments]
    variables = {**os.environ, **servers, "PYTHONPATH": str(build)}
    done = subprocess.run(
        [*program, "--rounds", "1", "--output", "json"], cwd=build, env=variables, stdout=subprocess.PIPE, check=False
    )
    if done.returncode:
        sys.exit(done.returncode)
    document: Document = json.loads(done.stdout)
    return document


def main() -> None:
    """Print the ratios."""
    parser = ArgumentParser(prog="python -m tools.bench.compare", description="Run two builds in turns.")
    parser.add_argument("old", type=Path, help="a checkout of the other build, after `make setup`")
    parser.add_argument("--pairs", type=int, default=3)
    options, arguments = parser.parse_known_args()
    print(f"{'':<11} {'':<34} {'new':>10} {'old':>10}  new to old, median of pairs [range]")
    print(*compare(turns(options.old.resolve(), options.pairs, arguments)), sep="\n")


if __name__ == "__main__":
    main()
