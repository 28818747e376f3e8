"""Run scenarios, show their progress and print their figures, for `tidewheel admin bench`."""

import json
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from difflib import get_close_matches
from functools import partial
from importlib.metadata import version
from pathlib import Path
from shutil import which
from typing import cast

import psutil

from tidewheel.clock import SystemClock, monotonic_seconds
from tidewheel.errors import refuse
from tidewheel.process.logs import configure_logging
from tools.bench.environment import Server, open_server
from tools.bench.figures import hot_path
from tools.bench.flow import warm_up_server
from tools.bench.measurement import PARTS, SHARED_PERCENT, Line, Options, Round, number, summarise
from tools.bench.registry import SCENARIOS
from tools.interpreter import WITHOUT_PGO, read_build

_ROUNDS = 5
_LOOPS = 2_000_000
_ROOT = Path(__file__).resolve().parents[2]


def run(scenarios: list[str], *, rounds: int | None, options: Options, as_json: bool) -> bool:
    """Measure scenarios; return True if each has its figures.

    If one fails, the others go on.
    """
    _check(scenarios)
    configure_logging("critical")  # services log into the environment's folder
    found: dict[str, list[Round]] = {}
    failed: dict[str, str] = {}
    turns = [
        (name, part, f"{name} round {number + 1}/{count}")
        for name in dict.fromkeys(scenarios)
        for part in SCENARIOS[name]
        for count in (rounds or (1 if part.once else _ROUNDS),)
        for number in range(count)
    ]
    with open_server() as server:
        _report(f"0/{len(turns)}", "warming the new server up")
        warm_up_server(server)
        about = describe(server)
        for done, (name, part, label) in enumerate(turns):
            if name in failed:
                continue
            report = partial(_report, f"{done}/{len(turns)}", label)
            report("begins")
            try:
                found.setdefault(name, []).append(part.measure(server, replace(options, report=report)))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this round's, and hours may lie behind it
                failed[name] = f"{label}: {type(error).__name__}: {error}"
    lines = [line for name, each in found.items() if each for line in summarise(name, each)]
    if as_json:
        raw = [
            {"scenario": name, "round": number, **asdict(each)}
            for name, rounds_of in found.items()
            for number, each in enumerate(rounds_of, start=1)
        ]
        results = [asdict(line) for line in lines]
        given = {name: value for name, value in asdict(options).items() if isinstance(value, int | float)}
        print(json.dumps({**about, "options": given, "results": results, "failed": failed, "raw": raw}, default=str))
    else:
        print("\n".join(words(lines, about)))
    for why in failed.values():
        print(f"tidewheel: bench {why}", file=sys.stderr)
    return not failed


def _check(scenarios: Sequence[str]) -> None:
    if not scenarios:
        refuse("scenario", "none is named", f"name some of {', '.join(SCENARIOS)}")
    for name in scenarios:
        if name not in SCENARIOS:
            near = get_close_matches(name, SCENARIOS, n=1)
            refuse("scenario", f"there is no {name!r}", f"write {near[0] if near else ', '.join(SCENARIOS)}")


def _report(where: str, *what: str) -> None:
    print(f"[{where}] {': '.join(what)}", file=sys.stderr, flush=True)


def describe(server: Server) -> dict[str, object]:
    """Return machine, interpreter, versions and PostgreSQL's settings, as keys of the document."""
    names = ("server_version", "fsync", "synchronous_commit", "shared_buffers", "max_wal_size")
    with server.connect_admin() as admin:
        rows = admin.execute("SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name", [list(names)])
        settings = {f"postgresql.{name}": value for name, value in rows.fetchall()}
    build = version("tidewheel")
    if git := which("git"):
        command = [git, "-C", str(_ROOT), "describe", "--always", "--dirty"]
        build = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or build
    return {
        "date": SystemClock().now().date().isoformat(),
        "hot_path": hot_path(),
        "machine": {
            "cores": psutil.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "load_before": psutil.getloadavg()[0],
            "loop_ms": _loop_ms(),
        },
        "interpreter": asdict(read_build()),
        "versions": {"build": build, "python": platform.python_version()},
        "settings": settings,
    }


def _loop_ms() -> float:
    """Return the milliseconds of a fixed loop.

    A hypervisor can slow a machine down without a trace in its other figures.
    """
    began = monotonic_seconds()
    for _ in range(_LOOPS):
        pass
    return round((monotonic_seconds() - began) * 1000, 1)


def words(found: Sequence[Line], about: Mapping[str, object]) -> list[str]:
    """Return the machine and the figures for people."""
    parts = [cast("dict[str, object]", about[name]) for name in ("machine", "versions", "settings")]
    lines = [", ".join(f"{name} {value}" for name, value in part.items()) for part in parts]
    build = read_build()
    lines += [str(build)] if build.pgo else [str(build), WITHOUT_PGO]
    for line in found:
        spread = f"[{number(line.min)} to {number(line.max)}]"
        if line.shared_percent > SHARED_PERCENT:
            spread += f" not to be quoted: others took {line.shared_percent:.0f} % of the machine"
        lines.append(f"{line.scenario:<11} {line.figure:<34} {number(line.median):>10} {line.unit:<14} {spread}")
        if line.cpu_us_per_run:
            cpu = ", ".join(f"{process} {us:.1f}" for process, us in line.cpu_us_per_run.items())
            kafka = f", {line.kafka_bytes_per_run:,.0f} of Kafka's log" if line.kafka_bytes_per_run else ""
            lines.append(f"{'':<12}a run: CPU µs: {cpu}; bytes: {line.wal_bytes_per_run:,.0f} of WAL{kafka}")
            dear = list((line.cpu_us_per_run_by_part or {}).items())[:PARTS]
            by_part = ", ".join(f"{part} {us:.1f}" for part, us in dear)
            lines.append(f"{'':<12}a run: CPU µs by thread and session: {by_part}")
    return lines
