"""Figures of a round, their cost, and the options of a scenario. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

Points = Sequence[tuple[float, float]]
Progress = Callable[[str], None]
PARTS = 16  # the dearest threads and sessions: a document has all, a text these
SHARED_PERCENT = 5.0  # of the machine: where others took more, a round says little about this build


class Incomplete(Exception):
    """There is no figure: the requested runs did not all happen exactly once and on time."""


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of so many runs, messages or requests; `kafka_bytes` is None if the log is not seen.

    `part_seconds` is CPU by thread and by session of PostgreSQL. `others_seconds` is the CPU of everything else on the
    machine but the bench itself, `stolen_seconds` what a hypervisor gave to other machines, and `machine_seconds` what
    all cores had.
    """

    runs: int
    cpu_seconds: Mapping[str, float]
    wal_bytes: int
    kafka_bytes: int | None = None
    part_seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    others_seconds: float = 0.0
    stolen_seconds: float = 0.0
    machine_seconds: float = 0.0

    @property
    def cpu_us_per_run(self) -> dict[str, float]:
        """Microseconds of CPU per run by process, and of all together."""
        each = {name: seconds / self.runs * 1e6 for name, seconds in self.cpu_seconds.items()}
        return {**each, "total": sum(each.values())}

    @property
    def cpu_us_per_run_by_part(self) -> dict[str, float]:
        """Microseconds of CPU per run by thread and session."""
        return {name: seconds / self.runs * 1e6 for name, seconds in self.part_seconds.items()}

    @property
    def shared_percent(self) -> float:
        """Percentage of the machine that others took."""
        taken = self.others_seconds + self.stolen_seconds
        return taken / self.machine_seconds * 100 if self.machine_seconds else 0.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one round, with its cost where that was looked at."""

    value: float
    unit: str
    spent: Spent | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """The figures of one round, and what changed over time: (seconds since the start, value)."""

    figures: Mapping[str, Figure]
    series: Mapping[str, Points] = field(default_factory=dict[str, Points])

    @property
    def shared_percent(self) -> float:
        """Percentage of the machine that others took, in the worst part of the round."""
        return max((figure.spent.shared_percent for figure in self.figures.values() if figure.spent), default=0.0)


@dataclass(frozen=True, slots=True)
class Line:
    """One figure over all rounds; its fields are the keys of the JSON document."""

    scenario: str
    figure: str
    unit: str
    median: float
    min: float
    max: float
    cpu_us_per_run: dict[str, float] | None
    wal_bytes_per_run: float | None
    kafka_bytes_per_run: float | None
    cpu_us_per_run_by_part: dict[str, float] | None
    others_us_per_run: float | None
    shared_percent: float
    """What others took of the machine in the worst round of this line: above `SHARED_PERCENT`, this is no figure."""


def summarise(scenario: str, rounds: Sequence[Round]) -> list[Line]:
    """Return a line for each figure; rounds that shared the machine count only if all did."""
    rounds = [each for each in rounds if each.shared_percent <= SHARED_PERCENT] or rounds
    names = list(dict.fromkeys(name for each in rounds for name in each.figures))
    shared = max((each.shared_percent for each in rounds), default=0.0)
    return [
        _line(scenario, name, [each.figures[name] for each in rounds if name in each.figures], shared) for name in names
    ]


def _line(scenario: str, name: str, figures: Sequence[Figure], shared: float) -> Line:
    values = [figure.value for figure in figures]
    spent = [figure.spent for figure in figures if figure.spent]
    cpu = [each.cpu_us_per_run for each in spent]
    parts = [each.cpu_us_per_run_by_part for each in spent]
    kafka = [each.kafka_bytes / each.runs for each in spent if each.kafka_bytes is not None]
    return Line(
        scenario=scenario,
        figure=name,
        unit=figures[0].unit,
        median=median(values),
        min=min(values),
        max=max(values),
        cpu_us_per_run={name: median(each[name] for each in cpu) for name in cpu[0]} if cpu else None,
        wal_bytes_per_run=median(each.wal_bytes / each.runs for each in spent) if spent else None,
        kafka_bytes_per_run=median(kafka) if kafka else None,
        cpu_us_per_run_by_part=_medians(parts) if spent else None,
        others_us_per_run=median(each.others_seconds / each.runs * 1e6 for each in spent) if spent else None,
        shared_percent=shared,
    )


def _medians(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median by name, the greatest first. A thread that a round lacks spent nothing in it."""
    found = {
        name: median(one.get(name, 0.0) for one in each) for name in dict.fromkeys(name for one in each for name in one)
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile of numbers in any order; 0 of none.

    >>> percentile([4.0, 1.0, 3.0, 2.0], 50), percentile([1.0, 2.0], 100), percentile([], 50)
    (2.0, 2.0, 0.0)
    """
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)] if ordered else 0.0


def number(value: float) -> str:
    """Return as many digits as mean something.

    >>> number(12345.678), number(3.14159), number(0.012)
    ('12,346', '3.14', '0.012')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The size and duration of a scenario, as the command's options; None is the scenario's own default."""

    jobs: int | None = None
    seconds: float | None = None
    rate: float | None = None
    minutes: float | None = None
    report: Progress = field(default=lambda _: None, compare=False)
