"""`tidewheel dlq …` and `tidewheel redrive …`: flags and texts that their declarations lack."""

import re
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.options import complete_key, place_text, requesting
from tidewheel.control.cli.output import (
    Output,
    moment,
    print_document,
    print_facts,
    print_result,
    progress_bar,
    total_text,
)
from tidewheel.control.cli.run_format import attempt_facts, attempt_row, retry_chain_facts
from tidewheel.control.cli.tables import Cell, cell_text
from tidewheel.control.reads.json_form import as_json
from tidewheel.doors.cli import Flag, Shown, Table, command
from tidewheel.errors import refuse
from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.nouns.dead_letters.model import (
    COUNTED,
    DeadLetterDetail,
    DeadLetterGroup,
    DeadLettersPage,
    DeadLetterSummary,
    Redriving,
)
from tidewheel.nouns.dead_letters.operations import DeadLetters, Redrives
from tidewheel.schedules.decision import BackfillState

if TYPE_CHECKING:
    from tidewheel.control.client.client import Client

_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(?:/(s|m|h))?", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, None: 1}
_REACHED = {"pause": BackfillState.PAUSED, "resume": BackfillState.RUNNING, "cancel": BackfillState.CANCELLED}
_DONE = {"pause": "paused", "resume": "resumed", "cancel": "cancelled"}


def _show_list(shown: Shown) -> None:
    page: DeadLettersPage = shown.found
    if shown.output is not Output.TEXT:
        print_document(page, shown.output)
        return
    if page.dead_letters:
        _LETTERS.print(page.dead_letters, spare=("status",))
        typer.echo(total_text(page.total, at_least=page.at_least, shown=len(page.dead_letters), noun="dead letter"))
    else:
        typer.echo("no dead letters" if page.next_cursor is None else "none among the dead letters of this page")
    if page.next_cursor is not None:
        typer.echo(f"more: add --after {place_text(*page.next_cursor)}")


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


def _show_redriven(shown: Shown) -> None:
    done = shown.found
    if shown.options["wait"] and done.redrive_id is not None:
        _follow(shown, done.redrive_id)
        return
    already = max(len(set(shown.arguments["ids"] or ())) - done.matched, 0)
    lines = [f"redrive {done.redrive_id}"] if done.redrive_id else []
    lines.append(f"dead letters to redrive: {'at least ' if done.at_least else ''}{done.matched:,}")
    if already:
        lines[-1] += f"; already redriven before: {already:,}"
    names = ("redrive_id", "matched", "at_least")
    print_result(lines, {**{name: getattr(done, name) for name in names}, "already_redriven": already}, shown.output)


def _show_purged(shown: Shown) -> None:
    purged = shown.found.purged
    print_result([f"dead letters purged: {purged:,}"], {"purged": purged}, shown.output)


def _show_redrives(shown: Shown) -> None:
    if shown.output is not Output.TEXT:
        print_document(shown.found, shown.output)
    elif found := shown.found["redrives"]:
        _REDRIVES.print(found)
    else:
        typer.echo("no redrives")


def _show_redrive(shown: Shown) -> None:
    if shown.options["follow"]:
        _follow(shown, shown.found.redrive_id)
    else:
        _print(shown.found, shown)


def _show_change(verb: str, shown: Shown) -> None:
    """Print a redrive's new state; exit with code 5 if its old state does not allow the change."""
    redrive_id, done = shown.arguments["redrive_id"], shown.found
    reached = not done.unchanged or done.status == _REACHED[verb]
    text = f"unchanged: the redrive is {'already ' if reached else ''}{done.status}" if done.unchanged else _DONE[verb]
    document = {"redrive_id": redrive_id, "unchanged": done.unchanged, "status": done.status}
    print_result([f"redrive {redrive_id}: {text}"], document, shown.output)
    if not reached:
        raise typer.Exit(ExitCode.REFUSED)


def _follow(shown: Shown, redrive_id: UUID) -> None:
    """Print a redrive once it has ended; exit with code 1 if it rejected a dead letter or was cancelled."""
    with requesting(shown.tenant) as client:
        redrive = _wait(client, redrive_id)
    _print(redrive, shown)
    if redrive.rejected_count or redrive.state != BackfillState.FINISHED:
        raise typer.Exit(ExitCode.FAILED)


def _wait(client: "Client", redrive_id: UUID) -> Redriving:
    total = client.redrives.get(redrive_id).matched_count
    with progress_bar("redriving", total if total <= COUNTED else None) as show:
        return client.redrives.wait(redrive_id, on_progress=lambda redrive: show(redrive.processed))


