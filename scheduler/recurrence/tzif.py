"""Reads one compiled zone file: when its offset changes, to what, and the rule that holds after its last entry.

Source: RFC 9636 "The Time Zone Information Format (TZif)", section 3. Version 1 files (32-bit times only) are not
read: the tzdata package has held none since 2020.
"""

import struct
from dataclasses import dataclass

_HEADER = struct.Struct(">4sc15x6L")  # section 3.1: magic, version, six counts
_TYPE = struct.Struct(">lBB")  # section 3.2: offset in seconds, is daylight time, index of its abbreviation


@dataclass(frozen=True, slots=True)
class ZoneFile:
    """The second data block of a file.

    Args:
        transitions: Instants of change, seconds since 1970-01-01 UTC, ascending.
        offsets: Seconds east of UTC; one more than transitions: the first holds before all of them.
        abbreviations: Such as ``CEST``, one beside each offset.
        footer: The POSIX TZ string for what comes after the last transition; empty when there is none.
    """

    transitions: tuple[int, ...]
    offsets: tuple[int, ...]
    abbreviations: tuple[str, ...]
    footer: str


def read_zone_file(data: bytes) -> ZoneFile:
    """The transitions, offsets and footer of one TZif file.

    Raises:
        ValueError: These bytes are no TZif file of version 2 or later.
    """
    start = _second_block(data)
    _, _, is_ut, is_std, leaps, times, types, chars = _HEADER.unpack_from(data, start)
    at = start + _HEADER.size
    transitions = struct.unpack_from(f">{times}q", data, at)
    at += 8 * times
    used = (0, *data[at : at + times])  # section 3.2: type 0 holds before the first transition
    at += times
    kinds = [_TYPE.unpack_from(data, at + _TYPE.size * index) for index in range(types)]
    at += _TYPE.size * types
    names = data[at : at + chars]
    at += chars + 12 * leaps + is_std + is_ut
    return ZoneFile(
        transitions=transitions,
        offsets=tuple(kinds[index][0] for index in used),
        abbreviations=tuple(_text_at(names, kinds[index][2]) for index in used),
        footer=data[at:].strip(b"\n").decode("ascii"),
    )


def _second_block(data: bytes) -> int:
    magic, version, is_ut, is_std, leaps, times, types, chars = _HEADER.unpack_from(data)
    if magic != b"TZif" or version < b"2":
        problem = "not a TZif file of version 2 or later"
        raise ValueError(problem)
    return int(_HEADER.size + 5 * times + _TYPE.size * types + chars + 8 * leaps + is_std + is_ut)


def _text_at(names: bytes, index: int) -> str:
    return names[index : names.index(b"\0", index)].decode("ascii")
