"""What the display shows at one moment, counted anew from what was seen so far. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidewheel.control.demo.history import Call
from tidewheel.control.demo.requests import Line
from tidewheel.control.demo.watch import Read
from tidewheel.schemas.generated.records import DeadLetter, Reply, ReplyStatus, RunStatus

_NAMED = 4  # error texts are cut to the first of them


@dataclass(frozen=True, slots=True)
class Family:
    """One row of the display.

    Args:
        name: The label `family` of its jobs.
        jobs: Requests that submit one.
        effects: Calls that took effect.
        succeeded: Runs that did.
        skipped: Runs whose job's turn was taken.
        failed: Runs that were given up.
        retried: Attempts beyond a run's first, so far as their runs have ended.
    """

    name: str
    jobs: int
    effects: int
    succeeded: int
    skipped: int
    failed: int
    retried: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment.

    Args:
        elapsed_seconds: Since the file was sent; 0 before.
        services: Pid and state of each, by name.
        families: In the order of the file.
        answered: Replies read.
        news: What is worth a line, oldest first; grows from moment to moment.
    """

    elapsed_seconds: float
    services: Mapping[str, tuple[int, str]]
    families: Sequence[Family]
    answered: int
    news: Sequence[str]


def snapshot_of(
    *,
    elapsed_seconds: float,
    services: Mapping[str, tuple[int, str]],
    lines: Sequence[Line],
    read: Read,
    calls: Sequence[Call],
) -> Snapshot:
    """Count what was seen so far."""
    family_of = {line.key: line.family for line in lines}
    runs = {event.run_id: event for event in read.completions}.values()
    ends = Counter((family_of.get(run.job_key, ""), run.status) for run in runs)
    retried: Counter[str] = Counter()
    for run in runs:
        retried[family_of.get(run.job_key, "")] += max(run.attempt - 1, 0)
    effects = Counter(family_of.get(call.job_key, "") for call in calls if call.effective)
    jobs = Counter(line.family for line in lines if line.job is not None)
    return Snapshot(
        elapsed_seconds,
        services,
        [
            Family(
                name,
                count,
                effects[name],
                ends[name, RunStatus.SUCCEEDED],
                ends[name, RunStatus.SKIPPED],
                ends[name, RunStatus.FAILED],
                retried[name],
            )
            for name, count in jobs.items()
        ],
        len(read.replies),
        list(_news(read)),
    )


def refusal(reply: Reply) -> str:
    """A rejection in one line: every field with what is wrong and what to write instead."""
    return f"refused {reply.key}: " + "; ".join(
        f"{error.path}: {error.problem} ({error.remedy})" for error in reply.errors[:_NAMED]
    )


def dead_letter(letter: DeadLetter) -> str:
    """A dead letter in one line."""
    error = f"{letter.error.type}: {letter.error.message}" if letter.error else letter.reason
    return f"dead letter {letter.job_key}: given up after {letter.attempt} attempts, the last one {error}"


def _news(read: Read) -> Iterable[str]:
    for _, reply in read.replies:
        if reply.status is not ReplyStatus.ACCEPTED:
            yield refusal(reply)
    for letter in read.dead_letters:
        yield dead_letter(letter)
