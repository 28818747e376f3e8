"""The capacity that a load needs, from measured costs. Pure.

Every number is a sum of measured costs, or a formula that its `reason` names.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import ceil, exp, inf
from typing import NamedTuple

from tidewheel.control.capacity.costs import STAGES, Costs, rate_of
from tidewheel.process.database_connections import CONNECTIONS

SLICES = 8  # of the outbox; a relay owns at least one (tidewheel/outbox.py)
SHARDS = 64  # of timers; a scheduler owns at least one
REQUEST_MEMBERS = 12  # intakes that share the 24 partitions of the requests topic, with two members each
SERVICES = ("scheduler", "intake", "relay", "executor")

_BUSY = 0.6  # of a core, at the peak: the rest is for bursts, restarts and the loss of one of several processes
_SLOTS_BUSY = 0.7  # of the slots, at the peak: at more, waiting for a slot grows faster than the load
_BLOAT = 1.25  # of tables that are updated: dead rows between two vacuums
_PAGE_BYTES = 8192
_PAGES_OF_A_FIRE = 2  # a timer's page, and one of its primary key; both in random order
_INDEX_ENTRY_BYTES = 40  # of finished_runs_by_job, whose order is that of job ids
_MINUTE_SECONDS = 60
_DAY_SECONDS = 86_400
_LONG_DAYS = 14  # results and outputs: TIDEWHEEL_OUTPUT_RETENTION
_ANSWER_DAYS = 8  # TIDEWHEEL_REQUESTS_KEPT
_KAFKA_DAYS = 7  # of requests, runs and events
_KEYED = 0.33  # of PostgreSQL's part of claims and ends: `limits` of docs/performance.md, a thousand keys
_MOST = 100_000  # processes of one kind: a bound of the search
_APIS = 2  # processes of the API: their connections alone are counted


class Handler(StrEnum):
    """Kind of handlers."""

    ASYNC = "async"
    THREADS = "threads"
    PROCESS = "process"
    HTTP = "http"


# Microseconds of an executor's CPU a run beyond an async handler. Source: docs/performance.md, "Handlers that work" and
# "HTTP targets": the executors' part of `threads`, `process` and `http` without that of `async`.
_HANDLER_US: Mapping[Handler, float] = {
    Handler.ASYNC: 0.0,
    Handler.THREADS: 165.0,
    Handler.PROCESS: 485.0,
    Handler.HTTP: 193.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The work of an installation.

    Args:
        jobs: Jobs with a schedule.
        timed: Runs of timers a second, as a mean.
        triggers: Triggered runs a second.
        seconds: A handler's mean duration.
        handler: Its kind.
        slots: Runs at once in one executor.
        payload: Bytes of a payload.
        result: Bytes of a result; 0 for none.
        days: For which finished runs are kept.
        copies: Of each topic.
        hot: The share of the timed runs that are due at second 0 of a minute.
        within: Seconds within which the runs of such a second are to start.
        keyed: The share of runs with a concurrency key.
        checkpoint: Seconds between two checkpoints.
    """

    jobs: float
    timed: float
    triggers: float = 0.0
    seconds: float = 0.1
    handler: Handler = Handler.ASYNC
    slots: int = 100
    payload: float = 200.0
    result: float = 0.0
    days: float = 90.0
    copies: int = 3
    hot: float = 0.0
    within: float = 10.0
    keyed: float = 0.0
    checkpoint: float = 900.0

    @property
    def runs(self) -> float:
        """Runs a second, as a mean."""
        return self.timed + self.triggers

    @property
    def burst(self) -> float:
        """Runs that are due at second 0 of a minute."""
        return self.timed * _MINUTE_SECONDS * self.hot

    @property
    def timed_at_peak(self) -> float:
        """Timed runs a second while a hot second is worked off."""
        return max(self.timed, self.timed * (1 - self.hot) + self.burst / self.within)


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest machine for PostgreSQL.

    Args:
        cores: Its cores, of which 60 % are used at the peak.
        wal: Bytes of WAL a second that its disk and its standby keep up with.
        disk: Bytes.
        connections: The most that it serves well.
    """

    cores: float = 64
    wal: float = 400e6
    disk: float = 64e12
    connections: float = 2000


class Need(NamedTuple):
    """One number of a plan, with its reason."""

    name: str
    value: float
    unit: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The needs of a load.

    Args:
        needs: In the order of the table.
        limits: By name, the multiple of the load at which one PostgreSQL or a fixed number ends.
    """

    needs: tuple[Need, ...]
    limits: Mapping[str, float] = field(default_factory=dict[str, float])

    def __getitem__(self, name: str) -> float:
        """Return a number."""
        return next(need.value for need in self.needs if need.name == name)

    @property
    def first_limit(self) -> tuple[str, float]:
        """The limit that is reached first, and the multiple of the load at which it is."""
        return min(self.limits.items(), key=lambda item: item[1])


