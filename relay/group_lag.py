"""Measure the lag of consumer groups.

The relay that holds slice 0 measures for the whole installation, so each number is exported once. It does so on a
thread of its own, every fifteen seconds and for one part in a hundred of the time at most. The API, which has no right
to statements of the relay, reads the lag for the page of the fleet.
"""

import logging
import threading
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer

from tidewheel.errors import Unavailable
from tidewheel.kafka.offsets import offsets_client, read_committed, read_end_offsets, read_partitions
from tidewheel.kafka.topics import Topics
from tidewheel.postgres.low_water import FullScanPacer
from tidewheel.process.metrics import metrics

_LOG = logging.getLogger("tidewheel.relay")

_EVERY_SECONDS = 15.0
_SHARE = 100
_MAX_GROUPS = 100  # so many series: thirty queues


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
        try:
            self.measure()
        except Unavailable as error:
            self._report("the lag of consumer groups cannot be measured", error)
        self._pacer.finish()

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
        try:
            return read_end_offsets(client, places)
        except Unavailable as error:
            self._report(f"the lag of the groups of {topic} cannot be measured", error)
            return None

    def _committed(self, group: str, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int] | None:
        try:
            return read_committed(self._kafka, group, places)
        except Unavailable as error:
            self._report(f"the lag of {group} cannot be measured", error)
            return None

    def _report(self, problem: str, error: Exception) -> None:
        if problem not in self._reported:
            self._reported.add(problem)
            _LOG.warning("%s: %s; the next measurement tries again, and runs continue", problem, error)

    def _export(self, lags: Mapping[str, tuple[str, int]]) -> None:
        for group in self._exported.keys() - lags.keys():
            metrics.set("group_lag", 0, group, self._exported[group])
        for group, (topic, lag) in lags.items():
            metrics.set("group_lag", lag, group, topic)
        self._exported |= {group: topic for group, (topic, _) in lags.items()}
