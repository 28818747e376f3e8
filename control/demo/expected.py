"""Compute the expected occurrences from requests, replies and lifecycle events. Pure.

Only Tidewheel knows the instant at which its transaction accepted or stopped a job. The demo verifies each such instant
by its own clock: it must be between the sending of the request and the reading of its reply. So a wrong instant cannot
hide a missing occurrence.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidewheel.control.demo.observations import Answer
from tidewheel.control.demo.occurrences import Occurrence, Window, due_instants
from tidewheel.control.demo.requests import Line
from tidewheel.schemas.generated.records import Cause, LifecycleEvent, ReplyStatus

_SLACK = timedelta(milliseconds=50)  # error of the clock comparison over the network
_CREATED = "io.tidewheel.job.created.v1"
_STOPPED = frozenset({"io.tidewheel.job.paused.v1", "io.tidewheel.job.deleted.v1"})


@dataclass(frozen=True, slots=True)
class Due:
    """The expected occurrences.

    Args:
        occurrences: Each must have become one run.
        bad_instants: Reported instants that are impossible, in words.
    """

    occurrences: frozenset[Occurrence]
    bad_instants: tuple[str, ...]


def compute_due(
    lines: Sequence[Line],
    sent_at: Sequence[datetime],
    answers: Iterable[Answer],
    events: Iterable[LifecycleEvent],
    until: datetime,
) -> Due:
    """Compute the expected occurrences.

    Args:
        lines: All sent requests.
        sent_at: The sending instant of each by the database's clock.
        answers: The replies.
        events: Lifecycle events of the jobs.
        until: The end of the demo, which bounds jobs that were never stopped.
    """
    calculation = _Calculation(sent_at, {answer.number: answer for answer in answers}, list(events), until)
    for number, line in enumerate(lines):
        answer = calculation.answers.get(number)
        if answer is None or answer.reply.status is not ReplyStatus.ACCEPTED:
            continue
        match line.document.get("type"):
            case "job.submit":
                calculation.submitted(number, line)
            case "job.trigger":
                calculation.triggered(number, line)
            case _:
                calculation.stopped(number, line)
    return calculation.due()


class _Calculation:
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
        self._bad_instants: list[str] = []

    def submitted(self, number: int, line: Line) -> None:
        """Add the occurrences of a created job's schedule."""
        accepted_at = self._created.get(line.key)
        if accepted_at is None or line.job is None:
            self._bad_instants.append(f"no event reports that {line.key} was created")
            return
        self._check_instant(number, line, accepted_at)
        window = Window(accepted_at, self._stopped.get(line.key, self._until))
        self._occurrences.update(Occurrence(line.key, Cause.TIMER, at) for at in due_instants(line.job, window))

    def triggered(self, number: int, line: Line) -> None:
        """Add the one occurrence of an accepted trigger, after its delay."""
        at = self.answers[number].reply.next_run_at
        if at is None:
            self._bad_instants.append(f"the reply to the trigger of {line.key} has no due instant")
            return
        delay = timedelta(seconds=float(str(line.document.get("delay", "0s")).removesuffix("s")))
        self._check_instant(number, line, at - delay)
        self._occurrences.add(Occurrence(line.key, Cause.TRIGGER, at))

    def stopped(self, number: int, line: Line) -> None:
        """Check the instant of a pause or deletion."""
        stopped_at = self._stopped.get(line.key)
        if stopped_at is None:
            self._bad_instants.append(f"no event reports that {line.key} was stopped")
        else:
            self._check_instant(number, line, stopped_at)

    def due(self) -> Due:
        """Return the result."""
        return Due(frozenset(self._occurrences), tuple(self._bad_instants))

    def _check_instant(self, number: int, line: Line, reported: datetime) -> None:
        sent, read = self._sent_at[number], self.answers[number].read_at
        if not sent - _SLACK <= reported <= read + _SLACK:
            self._bad_instants.append(
                f"{line.document.get('type')} of {line.key} was sent at {sent:%H:%M:%S.%f}, answered by "
                f"{read:%H:%M:%S.%f} and is reported as done at {reported:%H:%M:%S.%f}"
            )
