"""The signatures of the package's documented names, and the fields of the records in them."""

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel

import tidewheel

_MODULE = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")
_UNPACKED = re.compile(r"\*<class '(\w+)'>")


class Signatures:
    """Collector of signatures, and of the records that occur in them.

    Args:
        instances: An instance of each class whose parts are attributes, by the name of the class.
    """

    def __init__(self, instances: dict[str, object]) -> None:
        self._instances, self._records = instances, dict[type, list[str]]()

    def text(self) -> str:
        """Return the signatures of all documented names, and then the records with their fields."""
        lines = [line for name in sorted(tidewheel.__all__) for line in self._lines(name, getattr(tidewheel, name))]
        records = sorted((kind.__name__, fields) for kind, fields in self._records.items() if fields)
        return "\n".join([*lines, *(line for name, fields in records for line in ["", f"record {name}", *fields]), ""])

    def _lines(self, name: str, given: object) -> Iterator[str]:
        yield self._signature(name, given)
        if inspect.isclass(given):
            instance = self._instances.get(name)
            parts = {} if instance is None else vars(instance)
            yield from self._methods(name, given if instance is None else instance)
            for part in sorted(each for each in parts if not each.startswith("_")):
                yield from self._methods(f"{name}.{part}", parts[part])

    def _methods(self, name: str, held: object) -> Iterator[str]:
        kind = held if inspect.isclass(held) else type(held)
        for member, value in inspect.getmembers_static(kind):
            if not member.startswith("_") and inspect.isfunction(value):
                yield self._signature(f"{name}.{member}", getattr(held, member))
        yield from (f"{name}.{line}" for line in self._properties(kind))

    def _signature(self, name: str, given: Any) -> str:  # noqa: ANN401 - any callable
        """Return one line for a callable."""
        called = given.__init__ if inspect.isclass(given) else given
        begin = "class " if inspect.isclass(given) else "async " if _is_async(given) else ""
        if not hasattr(called, "__code__"):
            return f"{begin}{name}({given.__mro__[1].__name__})"
        types = _hints(called)
        for each in types.values():
            self._find(each)
        signature = inspect.signature(given)
        shown = [each for key, each in signature.parameters.items() if not key.startswith("_")]
        named = [each.replace(annotation=types.get(each.name, each.annotation)) for each in shown]
        return begin + name + _short(str(signature.replace(parameters=named, return_annotation=types.get("return"))))

    def _properties(self, kind: type) -> Iterator[str]:
        for name, value in inspect.getmembers_static(kind):
            if isinstance(value, property) and not name.startswith("_"):
                yield f"{name}: {self._type(get_type_hints(value.fget)['return'])}  (property)"

    def _type(self, annotation: object) -> str:
        self._find(annotation)
        return _short(str(annotation) if get_args(annotation) else inspect.formatannotation(annotation))

    def _find(self, annotation: object) -> None:
        """Collect the records that occur in a type; models of requests are in the OpenAPI document."""
        for inner in get_args(annotation):
            self._find(inner)
        if (
            inspect.isclass(annotation)
            and annotation.__module__.startswith("tidewheel.")
            and annotation not in self._records
        ):
            self._records[annotation] = []
            if not issubclass(annotation, BaseModel):
                self._records[annotation] = [f"    {line}" for line in self._fields(annotation)]

    def _fields(self, kind: type[object]) -> Iterator[str]:
        """Yield the fields and properties of a record, or the members of an enum."""
        for name, annotation in get_type_hints(kind).items():
            if not name.startswith("_") and not issubclass(kind, Enum):
                yield f"{name}: {self._type(annotation)}"
        for name, member in getattr(kind, "__members__", {}).items():
            yield f"{name} = {member.value!r}"
        yield from self._properties(kind)


def _hints(called: Any) -> dict[str, Any]:  # noqa: ANN401 - any callable
    try:
        return get_type_hints(called)
    except NameError:  # a type that is imported for checkers only
        return dict(inspect.get_annotations(inspect.unwrap(called)))


def _is_async(given: object) -> bool:
    return inspect.iscoroutinefunction(given) or inspect.isasyncgenfunction(given)


def _short(text: str) -> str:
    """Return a signature without the modules of its types."""
    return _UNPACKED.sub(r"Unpack[\1]", _MODULE.sub("", text)).replace("NoneType", "None")
