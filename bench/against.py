"""Compare this build with another checkout, interleaved: `tidewheel bench … --against CHECKOUT`.

A shared machine changes speed by more than most changes of the code. So a pair of turns is this build and the other,
then the other and this build: a drift falls on both. A ratio is taken within a pair. A turn is a process of the
build's own interpreter, which runs each scenario once, on PostgreSQL and Kafka that it starts, warms up and removes.

So the servers of the build that does not run are stopped. Idle, its broker takes 3 to 4 % of a core and 450 MiB, and an
older build has no way to wait. The price is 20 s to start and stop, and a warm-up of half a minute, in each turn.
It also makes all brokers the same age: the JVM's compilers take more CPU in a new one.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

from tidewheel.bench import runner
from tidewheel.bench.calibration import loop_ms
from tidewheel.bench.measurement import Options, Progress, Speed
from tidewheel.bench.ratios import OTHER, THIS, Comparison, Document, Turn, as_document, words
from tidewheel.errors import Unusable, refuse

ROUNDS = 5

_ROOT = Path(__file__).absolute().parents[2]  # of the package: the clone, or the folder that it is installed in
_PROGRAM = Path(".venv", "bin", "tidewheel")
_MARKS = ("bench", "tidewheel", "pyproject.toml")
# Each build has its own modules and servers.
_NOT_INHERITED = frozenset(
    {"PYTHONPATH", "TIDEWHEEL_DATABASE_URL", "TIDEWHEEL_KAFKA_BOOTSTRAP", "TIDEWHEEL_KAFKA_PROPERTIES"}
)
_SHOWN_OF_LOG = 5  # lines
_NO_SCENARIO = "tidewheel: scenario: "


def check_checkout(other: Path) -> Path:
    """Return the program of another checkout.

    Raises:
        Refused: It is no checkout, or has no environment.
    """
    other = other.absolute()
    if not all((other / name).exists() for name in _MARKS):
        refuse("--against", f"{other} is no checkout of Tidewheel", "name the folder of a clone")
    if not (other / _PROGRAM).is_file():
        refuse("--against", f"{other} has no {_PROGRAM}", f"run make -C {other} setup")
    return other / _PROGRAM


def run(scenarios: Sequence[str], other: Path, *, rounds: int | None, options: Options, as_json: bool) -> bool:
    """Measure both builds in turns and print their ratios; returns whether all figures are there.

    Raises:
        Refused: The other checkout cannot be used, or lacks a scenario.
        Unusable: A build gives no figures at all.
    """
    programs = {
        THIS: ([sys.executable, "-m", "tidewheel.control.cli"], _ROOT),
        OTHER: ([str(check_checkout(other))], other.absolute()),
    }
    _check_scenarios(scenarios, *programs[OTHER])
    found, count = Comparison(), rounds or ROUNDS
    with runner.progress(2 * count) as report:
        for done, side in enumerate(sides(count)):
            label = f"round {done // 2 + 1}/{count}, {side}"
            report(done, label)
            command, folder = programs[side]
            before_ms = loop_ms()
            document = run_turn(
                [*command, "bench", *scenarios, *_arguments(options)], folder, partial(_report, report, done, label)
            )
            found.turns.append(Turn(side, document, Speed(before_ms, loop_ms())))
            found.failed |= {f"{name}, {label}": str(why) for name, why in document.get("failed", {}).items()}
    print(as_document(found) if as_json else "\n".join(words(found)))
    for name, why in found.failed.items():
        print(f"tidewheel: bench {name}: {why}", file=sys.stderr)
    return not found.failed


def _check_scenarios(scenarios: Sequence[str], command: Sequence[str], folder: Path) -> None:
    """Refuse scenarios that the other build lacks, before the first turn.

    Its command checks the scenarios first, and then refuses to compare with a folder that is no checkout.
    """
    done = subprocess.run(
        [*command, "bench", *scenarios, "--against", os.devnull],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    for line in done.stderr.splitlines():
        if line.startswith(_NO_SCENARIO):
            problem = line.removeprefix(_NO_SCENARIO).partition(";")[0]
            refuse("scenario", f"{problem} in {folder}", "leave it out, or name a newer checkout")


def sides(rounds: int) -> list[str]:
    """The order of the turns: A B, B A, A B, ….

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


def _report(report: runner.Report, done: int, label: str, text: str) -> None:
    report(done, f"{label}: {text}")


def _arguments(options: Options) -> list[str]:
    """The options of one round, as the command line has them; an older build knows them all."""
    sizes = {name: getattr(options, name) for name in ("jobs", "seconds", "rate", "minutes")}
    given = [part for name, value in sizes.items() if value is not None for part in (f"--{name}", str(value))]
    return [*given, "--rounds", "1", "--output", "json"]
