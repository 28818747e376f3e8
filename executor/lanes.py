"""Which consumers an executor has: one for each lane of each queue it serves, of the kind its group protocol takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from confluent_kafka import ShareConsumer

from tidewheel.executor.claim_batch import Taking
from tidewheel.executor.consume import LaneConsumer
from tidewheel.executor.share_consume import ShareLaneConsumer
from tidewheel.executor.slots import Slots
from tidewheel.kafka.clients import consumer, share_consumer
from tidewheel.kafka.groups import GroupProtocol, group_protocol, read_from_start
from tidewheel.kafka.topics import Topics
from tidewheel.process.service import Shutdown
from tidewheel.runs import Lane
from tidewheel.settings import ExecutorSettings

_MOST_SHARED = 500  # messages asked of a share group at once
_LONGEST_HOLD = timedelta(seconds=5)  # far below the 15 s that a broker may set as the shortest lock on a message


@dataclass(frozen=True, slots=True)
class Lanes:
    """How this executor consumes.

    Args:
        kafka: Bootstrap servers and what users pass through.
        protocol: Of its groups.
        topics: What it reads, with each topic's lane.
    """

    kafka: Mapping[str, str]
    protocol: GroupProtocol
    topics: Sequence[tuple[str, Lane]]

    def consumers(
        self,
        taking: Callable[[str, Lane], Taking],
        *,
        slots: Slots,
        hold: timedelta,
        crowded: Callable[[], bool],
        stop: Shutdown,
    ) -> Sequence[LaneConsumer | ShareLaneConsumer]:
        """A consumer for each topic, none of them started.

        Args:
            taking: Makes what claims for one.
            slots: Of the executor.
            hold: How long a message may wait for a slot.
            crowded: Whether no more is to be claimed.
            stop: The wish to stop.
        """
        made: list[LaneConsumer | ShareLaneConsumer] = []
        if self.protocol == "share":
            read_from_start(self.kafka, [_share_group(topic) for topic, _ in self.topics])
        for topic, lane in self.topics:
            take, role = taking(topic, lane), f"executor-{lane}"
            if self.protocol == "share":
                most, hold = min(slots.total, _MOST_SHARED), min(hold, _LONGEST_HOLD)

                def join_group(topic: str = topic, role: str = role, most: int = most) -> ShareConsumer:
                    return share_consumer(self.kafka, group=_share_group(topic), role=role, most=most)

                shared = ShareLaneConsumer(
                    join_group, topic, lane, taking=take, slots=slots, hold=hold, crowded=crowded, stop=stop
                )
                made.append(shared)
            else:
                member = consumer(self.kafka, group=f"{topic}.executors", role=role, protocol=self.protocol)
                made.append(
                    LaneConsumer(member, topic, lane, taking=take, slots=slots, hold=hold, crowded=crowded, stop=stop)
                )
        return made


def choose_lanes(settings: ExecutorSettings, kafka: Mapping[str, str], topics: Topics, queues: Sequence[str]) -> Lanes:
    """How an executor of these queues is to consume.

    Raises:
        SettingsError: The brokers cannot do what the setting asks for.
    """
    found = [(topics.runs(queue, lane), lane) for queue in queues for lane in Lane]
    # Below `<prefix>.runs.`, as the executors' own groups are: one grant covers them all.
    probe = f"{topics.prefix}.runs.probe"
    return Lanes(kafka, group_protocol(kafka, settings.executor_group, topic=found[0][0], probe=probe), found)


def _share_group(topic: str) -> str:
    """Not the name of the consumer group: one name cannot be both."""
    return f"{topic}.share"
