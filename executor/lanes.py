"""Create the consumers of an executor: one for each lane of each of its queues, by the group protocol."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from confluent_kafka import ShareConsumer

from tidewheel.executor.claim import BatchClaimer
from tidewheel.executor.consume import LaneConsumer
from tidewheel.executor.share_consume import ShareLaneConsumer
from tidewheel.executor.slots import Slots
from tidewheel.kafka.clients import RUNS_QUEUED, consumer, share_consumer
from tidewheel.kafka.groups import GroupProtocol, group_protocol, read_from_start
from tidewheel.kafka.topics import Topics, missing_topic_remedy, missing_topics
from tidewheel.process.service import Shutdown
from tidewheel.runs import Lane
from tidewheel.settings.executor import ExecutorSettings

_LOG = logging.getLogger("tidewheel.executor")

_MAX_SHARED = 500  # messages requested from a share group at once
_LONGEST_WAIT = timedelta(seconds=5)  # far below 15 s, the shortest lock on a message that a broker may set


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
        stop: Shutdown,
    ) -> Sequence[LaneConsumer | ShareLaneConsumer]:
        """Return a consumer for each topic, none of them started."""
        created: list[LaneConsumer | ShareLaneConsumer] = []
        if self.protocol == "share":
            read_from_start(self.kafka, [_share_group(topic) for topic, _ in self.topics])
        for topic, lane in self.topics:
            claimer, role = batch_claimer(topic, lane), f"executor-{lane}"
            if self.protocol == "share":
                max_records, max_wait = min(slots.total, _MAX_SHARED), min(max_wait, _LONGEST_WAIT)

                def join_group(topic: str = topic, role: str = role, max_records: int = max_records) -> ShareConsumer:
                    return share_consumer(self.kafka, group=_share_group(topic), role=role, max_records=max_records)

                shared = ShareLaneConsumer(
                    join_group,
                    topic,
                    lane,
                    claimer=claimer,
                    slots=slots,
                    max_wait=max_wait,
                    overloaded=partial(overloaded, lane),
                    stop=stop,
                )
                created.append(shared)
            else:
                group = f"{topic}.executors"
                member = consumer(self.kafka, group=group, role=role, protocol=self.protocol, queued=RUNS_QUEUED)
                created.append(
                    LaneConsumer(
                        member,
                        topic,
                        lane,
                        claimer=claimer,
                        slots=slots,
                        max_wait=max_wait,
                        overloaded=partial(overloaded, lane),
                        stop=stop,
                    )
                )
        return created


def choose_lanes(settings: ExecutorSettings, kafka: Mapping[str, str], topics: Topics, queues: Sequence[str]) -> Lanes:
    """Return the lanes of an executor of these queues, with a group protocol that the brokers support.

    A queue without topics is reported: its runs start by the sweep alone.
    """
    found = [(topics.runs(queue, lane), lane) for queue in queues for lane in Lane]
    if missing := missing_topics(kafka, [name for name, _ in found]):
        for remedy in dict.fromkeys(map(missing_topic_remedy, missing)):
            names = ", ".join(name for name in missing if missing_topic_remedy(name) == remedy)
            _LOG.error("there are no topics %s: the sweep alone starts their runs; run `%s`", names, remedy)
    # Below `<prefix>.runs.`, like the executors' own groups: one ACL covers them all.
    probe = f"{topics.prefix}.runs.probe"
    return Lanes(kafka, group_protocol(kafka, settings.executor_group, topic=found[0][0], probe=probe), found)


def _share_group(topic: str) -> str:
    """Return the name of a share group; a consumer group cannot have the same one."""
    return f"{topic}.share"
