"""Figures of a round, their cost and their plots, and the options of a scenario. Pure."""

import statistics
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

Points = Sequence[tuple[float, float]]
Progress = Callable[[str], None]

SAME_SPEED = 0.10  # two readings of the calibration loop may differ by so much: at rest they differ by 2 to 5 %


class Incomplete(Exception):
    """The requested runs did not all happen exactly once and on time, so there is no figure."""


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of a measured part.

    Args:
        runs: How many runs (or messages, or requests) it was spent on.
        cpu_seconds: By process; what cannot be seen, such as a server on another machine, is missing.
        wal_bytes: Of WAL that PostgreSQL wrote.
        kafka_bytes: By which the broker's log grew; None where its files cannot be seen.
    """

    runs: int
    cpu_seconds: Mapping[str, float]
    wal_bytes: int
    kafka_bytes: int | None = None

    @property
    def cpu_us_per_run(self) -> dict[str, float]:
        """Microseconds of CPU per run by process, and of all together."""
        each = {name: seconds / self.runs * 1e6 for name, seconds in self.cpu_seconds.items()}
        return {**each, "total": sum(each.values())}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one round.

    Args:
        value: In `unit`.
        unit: Such as `runs/s` or `ms`.
        floor: The same by the least work that could do it, measured in the same round; None where there is none.
        less_is_better: Whether it is a time or a size, and not a rate.
        spent: What it cost, where that was looked at.
    """

    value: float
    unit: str
    floor: float | None = None
    less_is_better: bool = False
    spent: Spent | None = None

    @property
    def ratio(self) -> float | None:
        """The ratio to the baseline: 1 equals it, 0.25 needs four times as much."""
        if not self.floor or not self.value:
            return None
        return self.floor / self.value if self.less_is_better else self.value / self.floor


def rate(value: float, unit: str, *, floor: float | None = None, spent: Spent | None = None) -> Figure:
    """More is better."""
    return Figure(value, unit, floor, spent=spent)


def least(value: float, unit: str, *, floor: float | None = None, spent: Spent | None = None) -> Figure:
    """Less is better."""
    return Figure(value, unit, floor, less_is_better=True, spent=spent)


@dataclass(frozen=True, slots=True)
class Speed:
    """CPU milliseconds of the calibration loop before and after a round."""

    before_ms: float
    after_ms: float

    @property
    def best_ms(self) -> float:
        """The faster reading."""
        return min(self.before_ms, self.after_ms)


@dataclass(frozen=True, slots=True)
class Round:
    """The figures of one round.

    Args:
        figures: By name.
        distributions: Latencies in milliseconds by what they are of, in any order.
        series: What changed over time: by name, (seconds since the start, value).
        speed: The machine's, around the round.
    """

    figures: Mapping[str, Figure]
    distributions: Mapping[str, Sequence[float]] = field(default_factory=dict[str, Sequence[float]])
    series: Mapping[str, Points] = field(default_factory=dict[str, Points])
    speed: Speed | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One figure over all rounds; its fields are the keys of the JSON document."""

    scenario: str
    figure: str
    unit: str
    median: float
    min: float
    max: float
    floor: float | None
    ratio: float | None
    cpu_us_per_run: dict[str, float] | None
    cpu_us_per_run_min: dict[str, float] | None
    wal_bytes_per_run: float | None


def changed_speed(speeds: Sequence[Speed | None]) -> list[bool]:
    """Return for each round whether the machine changed speed.

    It did if the two readings differ by more than a tenth, or the better one from the best of all other rounds.
    """
    found: list[bool] = []
    for number, speed in enumerate(speeds):
        others = [each.best_ms for each in (*speeds[:number], *speeds[number + 1 :]) if each]
        readings = [(speed.before_ms, speed.after_ms)] if speed else []
        readings += [(speed.best_ms, min(others))] if speed and others else []
        found.append(any(max(pair) > min(pair) * (1 + SAME_SPEED) for pair in readings))
    return found


def summarise(scenario: str, rounds: Sequence[Round]) -> list[Line]:
    """A line for each figure: ratios are taken within a round, then their median."""
    names = list(dict.fromkeys(name for each in rounds for name in each.figures))
    return [_line(scenario, name, [each.figures[name] for each in rounds if name in each.figures]) for name in names]


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of numbers in any order; 0 of none.

    >>> percentile([4.0, 1.0, 3.0, 2.0], 50), percentile([1.0, 2.0], 100), percentile([], 50)
    (2.0, 2.0, 0.0)
    """
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)] if ordered else 0.0


def _line(scenario: str, name: str, figures: Sequence[Figure]) -> Line:
    values = [figure.value for figure in figures]
    spent = [figure.spent for figure in figures if figure.spent]
    cpu = [each.cpu_us_per_run for each in spent]
    return Line(
        scenario=scenario,
        figure=name,
        unit=figures[0].unit,
        median=statistics.median(values),
        min=min(values),
        max=max(values),
        floor=_median([figure.floor for figure in figures]),
        ratio=_median([figure.ratio for figure in figures]),
        cpu_us_per_run=_by_process(cpu, statistics.median),
        cpu_us_per_run_min=_by_process(cpu, min),
        wal_bytes_per_run=_median([each.wal_bytes / each.runs for each in spent]),
    )


def _by_process(
    cpu: Sequence[Mapping[str, float]], summary: Callable[[Sequence[float]], float]
) -> dict[str, float] | None:
    return {process: summary([each.get(process, 0.0) for each in cpu]) for process in cpu[0]} if cpu else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def most_in_a_window(times: Sequence[float], seconds: float) -> int:
    """The most of these instants in any window of so many seconds; 0 of none.

    >>> most_in_a_window([5.0, 0.0, 0.5, 1.0], 1.0)
    2
    """
    ordered = sorted(times)
    return max((bisect_left(ordered, at + seconds) - number for number, at in enumerate(ordered)), default=0)


def most_at_once(spans: Iterable[tuple[float, float | None]]) -> int:
    """The most of these spans that overlap; one without an end goes on. One may begin as another ends.

    >>> most_at_once([(0.0, 2.0), (1.0, None), (2.0, 3.0)])
    2
    """
    spans = list(spans)
    changes = [(began, 1) for began, _ in spans] + [(ended, -1) for _, ended in spans if ended is not None]
    return max(accumulate(change for _, change in sorted(changes)), default=0)


def _unseen(text: str) -> None:
    del text


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The size and duration of a scenario; None is the scenario's own default.

    Args:
        jobs: Jobs, runs, messages or requests of a round.
        seconds: How long the load of `pipeline`, `steady`, `latency` and the second part of `limits` lasts.
        rate: Runs a second of `steady`, `soak` and `latency`.
        minutes: How long `idle`, `soak` and the first part of `limits` last.
        keys: True to measure `execute` with one concurrency key and with 1,000 keys as well.
        report: Receives the current step, for display.
    """

    jobs: int | None = None
    seconds: float | None = None
    rate: float | None = None
    minutes: float | None = None
    keys: bool = False
    report: Progress = field(default=_unseen, compare=False)