def plan(load: Load, costs: Costs, limits: Limits | None = None) -> Plan:
    """Return what a load needs, and where one PostgreSQL ends."""
    needs = tuple(_needs(load, costs))
    return Plan(needs, _limits(load, costs, limits or Limits()))


def cores(load: Load, costs: Costs, stage: str, processes: int, *, peak: bool = True) -> float:
    """Return the cores that a stage uses, all of its processes together."""
    timed = load.timed_at_peak if peak else load.timed
    rate = rate_of(stage, timed, load.triggers)
    used = costs.cpu[stage].at(rate, processes)
    if stage == "executor":
        used += _HANDLER_US[load.handler] / 1e6 * rate
    if stage == "postgres_executor":
        used *= 1 + _KEYED * load.keyed
    return used


def wal_bytes(load: Load, costs: Costs) -> float:
    """Return the mean of WAL bytes a second, without whole pages."""
    return costs.wal.at(load.timed, load.triggers, payload=load.payload, result=load.result)


def kafka_bytes(load: Load, costs: Costs) -> float:
    """Return the mean bytes a second of one copy of all topics."""
    return costs.kafka.at(load.timed, load.triggers, payload=load.payload, result=load.result)


def slots_in_use(load: Load, costs: Costs, runs: float) -> float:
    """Return the runs that have a slot at once. Source: Little's law."""
    return runs * load.seconds + costs.in_slots.at(runs)


def whole_page_bytes(load: Load, costs: Costs) -> float:
    """Return bytes a second of whole pages, which the first change of each page after a checkpoint writes.

    Of `n` pages, `k` changes in random order touch `n * (1 - exp(-k / n))`. Only pages in random order count: those of
    timers, and of the finished runs' index by job, where each job has a place of its own. All others are filled in
    their order.
    """
    fires, ends = load.timed * load.checkpoint, load.runs * load.checkpoint
    timers = load.jobs * costs.timer_bytes / _PAGE_BYTES
    # The share of a day's partition that is there on average.
    index = load.runs * _DAY_SECONDS / 2 * _INDEX_ENTRY_BYTES / _PAGE_BYTES
    pages = _touched(timers, fires * _PAGES_OF_A_FIRE) + _touched(
        index, min(ends, load.jobs + ends * _INDEX_ENTRY_BYTES / _PAGE_BYTES)
    )
    return pages * _PAGE_BYTES / load.checkpoint


def processes_of(load: Load, costs: Costs) -> dict[str, int]:
    """Return the number of processes of each service, two at least: the loss of one stops no work."""
    found = {service: max(2, _least_processes(load, costs, service)) for service in SERVICES}
    runs = load.timed_at_peak + load.triggers
    slots = ceil(slots_in_use(load, costs, runs) / _SLOTS_BUSY)
    found["executor"] = max(found["executor"], ceil(slots / load.slots))
    return found


def _least_processes(load: Load, costs: Costs, service: str) -> int:
    """Return the least number of processes of which none uses more than its part of a core."""
    low, high = 1, 1
    while cores(load, costs, service, high) > _BUSY * high and high < _MOST:
        low, high = high, high * 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if cores(load, costs, service, middle) <= _BUSY * middle else (middle + 1, high)
    return low


def _touched(pages: float, changes: float) -> float:
    return pages * (1 - exp(-changes / pages)) if pages > 0 else 0.0


