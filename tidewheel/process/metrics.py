"""Every metric, in one table; `tidewheel.process.health` serves them.

A test compares `docs/metrics.md` with the table.
"""

import threading
from bisect import bisect_left, bisect_right
from collections import Counter as Counts
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, cast

from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    make_wsgi_app,  # pyright: ignore[reportUnknownVariableType] - it returns a Callable of anything
)
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from tidewheel.runs import FINAL

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

# Lateness: the promise is seconds, the aim is milliseconds, an outage is minutes.
_LATENESS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 3600)
_BOUNDS = (*(str(float(bound)) for bound in _LATENESS_BUCKETS), "+Inf")


class Kind(StrEnum):
    """Prometheus type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    meaning: str


def _counter(name: str, unit: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, Kind.COUNTER, unit, labels, meaning)


def _gauge(name: str, unit: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, Kind.GAUGE, unit, labels, meaning)


METRICS = (
    _counter("requests", "requests", "requests with a reply, by type and status", "type", "status"),
    _counter("undecodable_requests", "messages", "messages on the requests topic that are not requests"),
    _counter(
        "intake_partitions_abandoned",
        "partitions",
        "partitions of requests that intake stopped reading: the next offset expired, the end of a batch was not "
        "found, or a tenant's topic was created again",
    ),
    _counter("releases_drained", "releases", "ends of workflow runs that were passed on to the children"),
    _counter("workflows_ended", "occurrences", "occurrences of workflows that ended, by state", "state"),
    _counter("releases_quarantined", "releases", "releases set aside because they could not be drained"),
    _counter("workflows_mended", "occurrences", "stalled occurrences that the scheduler restarted"),
    _counter("occurrences", "occurrences", "fired occurrences, and skipped ones by reason", "outcome"),
    _counter("occurrences_caught_up", "occurrences", "missed occurrences that fired late"),
    _counter("backfilled_runs", "runs", "runs created by backfills"),
    _counter(
        "jobs_quarantined",
        "jobs",
        "jobs that stopped with an error: no next time can be computed, or no row can be written",
    ),
    _counter(
        "timers_postponed",
        "timers",
        "timers tried again later, because many jobs fail alike or the error is not the job's own",
    ),
    _gauge(
        "installation_faults",
        "faults",
        "1 while some work waits for an operator: schema, grants, space, or jobs that fail alike",
        "work",
    ),
    _gauge(
        "partitions_ahead_seconds",
        "seconds",
        "the days after today that have all their partitions; the scheduler creates three",
    ),
    _gauge(
        "retention_behind_seconds",
        "seconds",
        "age of the oldest partition beyond its period, after the last pass of this scheduler; "
        "`tidewheel doctor` names the cause",
    ),
    _gauge(
        "archive_behind_seconds",
        "seconds",
        "time since the end of the oldest day that waits for `tidewheel admin archive run`, after the last pass of "
        "retention; 0 without an archive",
    ),
    _counter("timers_rescheduled", "timers", "timers whose next time changed with a new tzdata release"),
    _counter("timers_repaired", "timers", "missing timers that the scheduler created again"),
    _counter("runs_buffered", "runs", "runs that had to wait for an active run, or for a place of their key"),
    _counter(
        "active_runs_repaired",
        "active runs",
        "active runs that had ended while other runs waited, released by the scheduler",
    ),
    _gauge("ordering_keys_blocked", "keys", "ordering keys that a failed run blocks, up to 10,000"),
    _gauge("ordering_keys_blocked_oldest_seconds", "seconds", "time since the first of these keys was blocked"),
    _counter(
        "keys_repaired", "keys", "concurrency keys and limits of runs in flight whose counters the scheduler repaired"
    ),
    _gauge("timers_overdue", "timers", "timers that have been due for more than a second and have not fired"),
    _gauge("timers_overdue_oldest_seconds", "seconds", "time since the oldest overdue timer came due"),
    _gauge("occurrences_missing", "occurrences", "instants of overdue timers that have passed without a record"),
    _gauge("jobs_behind", "jobs", "recurring jobs that are two of their own intervals behind"),
    Metric(
        "lateness_seconds",
        Kind.HISTOGRAM,
        "seconds",
        (
            "stage",
            "lane",
        ),
        "time from the instant at which a run is due to a stage: written and acknowledged by the broker (0 if ahead), "
        "claimed, started, ended; event: from a run's end to the broker's acknowledgement of its events",
    ),
    Metric(
        "attempt_duration_seconds", Kind.HISTOGRAM, "seconds", ("lane",), "time from an attempt's start to its report"
    ),
    _counter("outbox_published", "messages", "messages acknowledged by the broker", "lane"),
    _counter(
        "outbox_quarantined", "messages", "messages that the broker refused for good, or whose headers cannot be read"
    ),
    _counter(
        "replies_expired",
        "messages",
        "replies deleted after a day: the tenant's topic of replies is missing or forbidden",
    ),
    _counter("outbox_postponed", "messages", "postponements of messages larger than the topic's limit"),
    _gauge(
        "outbox_held",
        "messages",
        "due runs that the relay holds back, because executors are falling behind",
        "queue",
        "lane",
    ),
    _gauge(
        "outbox_window",
        "runs",
        "the relay's limit of published, unclaimed runs, while it holds runs back and afterwards",
        "queue",
        "lane",
    ),
    _gauge("outbox_due", "messages", "due messages in the outbox; counted up to 100,000", "lane"),
    _gauge("outbox_oldest_seconds", "seconds", "age of the oldest due message in the outbox", "lane"),
    _gauge("lock_waits", "sessions", "sessions of Tidewheel that wait for a lock of the database"),
    _gauge("lock_waits_oldest_seconds", "seconds", "time for which the first of these sessions has waited"),
    _counter(
        "work",
        "pieces",
        "work by a step's usual path and by its fall-back, which works but hides a fault; only deliver has queues",
        "step",
        "queue",
        "path",
    ),
    _counter("claims", "claims", "claims won or lost, by message or by sweep", "result", "source"),
    _gauge(
        "runs_due",
        "runs",
        "due runs that no executor has claimed and no freeze names; counted up to 100,000 for each queue and lane",
        "queue",
        "lane",
    ),
    _gauge("runs_due_oldest_seconds", "seconds", "time since the oldest due run came due", "queue", "lane"),
    _gauge(
        "runs_orphaned",
        "runs",
        "running attempts whose executor has been silent for twice its lease, and that no other executor has ended",
    ),
    _counter(
        "stored_forms_unreadable",
        "forms",
        "stored forms that a view could not read and left out: definition, schedule, payload, result and others",
        "form",
    ),
    _counter("attempts", "attempts", "ended attempts, by outcome", "outcome"),
    _counter(
        "attempt_errors",
        "attempts",
        "ended attempts with an error, by its type; a process has series of the first 100 types, and `other`",
        "type",
    ),
    _counter("runs_ended", "runs", "runs that reached a terminal state", "state"),
    _counter(
        "job_runs_ended",
        "runs",
        "the same by job, with `TIDEWHEEL_METRICS_JOBS`; further jobs are the job `other` of the tenant `other`",
        "tenant",
        "job",
        "state",
    ),
    _counter("ends_refused", "runs", "ends of runs that had already ended; the first end stays"),
    _counter(
        "outcomes_set_aside",
        "outcomes",
        "failures to record a single outcome; each is retried later",
    ),
    _counter("leases_lost", "attempts", "attempts ended because their executor missed its lease"),
    _gauge(
        "lease_used_ratio",
        "ratio",
        "largest part of a lease without a heartbeat: this executor's in the last minute; by a scheduler, any "
        "executor's now",
    ),
    _gauge("runs_without_executor", "runs", "due runs that no live executor can handle"),
    _counter("unknown_handlers", "messages", "run messages skipped because this executor lacks the handler"),
    _counter(
        "messages_unverified",
        "messages",
        "run messages without a valid signature: missing, unknown_key or wrong",
        "reason",
    ),
    _counter("event_loop_stalls", "stalls", "times that a handler blocked the event loop"),
    _gauge("event_loop_blocked_seconds", "seconds", "age of the event loop's current block; 0 if none"),
    _counter("worker_processes_lost", "processes", "worker processes that died or were killed"),
    _counter("output_bytes_dropped", "bytes", "output that was not published to the outputs topic"),
    _gauge(
        "group_lag",
        "messages",
        "messages that a consumer group of intake or of executors has not read; for at most 100 groups",
        "group",
        "topic",
    ),
    _gauge("slots_busy", "slots", "slots in use"),
    _gauge("shards_owned", "shards", "shards that this scheduler owns"),
    _gauge("slices_owned", "slices", "outbox slices that this relay owns"),
    _counter("replica_reads", "reads", "reads of an API with a read replica, by the server that was read", "server"),
    _gauge("replica_lag_bytes", "bytes", "WAL of the primary that the read replica has not replayed; 0 if it has all"),
    _gauge("clock_skew_seconds", "seconds", "this process's clock minus the database's"),
    _gauge("clock_skew_bound_seconds", "seconds", "largest error of clock_skew_seconds"),
    _gauge("max_clock_skew_seconds", "seconds", "configured limit; a larger skew logs a warning"),
)


class Metrics:
    """The table's metrics in one registry, reached by name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._metrics: dict[str, Counter | Gauge | _Lateness] = {}
        for row in METRICS:
            name = f"tidewheel_{row.name}"
            if row.kind is Kind.HISTOGRAM:
                histogram = self._metrics[row.name] = _Lateness(name, row.meaning, row.labels)
                registry.register(histogram)
            else:
                kind = Counter if row.kind is Kind.COUNTER else Gauge
                self._metrics[row.name] = kind(name, row.meaning, row.labels, registry=registry)
        for state in sorted(FINAL):
            self.count("runs_ended", 0, state)  # a series that begins with its first failures has no rate

    def count(self, name: str, by: float = 1, *labels: str) -> None:
        """Raise a counter."""
        metric = self._metrics[name]
        assert isinstance(metric, Counter)  # noqa: S101 - the table says so
        (metric.labels(*labels) if labels else metric).inc(by)

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge."""
        metric = self._metrics[name]
        assert isinstance(metric, Gauge)  # noqa: S101 - the table says so
        (metric.labels(*labels) if labels else metric).set(value)

    def observe(self, name: str, values: Sequence[float], *labels: str) -> None:
        """Add the values of a batch to a histogram; negative ones count as 0."""
        metric = self._metrics[name]
        assert isinstance(metric, _Lateness)  # noqa: S101 - the table says so
        metric.observe(values, labels)


@dataclass(slots=True)
class _Series:
    """One histogram's counts up to each bound, the last of all values, and the sum of the values."""

    counts: list[int] = field(default_factory=lambda: [0] * len(_BOUNDS))
    total: float = 0.0


