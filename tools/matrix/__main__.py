"""Run every cell, or the named ones: `python -m tools.matrix [CELL …]`.

Exit codes: 0 if every cell passed, 1 if one did not, or cannot run here.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tidewheel.clock import SystemClock, monotonic_seconds
from tidewheel.errors import TidewheelError, refuse
from tidewheel.local.daemon import run_program
from tools.matrix import cells as of
from tools.matrix.servers import JARS, PROGRAMS

PAGE = of.ROOT / "docs/compatibility.md"
RESULTS = of.HERE / "results.json"
TESTS = (
    *("tests/control/test_old_servers.py", "tests/migrations/test_schema.py"),
    *(f"tests/tidewheel/postgres/test_{each}.py" for each in ("session", "statements")),
    *(f"tests/tidewheel/kafka/test_{each}.py" for each in ("groups", "topics")),
    *(f"tests/transitions/test_{each}.py" for each in ("claim", "finish", "requeue")),
    *("tests/scheduler/test_firing.py", "tests/relay/test_loop.py", "tests/intake/test_consume.py"),
    *(f"tests/executor/test_{each}.py" for each in ("claim", "consume", "lease")),
    "tests/system/test_ends_from_outside.py",
)
_PYTEST = "-q -n 2 --dist worksteal -p tools.matrix.servers -p no:cacheprovider --maxfail 30"
_OF_NEW_PROTOCOL = "test_groups and (consumer or new_protocol or member_leaves) or may_change or refused and consumer"
_MOST_SECONDS, _STOP_SECONDS = 900.0, 60.0
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|error)")
_BLOCK = re.compile(r"(<!-- matrix[^>]*-->\n).*?(<!-- end of matrix -->)", re.DOTALL)
_COLUMNS = ("Cell", "PostgreSQL", "Kafka", "Python", "Tests: passed, failed, skipped", "Demo", "When", "Commit", "Load")

Figures = Mapping[str, Any]


def main(names: Sequence[str]) -> int:
    """Run cells; print and record the figures of each."""
    try:
        known = {cell.name: cell for cell in of.CELLS}
        if unknown := sorted(set(names) - set(known)):
            refuse("CELL", f"there is no cell {', '.join(unknown)}", f"name some of {', '.join(known)}")
        cells = [known[name] for name in names or known]
        of.check_machine(cells)
        print("to be downloaded, unless it was before:", of.downloads(cells), flush=True)
        return int(any([_run_cell(cell) for cell in cells]))  # noqa: C419 - all of them run
    except TidewheelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def current_page() -> str:
    """Return the page with the table of what is recorded."""
    rows = [_COLUMNS, ["---"] * len(_COLUMNS), *(_row(name, each) for name, each in _recorded().items())]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return _BLOCK.sub(lambda found: f"{found[1]}{table}{found[2]}", PAGE.read_text(encoding="utf-8"))


def _run_cell(cell: of.Cell) -> bool:
    """Run the tests and the demo of a cell; record the figures. Return True if a test or the demo failed."""
    python = of.python_of(cell)
    began, load, commit = SystemClock().now(), os.getloadavg()[0], _commit()
    with of.postgres_programs(cell) as programs, tempfile.NamedTemporaryFile("w", suffix=".log", delete=False) as log:
        chosen = f"not ({_OF_NEW_PROTOCOL})" if cell.kafka < "4" else ""
        given = {PROGRAMS: programs, JARS: of.manifest("kafka", cell.kafka), "PYTHONPATH": of.ROOT}
        variables = {**os.environ, **{name: str(value) for name, value in given.items() if value is not None}}
        code, seconds = _run(
            [python, "-m", "pytest", *_PYTEST.split(), "-m", "not slow", "-k", chosen, *TESTS], variables, log
        )
        last = Path(log.name).read_text(errors="replace").rstrip().rpartition("\n")[2]
        counts = {what: int(number) for number, what in _COUNT.findall(last)}
        demo_code, demo_seconds = _run([python, "-m", "tools.matrix.servers"], variables, log)
        found = of.releases(cell, programs, python)
    figures: Figures = {
        **found,
        **{what: counts.get(what, 0) for what in ("passed", "skipped")},
        "failed": counts.get("failed", 0) + counts.get("error", 0) or int(code != 0),
        "seconds": round(seconds),
        "demo": "failed" if demo_code else "passed",
        "demo_seconds": round(demo_seconds),
        "date": f"{began:%Y-%m-%d %H:%M}Z",
        "commit": commit,
        "load": round(load, 1),
    }
    kept = {**_recorded(), cell.name: figures}
    ordered = {each.name: kept[each.name] for each in of.CELLS if each.name in kept}
    RESULTS.write_text(f"{json.dumps(ordered, indent=1)}\n")
    PAGE.write_text(current_page(), encoding="utf-8")
    print(" | ".join(_row(cell.name, figures)), f"({log.name})", flush=True)
    return bool(figures["failed"] or demo_code)


def _run(command: Sequence[str], variables: Mapping[str, str], log: IO[str]) -> tuple[int, float]:
    """Run a program, and end it by SIGTERM, at which it ends what it has started; return code and seconds."""
    began = monotonic_seconds()
    process = subprocess.Popen(command, cwd=of.ROOT, env=variables, stdout=log, stderr=subprocess.STDOUT)
    try:
        return process.wait(_MOST_SECONDS), monotonic_seconds() - began
    except subprocess.TimeoutExpired:
        return -1, _MOST_SECONDS
    finally:
        process.terminate()
        process.wait(_STOP_SECONDS)


def _recorded() -> dict[str, Figures]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def _row(name: str, figures: Figures) -> list[str]:
    tests = "{passed}, {failed}, {skipped} in {seconds} s".format_map(figures)
    demo = "{demo} in {demo_seconds} s".format_map(figures)
    releases = [figures[each] for each in ("postgres", "kafka", "python")]
    return [name, *releases, tests, demo, figures["date"], figures["commit"], str(figures["load"])]


def _commit() -> str:
    return run_program(["git", "rev-parse", "--short", "HEAD"], cwd=of.ROOT).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
