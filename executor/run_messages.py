"""Run messages: decode them, claim their runs in batches (claim.py), and start what was claimed."""

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from confluent_kafka import KafkaError, Message

from tidewheel.errors import Unavailable, UndecodableMessage
from tidewheel.executor.claim import Claimer
from tidewheel.executor.message_check import MessageCheck
from tidewheel.ids import read_uuid
from tidewheel.process.failpoint import failpoint
from tidewheel.process.fallbacks import Step, work
from tidewheel.process.logs import OnceAMinute
from tidewheel.process.metrics import metrics
from tidewheel.schemas.codec import decode
from tidewheel.schemas.definitions import needs
from tidewheel.schemas.generated.records import JobDefinition, RunRequest
from tidewheel.transitions.claim import Claim, Started
from tidewheel.transitions.messages import DEFINITIONS

_LOG = logging.getLogger("tidewheel.executor")

ClaimedRun = tuple[Started, RunRequest, JobDefinition]
StartRuns = Callable[[Sequence[ClaimedRun]], None]


class RunMessage(NamedTuple):
    """A decoded message for a run that this executor can run."""

    claim: Claim
    request: RunRequest
    definition: JobDefinition
    message: Message

    @property
    def order(self) -> tuple[int, int, datetime]:
        """Sort key, greater for the later of two messages for one run: none of the parts ever falls."""
        return self.claim.attempt, self.claim.job_version, self.request.publish_at


class FetchedMessage(NamedTuple):
    """A message, and its decoded form; None if it is not for this executor, or no relay has signed it."""

    message: Message
    run: RunMessage | None


class ClaimResult(NamedTuple):
    """Result of claiming a batch: the number of attempts started, and the messages left for later."""

    started: int
    left: Sequence[FetchedMessage]


class BatchClaimer:
    """Claims the runs of one lane's messages; one thread may decode while another one claims."""

    def __init__(
        self, topic: str, *, claimer: Claimer, check: MessageCheck, handlers: frozenset[str], start: StartRuns
    ) -> None:
        self._topic, self._claimer, self._check, self._handlers, self._start = topic, claimer, check, handlers, start
        self._lines = OnceAMinute()

    def decode(self, messages: Iterable[Message]) -> list[FetchedMessage]:
        """Decode messages."""
        return [FetchedMessage(message, self._decode_one(message)) for message in messages]

    def claim(self, fetched: Sequence[FetchedMessage], *, real: int) -> ClaimResult:
        """Claim the runs of messages and start them; each has a slot that was taken before.

        So many of these slots are real, the others are overcommitted. At-most-once runs get real slots only: if a
        process dies, it is unknown whether an attempt it had claimed has started.

        Raises:
            Unavailable: Nothing was claimed.
        """
        failpoint("claim.received")
        runs = latest_per_run(run for _, run in fetched if run is not None)
        left: list[FetchedMessage] = []
        if len(fetched) > real:
            at_most_once = [run_id for run_id, run in runs.items() if run.definition.at_most_once]
            later = [runs.pop(run_id) for run_id in at_most_once[max(real, 0) :]]
            left = [FetchedMessage(run.message, run) for run in later]
        if not runs:
            return ClaimResult(0, left)
        count = 0
        for started in self._claimer.claim_in_parts([run.claim for run in runs.values()], source="message"):
            count += len(started)
            if started:
                work.count(Step.DELIVER, len(started), queue=runs[started[0].run_id].definition.queue)
            claimed: list[ClaimedRun] = []
            for one in started:
                _, request, definition, _ = runs[one.run_id]
                claimed.append((one, request, definition))
            self._start(claimed)
        return ClaimResult(count, left)

    def close(self) -> None:
        """Close its session."""
        self._claimer.close()

    def _decode_one(self, message: Message) -> RunMessage | None:
        if not self._check.accepts(message):
            return None
        value = message.value()
        try:
            request = decode(value if isinstance(value, bytes) else b"", RunRequest)
            definition = DEFINITIONS.of(request.definition)
            keyed = request.concurrency_key is not None
            claim = Claim(
                read_uuid(request.run_id),
                request.attempt,
                request.job_version,
                _source_of(message),
                keyed,
                request.publish_at,
                definition.tenant,
            )
            name = needs(definition.target)
        except (UndecodableMessage, ValueError) as error:
            # Of a newer release's relay. In any case the run is in the table, and the sweep finds it.
            if self._lines.is_due(("undecodable", message.topic())):
                text = "message %s cannot be decoded: %s; the sweep starts the runs of such messages"
                _LOG.error(text, _source_of(message), error)
            return None
        if name not in self._handlers:
            metrics.count("unknown_handlers")
            self._warn_unknown(name, request.run_id)
            return None
        return RunMessage(claim, request, definition, message)

    def _warn_unknown(self, name: str, run_id: str) -> None:
        if self._lines.is_due(name):
            _LOG.warning(
                "this executor has no handler %r; run %s and others wait for an executor that has the handler",
                name,
                run_id,
            )


def latest_per_run(runs: Iterable[RunMessage]) -> dict[UUID, RunMessage]:
    """Return the latest message for each run: a stale copy may follow the current one in a batch."""
    latest: dict[UUID, RunMessage] = {}
    for run in runs:
        known = latest.get(run.claim.run_id)
        if known is None or run.order >= known.order:
            latest[run.claim.run_id] = run
    return latest


def without_errors(messages: Iterable[Message], topic: str) -> list[Message]:
    """Return the messages that carry data; raise Unavailable if there is an error in their place."""
    found: list[Message] = []
    failure: KafkaError | None = None
    for message in messages:
        error = message.error()
        if error is None:
            found.append(message)
        elif error.code() != KafkaError._PARTITION_EOF:
            failure = error
    if failure is not None and not found:
        raise Unavailable(f"{topic}: {failure.str()}")
    return found


def _source_of(message: Message) -> str:
    return f"{message.topic()}/{message.partition()}/{message.offset()}@{message.timestamp()[1]}"
