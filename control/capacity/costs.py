"""Measured costs, read from the document that `tidewheel bench capacity --output json` prints."""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import cast

from tidewheel.control.capacity.curve import Curve
from tidewheel.errors import refuse
from tidewheel.jobs.strict_json import as_object

STAGES = (
    "scheduler", "intake", "relay", "executor", "broker",
    "postgres_scheduler", "postgres_intake", "postgres_relay", "postgres_executor", "postgres_other",
)  # fmt: skip
MEASURED_EXECUTORS = 2  # of the load's installation; of the other services one
PAYLOAD_BYTES = 200  # of the loads whose payload is small
LARGE_BYTES = 4000  # of those whose payload or result is large
HANDLER_SECONDS = 0.02  # of the measured loads
FULL = "backlog"  # the load whose batches are full
CHECKED = ("at_60", "at_300", "at_2000")  # the loads that `--check` predicts from the others
_LEVEL = re.compile(r"at_\d+")


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes of one kind.

    Args:
        curve: Bytes a second by runs a second, half of them triggered, with a small payload and no result.
        trigger: What a triggered run takes beyond the mean of the two.
        payload: For each byte of a trigger's payload.
        result: For each byte of a result.
    """

    curve: Curve
    trigger: float
    payload: float
    result: float

    def at(self, timed: float, triggered: float, *, payload: float, result: float) -> float:
        """Return bytes a second.

        A timed run's payload is in its message alone. A trigger's is in the request or the inputs as well.
        """
        runs = timed + triggered
        more = max(0.0, payload - PAYLOAD_BYTES)
        extra = self.payload * more * (triggered + timed / 2) + self.result * result * runs
        return self.curve.at(runs) + self.trigger * (triggered - timed) + extra


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of one machine.

    Args:
        about: The machine, interpreter and versions, as the document has them.
        cpu: Cores in use by each stage; by its own rate, for one process.
        burst: Seconds of CPU of each stage for one of many runs of timers that are due at once.
        wal: Of PostgreSQL.
        kafka: Of one copy of the topics.
        run_bytes: On disk of a finished run.
        input_bytes: On disk of a trigger's inputs, and for each byte of its payload beyond the small one.
        result_bytes: On disk for each byte of a result.
        answer_bytes: On disk of a remembered answer.
        job_bytes: On disk of a job with its version and timer.
        timer_bytes: The timer's part.
        in_slots: Slots in use beyond the handlers, by runs a second.
        connections: Of one process, by service.
    """

    about: Mapping[str, object]
    cpu: Mapping[str, Curve]
    burst: Mapping[str, float]
    wal: Bytes
    kafka: Bytes
    run_bytes: float
    input_bytes: tuple[float, float]
    result_bytes: float
    answer_bytes: float
    job_bytes: float
    timer_bytes: float
    in_slots: Curve
    connections: Mapping[str, float]


def read_document(path: Path | None) -> Mapping[str, object]:
    """Read a document of `bench capacity`; without a path the packaged one.

    Raises:
        Refused: The file is no such document.
    """
    if path is None:
        text = resources.files("tidewheel.control.capacity").joinpath("costs.json").read_text(encoding="utf-8")
    elif path.is_file():
        text = path.read_text(encoding="utf-8")
    else:
        refuse("--costs", f"there is no file {path}", "write what `tidewheel bench capacity -o json` prints to a file")
    try:
        document = as_object(json.loads(text))
    except ValueError:
        document = None
    if not document or "results" not in document:
        refuse("--costs", "the file is no document of the benchmark", "use `tidewheel bench capacity --output json`")
    return document


def read_figures(document: Mapping[str, object]) -> dict[str, float]:
    """Return the medians of the scenario `capacity` by figure."""
    lines = cast("list[dict[str, object]]", document["results"])
    return {
        str(line["figure"]): float(cast("float", line["median"])) for line in lines if line["scenario"] == "capacity"
    }


