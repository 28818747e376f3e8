"""What was seen from outside during a demo: by the receiver, by the consumer, and by whoever killed an executor.

A history, put in order for looking things up. Pure.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from tidewheel.control.demo.occurrences import Occurrence
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


# The longest attempt of the file takes 1.5 s; the rest is room for its end to be written on a slow machine. An older
# attempt of the executor that was killed had ended before, so the kill explains nothing about it.
_KILL_REACH = timedelta(seconds=6)


class Seen:
    """The runs, calls and effects of a history, each by its run."""

    def __init__(self, history: History) -> None:
        self.history = history

    @cached_property
    def runs(self) -> dict[str, RunCompleted]:
        """The first completion event of each run."""
        found: dict[str, RunCompleted] = {}
        for event in self.history.completions:
            found.setdefault(event.run_id, event)
        return found

    @cached_property
    def runs_of(self) -> dict[str, list[RunCompleted]]:
        """The runs of each job."""
        found: defaultdict[str, list[RunCompleted]] = defaultdict(list)
        for run in self.runs.values():
            found[run.job_key].append(run)
        return found

    @cached_property
    def calls(self) -> dict[str, list[Call]]:
        """The calls of each run, in the order they arrived."""
        found: defaultdict[str, list[Call]] = defaultdict(list)
        for call in sorted(self.history.calls, key=lambda call: call.arrived_at):
            found[call.run_id].append(call)
        return dict(found)

    @cached_property
    def effects(self) -> dict[str, list[Call]]:
        """The calls of each run that took effect; runs without one are left out."""
        found = {run: [call for call in calls if call.effective] for run, calls in self.calls.items()}
        return {run: calls for run, calls in found.items() if calls}

    def ended_by_kill(self, call: Call) -> bool:
        """Whether a call came from the executor that was killed, so shortly before that its end may be unwritten."""
        kill = self.history.kill
        return kill is not None and call.pid == kill.pid and kill.at - _KILL_REACH <= call.arrived_at <= kill.at
