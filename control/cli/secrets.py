"""`tidewheel admin secrets rotate`: the keys by which services sign."""

from typing import Annotated

import typer

from tidewheel.audit import ALL_TENANTS, Change, Door, process_actor, record_change
from tidewheel.control.cli.output import Output, OutputOption, print_result
from tidewheel.control.rotation import ROTATIONS
from tidewheel.errors import refuse
from tidewheel.postgres.session import connect
from tidewheel.settings.connections import Connections

Revoke = Annotated[
    bool, typer.Option("--revoke", help="A key has become known: make all but the new one invalid at once.")
]


def rotate(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"{' or '.join(ROTATIONS)}.")],
    revoke: Revoke = False,  # noqa: FBT002 - a flag
    output: OutputOption = Output.TEXT,
) -> None:
    """Add a key that signs run messages or task tokens, and delete all but the one before.

    The database has the keys, and services read a new one within seconds: nothing has to be restarted. Rotate them as
    often as your rules for passwords require.

    run-messages: relays sign each message that brings a run to executors, so that no other client of Kafka starts a
    run. Messages of the key before stay valid until the next rotation. With --revoke executors leave them, and read
    their runs from the database some seconds later: no run is lost.

    task-tokens: the holder of an attempt's token may report its end from outside. Tokens of the key before stay
    valid until the next rotation, which is refused while an attempt with such a token is open. With --revoke those
    attempts end by their timeouts.
    """
    if name not in ROTATIONS:
        refuse("NAME", f"{name!r} is no secret that is rotated", f"write {' or '.join(ROTATIONS)}")
    work, signs_after_seconds = ROTATIONS[name]
    with connect(Connections.load().database(), "tidewheel-secrets") as connection:
        key_id = work(connection, revoke=revoke)
        change = Change(ALL_TENANTS, "secret.rotate", f"secret/{name}/{key_id}")
        record_change(connection, process_actor(Door.CLI), change)
    signs = "at once" if revoke else f"in {signs_after_seconds} s"
    others = "all other keys are deleted" if revoke else "the key before stays valid"
    print_result([f"added key {key_id}, which signs {signs}; {others}"], {"key_id": key_id}, output)


def rotate_key(revoke: Revoke = False, output: OutputOption = Output.TEXT) -> None:  # noqa: FBT002 - a flag
    """Add a key that signs run messages: the older name of `secrets rotate run-messages`."""
    rotate("run-messages", revoke=revoke, output=output)
