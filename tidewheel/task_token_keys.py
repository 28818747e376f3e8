"""The keys of task tokens, as services read them.

Every key in the table verifies. The newest one signs, once it is old enough to be known to all services, which read the
keys with the heartbeat of their process.
"""

from typing import Final, cast

from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.redaction import protect
from tidewheel.task_tokens import TaskTokens

SIGNS_AFTER_SECONDS: Final = 60  # a process that misses more heartbeats counts as gone after 20 s

_SQL = Statements("tidewheel")
_READ_TASK_TOKEN_KEYS = _SQL["read_task_token_keys"]


def refresh(tokens: TaskTokens, connection: Conn) -> None:
    """Read the keys; after an installation or a revocation the oldest one signs, however young it is."""
    found = connection.execute(_READ_TASK_TOKEN_KEYS, binary=True).fetchall()
    rows = cast("list[tuple[bytes, float]]", found)
    signing = next((number for number, (_, age) in enumerate(rows) if age >= SIGNS_AFTER_SECONDS), len(rows) - 1)
    secrets = [bytes(secret) for secret, _ in rows]
    protect(*(secret.hex() for secret in secrets))
    tokens.use([*secrets[signing:], *secrets[:signing]])
