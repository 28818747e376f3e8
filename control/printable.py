"""Escape control characters of stored text, which must not steer the reader's terminal."""


def printable(text: str) -> str:
    r"""Return a text of one line with its control characters escaped.

    >>> printable("a\x1b[2Jb\tc")
    'a\\x1b[2Jb\tc'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\t" else repr(char)[1:-1] for char in text)


def printable_lines(text: str) -> str:
    r"""Return a text of several lines with its control characters escaped, but line breaks.

    >>> printable_lines("a\r\nb\rc")
    'a\nb\\rc'
    """
    return text if text.isprintable() else "\n".join(map(printable, text.replace("\r\n", "\n").split("\n")))
