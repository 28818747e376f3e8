"""Keep measured figures and write docs/performance.md: `python -m tools.bench.figures FILE …`.

Each file is a document of `tidewheel admin bench --output json`, which replaces the figures that it has. Figures of
rounds that shared the machine are left out. A figure is of an older build once the hot path has changed: its code
without docstrings and its SQL without comments. `--release` fails while a figure is.
"""

import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from tools.bench.measurement import PARTS, SHARED_PERCENT, number

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "tools/bench/results/figures.json"
PAGE = ROOT / "docs/performance.md"
HOT_PATH = (
    "executor", "intake", "migrations", "relay", "scheduler", "schemas",
    "tidewheel/kafka", "tidewheel/postgres", "tidewheel/transitions",
)  # fmt: skip

_BLOCK = re.compile(r"(<!-- figures[^>]*-->\n).*?(<!-- end of figures -->)", re.DOTALL)

Line = Mapping[str, Any]
"""A line of a document, with `build`, `date`, `hot_path` and `options` of the document."""


class Shown(NamedTuple):
    """A row of the page."""

    scenario: str
    figure: str
    label: str
    goal: str = ""


SHOWN = (
    Shown("pipeline", "runs_per_second", "more due than the machine can do", "12,000"),
    Shown("pipeline", "steady_start_p99_ms", "a steady load, p99 of due to start", "500 at 10,000/s"),
    Shown("hot-second", "10k_start_p99_ms", "10,000 jobs due at once, p99 of due to start", "450"),
    Shown("hot-second", "10k_after_idling_start_p99_ms", "the same after idling", "450"),
    Shown("hot-second", "two_tenants_start_p99_ms", "10,000 jobs of two tenants due at once"),
    Shown("hot-second", "two_priorities_start_p99_ms", "10,000 jobs of two priorities due at once"),
    Shown("hot-second", "100k_start_max_ms", "100,000 jobs due at once: all started"),
    Shown("latency", "due_to_start_p50_ms", "200 runs/s, p50 of due to start", "15"),
    Shown("latency", "due_to_start_p99_ms", "the same, p99", "25"),
    Shown("latency", "request_to_start_p99_ms", "200 requests/s, p99 of request to start", "120"),
    Shown("submit", "requests_per_second", "job requests accepted and answered, one intake", "20,000"),
    Shown("fire", "occurrences_per_second", "due jobs fired, two schedulers", "45,000"),
    Shown("fire", "one_scheduler_occurrences_per_second", "the same, one scheduler"),
    Shown("relay", "messages_per_second", "outbox rows of 300 B relayed to Kafka", "60,000"),
    Shown("execute", "runs_per_second", "runs on Kafka executed, two executors", "30,000"),
    Shown("execute", "one_executor_runs_per_second", "the same, one executor"),
    Shown("http", "calls_per_second", "HTTP targets called, all services", "3,000"),
    Shown("http", "backlog_calls_per_second", "the same, of published runs"),
)


def hot_path(root: Path = ROOT) -> str:
    """Return a hash of what decides the cost of a run."""
    digest = hashlib.sha256()
    for folder in HOT_PATH:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix == ".py":
                digest.update(repr(_shape(ast.parse(file.read_text(encoding="utf-8")))).encode())
            elif file.suffix in (".sql", ".avsc"):
                text = re.sub(r"--.*", "", file.read_text(encoding="utf-8"))
                digest.update(" ".join(text.split()).encode())
    return digest.hexdigest()[:16]


def _shape(node: object) -> object:
    """Return the code of a tree without docstrings and positions, alike in each version of Python."""
    if isinstance(node, list):
        return [_shape(each) for each in cast("list[object]", node) if not _is_text(each)]
    if not isinstance(node, ast.AST):
        return node
    fields = [(name, _shape(value)) for name, value in ast.iter_fields(node) if value not in (None, [])]
    return type(node).__name__, fields


