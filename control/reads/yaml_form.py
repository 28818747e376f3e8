"""YAML with JSON's types: the reader of jobs, and a writer whose text it reads back as it was."""

import re
from collections.abc import Callable, Hashable
from typing import Any, cast

import yaml

from tidewheel.jobs.strict_json import MAX_DOCUMENT_BYTES

NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
"""The pattern of JSON's numbers, which the reader of jobs takes for numbers too."""

MAX_VALUES = MAX_DOCUMENT_BYTES // 2
"""The most values of one job: a value takes two bytes of JSON, and a kilobyte of memory here."""

NULL = "tag:yaml.org,2002:null"

_TEXT = "tag:yaml.org,2002:str"
_TYPES = {"null", "bool", "int", "float", "str", "seq", "map"}
_SCALARS = (
    ("null", r"null|~|", ["n", "~", ""]),
    ("bool", r"true|false", ["t", "f"]),
    ("int", r"-?(?:0|[1-9][0-9]*)", list("-0123456789")),
    ("float", NUMBER, list("-0123456789")),
)
_FOLDED = re.compile("[\x85\u2028\u2029]")
_WIDTH = 100  # characters of a line


class JobLoader(yaml.SafeLoader):
    """YAML with JSON's scalars and unique names."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - filled below, of this class alone
    composed = 0  # nodes of the current job

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse a job of more values than a request can have, before all of them are in memory."""
        self.composed += 1
        if self.composed > MAX_VALUES:
            problem = f"one job has more than {MAX_VALUES} values, the limit of one request; shorten its payload"
            mark = cast("yaml.error.Mark", self.next_event(peek=True).start_mark)
            raise yaml.MarkedYAMLError(None, None, problem, mark)
        return super().compose_node(parent, index)

    def next_event(self, *, peek: bool = False) -> yaml.Event:
        """Return the next event, and leave it there for another call if `peek`."""
        # Typed here, because PyYAML's stubs leave both out.
        read = cast("Callable[[], yaml.Event]", self.peek_event if peek else self.get_event)  # pyright: ignore[reportUnknownMemberType]
        return read()

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        """Refuse names that are not text, and repeated names."""
        seen: set[str] = set()
        for name, _ in node.value:
            if name.tag != _TEXT or name.value in seen:
                problem = "is given twice" if name.tag == _TEXT else "is not text"
                raise yaml.constructor.ConstructorError(
                    None, None, f"the name {name.value!r} {problem}", name.start_mark
                )
            seen.add(name.value)
        return super().construct_mapping(node, deep=True)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:  # noqa: FBT001, FBT002
        """Refuse a tag that JSON has no type for, and a value that its tag does not fit, such as `!!bool x`."""
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        if kind not in _TYPES:
            raise yaml.constructor.ConstructorError(None, None, f"JSON has no type {kind[:64]!r}", node.start_mark)
        try:
            return super().construct_object(node, deep=deep)  # pyright: ignore[reportUnknownMemberType]
        except (AttributeError, LookupError, ValueError, OverflowError):
            problem = f"the value is not of the type {kind}, or too long for it"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


for name, pattern, first in _SCALARS:
    JobLoader.add_implicit_resolver(  # pyright: ignore[reportUnknownMemberType]  # its stub leaves `first` open
        f"tag:yaml.org,2002:{name}", re.compile(rf"(?:{pattern})\Z"), first
    )


class _Dumper(yaml.SafeDumper):
    """Quotes each text that YAML 1.1 or JSON would read as another type, such as `no` and `1e3`."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Write a text; YAML folds its rarer ends of lines, unless they are escaped."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if _FOLDED.search(text) else None)  # pyright: ignore[reportUnknownMemberType]


_Dumper.add_representer(str, _text)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"(?:{NUMBER})\Z"), list("-0123456789"))  # pyright: ignore[reportUnknownMemberType]  # its stub leaves `first` open


def as_yaml(value: object, *, starts: bool = False) -> str:
    """Return a value of JSON's types as YAML.

    >>> print(as_yaml({"key": "nightly", "labels": {"team": "1e3", "on": "no"}}), end="")
    key: nightly
    labels:
      team: '1e3'
      'on': 'no'

    Args:
        starts: Begin with the line that starts a document.
    """
    return yaml.dump(value, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=_WIDTH, explicit_start=starts)
