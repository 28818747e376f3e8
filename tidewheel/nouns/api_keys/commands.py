"""`tidewheel admin api-key …`: flags and texts that their declarations lack."""

from datetime import timedelta
from functools import partial
from typing import Annotated

import typer

from tidewheel.control.cli.options import read_duration, reading
from tidewheel.control.cli.output import Output, Shown, Table, changed, print_document, wrapped
from tidewheel.control.cli.parser import option
from tidewheel.control.cli.tables import Cell
from tidewheel.control.reads.fleet import Service, read_services
from tidewheel.doors.cli import Flag, command
from tidewheel.nouns.api_keys.operations import ApiKeys, ApiKeySummary, NewApiKey
from tidewheel.settings.services import NOT_SET


def _lifetime(text: str) -> timedelta | None:
    return None if text == "never" else read_duration(text, "--expires")


def _show_new(shown: Shown) -> None:
    """Print the key alone on standard output, and beside it the services that need none."""
    made: NewApiKey = shown.found
    with reading() as connection:
        unlocked = [each.name for each in read_services(connection) if _needs_no_key(each)]
    for api in unlocked:
        note = "callers on its machine need no key and have all rights"
        typer.echo(wrapped(f"note: {api} runs without TIDEWHEEL_API_TOKEN: {note}", "  "), err=True)
    if shown.output is not Output.TEXT:
        print_document(made, shown.output)
        return
    typer.echo(made.key)
    typer.echo(
        f"the key is not shown again; `tidewheel admin api-key revoke {made.summary.key_id}` revokes it", err=True
    )


def _needs_no_key(service: Service) -> bool:
    return service.role == "api" and not service.is_silent and (service.settings or {}).get("api_token") == NOT_SET


def _row(key: ApiKeySummary) -> tuple[Cell, ...]:
    scopes = " ".join([*key.scopes, *(f"queue={queue}" for queue in key.queues or ())])
    used, expires = key.last_used_at or "never", key.expires_at or "never"
    return key.key_id, key.name, key.tenant, scopes, key.created_at, expires, used, key.revoked_at or ""


_SCOPE = option("SCOPE", "A right: read, write, operate, admin (includes these), or execute; repeatable.", "--scope")
_EXPIRES = option("DURATION", "Lifetime, such as 90d; `never` for a key that never expires.", "--expires")
_QUEUE = option("QUEUE", "With execute: a queue that its executors may serve; by default all; repeatable.", "--queue")
_RATE = option("N", "Requests per second, instead of TIDEWHEEL_API_KEY_RATE.")
_CREATE = {
    "name": Flag(metavar="NAME"),
    "scopes": Flag(kind=Annotated[list[str], _SCOPE]),
    "lifetime": Flag(kind=Annotated[str, _EXPIRES], default="365d", read=_lifetime),
    "rate": Flag(kind=Annotated[float | None, _RATE]),
    "queues": Flag(kind=Annotated[list[str] | None, _QUEUE]),
    "all_tenants": Flag(help="Create a key for all tenants."),
}
_KEYS = Table("key", ("id", "name", "tenant", "scopes", "created", "expires", "last used", "revoked"), _row)

create = command(
    ApiKeys, "create", _show_new, flags=_CREATE,
    prepare=lambda arguments, _: arguments.update(queues=arguments["queues"] or ()),
)  # fmt: skip
list_keys = command(
    ApiKeys, "list", partial(_KEYS.show, nothing="no keys"),
    flags={"all_tenants": Flag(help="List the keys of every tenant.")},
)  # fmt: skip
revoke = command(
    ApiKeys, "revoke", changed("key", "revoked", "the key was already revoked"),
    flags={"key_id": Flag(metavar="ID", help="The key's id, the part after tw_."), "tenant": None},
    prepare=lambda arguments, _: arguments.update(all_tenants=True),
)  # fmt: skip
