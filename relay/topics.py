"""Back off from topics that refuse rows, and measure the lag of their consumer groups.

A busy broker does not know a topic for seconds after its creation. So the first pause is short, and later ones grow
while the topic keeps failing. Invariant: rows that were read before a pause are not produced during or after it,
because they would overtake the rows that were left behind.

The relay that holds slice 0 measures for the whole installation, so each number is exported once. It does so on a
thread of its own, every fifteen seconds and for one part in a hundred of the time at most.
"""

import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from confluent_kafka import Consumer

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.kafka.offsets import offsets_client, read_committed, read_end_offsets, read_partitions
from tidewheel.kafka.topics import Topics, missing_topic_remedy
from tidewheel.postgres.low_water import FullScanPacer
from tidewheel.process.logs import faults
from tidewheel.process.metrics import metrics
from tidewheel.relay.outbox_rows import HEADERS, KEY, TOPIC, VALUE, DueRow

_LOG = logging.getLogger("tidewheel.relay")

_FIRST_SECONDS = 0.5
_MAX_SECONDS = 10.0  # the longest wait of a topic that has come into existence
_UNBROKEN_SECONDS = 600.0  # between two failures; after a longer gap (an outage of Kafka) the next is a first one

_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 1.0, 30.0
_MARGIN_SECONDS = 0.1  # a postponed row is due a little after its topic is tried again
_QUIET_SECONDS = 5.0  # after the wait all rows are tried at once: without a refusal the topic accepts them

_EVERY_SECONDS = 15.0
_SHARE = 100
_MAX_GROUPS = 100  # so many series: thirty queues


@dataclass(frozen=True, slots=True)
class _Pause:
    until: float
    seconds: float
    first: float
    last: float


class TopicBackoff:
    """The topics of one publisher that have failed and have not taken a message since."""

    def __init__(self) -> None:
        self._pauses: dict[str, _Pause] = {}
        self._failed_since_read: set[str] = set()
        self._retried: set[str] = set()

    def paused_topics(self) -> list[str]:
        """Return the topics whose rows must not be read now; call it before each read."""
        now = monotonic_seconds()
        self._failed_since_read.clear()
        return [topic for topic, pause in self._pauses.items() if pause.until > now]

    def failing_topics(self, seconds: float) -> Collection[str]:
        """Return the topics whose tries have all failed for so long."""
        return [topic for topic, pause in self._pauses.items() if pause.last - pause.first >= seconds]

    def usable(self, topics: Iterable[str]) -> set[str]:
        """Return the topics that may be produced to: those that have not failed since their rows were read."""
        usable = set(topics) - self._failed_since_read
        self._retried = usable & self._pauses.keys()
        return usable

    def may_follow(self, topic: str) -> bool:
        """Return True if no row of a topic was left behind since rows were read last."""
        return topic not in self._failed_since_read

    def back_off(self, topic: str, why: str) -> None:
        """Pause a topic, longer each time; do nothing when it is paused already."""
        now, previous = monotonic_seconds(), self._pauses.get(topic)
        self._failed_since_read.add(topic)
        self._retried.discard(topic)
        if previous is not None and previous.until > now:
            return
        seconds = _FIRST_SECONDS if previous is None else min(2 * previous.seconds, _MAX_SECONDS)
        first = now if previous is None or now - previous.last > _UNBROKEN_SECONDS else previous.first
        self._pauses[topic] = _Pause(now + seconds, seconds, first, now)
        if previous is None or seconds == _MAX_SECONDS:
            remedy = missing_topic_remedy(topic)
            _LOG.error("topic %s is paused: %s; run `%s`, or grant WRITE", topic, why, remedy)

    def reset_retried(self) -> None:
        """Forget the failures of the topics that were retried last: they have taken their messages."""
        for topic in self._retried:
            self._pauses.pop(topic, None)
        self._retried.clear()


@dataclass(frozen=True, slots=True)
class _Limit:
    size: int  # the smallest that was refused since rows were tried last
    began: float
    until: float


class TopicLimits:
    """The topics of one publisher that have refused a row for its size.

    The producer has accepted the row, so Tidewheel's own limit has too: an operator has lowered the topic's
    `max.message.bytes`. No row is the cause. Rows of that size wait, up to 30 s between two tries, and smaller ones
    leave.
    """

    def __init__(self) -> None:
        self._limits: dict[str, _Limit] = {}

    def in_force(self) -> Mapping[str, int]:
        """Return the size that each topic refuses now: rows of that size are not tried."""
        now = monotonic_seconds()
        return {topic: limit.size for topic, limit in self._limits.items() if limit.until > now}

    def refuse(self, row: DueRow, why: str) -> None:
        """Record that a topic refuses a row alone for its size, and report it."""
        topic, size, now = row[TOPIC], size_of(row), monotonic_seconds()
        known = self._limits.get(topic)
        if known is not None and known.until > now:
            self._limits[topic] = _Limit(min(size, known.size), known.began, known.until)
            return
        began = now if known is None else known.began
        seconds = min(max(now - began, _FIRST_WAIT_SECONDS), _LONGEST_WAIT_SECONDS)
        self._limits[topic] = _Limit(size, began, now + seconds)
        problem = f"{why}: a message of {size} bytes waits (Tidewheel's limit is 1 MiB), smaller messages do not"
        faults.report(_work(topic), problem + "; raise the topic's max.message.bytes as docs/topics.md describes")

    def pause(self, topic: str) -> timedelta:
        """Return the time until rows that are too large for a topic are due again."""
        limit = self._limits.get(topic)
        left = 0.0 if limit is None else max(limit.until - monotonic_seconds(), 0.0)
        return timedelta(seconds=left + _MARGIN_SECONDS)

    def settle(self) -> None:
        """Report that it is over for each topic that has refused no row since its wait has ended."""
        now = monotonic_seconds()
        for topic in [topic for topic, limit in self._limits.items() if now > limit.until + _QUIET_SECONDS]:
            del self._limits[topic]
            faults.clear(_work(topic))


