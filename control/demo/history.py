"""What was seen from outside during a demo: by the receiver, by the consumer, and by whoever killed an executor."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tidewheel.control.demo.due import Occurrence
from tidewheel.control.demo.requests import Expected
from tidewheel.schemas.generated.records import DeadLetter, Reply, RunCompleted


@dataclass(slots=True, kw_only=True)
class Call:
    """One request that reached the receiver: one attempt at work.

    Args:
        run_id: The run, as the caller names it.
        attempt: Which attempt.
        idempotency_key: The header of that name.
        job_key: The job's key.
        by_handler: Sent by a Python handler; else by an HTTP target.
        scheduled_at: The run's nominal instant.
        arrived_at: By the database's clock.
        effective: It took effect; else it is one that the file says must fail.
        pid: The process it came from; None where that could not be told.
        answered: The answer was handed over; set later than the rest.
    """

    run_id: str
    attempt: int
    idempotency_key: str
    job_key: str
    by_handler: bool
    scheduled_at: datetime
    arrived_at: datetime
    effective: bool
    pid: int | None
    answered: bool = False


@dataclass(frozen=True, slots=True)
class Kill:
    """The executor that was killed.

    Args:
        pid: Its process.
        at: When, by the database's clock.
        in_hand: How many requests of it were without their answer just then.
    """

    pid: int
    at: datetime
    in_hand: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, and which request it answers.

    Args:
        number: The request's number among all that were sent, from 0.
        reply: What came.
        read_at: When it was read, by the database's clock.
    """

    number: int
    reply: Reply
    read_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All that the summary is reckoned from.

    Args:
        sent: How many requests were produced.
        answers: Replies, repeats included.
        expected: What the file says must be found.
        strays: Instants that Tidewheel told and that do not lie between request and reply, in words.
        due: The occurrences due, by arithmetic.
        rows: How many runs PostgreSQL holds.
        unfinished: How many of them had not ended when the demo stopped waiting.
        completions: Events of the completions topic, repeats included.
        dead_letters: Those of the dead-letters topic, repeats included.
        unreadable: Messages on any topic that could not be read, in words.
        calls: What reached the receiver.
        kill: The executor that was killed, if one was.
    """

    sent: int
    answers: Sequence[Answer]
    expected: Expected
    strays: Sequence[str]
    due: frozenset[Occurrence]
    rows: int
    unfinished: int
    completions: Sequence[RunCompleted]
    dead_letters: Sequence[DeadLetter]
    unreadable: Sequence[str]
    calls: Sequence[Call]
    kill: Kill | None
