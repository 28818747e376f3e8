"""Rotate the secrets that services share: the keys of run messages and those of task tokens.

Each has a table whose keys all verify, and whose newest key signs once services know it. A rotation keeps the key
before the newest, so nothing on its way is refused. Only this module writes these tables, as the owner of the tables:
services read them.
"""

from collections.abc import Callable, Mapping
from typing import Final, cast

from tidewheel import message_signatures, task_token_keys
from tidewheel.errors import SettingsError
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

MIN_ROTATION_SECONDS: Final = 60  # until then messages and tokens of the key before the newest may be unread

_SQL = Statements("tidewheel.control")
_LOCK_MESSAGE_KEYS = _SQL["lock_message_keys"]
_READ_MESSAGE_KEY_AGE = _SQL["read_message_key_age"]
_ADD_MESSAGE_KEY = _SQL["add_message_key"]
_DELETE_MESSAGE_KEYS = _SQL["delete_message_keys"]
_LOCK_TASK_TOKEN_KEYS = _SQL["lock_task_token_keys"]
_READ_TASK_TOKEN_KEY_AGES = _SQL["read_task_token_key_ages"]
_COUNT_ATTEMPTS_OF_OLD_KEYS = _SQL["count_attempts_of_old_keys"]
_ADD_TASK_TOKEN_KEY = _SQL["add_task_token_key"]
_DELETE_TASK_TOKEN_KEYS = _SQL["delete_task_token_keys"]
_REPLACE_READABLE_KEY = _SQL["replace_readable_key"]


def rotate_message_keys(connection: Conn, *, revoke: bool = False) -> int:
    """Add a key of run messages, and delete those that no longer verify; in the caller's transaction.

    Args:
        connection: The other keys stay locked until the transaction ends.
        revoke: Delete every other key, such as when one has become known. Else the newest of them stays.

    Raises:
        SettingsError: The newest key is too young: messages of the one before it may be unread.
    """
    connection.execute(_LOCK_MESSAGE_KEYS)
    newest = connection.execute(_READ_MESSAGE_KEY_AGE, binary=True).fetchone()
    if newest is not None and not revoke:
        _ensure_old(cast("float", newest[0]), "messages of the one before may be unread")
    added = cast("tuple[int]", connection.execute(_ADD_MESSAGE_KEY, binary=True).fetchone())
    connection.execute(_DELETE_MESSAGE_KEYS, {"kept": 1 if revoke else 2})
    return added[0]


def rotate_task_tokens(connection: Conn, *, revoke: bool = False) -> int:
    """Add a key of task tokens, and delete those before the newest; in the caller's transaction.

    Args:
        connection: The other keys stay locked until the transaction ends.
        revoke: Delete every other key, such as when one has become known: attempts that wait for a report end by their
            timeouts. Else the newest of them stays until the next rotation.

    Raises:
        SettingsError: The newest key is too young, or open attempts have tokens of a key that would go.
    """
    connection.execute(_LOCK_TASK_TOKEN_KEYS)
    rows = connection.execute(_READ_TASK_TOKEN_KEY_AGES, binary=True).fetchall()
    ages = [age for (age,) in cast("list[tuple[float]]", rows)]
    if ages and not revoke:
        _ensure_old(ages[0], "services still sign with the one before")
        if len(ages) > 1:
            _ensure_none_is_lost(connection)
    added = cast("tuple[int]", connection.execute(_ADD_TASK_TOKEN_KEY, binary=True).fetchone())
    connection.execute(_DELETE_TASK_TOKEN_KEYS, {"kept": 1 if revoke else 2})
    connection.execute(_REPLACE_READABLE_KEY)
    return added[0]


ROTATIONS: Mapping[str, tuple[Callable[..., int], int]] = {
    "run-messages": (rotate_message_keys, message_signatures.SIGNS_AFTER_SECONDS),
    "task-tokens": (rotate_task_tokens, task_token_keys.SIGNS_AFTER_SECONDS),
}
"""The secrets by name: how each is rotated, and the seconds after which its new key signs."""


def _ensure_old(age: float, why: str) -> None:
    if age < MIN_ROTATION_SECONDS:
        message = (
            f"the newest key is {age:.0f} s old, and {why}: rotate again in {MIN_ROTATION_SECONDS - age:.0f} s, or"
            " revoke all other keys at once with --revoke"
        )
        raise SettingsError(message)


def _ensure_none_is_lost(connection: Conn) -> None:
    columns = {"signs_after": task_token_keys.SIGNS_AFTER_SECONDS}
    row = connection.execute(_COUNT_ATTEMPTS_OF_OLD_KEYS, columns, binary=True).fetchone()
    [count] = cast("tuple[int]", row)
    if count:
        message = (
            f"{count} open attempts may have a task token of the key that this rotation deletes: rotate when they are"
            " over, or revoke all other keys at once with --revoke; attempts that wait then end by their timeouts"
        )
        raise SettingsError(message)
