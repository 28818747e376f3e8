"""Compare two builds: `python -m tools.bench.compare NEW.jsonl OLD.jsonl`.

A shared machine changes speed by more than most changes of the code. So the builds run in turns, A B, B A, and a ratio
is taken within a pair: line by line of the two files. docs/performance.md has the loop.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

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
    measured = [(_measures(new), _measures(old)) for new, old in pairs]
    found: list[Compared] = []
    for key in dict.fromkeys(key for first, _ in measured for key in first):
        both = [(first[key], last[key]) for first, last in measured if first.get(key) and last.get(key)]
        if both:
            new, old = (median(values) for values in zip(*both, strict=True))
            found.append(Compared(key, new, old, [first / last for first, last in both]))
    return found


def _measures(document: Document) -> dict[Measure, float]:
    found: dict[Measure, float] = {}
    for line in document["results"]:
        cpu: Mapping[str, float] = line.get("cpu_us_per_run") or {}
        costs: dict[str, float | None] = {
            "value": line["median"],
            **{f"CPU µs a run: {name}": us for name, us in cpu.items()},
            "CPU µs a run of others": line.get("others_us_per_run"),
            "bytes of WAL a run": line.get("wal_bytes_per_run"),
        }
        found |= {(line["scenario"], line["figure"], name): cost for name, cost in costs.items() if cost is not None}
    return found


def main(new: str, old: str) -> None:
    """Print the ratios of two files, which hold a document of `bench --output json` a line."""
    documents = [[json.loads(line) for line in Path(name).read_text().splitlines()] for name in (new, old)]
    print(f"{'':<11} {'':<34} {'new':>10} {'old':>10}  new to old, median of pairs [range]")
    print(*compare(list(zip(*documents, strict=True))), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
