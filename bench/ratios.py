"""Compare the documents of two builds: the ratios of figures, CPU and WAL within each pair of turns."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from tidewheel.bench.measurement import Speed, changed_speed
from tidewheel.bench.runner import number

THIS, OTHER = "this", "other"

Document = Mapping[str, Any]
Key = tuple[str, str, str]  # scenario, figure, measure


@dataclass(frozen=True, slots=True)
class Turn:
    """One build's document of one round, and the machine's speed around it."""

    side: str
    document: Document
    speed: Speed


@dataclass(frozen=True, slots=True)
class Compared:
    """One measure of both builds over all pairs; its fields are keys of the JSON document.

    Args:
        scenario: Its name.
        figure: Of the scenario.
        measure: `value` in `unit`, `cpu_us_per_run` of a process or of all (`total`), or `wal_bytes_per_run`.
        unit: Of the measure.
        this: The median of this build.
        other: The median of the other build.
        ratio: The median of the pairs' ratios, this to the other.
        ratio_min: The least of them.
        ratio_max: The greatest of them.
        pairs: The number of pairs in which both builds have it.
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


@dataclass(slots=True)
class Comparison:
    """The turns of a comparison, a pair after the other, and what failed."""

    turns: list[Turn] = field(default_factory=list[Turn])
    failed: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def pairs(self) -> list[dict[str, Document]]:
        """The documents of each complete pair by side."""
        halves = zip(self.turns[::2], self.turns[1::2], strict=False)
        return [{turn.side: turn.document for turn in pair} for pair in halves]

    @property
    def changed_speed(self) -> list[bool]:
        """For each turn, whether the machine changed speed."""
        return changed_speed([turn.speed for turn in self.turns])


def compare(pairs: Sequence[Mapping[str, Document]]) -> list[Compared]:
    """Every measure that both builds have in some pair. Either may lack fields that the other has."""
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


def as_document(found: Comparison) -> str:
    """The comparison as JSON: `compared` has a line for each measure, `turns` each build's own document."""
    turns = [
        {
            "side": turn.side,
            "calibration_ms": [turn.speed.before_ms, turn.speed.after_ms],
            "machine_changed_speed": changed,
            "document": turn.document,
        }
        for turn, changed in zip(found.turns, found.changed_speed, strict=True)
    ]
    compared = [asdict(each) for each in compare(found.pairs)]
    return json.dumps({"builds": _builds(found), "compared": compared, "failed": found.failed, "turns": turns})


def words(found: Comparison) -> list[str]:
    """The comparison for people."""
    lines = [f"{side}: {text}" for side, text in _builds(found).items()]
    lines.append(f"{'':<11} {'':<34} {'this':>10} {'other':>10}  this to other, median of pairs [range]")
    for each in compare(found.pairs):
        name = f"{each.scenario:<11} {each.figure:<34}" if each.measure == "value" else f"{'':<11}   {each.measure:<32}"
        spread = f"{each.ratio:.3f} [{each.ratio_min:.3f} to {each.ratio_max:.3f}]"
        lines.append(f"{name} {number(each.this):>10} {number(each.other):>10}  {spread} {each.unit}")
    marked = [
        f"round {at // 2 + 1} {turn.side} ({turn.speed.before_ms:.0f} to {turn.speed.after_ms:.0f} ms)"
        for at, (turn, changed) in enumerate(zip(found.turns, found.changed_speed, strict=True))
        if changed
    ]
    return [*lines, *([f"machine changed speed: {', '.join(marked)}"] if marked else [])]


def _measures(document: Document) -> dict[Key, tuple[str, float]]:
    """Unit and value of each measure of one document."""
    found: dict[Key, tuple[str, float]] = {}
    for line in document.get("results", ()):
        scenario, figure = str(line["scenario"]), str(line["figure"])
        found[scenario, figure, "value"] = (str(line["unit"]), float(line["median"]))
        for process, us in cast("dict[str, float]", line.get("cpu_us_per_run") or {}).items():
            found[scenario, figure, f"cpu_us_per_run {process}"] = ("µs", float(us))
        if (size := line.get("wal_bytes_per_run")) is not None:
            found[scenario, figure, "wal_bytes_per_run"] = ("bytes", float(size))
    return found


def _builds(found: Comparison) -> dict[str, str]:
    """Commit and interpreter of each build, as far as its document has them."""
    builds: dict[str, str] = {}
    for turn in found.turns:
        versions, python = turn.document.get("versions", {}), turn.document.get("interpreter", {})
        pgo = {True: ", with PGO", False: ", without PGO"}.get(python.get("pgo"), "")
        builds[turn.side] = f"{versions.get('build', 'unknown')}, Python {versions.get('python', 'unknown')}{pgo}"
    return {side: builds[side] for side in (THIS, OTHER) if side in builds}