def costs_of(document: Mapping[str, object], without: Collection[str] = ()) -> Costs:
    """Return the costs that a document has.

    Args:
        document: Of `bench capacity`.
        without: Leave these loads out, to compare them with the prediction.

    Raises:
        Refused: A figure is missing.
    """
    figures = read_figures(document)
    steady = [load for load in (name.removesuffix("_wal") for name in figures) if _LEVEL.fullmatch(load)]
    steady = [load for load in steady if load not in without] or ["at_100"]
    levels = [*steady, FULL]
    needed = [f"{load}_wal" for load in ("idle", "burst", "plain", "payload", "result", *levels)]
    if missing := [name for name in needed if name not in figures]:
        refuse(
            "--costs", f"the document has no {', '.join(missing)}", "measure with `tidewheel bench capacity -o json`"
        )
    largest = max(int(name.split("_")[1]) for name in figures if name.startswith("disk_") and name.endswith("_jobs"))
    return Costs(
        about={name: document[name] for name in ("machine", "interpreter", "versions") if name in document},
        cpu={stage: _cpu(figures, stage, levels) for stage in STAGES},
        burst={stage: figures[f"burst_cpu_{stage}"] / 1e3 / figures["burst_timed_per_second"] for stage in STAGES},
        wal=_bytes(figures, "wal", levels),
        kafka=_bytes(figures, "kafka", levels),
        run_bytes=max(figures["plain_kept_finished_runs"] + figures["plain_kept_attempts"], 0.0),
        input_bytes=(figures["plain_kept_run_inputs"], _slope(figures, "kept_run_inputs", "plain", "payload")),
        result_bytes=figures["result_kept_attempt_outputs"] / LARGE_BYTES,
        answer_bytes=figures["plain_kept_requests"],
        job_bytes=figures[f"disk_{largest}_jobs"],
        timer_bytes=figures[f"disk_{largest}_timers"],
        in_slots=_in_slots(figures, steady),
        connections={
            stage: max(figures[f"{level}_connections_{stage}"] for level in steady) / processes_of(stage)
            for stage in ("scheduler", "intake", "relay", "executor")
        },
    )


def rate_of(stage: str, timed: float, triggered: float) -> float:
    """Return the rate by which a stage's use is measured: timed runs, triggers, or messages."""
    match stage.removeprefix("postgres_"):
        case "scheduler":
            return timed
        case "intake":
            return triggered
        case _:
            return timed + triggered


def processes_of(stage: str) -> int:
    """Return the number of processes that the measured installation had."""
    return MEASURED_EXECUTORS if stage.removeprefix("postgres_") == "executor" else 1


def _cpu(figures: Mapping[str, float], stage: str, levels: Collection[str]) -> Curve:
    processes = processes_of(stage)
    points: dict[str, tuple[float, float]] = {}
    for level in levels:
        rate = rate_of(stage, figures[f"{level}_timed_per_second"], figures[f"{level}_triggered_per_second"])
        points[level] = (rate / processes, figures[f"{level}_cpu_{stage}"] / 1e3 / processes)
    return _curve(figures[f"idle_cpu_{stage}"] / 1e3 / processes, points)


def _curve(idle: float, points: Mapping[str, tuple[float, float]]) -> Curve:
    rate, use = points[FULL]
    steady = sorted(point for level, point in points.items() if level != FULL)
    return Curve(idle, tuple(steady), use / rate)


def _in_slots(figures: Mapping[str, float], steady: Iterable[str]) -> Curve:
    rates = {level: _runs(figures, level) for level in steady}
    points = sorted(
        (rate, max(0.0, figures[f"{level}_slots"] - rate * HANDLER_SECONDS)) for level, rate in rates.items()
    )
    return Curve(0.0, tuple(points), points[-1][1] / points[-1][0])


def _bytes(figures: Mapping[str, float], kind: str, levels: Collection[str]) -> Bytes:
    points = {level: (_runs(figures, level), _runs(figures, level) * figures[f"{level}_{kind}"]) for level in levels}
    curve = _curve(figures.get(f"idle_{kind}", 0.0), points)
    return Bytes(
        curve=curve,
        # No more than `each`: a timed run never takes less than nothing.
        trigger=min(max(0.0, figures[f"plain_{kind}"] - figures[f"backlog_{kind}"]), curve.least),
        payload=_slope(figures, kind, "plain", "payload"),
        result=max(0.0, figures[f"result_{kind}"] - figures[f"payload_{kind}"]) / LARGE_BYTES,
    )


def _slope(figures: Mapping[str, float], kind: str, small: str, large: str) -> float:
    return max(0.0, figures[f"{large}_{kind}"] - figures[f"{small}_{kind}"]) / (LARGE_BYTES - PAYLOAD_BYTES)


def _runs(figures: Mapping[str, float], level: str) -> float:
    return figures[f"{level}_timed_per_second"] + figures[f"{level}_triggered_per_second"]