def _needs(load: Load, costs: Costs) -> Iterator[Need]:
    processes = processes_of(load, costs)
    runs_at_peak = load.timed_at_peak + load.triggers
    yield Need("runs", load.runs, "runs/s", f"{load.timed:,.0f}/s by timers, {load.triggers:,.0f}/s triggered")
    yield Need("runs at the peak", runs_at_peak, "runs/s", _peak_reason(load))
    for service in SERVICES:
        yield from _service_needs(load, costs, service, processes[service])
    slots = slots_in_use(load, costs, runs_at_peak)
    beyond = (slots / runs_at_peak - load.seconds) * 1e3 if runs_at_peak else 0.0
    text = f"peak runs/s times {load.seconds:g} s of the handler and {beyond:.0f} ms of claim and end"
    yield Need("slots in use", slots, "", text)
    partitions = ceil(processes["executor"] / 6) * 6
    yield Need("partitions of runs", partitions, "", "one for each executor of the queue at least, in steps of 6")
    yield from _postgres_needs(load, costs, processes)
    yield from _kafka_needs(load, costs, partitions)


def _peak_reason(load: Load) -> str:
    if not load.burst:
        return "no hot second"
    share = f"{load.hot:.0%} of the timed runs of a minute are due at its second 0"
    return f"{share}: {load.burst:,.0f} within {load.within:g} s"


def _service_needs(load: Load, costs: Costs, service: str, processes: int) -> Iterator[Need]:
    used = cores(load, costs, service, processes)
    name = f"{service}s"
    most = {"scheduler": SHARDS, "relay": SLICES, "intake": REQUEST_MEMBERS}.get(service, inf)
    limit = f"; no more than {most} share the work: one PostgreSQL is not enough" if processes > most else ""
    reason = f"at most {_BUSY:.0%} of a core each, and two at least"
    if service == "executor":
        reason += f"; {load.slots} slots each, of which {_SLOTS_BUSY:.0%} are in use"
    yield Need(name, processes, "processes", reason + limit)
    yield Need(f"cores of {name}", used, "cores", _cost_words(costs, service, load, used))


def _cost_words(costs: Costs, stage: str, load: Load, used: float) -> str:
    more = _HANDLER_US[load.handler] if stage == "executor" else 0.0
    each, rate = costs.cpu[stage].full * 1e6 + more, rate_of(stage, load.timed_at_peak, load.triggers)
    here = f" and {used / rate * 1e6:,.0f} at this rate" if rate else ""
    return f"in use at the peak; {each:,.0f} µs a run in full batches{here}"


def _postgres_needs(load: Load, costs: Costs, processes: Mapping[str, int]) -> Iterator[Need]:
    used = _postgres_cores(load, costs, processes)
    parts = ", ".join(f"{each.removeprefix('postgres_')} {value:,.2f}" for each, value in used.items())
    total = sum(used.values())
    yield Need("PostgreSQL's cores in use", total, "cores", f"at the peak: {parts}")
    yield Need(
        "PostgreSQL's cores", max(2, ceil(total / _BUSY)), "cores", f"of which {_BUSY:.0%} are in use at the peak"
    )
    wal, pages = wal_bytes(load, costs), whole_page_bytes(load, costs)
    yield Need("WAL", wal, "bytes/s", f"{wal / max(load.runs, 1e-9):,.0f} bytes a run, measured; the mean")
    text = f"computed: pages in random order, once after each checkpoint ({load.checkpoint / 60:.0f} min)"
    yield Need("WAL of whole pages", pages, "bytes/s", text)
    yield from _disk_needs(load, costs, wal + pages)
    opened = sum(count * costs.connections[service] for service, count in processes.items())
    yield Need("connections", ceil(opened), "", "as measured, without the API: " + _by_service(costs.connections))
    most = {service: CONNECTIONS[service].bound() for service in (*SERVICES, "api")}
    text = f"for max_connections, with {_APIS} of the API: {_by_service(most)}"
    yield Need("connections at most", _bound(processes), "", text)


def _by_service(each: Mapping[str, float]) -> str:
    return ", ".join(f"{service} {count:g}" for service, count in each.items())


def _postgres_cores(load: Load, costs: Costs, processes: Mapping[str, int]) -> dict[str, float]:
    return {
        stage: cores(load, costs, stage, processes.get(stage.removeprefix("postgres_"), 1))
        for stage in STAGES
        if stage.startswith("postgres_")
    }


