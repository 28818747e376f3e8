"""Choose the lanes of an executor, one a queue and priority class, and create their consumers."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from tidewheel.executor.consume import LaneConsumer
from tidewheel.executor.run_messages import BatchClaimer
from tidewheel.executor.slots import Slots
from tidewheel.kafka.clients import RUNS_QUEUED, consumer
from tidewheel.kafka.groups import GroupProtocol, group_protocol
from tidewheel.kafka.topics import Topics, missing_topic_remedy, missing_topics
from tidewheel.process.service import Shutdown
from tidewheel.runs import Lane
from tidewheel.settings.executor import ExecutorSettings

_LOG = logging.getLogger("tidewheel.executor")


@dataclass(frozen=True, slots=True)
class Lanes:
    """The topics of an executor, and how it consumes them."""

    kafka: Mapping[str, str]
    protocol: GroupProtocol
    topics: Sequence[tuple[str, Lane]]

    def consumers(
        self,
        batch_claimer: Callable[[str, Lane], BatchClaimer],
        *,
        slots: Slots,
        max_wait: timedelta,
        overloaded: Callable[[Lane], bool],
        database_now: Callable[[], datetime],
        stop: Shutdown,
    ) -> Sequence[LaneConsumer]:
        """Return a consumer for each topic, none of them started."""
        created: list[LaneConsumer] = []
        for topic, lane in self.topics:
            group, role = f"{topic}.executors", f"executor-{lane}"
            member = consumer(self.kafka, group=group, role=role, protocol=self.protocol, queued=RUNS_QUEUED)
            created.append(
                LaneConsumer(
                    member,
                    topic,
                    lane,
                    claimer=batch_claimer(topic, lane),
                    slots=slots,
                    max_wait=max_wait,
                    overloaded=partial(overloaded, lane),
                    database_now=database_now,
                    stop=stop,
                )
            )
        return created


def choose_lanes(settings: ExecutorSettings, kafka: Mapping[str, str], topics: Topics, queues: Sequence[str]) -> Lanes:
    """Return the lanes of an executor of these queues, with a group protocol that the brokers support.

    A queue without topics is reported: its runs start by the sweep alone.
    """
    found = [(topics.runs(queue, lane), lane) for queue in queues for lane in Lane]
    missing = missing_topics(kafka, [name for name, _ in found])
    if missing:
        for remedy in dict.fromkeys(map(missing_topic_remedy, missing)):
            names = ", ".join(name for name in missing if missing_topic_remedy(name) == remedy)
            _LOG.error("topics %s are missing: only the sweep starts their runs; run `%s`", names, remedy)
    # Below `<prefix>.runs.`, like the executors' own groups: one ACL covers them all.
    probe = f"{topics.prefix}.runs.probe"
    probed = next((name for name, _ in found if name not in missing), found[0][0])  # without a topic no member joins
    return Lanes(kafka, group_protocol(kafka, settings.executor_group, topic=probed, probe=probe), found)
