"""What messages ask for: reads them, claims what this executor can run, and has it begun.

Shared by both ways to consume a lane. A message that is not claimed here needs nothing more: its run is in the table,
and the sweep of an executor that can run it brings it.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from confluent_kafka import KafkaError, Message

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable, UndecodableMessage
from tidewheel.executor.claim import Claimer
from tidewheel.ids import read_uuid
from tidewheel.process.failpoint import failpoint
from tidewheel.process.metrics import metrics
from tidewheel.schemas.codec import decode
from tidewheel.schemas.definitions import needs
from tidewheel.schemas.generated.records import JobDefinition, RunRequest
from tidewheel.transitions.claim import Claim, Started
from tidewheel.transitions.run_messages import Definitions

_LOG = logging.getLogger("tidewheel.executor")

_TELL_SECONDS = 60.0

Begun = tuple[Started, RunRequest, JobDefinition]
Begin = Callable[[Sequence[Begun]], None]


class Wanted(NamedTuple):
    """A message that asks for a run this executor can do."""

    claim: Claim
    request: RunRequest
    definition: JobDefinition
    message: Message

    @property
    def age(self) -> tuple[int, int]:
        """What is greater in the later of two messages for one run: neither number ever falls."""
        return self.claim.attempt, self.claim.job_version


class Fetched(NamedTuple):
    """A message, and what it asks for; None where that is not for this executor."""

    message: Message
    wanted: Wanted | None


class Taken(NamedTuple):
    """What became of messages: how many attempts were started, and which messages were left for later."""

    started: int
    left: Sequence[Fetched]


class Taking:
    """Takes what one lane's messages ask for; one thread may read while another has what was read before begun."""

    def __init__(self, topic: str, *, claimer: Claimer, handlers: frozenset[str], begin: Begin) -> None:
        self._topic, self._claimer, self._handlers, self._begin = topic, claimer, handlers, begin
        self._definitions = Definitions()
        self._told: dict[str, float] = {}

    def read(self, messages: Iterable[Message]) -> list[Fetched]:
        """Read what messages ask for."""
        return [Fetched(message, self._wanted(message)) for message in messages]

    def take(self, fetched: Sequence[Fetched], *, once: int) -> Taken:
        """Claim what messages ask for, and have it begun.

        Args:
            fetched: Each has a slot that was taken before.
            once: How many of the slots are no more than there are: runs that may begin only once are not claimed ahead,
                since nobody knows of one that was claimed in a process that died whether it had begun.

        Raises:
            Unavailable: Nothing was claimed.
        """
        failpoint("claim.received")
        wanted = newest(item for _, item in fetched if item is not None)
        left: list[Fetched] = []
        if len(fetched) > once:
            risky = [run_id for run_id, item in wanted.items() if item.definition.at_most_once]
            later = [wanted.pop(run_id) for run_id in risky[max(once, 0) :]]
            left = [Fetched(item.message, item) for item in later]
        if not wanted:
            return Taken(0, left)
        started = self._claimer.claim([item.claim for item in wanted.values()], way="message").started
        begin: list[Begun] = []
        for one in started:
            _, request, definition, _ = wanted[one.run_id]
            begin.append((one, request, definition))
        self._begin(begin)
        return Taken(len(started), left)

    def check(self) -> None:
        """See that claims are taken.

        Raises:
            Unavailable: They are not.
        """
        self._claimer.claim([], way="message")

    def close(self) -> None:
        """Close its session."""
        self._claimer.close()

    def _wanted(self, message: Message) -> Wanted | None:
        value = message.value()
        try:
            request = decode(value if isinstance(value, bytes) else b"", RunRequest)
            definition = self._definitions.of(request.definition)
            claim = Claim(read_uuid(request.run_id), request.attempt, request.job_version, _claimed_from(message))
        except (UndecodableMessage, ValueError) as error:
            # Nobody but the relay writes here; whatever it is, its run is in the table and the sweep brings it.
            _LOG.error("a message on %s cannot be read and is left to the sweep: %s", self._topic, error)
            return None
        name = needs(definition.target)
        if name is not None and name not in self._handlers:
            metrics.count("unknown_handlers")
            self._tell_unknown(name, request.run_id)
            return None
        return Wanted(claim, request, definition, message)

    def _tell_unknown(self, name: str, run_id: str) -> None:
        """Say it now and then: in a rolling deploy there is one such message a run."""
        now = monotonic_seconds()
        if now >= self._told.get(name, 0.0):
            self._told[name] = now + _TELL_SECONDS
            _LOG.warning("nothing here for %r; run %s and others like it wait for an executor with it", name, run_id)


def newest(items: Iterable[Wanted]) -> dict[UUID, Wanted]:
    """The latest wish for each run: an old copy may lie behind the good message."""
    latest: dict[UUID, Wanted] = {}
    for item in items:
        known = latest.get(item.claim.run_id)
        if known is None or item.age >= known.age:
            latest[item.claim.run_id] = item
    return latest


def good(messages: Iterable[Message], topic: str) -> list[Message]:
    """The messages proper.

    Raises:
        Unavailable: There is none, and the client reports an error in its place.
    """
    found: list[Message] = []
    trouble: KafkaError | None = None
    for message in messages:
        error = message.error()
        if error is None:
            found.append(message)
        elif error.code() != KafkaError._PARTITION_EOF:
            trouble = error
    if trouble is not None and not found:
        text = f"{topic}: {trouble.str()}"
        raise Unavailable(text)
    return found


def _claimed_from(message: Message) -> str:
    return f"{message.topic()}/{message.partition()}/{message.offset()}@{message.timestamp()[1]}"
