"""Encode many records that differ in a few values by joining the pieces of one.

Encode one record with a placeholder in place of each value that varies, and split the bytes at the placeholders. The
pieces are then joined with the encoded values of each record, which costs much less than encoding it: runs that end
together and jobs that are created together share most of their bytes.
"""

from uuid import uuid4

PLACEHOLDER = str(uuid4())
"""A value that no record holds, because it is random in each process; 36 characters, as ids are."""


def split_at(encoded: bytes, *placeholders: bytes) -> list[bytes]:
    """Split encoded bytes at each placeholder, in their order; return one piece more than placeholders.

    Give a placeholder as it is encoded, with its length if its format writes one: its value may differ in length.

    >>> split_at(b"id=**;run=**;end", b"**", b"**")
    [b'id=', b';run=', b';end']
    """
    pieces: list[bytes] = []
    rest = encoded
    for placeholder in placeholders:
        piece, found, rest = rest.partition(placeholder)
        if not found:
            message = f"the encoded record has no placeholder {placeholder!r}"
            raise ValueError(message)
        pieces.append(piece)
    if any(placeholder in rest for placeholder in placeholders):
        message = "the encoded record has a placeholder more than it is split at"
        raise ValueError(message)
    return [*pieces, rest]