class _Lateness(Collector):
    """A histogram that takes a batch at once: 0.1 us per value, where the library's takes 2 us."""

    def __init__(self, name: str, meaning: str, labels: tuple[str, ...]) -> None:
        self._name, self._meaning, self._labels = name, meaning, labels
        self._series: dict[tuple[str, ...], _Series] = {} if labels else {(): _Series()}
        self._lock = threading.Lock()

    def observe(self, values: Sequence[float], labels: tuple[str, ...]) -> None:
        """Add values."""
        ordered = sorted(values)
        total = sum(ordered[bisect_left(ordered, 0.0) :])
        ends = [*(bisect_right(ordered, bound) for bound in _LATENESS_BUCKETS), len(ordered)]
        with self._lock:
            series = self._series.setdefault(labels, _Series())
            series.counts = [count + end for count, end in zip(series.counts, ends, strict=True)]
            series.total += total

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the histogram with its present counts."""
        family = HistogramMetricFamily(self._name, self._meaning, labels=self._labels)
        with self._lock:
            for labels, series in self._series.items():
                family.add_metric(labels, list(zip(_BOUNDS, series.counts, strict=True)), sum_value=series.total)
        yield family


_OTHER: Final = "other"


class BoundedLabels:
    """The values of some labels, up to a limit; each further one is `other`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._known: set[tuple[str, ...]] = set()

    def of(self, *values: str) -> tuple[str, ...]:
        """Return the values for a series."""
        if values not in self._known:
            if len(self._known) >= self.limit:
                return (_OTHER,) * len(values)
            self._known.add(values)
        return values


metrics = Metrics(REGISTRY)
job_labels = BoundedLabels(0)
"""A service sets the limit when it starts."""
_error_labels = BoundedLabels(100)


def count_by_job(ended: Iterable[tuple[str, str, str]]) -> None:
    """Count ended runs by tenant, key of the job and state, if the process has series of jobs."""
    if job_labels.limit:
        for (tenant, key, state), count in Counts(ended).items():
            tenant_label, job_label = job_labels.of(tenant, key)
            metrics.count("job_runs_ended", count, tenant_label, job_label, state)


def count_errors(types: Iterable[str]) -> None:
    """Count the errors of attempts by type."""
    for each, count in Counts(types).items():
        [label] = _error_labels.of(each)
        metrics.count("attempt_errors", count, label)


metrics_page = cast("WSGIApplication", make_wsgi_app(REGISTRY))
