"""The order in which jobs of files are submitted: parents before their children, wherever they stand."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from graphlib import TopologicalSorter
from typing import NamedTuple

from tidewheel.control.client.bulk_load import JobText
from tidewheel.errors import FieldError, UndecodableMessage
from tidewheel.jobs.cycles import cycle_text, find_cycle
from tidewheel.jobs.strict_json import as_list, as_object, read_object


class Child(NamedTuple):
    """A job of a file with `after`: its key, and the keys of its parents."""

    key: str
    parents: Sequence[str]
    text: JobText


def without_children(given: Iterable[JobText], children: list[Child]) -> Iterator[JobText]:
    """Yield the jobs without `after`; add the others to `children`, which need their parents first."""
    for one in given:
        child = _child(one)
        if child is None:
            yield one
        else:
            children.append(child)


def parents_first(children: Sequence[Child]) -> list[JobText]:
    """Return children so that each comes after its parents; refuse those of a cycle.

    >>> b, c = (Child(key, [parent], JobText(key, b"")) for key, parent in ("ba", "cb"))
    >>> [text.place for text in parents_first([c, b])]
    ['b', 'c']
    """
    place = {child.key: number for number, child in enumerate(children)}
    parents = {
        number: {place[key] for key in child.parents if key in place} - {number}
        for number, child in enumerate(children)
    }
    refused: list[JobText] = []
    while (cycle := find_cycle(parents)) is not None:
        problem = f"the jobs form a cycle: {cycle_text([children[number].key for number in cycle])}"
        error = FieldError("schedule.after", problem, "leave out one of these edges")
        refused += [JobText(children[number].text.place, error) for number in sorted({*cycle})]
        parents = {number: needed - {*cycle} for number, needed in parents.items() if number not in cycle}
    return [*(children[number].text for number in TopologicalSorter(parents).static_order()), *refused]


def _child(one: JobText) -> Child | None:
    """Return a job with `after`; None for another one, or for one that cannot be read."""
    if isinstance(one.content, FieldError) or (isinstance(one.content, bytes) and b'"after"' not in one.content):
        return None
    job: dict[str, object] = {}
    with suppress(UndecodableMessage):
        job = read_object(one.content) if isinstance(one.content, bytes) else one.content
    schedule, key = as_object(job.get("schedule")) or {}, job.get("key")
    if "after" not in schedule or not isinstance(key, str):
        return None
    after = schedule["after"]
    named = [after] if isinstance(after, str) else as_list(after) or ()
    parents = [each if isinstance(each, str) else (as_object(each) or {}).get("job") for each in named]
    return Child(key, [parent for parent in parents if isinstance(parent, str)], one)
