"""YAML that `tidewheel apply` reads back as it was."""

import re

import yaml

NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
"""The pattern of JSON's numbers, which the reader of jobs takes for numbers too."""

_FOLDED = re.compile("[\x85\u2028\u2029]")
_WIDTH = 100  # characters of a line


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
