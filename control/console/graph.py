"""The drawing of a graph: layers by longest path, few crossings, places of nodes and edges.

The same graph has the same picture. An edge over several layers has a bend in each of them, so it crosses no node.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

WIDTH, HEIGHT = 200, 44
_GAP_X, _GAP_Y, _MARGIN = 48, 16, 8
_BEND = 8  # the height that an edge takes in a layer that it crosses
_PASSES = 4
_SEEN = 540  # the height that is seen at once


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge as a path of SVG."""

    parent: int
    child: int
    path: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """A graph with its places.

    Args:
        places: The left upper corner of each node.
        edges: The edges, by child and parent.
    """

    node_width: ClassVar[int] = WIDTH

    width: int
    height: int
    places: Sequence[tuple[int, int]]
    edges: Sequence[Edge]


@dataclass(slots=True)
class _Item:
    """A node, or the bend of an edge."""

    layer: int
    height: int
    before: list[int] = field(default_factory=list[int])
    after: list[int] = field(default_factory=list[int])
    order: float = 0.0
    y: int = 0


def layers_of(parents: Sequence[Sequence[int]]) -> list[int]:
    """Return the layer of each node, the longest path to it; parents come before their children."""
    layers: list[int] = []
    for each in parents:
        layers.append(max((layers[parent] + 1 for parent in each), default=0))
    return layers


def draw(parents: Sequence[Sequence[int]]) -> Drawing:
    """Return the drawing of a graph; parents come before their children."""
    items = [_Item(layer, HEIGHT) for layer in layers_of(parents)]
    chains = {(parent, child): _chain(items, parent, child) for child, each in enumerate(parents) for parent in each}
    layers: list[list[int]] = [[] for _ in range(max((each.layer for each in items), default=-1) + 1)]
    for number, item in enumerate(items):
        layers[item.layer].append(number)
    _order(items, layers)
    height = _stack(items, layers)
    places = [(_x(items[at].layer), items[at].y) for at in range(len(parents))]
    edges = [Edge(parent, child, _path(items, chain)) for (parent, child), chain in chains.items()]
    width = max(len(layers), 1) * (WIDTH + _GAP_X) - _GAP_X + 2 * _MARGIN
    return Drawing(width, height, places, edges)


def _chain(items: list[_Item], parent: int, child: int) -> list[int]:
    """Add the bends of an edge; return the items that it connects."""
    chain = [parent]
    for layer in range(items[parent].layer + 1, items[child].layer):
        items.append(_Item(layer, _BEND))
        chain.append(len(items) - 1)
    chain.append(child)
    for left, right in pairwise(chain):
        items[left].after.append(right)
        items[right].before.append(left)
    return chain


def _order(items: Sequence[_Item], layers: Sequence[list[int]]) -> None:
    """Order each layer by the middle of its neighbours, four times: along the edges, and back."""
    for layer in layers:
        for place, each in enumerate(layer):
            items[each].order = place
    for number in range(_PASSES):
        forward = number % 2 == 0
        for layer in layers[1:] if forward else reversed(layers[:-1]):
            middles: Mapping[int, float] = {
                each: _middle(items, items[each].before if forward else items[each].after, items[each].order)
                for each in layer
            }
            layer.sort(key=lambda each: (middles[each], items[each].order, each))
            for place, each in enumerate(layer):
                items[each].order = place


def _middle(items: Sequence[_Item], neighbours: Sequence[int], own: float) -> float:
    return sum(items[each].order for each in neighbours) / len(neighbours) if neighbours else own


def _stack(items: Sequence[_Item], layers: Sequence[Sequence[int]]) -> int:
    """Put the items of each layer below each other; return the height of all.

    The layers of a low graph are around one line. Those of a high one begin at the top, where a reader begins.
    """
    heights = [sum(items[each].height for each in layer) + _GAP_Y * (len(layer) - 1) for layer in layers]
    most = max(heights, default=0)
    for layer, height in zip(layers, heights, strict=True):
        y = _MARGIN + ((most - height) // 2 if most <= _SEEN else 0)
        for each in layer:
            items[each].y = y
            y += items[each].height + _GAP_Y
    return most + 2 * _MARGIN


def _path(items: Sequence[_Item], chain: Sequence[int]) -> str:
    """Return the curves from the right edge of a node, over the bends, to the left edge of another one."""
    parts: list[str] = []
    for left, right in pairwise(chain):
        x, y = _x(items[left].layer) + WIDTH, items[left].y + items[left].height // 2
        to_x, to_y = _x(items[right].layer), items[right].y + items[right].height // 2
        if parts:  # along the bend
            parts.append(f"L{x} {y}")
        else:
            parts.append(f"M{x} {y}")
        half = (x + to_x) // 2
        parts.append(f"C{half} {y} {half} {to_y} {to_x} {to_y}")
    return " ".join(parts)


def _x(layer: int) -> int:
    return _MARGIN + layer * (WIDTH + _GAP_X)
