"""`tidewheel dlq …`: flags and texts that their declarations lack."""

from base64 import b64encode
from collections.abc import Iterator, Mapping
from functools import partial

import typer

from tidewheel.control.cli.output import Output, Shown, Table, moment, print_document, print_facts
from tidewheel.control.cli.run_output import attempt_facts, attempt_row, retry_chain_facts
from tidewheel.control.cli.tables import Cell, cell_text
from tidewheel.control.reads.json_form import as_json
from tidewheel.doors.cli import Flag, command
from tidewheel.jobs.strict_json import as_object
from tidewheel.nouns.dead_letters.operations import DeadLetterDetail, DeadLetterGroup, DeadLetters, DeadLetterSummary
from tidewheel.nouns.works.commands import OF_FAILED, WAIT, show_started


def _show_groups(shown: Shown) -> None:
    found = shown.found
    if shown.output is not Output.TEXT:
        print_document(found, shown.output)
    elif not found.groups:
        typer.echo("no dead letters")
    else:
        _GROUPS.print(found.groups)
        if found.at_least:
            typer.echo(f"of the newest {found.looked_at:,}")


def _show_one(shown: Shown) -> None:
    found: DeadLetterDetail = shown.found
    if shown.output is not Output.TEXT:
        exactly = {} if found.message_value is None else {"message_base64": b64encode(found.message_value).decode()}
        print_document({**(as_object(as_json(found)) or {}), **exactly}, shown.output)
        return
    print_facts(_letter_facts(found, shown.zone))
    for attempt in found.run.attempts if found.run else ():
        typer.echo(f"\nattempt {'  '.join(cell_text(part) for part in attempt_row(attempt) if part)}")
        print_facts(attempt_facts(attempt))


def _already_redriven(shown: Shown) -> Mapping[str, int]:
    return {"already_redriven": max(len(set(shown.arguments["ids"] or ())) - shown.found.matched, 0)}


def _letter_row(each: DeadLetterSummary) -> tuple[Cell, ...]:
    message = f"{each.topic}/{each.partition}/{each.offset}"
    republished = "republished" if each.redriven_at else ""
    return (
        str(each.id),
        each.created_at,
        each.key or "",
        each.status or "invalid message",
        each.error_type or each.reason,
        str(each.run_id or message),
        str(each.redriven_run_id) if each.redriven_run_id else republished,
    )


def _group_row(each: DeadLetterGroup) -> tuple[Cell, ...]:
    versions = ", ".join(map(str, each.versions))
    status = each.status or "invalid message"
    return f"{each.count:,}", each.key or "", status, each.error_type or "", versions, each.first_at, each.last_at


def _letter_facts(found: DeadLetterDetail, zone: str | None) -> Iterator[tuple[str, str | None]]:
    yield "dead letter", str(found.id)
    yield "created", moment(found.created_at, zone)
    yield "job", found.key
    yield "run", str(found.run_id) if found.run_id else None
    yield "status", found.status
    yield "cause", found.cause
    yield "queue", f"{found.queue}, {found.lane} lane" if found.queue else None
    yield "message", f"{found.topic}/{found.partition}/{found.offset}" if found.topic else None
    yield "key", _message_text(found.message_key)
    yield "value", _message_text(found.message_value)
    yield "error", found.error_type
    yield "reason", found.reason
    yield "redriven", moment(found.redriven_at, zone) if found.redriven_at else None
    yield "redriven as", str(found.redriven_run_id) if found.redriven_run_id else None
    if found.run is not None:
        yield from retry_chain_facts(found.run)


def _message_text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")


_LETTERS = Table(
    "dead letter", ("id", "created", "job", "status", "error", "run or message", "redriven as"), _letter_row
)
_GROUPS = Table("group", ("dead letters", "job", "status", "error", "versions", "first", "last"), _group_row)
_FLAGS = {**OF_FAILED, "ids": Flag(metavar="ID", help="Dead letters, by id."), "number": Flag(metavar="ID")}

_dlq = partial(command, DeadLetters, flags=_FLAGS, table=_LETTERS)
list_dead_letters = _dlq("list", partial(_LETTERS.show, nothing="no dead letters", spare=("status",)))
groups = _dlq("groups", _show_groups)
show = _dlq("get", _show_one, local_times=True)
redrive = _dlq("redrive", partial(show_started, "redrive", "dead letters", more=_already_redriven), options=WAIT)
purge = _dlq("purge", partial(show_started, "purge", "dead letters"), options=WAIT)
