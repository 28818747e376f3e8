"""The audit log: changes and operations with their actor, written in the transaction of the change.

Accepted triggers, unchanged submits and the reports of attempts are not recorded. A key is the one actor that Tidewheel
verifies, beside the role of a session in PostgreSQL. A person that a sender names is stored beside the actor.

Refusals and batches that repeat within a minute are counted in one row, so that a client in a loop does not fill the
log. The row has the first request's id and reason, and the coordinates of the first message.
"""

import os
import pwd
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import TypeAlias, cast

from tidewheel.postgres.pg_binary import NULL, columns, copy_rows, int4, int8, text
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_COUNT_REPEATS = Statements("tidewheel")["count_repeats"]

ALL_TENANTS = "*"
"""In the place of a tenant: a key of all tenants, or a change of the whole installation."""

ACTOR_HEADER = "tidewheel-actor"
"""Header of a message or of an HTTP request: the name of a person, which nothing verifies."""

ACCEPTED = "accepted"
"""Result of a change that was made."""

MAX_NAME = 255

MAX_OBJECT = 300
"""Characters of an object, which an index has: the labels of a freeze may be longer, and are cut off."""

_COLUMNS = """tenant, door, actor_kind, actor, named, key_id, action, object, request_id, version_before, version_after,
objects, result"""
_COPY = f"COPY audit_log ({_COLUMNS}) FROM STDIN (FORMAT BINARY)"
# Changes without a reason are recorded on the schema of 0.1.0 too, as by a client that is upgraded before `migrate`.
_COPY_REASONS = f"COPY audit_log ({_COLUMNS}, reason) FROM STDIN (FORMAT BINARY)"


class Door(StrEnum):
    """The way by which a change came."""

    REST = "rest"
    KAFKA = "kafka"
    CLI = "cli"
    CLIENT = "client"
    CONSOLE = "console"


class ActorKind(StrEnum):
    """The kind of an actor's name."""

    KEY = "key"
    """The name of an API key, whose secret was shown."""
    LOCAL = "local"
    """A client on the machine of an API that has no token; its address."""
    USER = "user"
    """The user of the operating system, as the process reports it."""
    MESSAGE = "message"
    """The coordinates of a message."""
    ROLE = "role"
    """The role of a session in PostgreSQL."""
    SYSTEM = "system"
    """Tidewheel itself, by a rule of a job, as its request on the topic reports it."""

    @property
    def is_verified(self) -> bool:
        """True if Tidewheel or PostgreSQL has verified the actor."""
        return self in {ActorKind.KEY, ActorKind.ROLE}


@dataclass(frozen=True, slots=True)
class Actor:
    """The origin of a change.

    Args:
        name: The name of the key or the user, or the coordinates of the message.
        tenant: The one tenant that an API key opens; None for an actor with the rights of all.
    """

    door: Door
    kind: ActorKind
    name: str
    named: str | None = None
    key_id: str | None = None
    tenant: str | None = None

    @property
    def words(self) -> str:
        """The actor and the door, for people.

        >>> Actor(Door.CLI, ActorKind.USER, "root").words, Actor(Door.REST, ActorKind.KEY, "ci", "anna").words
        ('root (cli)', 'anna, with ci (rest)')
        """
        return f"{self.named}, with {self.name} ({self.door})" if self.named else f"{self.name} ({self.door})"


@dataclass(frozen=True, slots=True)
class Change:
    """A change, or its refusal.

    Args:
        tenant: Its tenant; `*` for the whole installation.
        action: The type of the request, such as `job.submit`.
        object: The object, such as `job/nightly`.
        before: The version of the job before.
        after: The version of the job after.
        objects: The number of objects that a batch has changed, or of refusals.
        result: `accepted`, or the code of the refusal.
        adds_up: True for a later batch of several: it is counted in the last row of its actor, action and object, if
            that is of the last minute, as refusals are.
    """

    tenant: str
    action: str
    object: str
    request_id: str | None = None
    before: int | None = None
    after: int | None = None
    objects: int = 1
    result: str = ACCEPTED
    adds_up: bool = False
    reason: str | None = None


@cache
def process_actor(door: Door = Door.CLIENT) -> Actor:
    """Return the user of this process as actor."""
    return Actor(door, ActorKind.USER, process_user() or f"uid {os.getuid()}")


def process_user() -> str | None:
    """Return the name of the user of this process; None where the system has no name for it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run under a user id without a name
        return None


def person(given: str | bytes | None) -> str | None:
    r"""Return the name of a person in a header, or None: a name of other characters is left out.

    >>> person(b"anna"), person(""), person("a\nb")
    ('anna', None, None)
    """
    name = given.decode("utf-8", "replace") if isinstance(given, bytes) else given
    name = (name or "").strip()
    return name[:MAX_NAME] if name.isprintable() and name else None


def record(connection: Conn, changes: Iterable[tuple[Actor, Change]]) -> None:
    """Append changes to the audit log, in the caller's transaction; no change is no statement."""
    new: list[tuple[Actor, Change]] = []
    repeatable: dict[_Same, tuple[Actor, Change]] = {}
    for actor, change in changes:
        if change.result == ACCEPTED and not change.adds_up:
            new.append((actor, change))
            continue
        same = _same(actor, change)
        first = repeatable.get(same, (actor, replace(change, objects=0)))
        repeatable[same] = (first[0], replace(first[1], objects=first[1].objects + change.objects))
    if repeatable:
        new += _count_repeats(connection, repeatable)
    if new:
        has_reason = any(change.reason for _, change in new)
        rows = [_row(actor, change, has_reason=has_reason) for actor, change in new]
        copy_rows(connection, _COPY_REASONS if has_reason else _COPY, rows)


def record_change(connection: Conn, actor: Actor, change: Change) -> None:
    """Append one change; see `record`."""
    record(connection, [(actor, change)])


_Same: TypeAlias = tuple[str | None, ...]


def _same(actor: Actor, change: Change) -> _Same:
    """Return what repeats have in common; each message has coordinates of its own."""
    name = None if actor.kind is ActorKind.MESSAGE else actor.name
    found = (actor.door, actor.kind, name, actor.named, actor.key_id)
    return (change.tenant, change.object[:MAX_OBJECT], change.action, change.result, *found)


def _count_repeats(connection: Conn, changes: Mapping[_Same, tuple[Actor, Change]]) -> Iterable[tuple[Actor, Change]]:
    """Count changes in their rows of the last minute; return those without one."""
    names = ("tenants", "changed", "actions", "results", "doors", "kinds", "actors", "named", "key_ids")
    values: dict[str, object] = dict(zip(names, map(list, zip(*changes, strict=True)), strict=True))
    values["objects"] = [change.objects for _, change in changes.values()]
    rows = connection.execute(_COUNT_REPEATS, values, binary=True).fetchall()
    counted = {cast("int", number) for (number,) in rows}
    return (each for number, each in enumerate(changes.values(), 1) if number not in counted)


def _row(actor: Actor, change: Change, *, has_reason: bool) -> bytes:
    return b"".join(
        (
            columns(13 + has_reason),
            text(change.tenant), text(actor.door), text(actor.kind), text(actor.name), text(actor.named),
            text(actor.key_id), text(change.action), text(change.object[:MAX_OBJECT]), text(change.request_id),
            _version(change.before), _version(change.after), int8(change.objects), text(change.result),
            text(change.reason) if has_reason else b"",
        )
    )  # fmt: skip


def _version(number: int | None) -> bytes:
    return NULL if number is None else int4(number)