def size_of(row: DueRow) -> int:
    """Return the bytes of a row's key, value and headers, before compression."""
    return len(row[KEY] or b"") + len(row[VALUE] or b"") + sum(len(part or b"") for part in row[HEADERS] or ())


def _work(topic: str) -> str:
    return f"publishing to {topic}"


class GroupLag:
    """Measures on its own thread and with its own client."""

    def __init__(self, kafka: Mapping[str, str], topics: Topics) -> None:
        self._kafka, self._topics = kafka, topics
        self._pacer = FullScanPacer(_EVERY_SECONDS, at_once=False, share=_SHARE)
        self._thread: threading.Thread | None = None
        self._exported: dict[str, str] = {}
        self._reported: set[str] = set()

    def step(self, *, measures: bool) -> None:
        """Start a measurement when one is due; reset the gauges when another relay measures from now on."""
        if self._thread is not None and self._thread.is_alive():
            return
        if measures and self._pacer.start():
            # A daemon: the end of the relay waits for no answer of the broker.
            self._thread = threading.Thread(target=self._scan, name="group-lag", daemon=True)
            self._thread.start()
        elif not measures and self._exported:
            self._export({})
            self._exported = {}

    def measure(self) -> None:
        """Measure now, and set the gauges."""
        self._export(self.read())

    def read(self) -> dict[str, tuple[str, int]]:
        """Return the topic of each group, and the number of messages that the group has not read."""
        with offsets_client(self._kafka) as client:
            found = read_partitions(client)
            groups = {group: topics for group, topics in self._groups(found).items() if topics[0] in found}
            places = {group: [each for topic in topics for each in found[topic]] for group, topics in groups.items()}
            ends = {group: self._ends(client, topics[0], places[group]) for group, topics in groups.items()}
        lags: dict[str, tuple[str, int]] = {}
        for group, (topic, *_) in groups.items():
            if (last := ends[group]) is None:
                continue
            committed = self._committed(group, places[group])
            if committed is not None:
                read = ((last[place], committed.get(place, 0)) for place in places[group])
                lags[group] = (topic, sum(max(end - max(first, after), 0) for (first, end), after in read))
        return lags

    def _scan(self) -> None:
        began = monotonic_seconds()
        try:
            self.measure()
        except Unavailable as error:
            self._report("the lag of consumer groups cannot be measured", error)
        self._pacer.record(monotonic_seconds() - began)

    def _groups(self, present: Mapping[str, object]) -> dict[str, list[str]]:
        """Return the consumer groups, each with its topics; those of executors as far as the limit goes.

        The first topic is the one that the metric names. Tenants' own topics count to that of requests.
        """
        names, runs = self._topics, f"{self._topics.prefix}.runs."
        groups = {
            f"{names.requests}.intake": names.all_requests(present),
            f"{names.requests}.intake.replies": [names.target_replies],
        }
        groups |= {f"{topic}.executors": [topic] for topic in sorted(present) if topic.startswith(runs)}
        return dict([*groups.items()][:_MAX_GROUPS])

    def _ends(
        self, client: Consumer, topic: str, places: Sequence[tuple[str, int]]
    ) -> dict[tuple[str, int], tuple[int, int]] | None:
        """Return the first and the next offset of each partition of a topic; None if one cannot be read."""
        try:
            return read_end_offsets(client, places)
        except Unavailable as error:
            self._report(f"the lag of the groups of {topic} cannot be measured", error)
            return None

    def _committed(self, group: str, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int] | None:
        """Return the next offset of each partition that a group has read; None if this relay may not ask."""
        try:
            return read_committed(self._kafka, group, places)
        except Unavailable as error:
            self._report(f"the lag of {group} cannot be measured", error)
            return None

    def _report(self, problem: str, error: Exception) -> None:
        """Log a problem once."""
        if problem not in self._reported:
            self._reported.add(problem)
            _LOG.warning("%s: %s; the next measurement tries again, and runs continue", problem, error)

    def _export(self, lags: Mapping[str, tuple[str, int]]) -> None:
        for group in self._exported.keys() - lags.keys():
            metrics.set("group_lag", 0, group, self._exported[group])
        for group, (topic, lag) in lags.items():
            metrics.set("group_lag", lag, group, topic)
        self._exported |= {group: topic for group, (topic, _) in lags.items()}
