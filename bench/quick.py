"""`tidewheel bench --quick`: ratios of small scenarios beside the stored ones; about two minutes.

Rates differ from machine to machine, ratios to a floor of the same run hardly: so a ratio that has fallen tells of the
code, not of the machine. It is a guard for people, and no test: a busy machine can still fall below.
"""

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tidewheel.bench import executing, firing, latency, pipeline, relaying, running
from tidewheel.bench.measured import Line
from tidewheel.bench.options import Options
from tidewheel.bench.scenarios import Part
from tidewheel.bench.stage import open_server
from tidewheel.bench.wearing import wear_in
from tidewheel.errors import refuse

BASELINE = Path(__file__).with_name("baseline.json")
LEAST = 0.7  # of the stored ratio; between runs on one machine they differed by up to a fifth
_ROUNDS = 2

# Small, but long enough for rates to settle.
_PARTS: dict[str, tuple[Part, Options]] = {
    "fire": (Part(firing.measure), Options(jobs=60_000)),
    "relay": (Part(relaying.measure), Options(jobs=100_000)),
    "execute": (Part(executing.measure), Options(jobs=80_000)),
    "pipeline": (Part(pipeline.measure), Options(jobs=30_000, seconds=5)),
    "latency": (Part(latency.measure), Options(seconds=5)),
}


@dataclass(frozen=True, slots=True)
class Compared:
    """One ratio beside the stored one."""

    scenario: str
    figure: str
    ratio: float
    stored: float | None

    @property
    def holds(self) -> bool:
        """Whether it is near enough; what is not stored cannot have fallen."""
        return self.stored is None or self.ratio >= LEAST * self.stored


def run_quick(*, update: bool, as_json: bool) -> bool:
    """Measure and compare, or measure and store; returns whether every ratio holds.

    Raises:
        Refused: Nothing is stored to compare with.
    """
    stored = {} if update else read_baseline()
    found = running.Found()
    with open_server() as server, running.progress(len(_PARTS) * _ROUNDS) as tell:
        wear_in(server, partial(tell, 0))
        about: dict[str, object] = {"machine": running.machine(), "versions": running.versions(server)}
        about["settings"] = running.settings(server)
        for at, (name, (part, options)) in enumerate(_PARTS.items()):
            for number in range(_ROUNDS):
                done = at * _ROUNDS + number
                tell(done, name)
                telling = replace(options, tell=partial(running.tell_part, tell, done, name))
                running.run_part(server, name, part, found, telling, label=f"round {number + 1}")
    if as_json:
        print(running.document(found, about))
    compared = compare(found.lines, stored)
    if not as_json:
        print("\n".join(table(compared)))
    running.tell_failures(found)
    if update and not found.failed:
        ratios = {f"{each.scenario}.{each.figure}": round(each.ratio, 4) for each in compared}
        BASELINE.write_text(json.dumps(ratios, indent=2) + "\n")
    return not found.failed and all(each.holds for each in compared)


def read_baseline(path: Path = BASELINE) -> dict[str, float]:
    """The stored ratios, by scenario and figure.

    Raises:
        Refused: There are none.
    """
    if not path.is_file():
        refuse("quick", "no ratios are stored", "store this machine's: tidewheel bench --quick --update-baseline")
    return {str(name): float(value) for name, value in json.loads(path.read_text()).items()}


def compare(lines: list[Line], stored: dict[str, float]) -> list[Compared]:
    """Every ratio beside the stored one."""
    return [
        Compared(line.scenario, line.figure, line.ratio, stored.get(f"{line.scenario}.{line.figure}"))
        for line in lines
        if line.ratio is not None
    ]


def table(compared: list[Compared]) -> list[str]:
    """The comparison for people, one line each."""
    told = [f"{'scenario':<10} {'figure':<26} {'ratio':>7} {'stored':>7} {'of it':>6}"]
    for each in compared:
        beside = f"{'-':>7} {'-':>6}"
        if each.stored is not None:
            beside = f"{each.stored:>7.3f} {each.ratio / each.stored:>6.0%}"
        verdict = "" if each.holds else f"  below {LEAST:.0%}"
        told.append(f"{each.scenario:<10} {each.figure:<26} {each.ratio:>7.3f} {beside}{verdict}")
    return told
