"""Jobs as files: one JSON object, or one YAML mapping that says the same.

YAML is read as JSON would be: what looks like a date, a time or `yes` is text, names are text, and a name given twice
is refused.
"""

import re
import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Any, cast

import yaml

from tidewheel.errors import FieldError, InvalidInput, UndecodableMessage, refuse
from tidewheel.jobs.invalid import UnreadableValue
from tidewheel.jobs.strict_json import MAX_DOCUMENT_BYTES, as_object, read_object

STANDARD_INPUT = "-"


def read_job(source: str) -> dict[str, object]:
    """The job that a file describes; `-` is standard input.

    Raises:
        InvalidInput: There is no such file, it holds no JSON object and no YAML mapping, or says a field twice.
    """
    data = read_bytes(source, "--file")
    try:
        found = read_object(data) if data.lstrip()[:1] == b"{" else _mapping(data)
    except UndecodableMessage as error:
        refuse("--file", f"{source}: {error}", "write the job as an object: key, schedule, target")
    # Here, before flags are laid on top: they would hide a field that nobody could read for certain.
    misread = [(name, value) for name, value in found.items() if isinstance(value, UnreadableValue)]
    if misread:
        raise InvalidInput([FieldError(name, value.problem, value.remedy) for name, value in misread])
    return found


def read_bytes(source: str, path: str) -> bytes:
    """What a file holds; `-` is standard input.

    Raises:
        InvalidInput: It cannot be read, or is longer than any request.
    """
    try:
        data = sys.stdin.buffer.read() if source == STANDARD_INPUT else Path(source).read_bytes()
    except OSError as error:
        refuse(path, f"{source} cannot be read ({error.strerror})", "name a file, or - for standard input")
    if len(data) > MAX_DOCUMENT_BYTES:
        refuse(path, f"{source} has {len(data)} bytes", f"write at most {MAX_DOCUMENT_BYTES}")
    return data


def _mapping(data: bytes) -> dict[str, object]:
    try:
        loader = JobLoader(data.decode())
        found = as_object(cast("object", loader.get_single_data()))
    except UnicodeDecodeError as error:
        message = f"this is no UTF-8: byte {data[error.start]:#04x} at position {error.start}"
        raise UndecodableMessage(message) from error
    except yaml.YAMLError as error:
        message = f"this is no YAML: {' '.join(str(error).split())}"
        raise UndecodableMessage(message) from error
    if found is None:
        message = "this is neither a JSON object nor a YAML mapping"
        raise UndecodableMessage(message)
    return found


class JobLoader(yaml.SafeLoader):
    """YAML with JSON's scalars, and with every name once."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - filled below, of this class alone

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        """Refuse names that are no text, and those given twice."""
        seen: set[str] = set()
        for name, _ in node.value:
            if name.tag != _TEXT or name.value in seen:
                problem = "is given twice" if name.tag == _TEXT else "is no text"
                raise yaml.constructor.ConstructorError(
                    None, None, f"the name {name.value!r} {problem}", name.start_mark
                )
            seen.add(name.value)
        return super().construct_mapping(node, deep=True)


_TEXT = "tag:yaml.org,2002:str"
_SCALARS = (
    ("null", r"null|~|", ["n", "~", ""]),
    ("bool", r"true|false", ["t", "f"]),
    ("int", r"-?(?:0|[1-9][0-9]*)", list("-0123456789")),
    ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", list("-0123456789")),
)
for name, pattern, first in _SCALARS:
    JobLoader.add_implicit_resolver(  # pyright: ignore[reportUnknownMemberType]  # its stub leaves `first` open
        f"tag:yaml.org,2002:{name}", re.compile(rf"(?:{pattern})\Z"), first
    )
