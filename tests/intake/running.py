"""An intake on threads, with topics of its own, of which one member reads the requests."""

# pyright: reportPrivateImportUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# The admin client's stubs name neither all it exports nor what its futures hold.

import json
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from uuid import uuid4

from confluent_kafka import Producer

from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.relay.topics import make_topics
from tests.transitions.stepping import in_background
from tidewheel.intake.service import Intake
from tidewheel.kafka.topics import Topics
from tidewheel.process.service import Shutdown
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import Reply
from tidewheel.schemas.interop import from_json
from tidewheel.settings.services import IntakeSettings
from tidewheel.transitions.installation import Installation

_SECONDS = 30.0


@dataclass
class Requests:
    """A requests topic with what intakes make of it in one database."""

    database: Database
    kafka: Mapping[str, str]
    partitions: int = 1
    topics: Topics = field(default_factory=lambda: Topics(f"t{uuid4().hex[:10]}"))

    def __post_init__(self) -> None:
        names = [self.topics.requests, self.topics.target_replies]
        make_topics(self.kafka, names, partitions=self.partitions)
        self._producer = Producer({**self.kafka, "linger.ms": 0})

    @property
    def installation(self) -> Installation:
        """The database's, under this topic's prefix."""
        return replace(self.database.installation, topics=self.topics)

    def start(self, stop: Shutdown) -> Future[None]:
        """Run an intake until its shutdown; the future has the exception that it raised."""
        kafka = dict(self.kafka)
        url = self.database.url_of("intake")
        intake = Intake(IntakeSettings.load(), url, kafka, self.installation, stop, members=1)
        return in_background(intake.run)

    @contextmanager
    def running(self) -> Generator[None]:
        stop = Shutdown()
        ended = self.start(stop)
        try:
            yield
        finally:
            stop.request()
            ended.result(_SECONDS)

    def send(
        self,
        *values: bytes | Mapping[str, object] | None,
        key: bytes | None = None,
        partition: int = 0,
        headers: Mapping[str, str | bytes] | None = None,
        topic: str | None = None,
    ) -> list[int]:
        pairs: list[tuple[str, str | bytes | None]] = [*(headers or {}).items()]
        offsets: list[int] = []
        for value in values:
            data = value if isinstance(value, bytes | None) else json.dumps(value).encode()
            self._producer.produce(
                topic or self.topics.requests,
                value=data,
                key=key,
                partition=partition,
                headers=pairs,
                on_delivery=lambda _, message: offsets.append(message.offset() or 0),
            )
        assert self._producer.flush(_SECONDS) == 0
        return offsets

    def reply(self, value: bytes | None, *, key: bytes | None = None, **headers: str) -> int:
        """Produce a target's reply, with these headers under `tidewheel-`; returns its offset."""
        named = {f"tidewheel-{name.replace('_', '-')}": text for name, text in headers.items()}
        return self.send(value, key=key, headers=named, topic=self.topics.target_replies)[0]

    def until_read(self, offset: int, partition: int = 0, *, topic: str | None = None) -> None:
        until(lambda: self.next_offset(partition, topic=topic) > offset, f"offset {offset} is applied")

    def next_offset(self, partition: int = 0, *, topic: str | None = None) -> int:
        """Return the stored offset, the only record that counts."""
        found = self.database.rows(
            "SELECT next_offset FROM intake_offsets WHERE topic = %s AND partition = %s",
            [topic or self.topics.requests, partition],
        )
        return int(found[0][0]) if found else 0

    def replies(self, key: bytes | None = None, *, topic: str | None = None) -> list[Reply]:
        """The answers on their way, under one key, in the order of the requests they answer."""
        found = self.database.rows(
            "SELECT value FROM outbox WHERE topic = %s AND key IS NOT DISTINCT FROM %s ORDER BY id",
            [topic or self.topics.replies, key],
        )
        replies = [from_json(value, Reply) if value[:1] == b"{" else decode(value, Reply) for (value,) in found]
        return sorted(replies, key=lambda reply: reply.origin.offset if reply.origin else -1)
