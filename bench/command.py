"""`tidewheel bench`, as the command line calls it."""

from difflib import get_close_matches
from functools import partial
from math import isfinite
from pathlib import Path

from tidewheel.bench import running
from tidewheel.bench.options import Options
from tidewheel.bench.plots import check_plots, plot
from tidewheel.bench.quick import run_quick
from tidewheel.bench.scenarios import EVERYTHING, SCENARIOS, named
from tidewheel.bench.stage import open_server
from tidewheel.bench.wearing import wear_in
from tidewheel.errors import refuse
from tidewheel.process.json_logging import configure_logging

NAMES = (*SCENARIOS, EVERYTHING)


def run(
    scenarios: list[str],
    *,
    rounds: int | None,
    options: Options,
    as_json: bool,
    plots: Path | None,
    quick: bool,
    update_baseline: bool,
) -> bool:
    """Measure what was asked for; returns whether every scenario has its figures.

    Raises:
        Refused: There is no such scenario, or none was named.
    """
    named_too = bool(scenarios or rounds or plots)
    _check_options(options, quick=quick, update_baseline=update_baseline, named_too=named_too)
    _check(scenarios, quick=quick)
    if plots is not None:
        check_plots(plots)
    configure_logging("critical")  # what is on the way is told by the bar; services log into the stage's folder
    if quick:
        return run_quick(update=update_baseline, as_json=as_json)
    wanted = named(scenarios)
    found = running.Found()
    turns = [len(running.turns_of(name, rounds)) for name in wanted]
    with open_server() as server, running.progress(sum(turns)) as tell:
        wear_in(server, partial(tell, 0))
        about = {
            "machine": running.machine(),
            "versions": running.versions(server),
            "settings": running.settings(server),
        }
        if not as_json:
            print(running.about_words(about))
        for at, name in enumerate(wanted):
            done = sum(turns[:at])
            running.run_scenario(server, name, found, options, rounds=rounds, tell=partial(_tell, tell, done))
            if not as_json:
                print("\n".join(running.words(name, found.rounds.get(name, []))), flush=True)
            if plots is not None and name in found.rounds:
                plot(plots, name, found.rounds[name])
    if as_json:
        print(running.document(found, about))
    running.tell_failures(found)
    return not found.failed


def _tell(tell: running.Tell, before: int, done: int, text: str) -> None:
    tell(before + done, text)


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
