"""Pages of the site that the code alone writes: the routes of REST, and the help of each command.

They change with most releases and are long, so the build of the site makes them and no file has them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, redirect_stdout, suppress
from datetime import timedelta
from io import StringIO
from typing import Any

from tests.docs.tables import table
from tidewheel.control.api.app import make_app
from tidewheel.control.api.openapi import openapi
from tidewheel.control.api.workers import Pools
from tidewheel.control.cli.commands import every_command
from tidewheel.control.cli.parser import root_command
from tidewheel.kafka.topics import Topics
from tidewheel.process.service import Shutdown
from tidewheel.schemas.codec import encode
from tidewheel.settings.services import ApiSettings
from tidewheel.transitions.installation import Installation

_ROUTES = """\
# Routes of REST

Generated from the OpenAPI document, which `GET /api/v1/openapi.json` returns. [REST](rest.md) has the rules that hold
for all routes: changes, lists, refusals, keys.
"""
_COMMANDS = """\
# Commands

Generated from `tidewheel COMMAND -h`. [The command line](command-line.md) has the rules that hold for all commands:
output, times, waiting, exit codes.
"""


def routes_page() -> str:
    """Return each route: its scope, its parameters, an example of its body, and the fields of its answer."""
    document = _document()
    routes = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    tags = dict.fromkeys(operation["tags"][0] for *_, operation in routes)
    parts = [_ROUTES]
    for tag in tags:
        parts += [f"## {tag}", ""]
        for path, method, operation in routes:
            if operation["tags"] == [tag]:
                parts += _route(path, method, operation, document["components"]["schemas"])
    return "\n".join(parts)


def commands_page() -> str:
    """Return the help of each command."""
    parts = [_COMMANDS]
    for words in _commands():
        help_text = _help(words)
        parts += [f"## tidewheel {' '.join(words)}" if len(words) < 2 else f"### tidewheel {' '.join(words)}", ""]
        parts += ["```text", help_text.strip(), "```", ""]
    return "\n".join(parts)


def _help(words: Sequence[str]) -> str:
    shown = StringIO()
    with redirect_stdout(shown), suppress(SystemExit):
        root_command()([*words, "--help"], prog_name="tidewheel")
    return shown.getvalue()


def _commands() -> Iterator[tuple[str, ...]]:
    """Yield the words of each command, each after those of its groups."""
    parts = (words.split() for words, _ in every_command())
    yield from dict.fromkeys(tuple(each[: number + 1]) for each in parts for number in range(len(each)))


def _route(path: str, method: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> list[str]:
    parts = [f"### {method.upper()} {path}", "", f"{operation['summary']}.".replace("..", "."), ""]
    parts += [f"Scope: `{operation['x-tidewheel-scope']}`", ""] if "x-tidewheel-scope" in operation else []
    if operation.get("parameters"):
        rows = ((f"`{each['name']}`", each["in"], str(each.get("description", ""))) for each in operation["parameters"])
        parts += [table(("Parameter", "In", "Meaning"), rows), ""]
    for media, each in operation.get("requestBody", {}).get("content", {}).items():
        if "example" in each:
            parts += [f"Body, `{media}`:", "", "```json", json.dumps(each["example"], indent=2), "```", ""]
    for status, answer in operation["responses"].items():
        if status.startswith("2"):
            parts += _answer(status, answer.get("content", {}), schemas)
    return parts


def _answer(status: str, content: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    for media, each in content.items():
        name = each["schema"].get("$ref", "").rpartition("/")[2]
        yield from (f"Answer {status}, `{media}`{f': {name}' if name else ''}", "")
        fields = schemas.get(name, {}).get("properties", {})
        if fields:
            yield from (table(("Field", "Meaning"), ((f"`{key}`", _meaning(fields[key])) for key in fields)), "")


def _meaning(field: Mapping[str, Any]) -> str:
    return str(field.get("description") or field.get("$ref", "").rpartition("/")[2] or field.get("type", ""))


def _document() -> dict[str, Any]:
    """Return the document of an API that serves nothing: it is never run, and opens no connection."""
    installation = Installation(1, Topics(), "tidewheel", "application/avro", encode, timedelta(minutes=1))
    with closing(Pools("postgresql:///", installation, threads=1, stop=Shutdown())) as pools:
        return openapi(make_app(ApiSettings.load(), installation, pools, stop=Shutdown()))
