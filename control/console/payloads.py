"""Payloads as text: JSON as a tree that folds, numbers as their text, bytes as digits and characters."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from markupsafe import Markup

from tidewheel.control.console.words import boxed, counted

_DEPTH = 2  # deeper parts are folded
_LINES = 40  # longer parts are folded
_NODES = 2_000  # more are shown as text
_LONGEST = 2_000  # characters of a text that is not folded
_PER_LINE = 16
_SHOWN = 4096  # bytes of one message in a page
_NUMBER = re.compile(r'"\\u0000(-?[0-9][0-9.eE+-]*)"')


class _Number(str):
    __slots__ = ()


class _Object(list[tuple[str, object]]):
    """The members of an object, in their order, also those of one name."""


@dataclass(frozen=True, slots=True)
class _Part:
    markup: Markup
    lines: int


def json_view(content: bytes, member: str | None = None) -> Markup | None:
    """Return the tree of a JSON text or of one member; None if it is none, or too large to be a tree."""
    try:
        value: object = json.loads(content, parse_float=_Number, parse_int=_Number, object_pairs_hook=_Object)
        value = value if member is None else dict(_members(value))[member]
        if _nodes(value) > _NODES:
            return None
        return Markup('<div class="json">{}</div>').format(_part(None, value, 0, "").markup)
    except (KeyError, ValueError, RecursionError):
        return None


def pretty(value: object) -> str:
    r"""Return JSON text indented; bytes that are no JSON as text, else as hexadecimal digits.

    Numbers stay the text that they were: a float would lose digits.

    >>> print(pretty(b'{"amount": 120.10}'))
    {
      "amount": 120.10
    }
    """
    if not isinstance(value, bytes):
        return json.dumps(value, ensure_ascii=False, indent=2)
    try:
        text = json.dumps(json.loads(value, parse_float=lambda text: f"\0{text}"), ensure_ascii=False, indent=2)
        return _NUMBER.sub(r"\1", text)
    except (ValueError, RecursionError):
        return text_of(value)


def text_of(value: bytes) -> str:
    """Return bytes as text, else their first 4 KiB as hexadecimal digits with characters."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        found = dump(value)
        rows = zip(found.hexadecimal.splitlines(), found.text.splitlines(), strict=True)
        return "\n".join(f"{digits:54} {text}" for digits, text in rows)


class Dump(NamedTuple):
    """Bytes as offset and digits, and as characters of ASCII or dots; `more` bytes are left out."""

    hexadecimal: str
    text: str
    more: int


def dump(content: bytes) -> Dump:
    r"""Return the first 4 KiB of some bytes.

    >>> dump(b"\xff{\"a\"}\n")
    Dump(hexadecimal='0000  ff 7b 22 61 22 7d 0a', text='.{"a"}.', more=0)
    """
    starts = range(0, min(len(content), _SHOWN), _PER_LINE)
    lines = [(start, content[start : start + _PER_LINE]) for start in starts]
    digits = "\n".join(f"{start:04x}  {line.hex(' ')}" for start, line in lines)
    text = "\n".join("".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in line) for _, line in lines)
    return Dump(digits, text, max(len(content) - _SHOWN, 0))


def _nodes(value: object) -> int:
    """Return the number of values, of more than `_NODES` perhaps not all."""
    left, count = [value], 0
    while left and count <= _NODES:
        each = left.pop()
        count += 1
        left += [member for _, member in _members(each)]
    return count


def _part(name: str | None, value: object, depth: int, end: str) -> _Part:
    key = Markup("") if name is None else Markup('<span class="json-key">{}</span>: ').format(_text(name))
    members = _members(value)
    if not members:
        return _Part(Markup('<div class="entry">{}{}{}</div>').format(key, _scalar(value), end), 1)
    is_object = isinstance(value, _Object)
    last = len(members) - 1
    inner = [_part(each, member, depth + 1, "" if at == last else ",") for at, (each, member) in enumerate(members)]
    lines = sum(each.lines for each in inner) + 2
    left, right = ("{", "}") if is_object else ("[", "]")
    is_open = depth < _DEPTH and (lines <= _LINES or not depth)
    made = Markup(
        '<details{}><summary>{}{}<span class="caption"> {}</span></summary>{}</details><div class="entry">{}{}</div>'
    ).format(
        Markup(" open") if is_open else "", key, left, counted(len(members), "field" if is_object else "item"),
        Markup("").join(each.markup for each in inner), right, end,
    )  # fmt: skip
    return _Part(made, lines)


def _members(value: object) -> list[tuple[str | None, object]]:
    """Return the members of an object by name, and those of a list without; none of other values."""
    if isinstance(value, _Object):
        return [*value]
    return [(None, each) for each in cast("list[object]", value)] if isinstance(value, list) else []


def _scalar(value: object) -> Markup:
    match value:
        case _Number():
            return Markup('<span class="json-number">{}</span>').format(str(value))
        case str():
            shown = _text(value)
            if len(value) > _LONGEST:
                head, rest = boxed(value[:_LONGEST], kept=""), boxed(value[_LONGEST:], kept="")
                more = f"+ {len(value) - _LONGEST:,} characters"
                shown = Markup('"{}<details class="more"><summary>{}</summary>{}"</details>').format(head, more, rest)
            return Markup('<span class="json-string">{}</span>').format(shown)
        case list():
            return Markup("{}") if isinstance(value, _Object) else Markup("[]")
        case _:
            return Markup('<span class="json-null">{}</span>').format(json.dumps(value))


def _text(value: str) -> Markup:
    return boxed(json.dumps(value, ensure_ascii=False), kept="")


FILTERS: Mapping[str, Callable[..., Any]] = {"json_view": json_view, "pretty": pretty, "text_of": text_of}
"""The filters of templates."""
