"""Cycles among jobs or runs that come after each other."""

from collections.abc import Collection, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

_SHOWN = 20  # names of a cycle


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