def _print(redrive: Redriving, shown: Shown) -> None:
    if shown.output is Output.TEXT:
        print_facts(_redrive_facts(redrive, shown.zone))
    else:
        print_document(redrive, shown.output)


def _read_rate(text: str) -> float:
    found = _RATE.fullmatch(text)
    if found is None or float(found[1]) == 0:
        refuse("--rate", f"{text!r} is not a rate", "write it as 10/s, 100/m or 1000/h")
    return float(found[1]) / _SECONDS[found[2]]


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


def _redrive_row(each: Redriving) -> tuple[Cell, ...]:
    rejected = f"{each.rejected_count:,}"
    return (
        str(each.redrive_id), each.created_at, each.state, _redriven(each), rejected, _rate(each) or "",
        each.reason or "",
    )  # fmt: skip


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


def _redrive_facts(redrive: Redriving, zone: str | None) -> Iterator[tuple[str, str | None]]:
    yield "redrive", str(redrive.redrive_id)
    yield "state", redrive.state
    yield "redriven", f"{_redriven(redrive)} dead letters"
    yield "rejected", f"{redrive.rejected_count:,}" if redrive.rejected_count else None
    yield "rate", _rate(redrive)
    yield "kind", redrive.kind
    yield "ids", ", ".join(map(str, redrive.ids or ()))
    yield "job", redrive.key
    yield "status", redrive.status
    yield "error type", redrive.error_type
    yield "queue", redrive.queue
    yield "lane", redrive.lane
    yield "until", moment(redrive.until_at, zone)
    yield "reason", redrive.reason
    yield "created", moment(redrive.created_at, zone)
    yield "ended", moment(redrive.finished_at, zone) if redrive.finished_at else None
    yield "rejections", "\n".join(f"{each['id']}: {_problems(each['errors'])}" for each in redrive.rejections)


def _redriven(redrive: Redriving) -> str:
    matched = redrive.matched_count
    total = f"{matched:,}" if matched <= COUNTED else "more than were counted"
    return f"{redrive.redriven_count:,} of {total}"


def _rate(redrive: Redriving) -> str | None:
    return f"{redrive.rate:g}/s" if redrive.rate else None


def _problems(errors: object) -> str:
    found = filter(None, map(as_object, as_list(errors) or ()))
    return "; ".join(f"{each['path']}: {each['problem']}; {each['remedy']}" for each in found)


_LETTERS = Table(
    "dead letter", ("id", "created", "job", "status", "error", "run or message", "redriven as"), _letter_row
)
_GROUPS = Table("group", ("dead letters", "job", "status", "error", "versions", "first", "last"), _group_row)
_REDRIVES = Table("redrive", ("id", "created", "state", "redriven", "rejected", "rate", "reason"), _redrive_row)
_FLAGS = {
    "ids": Flag(metavar="ID", help="Dead letters, by id."),
    "kind": Flag(metavar="KIND"),
    "key": Flag(metavar="KEY", complete=complete_key),
    "status": Flag(metavar="STATE"),
    "error_type": Flag("--error", "TYPE"),
    "queue": Flag(metavar="NAME"),
    "lane": Flag(metavar="LANE"),
    "rate": Flag(metavar="N/s", help="Redrive at most this many a second; also N/m or N/h.", read=_read_rate),
    "number": Flag(metavar="ID"),
    "redrive_id": Flag(metavar="ID", help="The id that `dlq redrive` printed."),
}
_WAIT = typer.Option("--wait", help="Wait until each dead letter is redriven, not until its run has ended.")
_FOLLOW = typer.Option("--follow", "-f", help="Continue until the redrive is finished.")

_dlq = partial(command, DeadLetters, flags=_FLAGS, table=_LETTERS)
list_dead_letters = _dlq("list", _show_list)
groups = _dlq("groups", _show_groups)
show = _dlq("get", _show_one, local_times=True)
redrive = _dlq("redrive", _show_redriven, options={"wait": Annotated[bool, _WAIT]})
purge = _dlq("purge", _show_purged)

_redrive = partial(command, Redrives, flags=_FLAGS)
list_redrives = _redrive("list", _show_redrives)
show_redrive = _redrive("get", _show_redrive, options={"follow": Annotated[bool, _FOLLOW]}, local_times=True)
pause_redrive = _redrive("pause", partial(_show_change, "pause"))
resume_redrive = _redrive("resume", partial(_show_change, "resume"))
cancel_redrive = _redrive("cancel", partial(_show_change, "cancel"))
