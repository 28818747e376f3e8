"""`python -m bench [SCENARIO …] [--rounds 3] [--json FILE]`: figures, each beside its floor."""

import argparse
import json
import platform
import statistics
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import psutil

from bench import cancel, conservation, costs, firing, idle, ledger, pipeline, relaying, rolling
from bench.stage import Stage, stage

SCENARIOS: dict[str, Callable[[Stage], dict[str, float]]] = {
    "fire": firing.measure,
    "relay": relaying.measure,
    "pipeline": pipeline.measure,
    "costs": costs.measure,
    "ledger": ledger.measure,
    "conservation": conservation.measure,
    "rolling": rolling.measure,
    "cancel": cancel.measure,
    "idle": idle.measure,
}
ONCE = {"conservation", "rolling", "idle"}  # minutes each


def main() -> None:
    """Run the scenarios asked for, each on a fresh stack, several times; print median and range."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", choices=[*SCENARIOS, []], default=list(SCENARIOS))
    once = ", ".join(sorted(ONCE))
    parser.add_argument("--rounds", type=int, default=3, help=f"repetitions of each scenario (one of {once})")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    asked = parser.parse_args()
    machine = f"{psutil.cpu_count()} cores, {psutil.virtual_memory().total >> 30} GiB, {platform.machine()}"
    print(f"{machine}; Python {platform.python_version()}, psycopg {version('psycopg')}; everything on this machine")
    results: dict[str, dict[str, list[float]]] = {}
    for name in asked.scenarios:
        for _ in range(1 if name in ONCE else asked.rounds):
            with stage() as prepared:
                figures = SCENARIOS[name](prepared)
            for figure, value in figures.items():
                results.setdefault(name, {}).setdefault(figure, []).append(value)
        for figure, values in results[name].items():
            spread = f"[{min(values):,.2f} to {max(values):,.2f}]"
            print(f"{name:<13} {figure:<34} {statistics.median(values):>12,.2f}  {spread}")
    if asked.json:
        asked.json.write_text(json.dumps({"machine": machine, "results": results}, indent=1))


main()
