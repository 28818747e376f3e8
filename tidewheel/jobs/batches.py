"""The parts of a batch's requests: its runs, which may come after one another, and its callbacks."""

from collections.abc import Collection, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, model_validator

from tidewheel.errors import FieldError
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.payload import JSON_CONTENT, WithPayload
from tidewheel.jobs.schedule import ensure_distinct, read_parents
from tidewheel.jobs.strict_json import as_list, as_object, read_value
from tidewheel.jobs.validation import StrictModel, not_valid, shown
from tidewheel.jobs.values import Delay, Key

MAX_RUNS = 10_000  # of one request
CALLBACK_FIELDS = ("batch_id", "total", "succeeded", "failed", "first_failed_run_id")
"""The fields that a callback's payload gets."""
_OWN_ORDER = "name a run of this request or of the batch"
_SHOWN = 20  # names of a cycle


class BatchParent(StrictModel):
    """A run of the same batch that comes before.

    Attributes:
        ref: Its name in the batch.
        when: The end of its run that meets the condition.
    """

    ref: Key
    when: Literal["success", "failure", "always"] = "success"


def _parents(value: object) -> object:
    return read_parents(value, "ref", 'write a list of refs, or of {"ref": ..., "when": ...}', "a run")


def _distinct(parents: tuple[BatchParent, ...]) -> tuple[BatchParent, ...]:
    ensure_distinct([parent.ref for parent in parents], "ref")
    return parents


class BatchRun(WithPayload):
    """A run of a batch.

    Attributes:
        ref: Its name, unique in the batch.
        key: The key of its job.
        delay: The time from acceptance to the run; with `after` from the end of the last parent.
        after: The runs that end before it starts.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {"run_at": "write delay"}

    ref: Key
    key: Key
    delay: Delay | None = None
    after: Annotated[tuple[BatchParent, ...], BeforeValidator(_parents), AfterValidator(_distinct)] = ()


class BatchCallback(WithPayload):
    """A job that a batch triggers.

    Attributes:
        key: The key of the job.
    """

    key: Key

    @model_validator(mode="after")
    def _object_payload(self) -> Self:
        payload = self.carried
        if payload is None:
            return self
        fields = None if payload.content_type != JSON_CONTENT else as_object(read_value(payload.content))
        if fields is None:
            remedy = "write an object; the trigger adds the batch's fields"
            raise InvalidValue(problem="the payload of a callback is not an object", remedy=remedy, path="payload")
        for name in CALLBACK_FIELDS:
            if name in fields:
                problem, remedy = f"the trigger adds a field {name!r} itself", "rename yours"
                raise InvalidValue(problem=problem, remedy=remedy, path=f"payload.{name}")
        return self


class BatchCallbacks(StrictModel):
    """The jobs that a batch triggers.

    Attributes:
        succeeded: At the end, if no run failed or was cancelled.
        failed: At the first run that failed or timed out.
        finished: At the end.
    """

    succeeded: BatchCallback | None = None
    failed: BatchCallback | None = None
    finished: BatchCallback | None = None


def _some(value: object) -> object:
    if (runs := as_list(value)) is None:
        raise not_valid(value, "write a list of runs")
    if not runs:
        raise InvalidValue(problem="is empty", remedy="write at least one run")
    if len(runs) > MAX_RUNS:
        remedy = f"write at most {MAX_RUNS}; for more, leave the batch open and use batch.add"
        raise InvalidValue(problem=f"there are {len(runs)} runs", remedy=remedy)
    return tuple(runs)


def _ordered(runs: tuple[BatchRun, ...]) -> tuple[BatchRun, ...]:
    """Check that refs are unique and that no run comes after itself."""
    places: dict[str, int] = {}
    for place, run in enumerate(runs):
        if run.ref in places:
            problem = f"{shown(run.ref)} is already the ref of run {places[run.ref]}"
            raise InvalidValue(problem=problem, remedy="give each run its own ref", path=f"{place}.ref")
        places[run.ref] = place
    parents = {place: [places[one.ref] for one in run.after if one.ref in places] for place, run in enumerate(runs)}
    if (cycle := find_cycle(parents)) is not None:
        problem = f"the runs form a cycle: {cycle_text([runs[place].ref for place in cycle])}"
        raise InvalidValue(problem=problem, remedy="remove one of these parents", path=f"{cycle[0]}.after")
    return runs


def _all_known(runs: tuple[BatchRun, ...]) -> tuple[BatchRun, ...]:
    refs = {run.ref for run in runs}
    unknown = [
        FieldError(f"{place}.after.{number}.ref", f"the batch has no run with the ref {shown(parent.ref)}", _OWN_ORDER)
        for place, run in enumerate(runs)
        for number, parent in enumerate(run.after)
        if parent.ref not in refs
    ]
    if unknown:
        raise InvalidValue.of(unknown[:50])
    return runs


AddedRuns = Annotated[tuple[BatchRun, ...], BeforeValidator(_some), AfterValidator(_ordered)]
BatchRuns = Annotated[AddedRuns, AfterValidator(_all_known)]


def find_cycle(parents: Mapping[int, Collection[int]]) -> list[int] | None:
    """Return a cycle, the first node again at its end; None if there is none.

    Each node is a parent of the next one.

    >>> find_cycle({0: [2], 1: [0], 2: [1], 3: [2]})
    [0, 1, 2, 0]
    """
    try:
        TopologicalSorter(parents).prepare()
    except CycleError as error:
        nodes: list[int] = error.args[1][:-1]
        first = nodes.index(min(nodes))
        return [*nodes[first:], *nodes[: first + 1]]
    return None


def cycle_text(names: Sequence[str]) -> str:
    """Return the names of a cycle as text, the first 20 of a long one."""
    return " → ".join(names[:_SHOWN]) + (" → …" if len(names) > _SHOWN else "")
