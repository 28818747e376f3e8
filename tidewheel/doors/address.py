"""Addresses of operations: the query of each, the form that makes one, and its cursor."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import NoneType
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin

from pydantic import BeforeValidator, Field, create_model

from tidewheel.control.api.request_input import (
    Cursors,
    LabelFilter,
    LimitQuery,
    PageQuery,
    TenantQuery,
    Whole,
    flag,
    whole,
)
from tidewheel.jobs.values import Instant
from tidewheel.nouns.operation import Operation, Parameter, Rows, model_of

Q = TypeVar("Q", bound=TenantQuery)

_PLURAL = re.compile("(?<=ch)es$|s$")
_PLACES = ("after", "before")  # of the pages of a list
_IN_CURSORS: Mapping[object, object] = {datetime: Instant, int: Whole}


def query_with(base: type[Q], declared: Operation, asked: Sequence[Parameter]) -> tuple[type[Q], Mapping[str, str]]:
    """Return the model of a query with the fields of a base, and the names in it of the parameters."""
    named = {each.name: in_address(each) for each in asked if each.name not in _PLACES}
    listed = LimitQuery if any(each.kind == Rows for each in asked) else TenantQuery
    least = PageQuery if len(named) < len(asked) else listed
    own = [each for each in named.values() if each[0] not in least.model_fields]
    made: Any = model_of(f"{title(declared.name)}Query", own, least, f"Query of {declared.name}.")
    if not issubclass(made, base):
        made = create_model(made.__name__, __base__=(base, made))
    return made, {name: spoken for name, (spoken, _) in named.items()}


def in_address(each: Parameter) -> tuple[str, Parameter]:
    """Return a parameter with its name in an address, in which each of several ids is an `id`."""
    if each.accepts(dict):
        kind: Any = Annotated[LabelFilter, Field(description=f"{each.help} Write each as name=value.")]
        return singular(each.spoken), replace(each, kind=kind, default={})
    if each.accepts(Sequence):
        return singular(each.spoken), replace(each, kind=tuple[Whole, ...], default=())
    reader = flag if each.accepts(bool) else whole if each.accepts(int) else None
    return each.spoken, each if reader is None else replace(each, kind=Annotated[each.kind, BeforeValidator(reader)])


def form_of(asked: Sequence[Parameter], *, without: Collection[str]) -> Sequence[tuple[str, Sequence[str]]]:
    """Return the fields of a list's form by name, each with its listed values.

    Args:
        without: The fields that the page has elsewhere.
    """
    shown = [each for each in asked if each.filters and each.name not in without]
    return [(in_address(each)[0], each.choices) for each in shown]


def place_of(declared: Operation) -> Parameter:
    """Return the parameter of a list with the place of its page."""
    [found] = [each for each in declared.parameters if each.name in _PLACES]
    return found


def after_of(cursors: Cursors, declared: Operation) -> Any:  # noqa: ANN401 - as the place is declared
    """Return the place that the cursor of a request names."""
    kind = place_of(declared).kind
    place = next(each for each in get_args(kind) if each is not NoneType) if NoneType in get_args(kind) else kind
    if get_origin(place) is not tuple:
        [found] = cursors.read(place) or [None]
        return found
    parts = cursors.read(*(_IN_CURSORS.get(kind, kind) for kind in get_args(place)))
    return None if parts is None else tuple(parts)


def next_cursor(cursors: Cursors, after: object) -> str | None:
    """Return the cursor of the next page, which begins after a place."""
    return cursors.write(*(cast("tuple[object, ...]", after) if isinstance(after, tuple) else [after]))


def singular(name: str) -> str:
    """Return the name of one of these."""
    return _PLURAL.sub("", name)


def title(name: str) -> str:
    """Return the name of a schema, such as `RedriveList` of `redrive_list`."""
    return "".join(map(str.capitalize, name.split("_")))