def _disk_needs(load: Load, costs: Costs, wal: float) -> Iterator[Need]:
    more = max(0.0, load.payload - 200)
    job = costs.job_bytes * _BLOAT + more
    jobs = load.jobs * job
    yield Need("disk of jobs", jobs, "bytes", f"{job:,.0f} bytes a job, its version and timer included")
    days = load.days * _DAY_SECONDS
    inputs = costs.input_bytes[0] + costs.input_bytes[1] * more
    runs = (load.runs * costs.run_bytes + load.triggers * inputs) * days
    text = f"{load.days:g} days; {costs.run_bytes:,.0f} bytes a run, {inputs:,.0f} more of a trigger"
    yield Need("disk of runs", runs, "bytes", text)
    results = load.runs * costs.result_bytes * load.result * min(load.days, _LONG_DAYS) * _DAY_SECONDS
    yield Need("disk of results", results, "bytes", f"{min(load.days, _LONG_DAYS):g} days")
    answers = load.triggers * costs.answer_bytes * min(load.days, _ANSWER_DAYS) * _DAY_SECONDS * _BLOAT
    yield Need("disk of answers", answers, "bytes", f"{_ANSWER_DAYS} days; {costs.answer_bytes:,.0f} bytes an answer")
    log = wal * load.checkpoint * 2
    yield Need("disk of WAL", log, "bytes", "two checkpoints' worth: max_wal_size")
    yield Need("disk of PostgreSQL", jobs + runs + results + answers + log, "bytes", "the sum")


def _kafka_needs(load: Load, costs: Costs, partitions: int) -> Iterator[Need]:
    rate = kafka_bytes(load, costs)
    yield Need("Kafka", rate, "bytes/s", f"{rate / max(load.runs, 1e-9):,.0f} bytes a run, one copy, the mean")
    written = rate * load.copies
    yield Need("Kafka with copies", written, "bytes/s", f"{load.copies} copies; as much network between brokers")
    yield Need("disk of Kafka", written * _KAFKA_DAYS * _DAY_SECONDS, "bytes", f"{_KAFKA_DAYS} days of each topic")
    used = cores(load, costs, "broker", 1) * load.copies
    text = f"in use at the peak, all brokers; a follower is counted as a leader; {partitions} partitions of runs"
    yield Need("cores of brokers", used, "cores", text)


def _limits(load: Load, costs: Costs, limits: Limits) -> dict[str, float]:
    """Return the multiple of the load at which each limit is reached, by bisection."""
    checks: dict[str, Callable[[Load], bool]] = {
        f"{limits.cores:g} cores of PostgreSQL": lambda more: (
            sum(_postgres_cores(more, costs, processes_of(more, costs)).values()) / _BUSY <= limits.cores
        ),
        f"{limits.wal / 1e6:g} MB/s of WAL": lambda more: (
            wal_bytes(more, costs) + whole_page_bytes(more, costs) <= limits.wal
        ),
        f"{limits.disk / 1e12:g} TB of disk": lambda more: _disk(more, costs) <= limits.disk,
        f"{limits.connections:g} connections": lambda more: _bound(processes_of(more, costs)) <= limits.connections,
        f"{SHARDS} schedulers": lambda more: _least_processes(more, costs, "scheduler") <= SHARDS,
        f"{SLICES} relays": lambda more: _least_processes(more, costs, "relay") <= SLICES,
        f"{REQUEST_MEMBERS} intakes": lambda more: _least_processes(more, costs, "intake") <= REQUEST_MEMBERS,
    }
    return {name: _last_multiple(load, holds) for name, holds in checks.items()}


def _last_multiple(load: Load, holds: Callable[[Load], bool]) -> float:
    low, high = 0.0, 1.0
    while holds(_times(load, high)):
        low, high = high, high * 2
        if high > 1e6:
            return inf
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(_times(load, middle)) else (low, middle)
    return low


def _times(load: Load, multiple: float) -> Load:
    return replace(load, jobs=load.jobs * multiple, timed=load.timed * multiple, triggers=load.triggers * multiple)


def _disk(load: Load, costs: Costs) -> float:
    wal = wal_bytes(load, costs) + whole_page_bytes(load, costs)
    return next(need.value for need in _disk_needs(load, costs, wal) if need.name == "disk of PostgreSQL")


def _bound(processes: Mapping[str, int]) -> int:
    return sum(count * CONNECTIONS[service].bound() for service, count in {**processes, "api": _APIS}.items())
