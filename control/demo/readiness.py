"""Whether the services are ready: their rows are there, and the executors' groups have all partitions assigned.

Without that the first runs would wait for a group to form, and the lateness shown would be that of a start.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import cast

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription  # type: ignore[attr-defined]  # as in topics.py

from tidewheel.control.demo.services import EXECUTORS
from tidewheel.kafka.topics import DEFAULT_QUEUE, Topics
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Lane

_COUNT_READY = Statements("tidewheel.control.demo")["count_ready"]

_ASK_SECONDS = 5.0


class Readiness:
    """What there must be before the file is sent.

    Args:
        session: To the demo's database.
        config: Bootstrap servers and what the user passes through.
        topics: The demo's own.
    """

    def __init__(self, session: Session, config: Mapping[str, str], topics: Topics) -> None:
        self._session, self._topics = session, topics
        self._partitions = {topic.name: topic.partitions for topic in topics.plan()}
        self._admin = AdminClient({**config, "client.id": "tidewheel-demo", "log_level": 2})

    def is_complete(self) -> bool:
        """Whether all are at work.

        Raises:
            Unavailable: The database does not answer.
        """
        with self._session.transaction() as connection:
            row = connection.execute(_COUNT_READY, binary=True).fetchone()
        taken_in = self._partitions[self._topics.requests] + self._partitions[self._topics.target_replies]
        wanted = (len(EXECUTORS), 2, taken_in)  # 2: a scheduler and a relay
        return row is not None and tuple(row) == wanted and self._are_assigned()

    def _are_assigned(self) -> bool:
        wanted = {f"{name}.executors": self._partitions[name] for name in self._lanes()}
        groups = self._admin.describe_consumer_groups(  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - its stub leaves a Future bare
            list(wanted), request_timeout=_ASK_SECONDS
        )
        futures = cast("dict[str, Future[ConsumerGroupDescription]]", groups)
        return all(_assigned(future) >= wanted[group] for group, future in futures.items())

    def _lanes(self) -> list[str]:
        return [self._topics.runs(DEFAULT_QUEUE, lane) for lane in Lane]


def _assigned(future: "Future[ConsumerGroupDescription]") -> int:
    try:
        found = future.result()
    except KafkaException:
        return 0  # there is no such group yet, or its coordinator is about to be found
    counts = [len(member.assignment.topic_partitions) for member in found.members if member.assignment]
    return sum(counts)
