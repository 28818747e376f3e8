"""`tidewheel bench`, as the command line calls it.

`tidewheel bench --quick`: ratios of small scenarios beside the stored ones; about two minutes.

Rates differ from machine to machine, but ratios to a baseline of the same run hardly differ. So a lower ratio shows
slower code, not a slower machine. It is a guard for people, not a test: a busy machine can still fall below.
"""

import json
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from math import isfinite
from pathlib import Path

from tidewheel.bench import against, runner
from tidewheel.bench.about import describe
from tidewheel.bench.environment import open_server
from tidewheel.bench.measurement import Line, Options
from tidewheel.bench.plots import check_plots, plot
from tidewheel.bench.registry import EVERYTHING, SCENARIOS, Part, named
from tidewheel.bench.scenarios import execute, fire, http, latency, pipeline, relay
from tidewheel.bench.warmup import warm_up_server
from tidewheel.errors import refuse
from tidewheel.process.json_logging import configure_logging

BASELINE = Path(__file__).with_name("baseline.json")
LEAST = 0.7  # of the stored ratio; between runs on one machine they differed by up to a fifth
NAMES = (*SCENARIOS, EVERYTHING)
_ROUNDS = 2

# Small, but long enough for rates to settle.
_PARTS: dict[str, tuple[Part, Options]] = {
    "fire": (Part(fire.measure), Options(jobs=60_000)),
    "relay": (Part(relay.measure), Options(jobs=100_000)),
    "execute": (Part(execute.measure), Options(jobs=80_000)),
    "pipeline": (Part(pipeline.measure), Options(jobs=30_000, seconds=5)),
    "latency": (Part(latency.measure), Options(seconds=5)),
    "http": (Part(http.measure), Options(jobs=8_000)),
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
        """True if the ratio is at least 70 % of the stored one, or none is stored."""
        return self.stored is None or self.ratio >= LEAST * self.stored


def run_quick(*, update: bool, as_json: bool) -> bool:
    """Measure and compare, or measure and store; returns whether every ratio holds.

    Raises:
        Refused: Nothing is stored to compare with.
    """
    stored = {} if update else read_baseline()
    found = runner.Found()
    with open_server() as server, runner.progress(len(_PARTS) * _ROUNDS) as report:
        warm_up_server(server, partial(report, 0))
        about = describe(server)
        for at, (name, (part, options)) in enumerate(_PARTS.items()):
            for number in range(_ROUNDS):
                done = at * _ROUNDS + number
                report(done, name)
                reporting = replace(options, report=partial(runner.report_part, report, done, name))
                runner.run_part(server, name, part, found, reporting, label=f"round {number + 1}")
    if as_json:
        print(runner.document(found, about))
    compared = compare(found.lines, stored)
    if not as_json:
        print("\n".join([*runner.interpreter_words(), *table(compared), *runner.speed_words(found)]))
    runner.report_failures(found)
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
    lines = [f"{'scenario':<10} {'figure':<26} {'ratio':>7} {'stored':>7} {'of it':>6}"]
    for each in compared:
        beside = f"{'-':>7} {'-':>6}"
        if each.stored is not None:
            beside = f"{each.stored:>7.3f} {each.ratio / each.stored:>6.0%}"
        verdict = "" if each.holds else f"  below {LEAST:.0%}"
        lines.append(f"{each.scenario:<10} {each.figure:<26} {each.ratio:>7.3f} {beside}{verdict}")
    return lines


def run(
    scenarios: list[str],
    *,
    rounds: int | None,
    options: Options,
    as_json: bool,
    plots: Path | None,
    quick: bool,
    update_baseline: bool,
    other: Path | None = None,
) -> bool:
    """Measure the requested scenarios and return True if each has its figures.

    Args:
        scenarios: Names, or `all`.
        rounds: Of each scenario.
        options: Of the scenarios.
        as_json: Print one JSON document instead of text.
        plots: The folder for plots.
        quick: Compare small rounds with the stored ratios.
        update_baseline: Store them instead.
        other: Another checkout, to compare with.

    Raises:
        Refused: There is no such scenario, or none was named.
    """
    named_too = bool(scenarios or rounds or plots)
    _check_options(options, quick=quick, update_baseline=update_baseline, named_too=named_too)
    if other is not None and (quick or plots):
        refuse("--against", "it compares named scenarios and draws no plots", "leave out --quick and --plots")
    _check(scenarios, quick=quick)
    if plots is not None:
        check_plots(plots)
    configure_logging("critical")  # the bar shows progress; services log into the environment's folder
    if quick:
        return run_quick(update=update_baseline, as_json=as_json)
    wanted = named(scenarios)
    if other is not None:
        return against.run(wanted, other, rounds=rounds, options=options, as_json=as_json)
    found = runner.Found()
    turns = [len(runner.turns_of(name, rounds)) for name in wanted]
    with open_server() as server, runner.progress(sum(turns)) as report:
        warm_up_server(server, partial(report, 0))
        about = describe(server)
        if not as_json:
            print(runner.about_words(about))
        for at, name in enumerate(wanted):
            done = sum(turns[:at])
            runner.run_scenario(server, name, found, options, rounds=rounds, report=partial(_report, report, done))
            if not as_json:
                print("\n".join(runner.words(name, found.rounds.get(name, []))), flush=True)
            if plots is not None and name in found.rounds:
                plot(plots, name, found.rounds[name])
    if as_json:
        print(runner.document(found, about))
    else:
        print("".join(f"{line}\n" for line in runner.speed_words(found)), end="")
    runner.report_failures(found)
    return not found.failed


def _report(report: runner.Report, before: int, done: int, text: str) -> None:
    report(before + done, text)


def _check(scenarios: list[str], *, quick: bool) -> None:
    if not scenarios and not quick:
        refuse("scenario", "none was named", f"name some of {', '.join(NAMES)}, or --quick")
    for name in scenarios:
        if name not in NAMES:
            near = get_close_matches(name, NAMES, 1)
            refuse("scenario", f"there is no {name!r}", f"write {near[0]}" if near else f"there are {', '.join(NAMES)}")


def _check_options(options: Options, *, quick: bool, update_baseline: bool, named_too: bool) -> None:
    if update_baseline and not quick:
        refuse("--update-baseline", "it belongs to --quick", "leave it out, or write --quick")
    if quick and (named_too or options != Options()):
        refuse("--quick", "its scenarios, rounds and sizes are its own", "leave out the others, or --quick")
    for name in ("seconds", "rate", "minutes"):
        value = getattr(options, name)
        if value is not None and not isfinite(value):
            refuse(f"--{name}", f"{value} has no end", "write a number")
