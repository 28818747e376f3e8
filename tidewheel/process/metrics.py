"""Every metric, in one table; `tidewheel.process.health` serves them.

A test compares `docs/metrics.md` with the table.
"""

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, cast

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


METRICS = (
    Metric("requests", Kind.COUNTER, "requests", ("type", "status"), "requests with a reply, by type and status"),
    Metric(
        "undecodable_requests", Kind.COUNTER, "messages", (), "messages on the requests topic that are not requests"
    ),
    Metric(
        "intake_partitions_abandoned",
        Kind.COUNTER,
        "partitions",
        (),
        "partitions of requests that intake stopped reading: the next offset expired, the end of a batch was not "
        "found, or a tenant's topic was created again",
    ),
    Metric("releases_drained", Kind.COUNTER, "releases", (), "ends of runs of workflows, passed on to the children"),
    Metric("workflows_ended", Kind.COUNTER, "occurrences", ("state",), "occurrences of workflows that ended, by state"),
    Metric("releases_quarantined", Kind.COUNTER, "releases", (), "releases that no drain could pass on, set aside"),
    Metric(
        "workflows_mended",
        Kind.COUNTER,
        "occurrences",
        (),
        "occurrences that had stopped, mended by the scheduler",
    ),
    Metric("occurrences", Kind.COUNTER, "occurrences", ("outcome",), "fired occurrences, and skipped ones by reason"),
    Metric("occurrences_caught_up", Kind.COUNTER, "occurrences", (), "missed occurrences that fired late"),
    Metric("backfilled_runs", Kind.COUNTER, "runs", (), "runs created by backfills"),
    Metric(
        "jobs_quarantined",
        Kind.COUNTER,
        "jobs",
        (),
        "jobs that stopped with an error: no next time can be computed, or no row can be written",
    ),
    Metric(
        "timers_postponed",
        Kind.COUNTER,
        "timers",
        (),
        "timers tried again later, because their jobs fail alike or by an error that is not their own",
    ),
    Metric(
        "installation_faults",
        Kind.GAUGE,
        "faults",
        ("work",),
        "1 while some work waits for an operator: schema, grants, space, or jobs that fail alike",
    ),
    Metric(
        "standby_age_seconds",
        Kind.GAUGE,
        "seconds",
        (),
        "the age of the last complete state in the topics of a standby site; 0 where none is recorded",
    ),
    Metric(
        "partitions_ahead_seconds",
        Kind.GAUGE,
        "seconds",
        (),
        "the days after today that have all their partitions; the scheduler creates three",
    ),
    Metric(
        "retention_behind_seconds",
        Kind.GAUGE,
        "seconds",
        (),
        "time by which the oldest partition is older than its period, after the last pass of this scheduler; `tidewheel"
        " doctor` names the cause",
    ),
    Metric(
        "archive_behind_seconds",
        Kind.GAUGE,
        "seconds",
        (),
        "time since the end of the oldest day that waits for `tidewheel admin archive run`, after the last pass "
        "of retention;"
        " 0 without an archive",
    ),
    Metric(
        "timers_rescheduled", Kind.COUNTER, "timers", (), "timers whose next time changed with a new tzdata release"
    ),
    Metric("timers_repaired", Kind.COUNTER, "timers", (), "missing timers that the scheduler created again"),
    Metric(
        "runs_buffered",
        Kind.COUNTER,
        "runs",
        (),
        "runs that had to wait for an active run, or for a place of their key",
    ),
    Metric(
        "active_runs_repaired",
        Kind.COUNTER,
        "active runs",
        (),
        "active runs that had ended while other runs waited, released by the scheduler",
    ),
    Metric("ordering_keys_blocked", Kind.GAUGE, "keys", (), "ordering keys that a failed run blocks, up to 10,000"),
    Metric(
        "ordering_keys_blocked_oldest_seconds", Kind.GAUGE, "seconds", (), "time for which the first of them is blocked"
    ),
    Metric(
        "keys_repaired",
        Kind.COUNTER,
        "keys",
        (),
        "concurrency keys and limits of runs in flight whose counters the scheduler repaired",
    ),
    Metric("timers_overdue", Kind.GAUGE, "timers", (), "timers that are due for more than a second and have not fired"),
    Metric("timers_overdue_oldest_seconds", Kind.GAUGE, "seconds", (), "time for which the oldest of them is due"),
    Metric(
        "occurrences_missing",
        Kind.GAUGE,
        "occurrences",
        (),
        "instants of overdue timers that have passed without a record",
    ),
    Metric("jobs_behind", Kind.GAUGE, "jobs", (), "recurring jobs that are two of their own intervals behind"),
    Metric(
        "lateness_seconds",
        Kind.HISTOGRAM,
        "seconds",
        ("stage", "lane"),
        "time from the instant at which a run is due to a stage: written (0 if ahead), acknowledged (by the broker),"
        " claimed, started, ended; event: from a run's end to the broker's acknowledgement of its events",
    ),
    Metric(
        "attempt_duration_seconds", Kind.HISTOGRAM, "seconds", ("lane",), "time from an attempt's start to its report"
    ),
    Metric("outbox_published", Kind.COUNTER, "messages", ("lane",), "messages acknowledged by the broker"),
    Metric(
        "outbox_quarantined",
        Kind.COUNTER,
        "messages",
        (),
        "messages that the broker refused for good, or whose headers cannot be read",
    ),
    Metric(
        "replies_expired",
        Kind.COUNTER,
        "messages",
        (),
        "replies deleted after a day: the tenant's topic of replies is missing or forbidden",
    ),
    Metric("outbox_postponed", Kind.COUNTER, "messages", (), "tries put off: larger than the topic's limit"),
    Metric(
        "outbox_held",
        Kind.GAUGE,
        "messages",
        ("queue", "lane"),
        "due runs that the relay holds back, as executors cannot take them yet",
    ),
    Metric(
        "outbox_window",
        Kind.GAUGE,
        "runs",
        ("queue", "lane"),
        "published and unclaimed runs that the relay allows, while or since it held runs back",
    ),
    Metric("outbox_due", Kind.GAUGE, "messages", ("lane",), "due messages in the outbox; counted up to 100,000"),
    Metric("outbox_oldest_seconds", Kind.GAUGE, "seconds", ("lane",), "age of the oldest due message in the outbox"),
    Metric(
        "work",
        Kind.COUNTER,
        "pieces",
        ("step", "queue", "path"),
        "work by the usual path of a step and by its fall-back, which works and hides a fault; only deliver has queues",
    ),
    Metric("claims", Kind.COUNTER, "claims", ("result", "source"), "claims won or lost, by message or by sweep"),
    Metric(
        "runs_due",
        Kind.GAUGE,
        "runs",
        ("queue", "lane"),
        "due runs that no executor has claimed and no freeze names; counted up to 100,000 for each queue and lane",
    ),
    Metric("runs_due_oldest_seconds", Kind.GAUGE, "seconds", ("queue", "lane"), "time for which the oldest is due"),
    Metric(
        "runs_orphaned",
        Kind.GAUGE,
        "runs",
        (),
        "running attempts whose executor has been silent for twice its lease, and that no other executor has ended",
    ),
    Metric(
        "stored_forms_unreadable",
        Kind.COUNTER,
        "forms",
        ("form",),
        "stored forms that a view could not read and left out: definition, schedule, payload, result and others",
    ),
    Metric("attempts", Kind.COUNTER, "attempts", ("outcome",), "ended attempts, by outcome"),
    Metric("runs_ended", Kind.COUNTER, "runs", ("state",), "runs that reached a terminal state"),
    Metric("ends_refused", Kind.COUNTER, "runs", (), "ends of runs that had ended before; the first end stays"),
    Metric(
        "outcomes_set_aside",
        Kind.COUNTER,
        "outcomes",
        (),
        "tries of single outcomes that could not be recorded; each is tried again later",
    ),
    Metric("leases_lost", Kind.COUNTER, "attempts", (), "attempts ended because their executor missed its lease"),
    Metric(
        "lease_used_ratio",
        Kind.GAUGE,
        "ratio",
        (),
        "largest part of an executor's lease without a heartbeat: in the last minute, of itself; now, of all as a"
        " scheduler sees them",
    ),
    Metric("runs_without_executor", Kind.GAUGE, "runs", (), "due runs that no live executor can handle"),
    Metric(
        "unknown_handlers", Kind.COUNTER, "messages", (), "run messages skipped because this executor lacks the handler"
    ),
    Metric(
        "messages_unverified",
        Kind.COUNTER,
        "messages",
        ("reason",),
        "run messages without a valid signature: missing, unknown_key or wrong",
    ),
    Metric("event_loop_stalls", Kind.COUNTER, "stalls", (), "times that a handler blocked the event loop"),
    Metric("event_loop_blocked_seconds", Kind.GAUGE, "seconds", (), "age of the event loop's current block; 0 if none"),
    Metric("worker_processes_lost", Kind.COUNTER, "processes", (), "worker processes that died or were killed"),
    Metric("output_bytes_dropped", Kind.COUNTER, "bytes", (), "output that was not published to the outputs topic"),
    Metric(
        "group_lag",
        Kind.GAUGE,
        "messages",
        ("group", "topic"),
        "messages that a consumer group of intake or of executors has not read; of 100 groups at most",
    ),
    Metric("slots_busy", Kind.GAUGE, "slots", (), "slots in use"),
    Metric("shards_owned", Kind.GAUGE, "shards", (), "shards that this scheduler owns"),
    Metric("slices_owned", Kind.GAUGE, "slices", (), "outbox slices that this relay owns"),
    Metric("clock_skew_seconds", Kind.GAUGE, "seconds", (), "this process's clock minus the database's"),
    Metric("clock_skew_bound_seconds", Kind.GAUGE, "seconds", (), "largest error of clock_skew_seconds"),
    Metric("max_clock_skew_seconds", Kind.GAUGE, "seconds", (), "configured limit; a larger skew logs a warning"),
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


metrics = Metrics(REGISTRY)


metrics_page = cast("WSGIApplication", make_wsgi_app(REGISTRY))
