"""`tidewheel env` and `tidewheel admin psql`: the addresses of the installation, for other programs.

Passwords stay in files of mode 0600 that the printed text names. Only `--secrets` prints them.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidewheel.control.cli.dev import Home
from tidewheel.control.cli.parser import argument, switch
from tidewheel.distribution import is_installed
from tidewheel.errors import NotRunning
from tidewheel.redaction import is_secret

if TYPE_CHECKING:
    from tidewheel.local.stack import StackInfo

_LOGIN = "org.apache.kafka.common.security"


class Format(StrEnum):
    """Form in which the addresses are printed."""

    SHELL = "shell"
    KAFKA = "kafka"
    JAVA = "java"


@dataclass(frozen=True, slots=True)
class _Reached:
    """The addresses of an installation, with passwords if they have any."""

    database_url: str
    kafka: Mapping[str, str]
    stack: "StackInfo | None"


def env(
    home: Home = None,
    form: Annotated[
        Format,
        switch(
            "shell: variables; kafka: properties of librdkafka and kcat; java: those of Kafka's own clients.",
            "--format",
        ),
    ] = Format.SHELL,
    secrets: Annotated[bool, switch("Print passwords too.", "--secrets")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Print what a shell, a Kafka client or psql needs: eval "$(tidewheel env)".

    Without --secrets, the output names the files with the passwords, or omits passwords with a note on standard error.
    """
    reached = _reach(home)
    if secrets and sys.stdout.isatty():
        typer.echo("tidewheel: warning: printing passwords to a terminal", err=True)
    url = reached.database_url if secrets else _without_password(reached.database_url)
    kafka = {name: value for name, value in reached.kafka.items() if secrets or not is_secret(name)}
    match form:
        case Format.SHELL:
            variables = _variables(reached, url, kafka, secrets=secrets)
            lines = [f"export {name}={shlex.quote(value)}" for name, value in variables]
        case Format.KAFKA:
            lines = [f"{name}={value}" for name, value in kafka.items()]
        case Format.JAVA:
            lines = [f"{name}={value}" for name, value in _java(reached.kafka, secrets=secrets)]
    typer.echo("\n".join(lines))
    _note_omissions(reached, form, url, kafka, secrets=secrets)


def psql(
    arguments: Annotated[list[str] | None, argument("ARGUMENTS...", "Passed to psql.")] = None,
    home: Home = None,
) -> None:
    """Open psql on the database; further arguments are passed to psql.

    The password is not passed as an argument. Write `tidewheel admin psql -- --help` for psql's own help.
    """
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    reached = _reach(home)
    url = reached.database_url
    password = conninfo_to_dict(url).get("password")
    # The embedded server comes with a psql of its release; one before release 16 refuses `require_auth`.
    program = (_embedded_psql() if reached.stack else None) or shutil.which("psql")
    address = make_conninfo("", **_parts_without_secrets(url))
    if program is None:
        typer.echo(f"tidewheel: psql is not installed; the database is at {_without_password(url)}", err=True)
        raise typer.Exit(1)
    variables = {**os.environ, **({"PGPASSWORD": str(password)} if password else {})}
    sys.stdout.flush()
    os.execve(program, ["psql", *([f"--dbname={address}"] if address else []), *(arguments or [])], variables)  # noqa: S606 - psql takes this process's place


def _reach(home: Path | None) -> _Reached:
    """Return the addresses that a command would use, or those of the stack in `home`."""
    from tidewheel.settings.connections import Connections

    settings = Connections.load()
    if home is not None:
        named = stack_in(home)
        return _Reached(settings.in_schema(named.database_url), named.kafka, named)
    stack = _running(None)
    url, kafka = settings.database(), settings.kafka_config()
    if stack is not None and kafka["bootstrap.servers"] == stack.bootstrap:
        own = settings.in_schema(stack.database_url)
        # A shell that has evaluated `tidewheel env` has the same address, with the password in a file.
        if _parts_without_secrets(url) == _parts_without_secrets(own):
            return _Reached(own, stack.kafka, stack)
    return _Reached(url, kafka, None)


def stack_in(home: Path) -> "StackInfo":
    """Return the stack in a folder; refuse if none runs there."""
    stack = _running(home)
    if stack is None:
        raise NotRunning(
            f"no stack is running in {home}; `tidewheel dev --home {home}` or `tidewheel up --home {home}` starts one"
        )
    return stack


def _running(home: Path | None) -> "StackInfo | None":
    if not is_installed("local"):
        return None
    from tidewheel.local.stack import running_stack

    return running_stack(home)


