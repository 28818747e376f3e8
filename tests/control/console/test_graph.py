"""The drawing of a graph: nodes do not overlap, edges lead forward, each graph has one picture."""

import re
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.nouns.workflows.picture import HEIGHT, WIDTH, draw, layers_of


@st.composite
def graphs(chosen: st.DrawFn) -> list[list[int]]:
    """Return the parents of each node, which come before it."""
    size = chosen(st.integers(min_value=0, max_value=30))
    return [sorted(chosen(st.sets(st.integers(0, node - 1), max_size=4))) if node else [] for node in range(size)]


@given(graphs())
def test_no_two_nodes_overlap_and_all_are_inside(parents: list[list[int]]) -> None:
    drawing = draw(parents)
    for (x, y), (other_x, other_y) in combinations(drawing.places, 2):
        assert x + WIDTH <= other_x or other_x + WIDTH <= x or y + HEIGHT <= other_y or other_y + HEIGHT <= y
    for x, y in drawing.places:
        assert x >= 0 <= y
        assert x + WIDTH <= drawing.width
        assert y + HEIGHT <= drawing.height


@given(graphs())
def test_edges_lead_forward_from_the_middle_of_a_node_to_that_of_its_child(parents: list[list[int]]) -> None:
    drawing = draw(parents)
    assert [(each.parent, each.child) for each in drawing.edges] == [
        (parent, child) for child, each in enumerate(parents) for parent in each
    ]
    layers = layers_of(parents)
    for edge in drawing.edges:
        assert layers[edge.parent] < layers[edge.child]
        numbers = [int(each) for each in re.findall(r"-?\d+", edge.path)]
        x, y = drawing.places[edge.parent]
        assert numbers[:2] == [x + WIDTH, y + HEIGHT // 2]
        x, y = drawing.places[edge.child]
        assert numbers[-2:] == [x, y + HEIGHT // 2]
        assert numbers[::2] == sorted(numbers[::2])


@given(graphs())
def test_the_same_graph_has_the_same_picture(parents: list[list[int]]) -> None:
    assert draw(parents) == draw([list(each) for each in parents])


def test_crossings_of_a_twisted_graph_are_undone() -> None:
    # Two roots, whose children are in the opposite order.
    drawing = draw([[], [], [1], [0]])
    (_, first), (_, second), (_, of_second), (_, of_first) = drawing.places
    assert (first < second) == (of_first < of_second)


def test_an_edge_over_a_layer_passes_beside_its_nodes() -> None:
    drawing = draw([[], [0], [1, 0]])
    [long] = [each for each in drawing.edges if (each.parent, each.child) == (0, 2)]
    x, y = drawing.places[1]
    bends = [(int(bend[0]), int(bend[1])) for bend in re.findall(r"(\d+) (\d+)", long.path)]
    within = [at for at_x, at in bends if x <= at_x <= x + WIDTH]
    assert within
    assert all(at < y or at > y + HEIGHT for at in within)
