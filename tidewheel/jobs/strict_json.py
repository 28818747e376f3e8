"""Read and write JSON strictly.

JSON's grammar leaves some documents ambiguous. A name given twice and a number too long to read become an
`UnreadableValue` in the value's place, so that the model refuses that field under its path. NaN and Infinity are read
as such and refused likewise. Writing is compact UTF-8, the form in which payloads are stored and delivered.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from json.encoder import c_make_encoder, encode_basestring  # type: ignore[attr-defined]  # CPython has it
from typing import TypeAlias, cast

from pydantic_core import to_json

from tidewheel.errors import UndecodableMessage
from tidewheel.jobs.invalid import InvalidValue, UnreadableValue

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

MAX_DOCUMENT_BYTES = 1 << 20  # Kafka's default max.message.bytes
MAX_DEPTH = 32  # no real payload is deeper; bounds the recursion of every later reader
MAX_CONTAINERS = 32_768  # a payload of 256 KiB holds more only at under 8 bytes each; 350,000 took 120 ms to read

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|$)', re.DOTALL)  # one pass, also where the last one has no end
_BRACKETS = b"[]{}"
_OTHERS = bytes(byte for byte in range(256) if byte not in _BRACKETS)
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def read_object(data: bytes) -> dict[str, object]:
    """Return the JSON object a message consists of, or raise UndecodableMessage."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise UndecodableMessage(f"the message has {len(data)} bytes; send at most {MAX_DOCUMENT_BYTES}")
    if _containers(data) > MAX_CONTAINERS:
        raise UndecodableMessage(f"the message has more than {MAX_CONTAINERS} arrays and objects; send fewer")
    value = _parsed(_utf8(data))
    if (found := as_object(value)) is None:
        raise UndecodableMessage(f"valid JSON, but not an object ({type(value).__name__}); write an object: {{...}}")
    return found


def read_value(data: bytes) -> object:
    """Return the JSON value that bytes are the text of, or an `UnreadableValue` if they are none."""
    try:
        return _parsed(_utf8(data))
    except UndecodableMessage as error:
        return UnreadableValue(str(error), "send JSON text, or set the content type to application/octet-stream")


def compact(value: object) -> bytes:
    """Return a JSON value as compact UTF-8 text, or raise InvalidValue."""
    try:
        text = _written(value)
        encoded = text.encode()
    except UnicodeEncodeError as error:
        problem = f"contains half of a surrogate pair ({error.object[error.start]!r}), which is not a character"
        raise InvalidValue(problem=problem, remedy="send well-formed UTF-8") from error
    except RecursionError as error:
        raise InvalidValue(problem=_TOO_DEEP, remedy="flatten it") from error
    except ValueError as error:
        raise InvalidValue(
            problem="contains NaN, Infinity or a circular reference, which JSON cannot represent", remedy="remove it"
        ) from error
    except TypeError as error:
        raise InvalidValue(problem=str(error), remedy="send only JSON values, and each name once") from error
    if "\\u0000" in text and _NUL.search(text):
        raise InvalidValue(problem="contains the NUL character", remedy="remove it, or send the bytes as base64")
    if not depth_within(encoded, MAX_DEPTH):
        raise InvalidValue(problem=_TOO_DEEP, remedy="flatten it")
    return encoded


def _written(value: object) -> str:
    try:
        return "".join(_WRITE(value, 0))
    except (RecursionError, TypeError, ValueError):
        return _COMPACT.encode(value)  # distinguishes a value that holds itself from one that is too deep


def strict_json(value: object) -> bytes:
    """Return a handler's value, which pydantic can serialize, as JSON text.

    >>> strict_json({"rows": [7, 2.5]})
    b'{"rows":[7,2.5]}'

    Raises:
        ValueError: It holds NaN or an infinite number; the message names the place. Or it holds itself, or a dict with
            two names that are one in JSON.
    """
    text = to_json(value, inf_nan_mode="constants")
    if (b"NaN" in text or b"Infinity" in text) and (found := _not_finite(json.loads(text))) is not None:
        place, number = found
        raise ValueError(f"{place or 'the value'} is {number}, which JSON cannot represent: write None or text instead")
    if type(value) in {dict, list} and (name := _lost_name(value)) is not None:
        raise ValueError(f"two names of one dict are {name!r} in JSON: make them differ as text")
    return text


