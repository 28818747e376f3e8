"""What a run is a retry of, and its own retries: the chain that begins at the first of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Kin:
    """A run of the same instant of the same job.

    Args:
        run_id: Its id.
        parent_run_id: What it came from.
        cause: Why there is a run.
        state: Where it stands.
        created_at: When it was written.
    """

    run_id: UUID
    parent_run_id: UUID | None
    cause: str
    state: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Lineage:
    """A run's place in its chain.

    Args:
        parent_run_id: What it came from.
        root_run_id: The first of the chain.
        older: What it is a retry of, the first of the chain first.
        newer: The retries of it, and theirs, the oldest first.
    """

    parent_run_id: UUID | None
    root_run_id: UUID | None
    older: tuple[Kin, ...]
    newer: tuple[Kin, ...]


def lineage_of(run_id: UUID, parent: UUID | None, root: UUID | None, kin: Iterable[Kin]) -> Lineage:
    """The lineage of a run, among the runs of the same instant.

    Args:
        run_id: The run.
        parent: What it came from.
        root: The first of the chain.
        kin: The runs of the same instant, in the order in which they were made.
    """
    known = {one.run_id: one for one in kin}
    older: list[Kin] = []
    at = parent
    while at is not None and (one := known.get(at)) is not None:
        older.insert(0, one)
        at = one.parent_run_id
    descended = {run_id}
    newer: list[Kin] = []
    for one in known.values():
        if one.parent_run_id in descended:
            descended.add(one.run_id)
            newer.append(one)
    return Lineage(parent, root, tuple(older), tuple(newer))
