"""Task tokens: the right to report the end or a heartbeat of one attempt from outside.

A token names its run and attempt and is signed with a key of the installation. Nothing is stored when one is issued.
The fence rejects a stale token like every other report of an old attempt. `task_token_keys.py` reads the keys.
"""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from hashlib import sha256
from uuid import UUID

from tidewheel.errors import Unavailable
from tidewheel.ids import RunId

# A header of an HTTP request, of a message to a topic and of the reply to it.
TASK_TOKEN_HEADER = "tidewheel-task-token"  # noqa: S105 - the name of a header

_SIGNED_BYTES = 16 + 4  # run_id, attempt
_SIGNATURE_BYTES = 16  # 128 bits cannot be guessed, and the token stays short


class TaskTokens:
    """The tokens of an installation as one process signs and reads them; thread-safe.

    Args:
        keys: Every key that verifies, the one that signs first; none in a process that has nothing to do with tokens.
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._keys = tuple(keys)

    def use(self, keys: Sequence[bytes]) -> None:
        """Use other keys from now on."""
        self._keys = tuple(keys)  # replaced, never changed: other threads read it

    def sign(self, run_id: UUID, attempt: int) -> str:
        """Return the token of an attempt; Unavailable if the database has no key."""
        if not self._keys:
            message = "the database has no key that signs task tokens; run `tidewheel admin secrets rotate task-tokens`"
            raise Unavailable(message)
        return task_token(self._keys[0], run_id, attempt)

    def read(self, token: str) -> tuple[RunId, int] | None:
        """Return the run and the attempt of a token; None if it is not a token of this installation."""
        found = (read_task_token(key, token) for key in self._keys)
        return next((named for named in found if named is not None), None)


def task_token(key: bytes, run_id: UUID, attempt: int) -> str:
    """Return the token of an attempt: 48 characters of letters, digits, `-` and `_`.

    >>> task_token(b"k", UUID(int=1), 1)
    'AAAAAAAAAAAAAAAAAAAAAQAAAAGoxelH1pfNpRQwtQzrMUWq'
    """
    signed = run_id.bytes + attempt.to_bytes(4)
    return urlsafe_b64encode(signed + _signature(key, signed)).decode()


def read_task_token(key: bytes, token: str) -> tuple[RunId, int] | None:
    """Return the run and the attempt of a token; None if it is not a token of this installation.

    >>> read_task_token(b"k", task_token(b"k", UUID(int=1), 1))
    (UUID('00000000-0000-0000-0000-000000000001'), 1)
    >>> read_task_token(b"other", task_token(b"k", UUID(int=1), 1)) is None
    True
    """
    try:
        read = urlsafe_b64decode(token.encode("ascii"))
        run_id = RunId(UUID(bytes=read[:16]))
    except ValueError:
        return None
    attempt = int.from_bytes(read[16:_SIGNED_BYTES])
    # Compares the whole text: decoding ignores padding and other characters.
    return (run_id, attempt) if hmac.compare_digest(token, task_token(key, run_id, attempt)) else None


def _signature(key: bytes, signed: bytes) -> bytes:
    return hmac.digest(key, signed, sha256)[:_SIGNATURE_BYTES]
