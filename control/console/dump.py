"""Bytes as hexadecimal digits and text, side by side."""

from typing import NamedTuple

_PER_LINE = 16
_SHOWN = 4096  # bytes of one message in a page


class Dump(NamedTuple):
    """Bytes in two columns of equal lines.

    Args:
        hexadecimal: Offset and digits of each line.
        text: Its characters of ASCII, and a dot for each other byte.
        more: How many bytes are not shown.
    """

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
    return Dump(digits, "\n".join(map(_text, (line for _, line in lines))), max(len(content) - _SHOWN, 0))


def _text(line: bytes) -> str:
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in line)