def _variables(reached: _Reached, url: str, kafka: Mapping[str, str], *, secrets: bool) -> Iterator[tuple[str, str]]:
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.pq import Conninfo

    from tidewheel.settings.sources import client_variables

    stack = reached.stack
    if stack is not None:
        from tidewheel.local.state import living_dev  # its packages are an extra

        yield "TIDEWHEEL_HOME", str(stack.data_dir)
        if (dev := living_dev(stack.data_dir)) is not None:
            yield from dev.variables.items()
            yield from _api_variables(stack.data_dir, secrets=secrets)
    if url:
        yield "TIDEWHEEL_DATABASE_URL", url
    parts = conninfo_to_dict(url)
    for option in Conninfo.get_defaults():
        if option.envvar and (name := option.keyword.decode()) in parts:
            yield option.envvar.decode(), str(parts[name])
    if stack is not None and stack.pgpass is not None:
        yield "PGPASSFILE", str(stack.pgpass)
    if stack is not None and stack.kafka_properties is not None and not secrets:
        yield "TIDEWHEEL_KAFKA_PROPERTIES", str(stack.kafka_properties)
    else:
        yield "TIDEWHEEL_KAFKA_BOOTSTRAP", kafka["bootstrap.servers"]
        rest = {name: value for name, value in kafka.items() if name != "bootstrap.servers"}
        yield from client_variables(rest).items()


def _api_variables(home: Path, *, secrets: bool) -> Iterator[tuple[str, str]]:
    """Yield the header file of the API of `tidewheel dev`, and with `secrets` its key and token."""
    from tidewheel.local.state import API_HEADERS_FILE, API_TOKEN_FILE

    headers, token = home / API_HEADERS_FILE, home / API_TOKEN_FILE
    if headers.exists():
        yield "TIDEWHEEL_API_HEADERS", str(headers)
        if secrets:
            yield "TIDEWHEEL_API_KEY", headers.read_text().rpartition(" ")[2].strip()
    if secrets and token.exists():
        yield "TIDEWHEEL_API_TOKEN", token.read_text()


def _java(kafka: Mapping[str, str], *, secrets: bool) -> Iterator[tuple[str, str]]:
    """Yield the settings of a client by the names of Kafka's own clients.

    Names that begin with `sasl.` or `ssl.` differ there; the others of librdkafka have no effect.
    """
    yield "bootstrap.servers", kafka["bootstrap.servers"]
    if "security.protocol" in kafka:
        yield "security.protocol", kafka["security.protocol"].upper()
    if "ssl.ca.location" in kafka:
        yield from (("ssl.truststore.type", "PEM"), ("ssl.truststore.location", kafka["ssl.ca.location"]))
    mechanism = kafka.get("sasl.mechanism") or kafka.get("sasl.mechanisms")
    if not mechanism:
        return
    yield "sasl.mechanism", mechanism
    kind, given = "plain.PlainLoginModule", {"username": "sasl.username", "password": "sasl.password"}
    if mechanism == "OAUTHBEARER":
        kind, names = "oauthbearer.OAuthBearerLoginModule", {"clientId": "client.id", "clientSecret": "client.secret"}
        given = {name: f"sasl.oauthbearer.{key}" for name, key in {**names, "scope": "scope"}.items()}
        yield "sasl.login.callback.handler.class", f"{_LOGIN}.oauthbearer.OAuthBearerLoginCallbackHandler"
        yield "sasl.oauthbearer.token.endpoint.url", kafka.get("sasl.oauthbearer.token.endpoint.url", "")
    elif mechanism.startswith("SCRAM"):
        kind = "scram.ScramLoginModule"
    if secrets:
        options = " ".join(f"{name}={_quoted(kafka[key])}" for name, key in given.items() if key in kafka)
        yield "sasl.jaas.config", f"{_LOGIN}.{kind} required {options};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _note_omissions(reached: _Reached, form: Format, url: str, kafka: Mapping[str, str], *, secrets: bool) -> None:
    """Print a line on standard error if the text lacks a password that no named file has."""
    if secrets:
        return
    stack, omits = reached.stack, len(kafka) < len(reached.kafka)
    if form is Format.SHELL:
        database = url != reached.database_url and not (stack and stack.pgpass)
        omits = database or (omits and not (stack and stack.kafka_properties))
    if omits:
        typer.echo("tidewheel: passwords are omitted; --secrets prints them", err=True)


def _without_password(url: str) -> str:
    """Return a connection string without its password, in its own form.

    >>> _without_password("postgresql://ann:pw@db:5432/app?sslmode=require")
    'postgresql://ann@db:5432/app?sslmode=require'
    """
    from psycopg.conninfo import make_conninfo

    if "://" not in url:
        return make_conninfo("", **_parts_without_secrets(url))
    scheme, _, rest = url.partition("://")
    user, at, address = rest.rpartition("@")
    address, _, query = address.partition("?")
    kept = "&".join(part for part in query.split("&") if part and not is_secret(part.partition("=")[0]))
    return f"{scheme}://{user.partition(':')[0]}{at}{address}{'?' if kept else ''}{kept}"


def _parts_without_secrets(url: str) -> dict[str, str]:
    from psycopg.conninfo import conninfo_to_dict

    return {name: str(value) for name, value in conninfo_to_dict(url).items() if not is_secret(name)}


def _embedded_psql() -> str | None:
    """Return the psql beside the embedded server's programs."""
    if not is_installed("local"):
        return None
    from tidewheel.local.postgres import find_programs

    path = find_programs(None) / "psql"
    return str(path) if os.access(path, os.X_OK) else None
