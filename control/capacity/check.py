"""Compare the model with loads that its costs do not contain. Pure."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tidewheel.control.capacity.costs import (
    CHECKED,
    HANDLER_SECONDS,
    STAGES,
    costs_of,
    processes_of,
    rate_of,
    read_figures,
)
from tidewheel.control.capacity.model import Load, kafka_bytes, slots_in_use, wal_bytes

_SMALL_CORES = 0.02  # of a stage: below it, 20 ms a second, the meter's steps and the idle part are as large
_DISKS = (10_000, 100_000, 1_000_000)


class Compared(NamedTuple):
    """One prediction beside its measurement."""

    load: str
    figure: str
    unit: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """The difference as a part of the measurement."""
        return self.predicted / self.measured - 1 if self.measured else 0.0


def compare(document: Mapping[str, object]) -> list[Compared]:
    """Return each prediction beside the measurement of a load that the costs do not know.

    These loads are `CHECKED`. The sizes of jobs are predicted from the largest one.

    Raises:
        Refused: A figure is missing.
    """
    figures, costs = read_figures(document), costs_of(document, without=CHECKED)
    found: list[Compared] = []
    for level in (each for each in CHECKED if f"{each}_wal" in figures):
        timed, triggered = figures[f"{level}_timed_per_second"], figures[f"{level}_triggered_per_second"]
        load = Load(jobs=0, timed=timed, triggers=triggered, seconds=HANDLER_SECONDS)
        name = f"{timed + triggered:,.0f} runs/s"
        predicted = {
            stage: costs.cpu[stage].at(rate_of(stage, timed, triggered), processes_of(stage)) for stage in STAGES
        }
        measured = {stage: (figures[f"{level}_cpu_{stage}"] + figures[f"idle_cpu_{stage}"]) / 1e3 for stage in STAGES}
        found += _cpu(name, predicted, measured)
        wal, kafka = figures[f"{level}_wal"] * load.runs, figures[f"{level}_kafka"] * load.runs
        found.append(Compared(name, "WAL", "bytes/s", wal_bytes(load, costs), wal + figures["idle_wal"]))
        found.append(Compared(name, "Kafka", "bytes/s", kafka_bytes(load, costs), kafka))
        kept = figures[f"{level}_kept_finished_runs"] + figures[f"{level}_kept_run_inputs"]
        disk = costs.run_bytes + costs.input_bytes[0] * triggered / load.runs
        found.append(Compared(name, "disk of a run", "bytes", disk, kept))
        slots = slots_in_use(load, costs, load.runs)
        found.append(Compared(name, "slots in use", "", slots, figures[f"{level}_slots"]))
        connections = sum(costs.connections[each] * processes_of(each) for each in costs.connections)
        opened = sum(figures[f"{level}_connections_{each}"] for each in costs.connections)
        found.append(Compared(name, "connections", "", connections, opened))
    found += [
        Compared(f"{jobs:,} jobs", "disk of jobs", "bytes", jobs * costs.job_bytes, jobs * figures[f"disk_{jobs}_jobs"])
        for jobs in _DISKS[:-1]
        if f"disk_{jobs}_jobs" in figures
    ]
    return found


def _cpu(load: str, predicted: Mapping[str, float], measured: Mapping[str, float]) -> Iterator[Compared]:
    postgres = [stage for stage in STAGES if stage.startswith("postgres_")]
    for stage in STAGES:
        if measured[stage] >= _SMALL_CORES:
            yield Compared(load, f"CPU: {stage.replace('_', ' ')}", "cores", predicted[stage], measured[stage])
    for name, stages in (("postgres", postgres), ("all", STAGES)):
        yield Compared(
            load,
            f"CPU: {name}",
            "cores",
            sum(predicted[each] for each in stages),
            sum(measured[each] for each in stages),
        )