def _lost_name(value: object) -> str | None:
    """Return a name that JSON gives to two members of a dict, such as 1 and "1"."""
    pending = [value]
    while pending:
        part = pending.pop()
        if not isinstance(part, dict):
            pending += as_list(part) or ()
            continue
        members = cast("dict[object, object]", part)
        pending += members.values()
        if not all(isinstance(name, str) for name in members):
            seen = set[str]()
            for name in (next(iter(json.loads(to_json({each: None})))) for each in members):
                if name in seen:
                    return str(name)
                seen.add(name)
    return None


def _not_finite(value: object) -> tuple[str, float] | None:
    """Return a number that JSON cannot hold, with its place."""
    pending = [("", value)]
    while pending:
        place, part = pending.pop()
        if isinstance(part, float) and not math.isfinite(part):
            return place, part
        if (members := as_object(part)) is not None:
            pending += [(f"{place}.{name}" if place else name, each) for name, each in members.items()]
        else:
            pending += [(f"{place}[{number}]", each) for number, each in enumerate(as_list(part) or ())]
    return None


def canonical(value: object) -> bytes:
    """Return a JSON value in the canonical form that equal values share: compact, names sorted.

    It may be compared before it is checked, so half a surrogate pair or an infinite number is no error here.
    """
    return _CANONICAL.encode(value).encode("utf-8", "surrogatepass")


def as_object(value: object) -> dict[str, object] | None:
    """Return the value if it is a dict, as JSON objects are read."""
    return cast(dict[str, object], value) if isinstance(value, dict) else None


def as_list(value: object) -> Sequence[object] | None:
    """Return the value if it is a list, as JSON arrays are read, or a tuple."""
    return cast(Sequence[object], value) if isinstance(value, list | tuple) else None


def depth_within(data: bytes, limit: int) -> bool:
    """Return True if valid JSON text nests its arrays and objects at most `limit` deep."""
    if data.count(b"[") + data.count(b"{") <= limit:
        return True
    brackets = _STRING.sub(b"", data).translate(None, _OTHERS)
    for _ in range(limit):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return not brackets


_TOO_DEEP = f"arrays and objects are nested more than {MAX_DEPTH} levels deep"


def _containers(data: bytes) -> int:
    """Count arrays and objects; exactly only where there could be too many."""
    count = data.count(b"[") + data.count(b"{")
    if count <= MAX_CONTAINERS:
        return count
    outside = _STRING.sub(b"", data)
    return outside.count(b"[") + outside.count(b"{")


def _utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        msg = f"not valid UTF-8: byte {data[error.start]:#04x} at position {error.start}"
        raise UndecodableMessage(msg) from error


def _parsed(text: str) -> object:
    try:
        return _loads(text)
    except json.JSONDecodeError as error:
        raise UndecodableMessage(f"not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise UndecodableMessage(_TOO_DEEP) from error


def _loads(text: str) -> object:
    try:
        # One decoder for all: building one per text, as `json.loads` does, takes as long as reading a short text.
        return json.loads(text) if text.startswith(_BYTE_ORDER_MARK) else _DECODER.decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # Python refuses integers of more than 4,300 digits: read again with a hook for them
        return json.loads(text, object_pairs_hook=_object, parse_int=_integer)


def _object(pairs: list[tuple[str, object]]) -> Mapping[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen and not isinstance(result[name], UnreadableValue):
                result[name] = UnreadableValue(f"{name!r} is given twice in one object")
            seen.add(name)
    return result


def _integer(digits: str) -> int | UnreadableValue:
    return (
        int(digits) if len(digits) <= 4300 else UnreadableValue(f"a number of {len(digits)} digits is too long to read")
    )


def _unwritable(value: object) -> object:
    raise TypeError(
        value.problem if isinstance(value, UnreadableValue) else f"{type(value).__name__} is not a JSON value"
    )


_BYTE_ORDER_MARK = "\ufeff"  # json.loads has a clear error for it
_DECODER = json.JSONDecoder(object_pairs_hook=_object)
_COMPACT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_unwritable)
_CANONICAL = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True)
# The encoder of `_COMPACT`, built once instead of for each value, without its check for circular values.
_WRITE = cast(
    "Callable[[object, int], tuple[str, ...]]",
    c_make_encoder(None, _unwritable, encode_basestring, None, ":", ",", False, False, False),  # noqa: FBT003
)