def _is_text(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def keep(kept: Sequence[Line], document: Mapping[str, Any]) -> list[Line]:
    """Return the kept lines with those of a document in their place."""
    about = {"build": document["versions"]["build"]} | {
        name: document[name] for name in ("date", "hot_path", "options")
    }
    new = [{**line, **about} for line in document["results"] if line["shared_percent"] <= SHARED_PERCENT]
    names = {(line["scenario"], line["figure"]) for line in new}
    return [line for line in kept if (line["scenario"], line["figure"]) not in names] + new


def page(text: str, kept: Sequence[Line], current: str) -> str:
    """Return the page with its figures."""
    return _BLOCK.sub(lambda block: block[1] + "\n".join(_rows(kept, current)) + "\n" + block[2], text)


def _rows(kept: Sequence[Line], current: str) -> Iterator[str]:
    found = {(line["scenario"], line["figure"]): line for line in kept}
    yield ""
    if not kept:
        yield "This build has no figures yet: none was measured on a machine that had its usual speed."
        yield ""
        return
    yield "| Figure | Shown, median [least to greatest] | Goal | CPU a run, µs | WAL a run, B | Build |"
    yield "| --- | ---: | ---: | ---: | ---: | --- |"
    for row in SHOWN:
        if line := found.get((row.scenario, row.figure)):
            yield f"| {row.label} | {_value(line)} | {row.goal} | {_cost(line)} | {_build(line, current)} |"
    yield ""
    if line := found.get(("pipeline", "runs_per_second")):
        yield f"Where a run's CPU goes under that load, µs ({_build(line, current)}):"
        yield ""
        yield "| Process | µs | Of it |"
        yield "| --- | ---: | --- |"
        yield from _budget(line)
        yield ""
    shown = {(row.scenario, row.figure) for row in SHOWN}
    if others := [line for name, line in sorted(found.items()) if name not in shown]:
        yield "The other figures by their names in the output:"
        yield ""
        yield "| Scenario | Figure | Shown | Build |"
        yield "| --- | --- | ---: | --- |"
        for line in others:
            yield f"| {line['scenario']} | {line['figure']} | {_value(line)} | {_build(line, current)} |"
        yield ""


def _value(line: Line) -> str:
    low, high = number(line["min"]), number(line["max"])
    return f"{number(line['median'])} [{low} to {high}] {line['unit']}"


def _cost(line: Line) -> str:
    cpu, wal = line["cpu_us_per_run"], line["wal_bytes_per_run"]
    return f"{number(cpu['total'])} | {number(wal)}" if cpu else "|"


def _build(line: Line, current: str) -> str:
    options = "".join(f", `--{name} {value:g}`" for name, value in line["options"].items())
    older = "" if line["hot_path"] == current else ", **older build**"
    return f"{line['build']}, {line['date']}{options}{older}"


def _budget(line: Line) -> Iterator[str]:
    """Each process with its threads, and PostgreSQL with its sessions, the dearest first."""
    parts: Mapping[str, float] = line["cpu_us_per_run_by_part"]
    dear = list(parts.items())[:PARTS]
    for name, us in sorted(line["cpu_us_per_run"].items(), key=lambda item: -item[1]):
        of_it = [f"{part.partition(': ')[2]} {number(cost)}" for part, cost in dear if part.startswith(f"{name}: ")]
        yield f"| {name} | {number(us)} | {', '.join(of_it)} |"


def current_page() -> str:
    """Return docs/performance.md with the kept figures."""
    return page(PAGE.read_text(encoding="utf-8"), _read_kept(), hot_path())


def _read_kept() -> list[Line]:
    kept: list[Line] = json.loads(KEPT.read_text(encoding="utf-8"))
    return kept


def main(arguments: Sequence[str]) -> int:
    """Keep the figures of documents, and write the page; return 1 if a release may not have it."""
    kept, current = _read_kept(), hot_path()
    for name in (each for each in arguments if each != "--release"):
        kept = keep(kept, json.loads(Path(name).read_text(encoding="utf-8")))
    KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), kept, current), encoding="utf-8")
    older = [line["figure"] for line in kept if line["hot_path"] != current]
    if "--release" in arguments and older:
        print(f"{len(older)} figures are of an older build: measure them by `make bench`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
