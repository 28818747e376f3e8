"""`tidewheel admin api-key …` and `secrets rotate`: keys of the HTTP API, and of what services sign."""

from typing import Annotated

import typer

from tidewheel.audit import ALL_TENANTS, Change, Door, process_actor, record_change
from tidewheel.control.cli.options import DEFAULT_TENANT, Limit, Tenant, reading, requesting
from tidewheel.control.cli.output import Output, OutputOption, print_document, print_result, print_table, wrapped
from tidewheel.control.cli.tables import Cell
from tidewheel.control.reads.api_keys import ApiKeySummary, list_api_keys
from tidewheel.control.reads.status import Service, read_services
from tidewheel.control.rotation import ROTATIONS
from tidewheel.errors import refuse
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import parse_duration
from tidewheel.postgres.session import connect
from tidewheel.settings.connections import Connections
from tidewheel.settings.services import NOT_SET

Name = Annotated[str, typer.Argument(metavar="NAME", help="Shown in lists and in the audit log.")]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="The key's id, the part after tw_.")]
AllTenants = Annotated[bool, typer.Option("--all-tenants", help="A key of all tenants.")]

Revoke = Annotated[
    bool, typer.Option("--revoke", help="A key has become known: make all but the new one invalid at once.")
]


def create(
    name: Name,
    *,
    scope: Annotated[
        list[str],
        typer.Option(
            metavar="SCOPE", help="A right: read, write, operate, admin, which has these; or execute; repeatable."
        ),
    ],
    expires: Annotated[
        str, typer.Option(metavar="DURATION", help="Lifetime, such as 90d; `never` for a key that does not expire.")
    ] = "365d",
    rate: Annotated[
        float | None, typer.Option(metavar="N", help="Requests a second, instead of TIDEWHEEL_API_KEY_RATE.")
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(metavar="QUEUE", help="With execute: a queue of its executors, by default all; repeatable."),
    ] = None,
    all_tenants: AllTenants = False,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create a key of the HTTP API, and print it once.

    Clients send it as Authorization: Bearer. Only a digest of it is stored: a lost key is revoked and replaced.
    """
    try:
        lifetime = None if expires == "never" else parse_duration(expires)
    except InvalidValue as error:
        refuse("--expires", error.errors[0].problem, error.errors[0].remedy)
    with requesting(tenant) as client:
        made = client.api_keys.create(
            name, scope, all_tenants=all_tenants, lifetime=lifetime, rate=rate, queues=queue or ()
        )
    with reading() as connection:
        unlocked = [each.name for each in read_services(connection) if _needs_no_key(each)]
    for api in unlocked:
        note = "it needs no key, and callers on its machine have every right"
        typer.echo(wrapped(f"note: {api} runs without TIDEWHEEL_API_TOKEN: {note}", "  "), err=True)
    if output is not Output.TEXT:
        print_document(made, output)
        return
    typer.echo(made.key)
    typer.echo(f"the key is not shown again; `tidewheel admin api-key revoke {made.summary.key_id}` ends it", err=True)


def _needs_no_key(service: Service) -> bool:
    return service.role == "api" and not service.is_silent and (service.settings or {}).get("api_token") == NOT_SET


def list_keys(
    *,
    number: Limit = 50,
    all_tenants: Annotated[bool, typer.Option("--all-tenants", help="The keys of every tenant.")] = False,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """List keys, the newest first, each with its last use."""
    with reading() as connection:
        found = list_api_keys(connection, None if all_tenants else tenant, limit=number).keys
    if output is not Output.TEXT:
        print_document({"keys": found}, output)
    elif found:
        print_table(("id", "name", "tenant", "scopes", "created", "expires", "last used", "revoked"), map(_row, found))
    else:
        typer.echo("no keys")


def revoke(key_id: KeyId, output: OutputOption = Output.TEXT) -> None:
    """Revoke a key of any tenant; it opens nothing from the next second on."""
    with requesting(DEFAULT_TENANT) as client:
        changed = client.api_keys.revoke(key_id, all_tenants=True)
    print_result(
        ["revoked" if changed else "unchanged: the key was revoked already"], {"unchanged": not changed}, output
    )


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


def _row(key: ApiKeySummary) -> tuple[Cell, ...]:
    return (
        key.key_id,
        key.name,
        key.tenant,
        " ".join([*key.scopes, *(f"queue={queue}" for queue in key.queues or ())]),
        key.created_at,
        key.expires_at or "never",
        key.last_used_at or "never",
        key.revoked_at or "",
    )
