"""Two people edit one job: which of their changes meet, and how one is laid on top of the other."""

from collections.abc import Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

from tidewheel.control.console.spec_form import NOTHING, Job, at_path, put, schedule_kind, target_kind
from tidewheel.jobs.strict_json import as_object

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that one of two edits has changed.

    Args:
        path: Its place in the job.
        base: Its value in the version that both began with; `NOTHING` if it was not set.
        yours: Its value in the edit that came too late.
        theirs: Its value in the version in force.
        meets: True if both edits concern it, and differ.
    """

    path: Path
    base: object
    yours: object
    theirs: object
    meets: bool = False

    @property
    def name(self) -> str:
        """The path as text."""
        return ".".join(self.path)

    @property
    def is_yours(self) -> bool:
        """True if the edit that came too late has changed it."""
        return not _same(self.base, self.yours)


def differences(base: Job, yours: Job, theirs: Job) -> list[Difference]:
    """Return the fields that either edit has changed, in the order of their paths.

    >>> found = differences({"lane": "batch", "queue": "a"}, {"lane": "batch", "queue": "b"}, {"queue": "a"})
    >>> [(each.name, each.meets) for each in found]
    [('lane', False), ('queue', False)]
    """
    whole = {
        name
        for name, kind in (("schedule", schedule_kind), ("target", target_kind))
        if len({kind(job) for job in (base, yours, theirs)}) > 1
    }
    paths = {path for job in (base, yours, theirs) for path in leaves(job, whole)}
    found = [
        Difference(path, at_path(base, path), at_path(yours, path), at_path(theirs, path)) for path in sorted(paths)
    ]
    by_them = {each.path for each in found if not _same(each.base, each.theirs)}
    return [
        replace(each, meets=_touches(each.path, by_them) and each.is_yours and not _same(each.yours, each.theirs))
        for each in found
        if each.is_yours or each.path in by_them
    ]


def laid_on_top(theirs: Job, found: Sequence[Difference], kept: Collection[str]) -> dict[str, object]:
    """Return the version in force with the changes of the other edit that do not meet its own.

    Args:
        theirs: The version in force.
        found: The differences.
        kept: The names of the differences that meet and are taken from the other edit.
    """
    job = deepcopy(dict(theirs))
    for each in found:
        if each.is_yours and (not each.meets or each.name in kept):
            put(job, each.path, deepcopy(each.yours))
    return {name: value for name, value in job.items() if value != {} or theirs.get(name) == {}}


def leaves(job: Job, whole: Collection[str] = ()) -> Iterator[Path]:
    """Yield the paths of a job's fields; a payload is one field, and so is a list.

    >>> sorted(leaves({"key": "a", "retry": {"initial": "1s"}, "payload": {"b": 1}}))
    [('key',), ('payload',), ('retry', 'initial')]
    """
    for name, value in job.items():
        below = as_object(value)
        if below and name not in {"payload", *whole}:
            yield from ((name, *path) for path in leaves(below))
        else:
            yield (name,)


def _same(first: object, second: object) -> bool:
    return first is second if NOTHING in (first, second) else first == second


def _touches(path: Path, others: Collection[Path]) -> bool:
    return any(path[: len(other)] == other or other[: len(path)] == path for other in others)
