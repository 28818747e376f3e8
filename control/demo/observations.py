"""Observations of a demo: the receiver's calls, the consumer's records and the kill. Pure."""

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
    """One HTTP request that reached the receiver: one attempt.

    Args:
        run_id: The run's id in the request's header.
        attempt: The attempt's number.
        idempotency_key: The header of that name.
        job_key: The job's key.
        by_handler: Sent by a Python handler; else by an HTTP target.
        scheduled_at: The run's nominal instant.
        arrived_at: By the database's clock.
        effective: True if it took effect. False if the file scripts its failure.
        pid: The executor's process. None if it is unknown.
        answered: True once the receiver has sent its response.
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
        at: The instant of the kill by the database's clock.
        open_calls: The number of its calls that had no response at that instant.
    """

    pid: int
    at: datetime
    open_calls: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply and the number of its request.

    Args:
        number: The request's number among all sent requests, from 0.
        reply: The reply.
        read_at: The instant of reading by the database's clock.
    """

    number: int
    reply: Reply
    read_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The input of the checks and figures.

    Args:
        sent: The number of requests produced.
        answers: Replies, repeats included.
        expected: The results that `expected.json` requires.
        bad_instants: Reported instants that are not between request and reply, in words.
        due: The occurrences due, by arithmetic.
        rows: The number of runs in PostgreSQL.
        unfinished: The number of runs that had not ended when the demo stopped waiting.
        completions: Events of the completions topic, repeats included.
        dead_letters: Those of the dead-letters topic, repeats included.
        unreadable: Messages on any topic that could not be decoded, in words.
        calls: The receiver's calls.
        kill: The executor that was killed, if one was.
    """

    sent: int
    answers: Sequence[Answer]
    expected: Expected
    bad_instants: Sequence[str]
    due: frozenset[Occurrence]
    rows: int
    unfinished: int
    completions: Sequence[RunCompleted]
    dead_letters: Sequence[DeadLetter]
    unreadable: Sequence[str]
    calls: Sequence[Call]
    kill: Kill | None


# The longest attempt of the file takes 1.5 s. The rest is time to write its end on a slow machine.
# An older attempt of the killed executor had ended before the kill.
_KILL_WINDOW = timedelta(seconds=6)


class Observations:
    """A history's runs, calls and effects by run id."""

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
        """Return True if the killed executor made this call so late that its end may be unwritten."""
        kill = self.history.kill
        return kill is not None and call.pid == kill.pid and kill.at - _KILL_WINDOW <= call.arrived_at <= kill.at
