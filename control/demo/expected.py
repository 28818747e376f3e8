"""From what was asked and what was told to the occurrences that were due. Pure.

When a job was accepted and stopped, Tidewheel itself tells: only it knows the instant its transaction chose. So that it
cannot talk itself out of an occurrence, each such instant is held against the demo's own clock: it must lie between the
sending of the request and the reading of its reply.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidewheel.control.demo.observations import Answer
from tidewheel.control.demo.occurrences import Occurrence, Window, due_instants
from tidewheel.control.demo.requests import Line
from tidewheel.schemas.generated.records import Cause, LifecycleEvent, ReplyStatus

_SLACK = timedelta(milliseconds=50)  # two clocks were compared over a network, and ours is read between two steps
_CREATED = "io.tidewheel.job.created.v1"
_STOPPED = frozenset({"io.tidewheel.job.paused.v1", "io.tidewheel.job.deleted.v1"})


@dataclass(frozen=True, slots=True)
class Due:
    """What was due.

    Args:
        occurrences: Each must have become one run.
        strays: Instants told that cannot be, in words.
    """

    occurrences: frozenset[Occurrence]
    strays: tuple[str, ...]


def reckon_due(
    lines: Sequence[Line],
    sent_at: Sequence[datetime],
    answers: Iterable[Answer],
    events: Iterable[LifecycleEvent],
    until: datetime,
) -> Due:
    """Reckon what was due.

    Args:
        lines: All requests that were sent.
        sent_at: When each was, by the database's clock.
        answers: What came back.
        events: Lifecycle events of the jobs.
        until: When the demo stopped looking; bounds jobs that were never stopped.
    """
    reckoning = _Reckoning(sent_at, {answer.number: answer for answer in answers}, list(events), until)
    for number, line in enumerate(lines):
        answer = reckoning.answers.get(number)
        if answer is None or answer.reply.status is not ReplyStatus.ACCEPTED:
            continue
        match line.document.get("type"):
            case "job.submit":
                reckoning.submitted(number, line)
            case "job.trigger":
                reckoning.triggered(number, line)
            case _:
                reckoning.stopped(number, line)
    return reckoning.due()


class _Reckoning:
    def __init__(
        self,
        sent_at: Sequence[datetime],
        answers: Mapping[int, Answer],
        events: Sequence[LifecycleEvent],
        until: datetime,
    ) -> None:
        self.answers = answers
        self._sent_at, self._until = sent_at, until
        self._created = {event.job_key: event.occurred_at for event in reversed(events) if event.type == _CREATED}
        self._stopped = {event.job_key: event.occurred_at for event in reversed(events) if event.type in _STOPPED}
        self._occurrences: set[Occurrence] = set()
        self._strays: list[str] = []

    def submitted(self, number: int, line: Line) -> None:
        """A job was created: its schedule is due from then on."""
        accepted_at = self._created.get(line.key)
        if accepted_at is None or line.job is None:
            self._strays.append(f"no event tells that {line.key} was created")
            return
        self._hold(number, line, accepted_at)
        window = Window(accepted_at, self._stopped.get(line.key, self._until))
        self._occurrences.update(Occurrence(line.key, Cause.TIMER, at) for at in due_instants(line.job, window))

    def triggered(self, number: int, line: Line) -> None:
        """A trigger was accepted: one run, its delay later."""
        at = self.answers[number].reply.next_run_at
        if at is None:
            self._strays.append(f"the reply does not tell when the trigger of {line.key} is due")
            return
        delay = timedelta(seconds=float(str(line.document.get("delay", "0s")).removesuffix("s")))
        self._hold(number, line, at - delay)
        self._occurrences.add(Occurrence(line.key, Cause.TRIGGER, at))

    def stopped(self, number: int, line: Line) -> None:
        """A job was paused or deleted: nothing is due after that."""
        stopped_at = self._stopped.get(line.key)
        if stopped_at is None:
            self._strays.append(f"no event tells that {line.key} was stopped")
        else:
            self._hold(number, line, stopped_at)

    def due(self) -> Due:
        """The outcome."""
        return Due(frozenset(self._occurrences), tuple(self._strays))

    def _hold(self, number: int, line: Line, told: datetime) -> None:
        sent, read = self._sent_at[number], self.answers[number].read_at
        if not sent - _SLACK <= told <= read + _SLACK:
            self._strays.append(
                f"{line.document.get('type')} of {line.key} was sent at {sent:%H:%M:%S.%f}, answered by "
                f"{read:%H:%M:%S.%f} and is said to have been done at {told:%H:%M:%S.%f}"
            )
