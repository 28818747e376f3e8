"""`tidewheel run list | show | attempts | logs | cancel | retry`: runs and their attempts.

`logs` prints the output of past attempts and of the running one. `cancel` takes ids, or a filter. By a filter it shows
progress until the last run has ended.
"""

import sys
from codecs import getincrementaldecoder
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, cast
from uuid import UUID

import typer

from tidewheel.control.archive.lookup import show_run_anywhere
from tidewheel.control.cli.options import (
    DEFAULT_TENANT,
    MAX_INT,
    Delay,
    Reason,
    RequestId,
    RunId,
    RunIds,
    Tenant,
    Tz,
    Yes,
    confirm,
    read_duration,
    read_labels,
    reading,
    requesting,
)
from tidewheel.control.cli.output import (
    Output,
    OutputOption,
    Table,
    count_text,
    print_document,
    print_facts,
    print_record,
    print_result,
    print_table,
    progress_bar,
)
from tidewheel.control.cli.parser import option, switch
from tidewheel.control.cli.run_output import (
    Follow,
    Wait,
    attempt_facts,
    attempt_rows,
    print_ended_run,
    run_facts,
    run_row,
    wait_for_run,
)
from tidewheel.control.instants import read_instant
from tidewheel.control.reads.json_form import as_json
from tidewheel.control.words import printable_lines
from tidewheel.doors.cli import command
from tidewheel.errors import UnknownRun, refuse
from tidewheel.nouns.runs.model import RunDetail
from tidewheel.nouns.runs.reads import RunList
from tidewheel.runs import FINAL, RunState
from tidewheel.settings.connections import Connections

if TYPE_CHECKING:
    from tidewheel.control.client.client import Client
    from tidewheel.nouns.runs.model import Cancellation, LogPiece

_UTF8 = getincrementaldecoder("utf-8")
_POLL_SECONDS = 0.2

_RUNS = Table("run", ("run", "key", "status", "cause", "scheduled", "attempt", "duration", "why"), run_row)
list_runs = command(RunList, "list", partial(_RUNS.show, nothing="no runs", spare=("duration", "attempt", "cause")))


def show(
    run_id: RunId,
    *,
    follow: Follow = False,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a run: state, attempts, result, deadlines and retry chain."""
    if follow:
        with requesting(tenant) as client:
            wait_for_run(client, run_id)
    found = _show(tenant, run_id)
    print_record(run_facts(found, timezone), found, output)


def attempts(run_id: RunId, *, tenant: Tenant = DEFAULT_TENANT, output: OutputOption = Output.TEXT) -> None:
    """List a run's attempts, with their errors and results."""
    found = _show(tenant, run_id)
    if output is not Output.TEXT:
        print_document({"run_id": run_id, "attempts": found.attempts}, output)
        return
    rows = list(attempt_rows(found))
    if not rows:
        typer.echo("no attempt has started" if found.summary.attempt == 0 else "no attempt has ended")
        return
    print_table(("attempt", "outcome", "started", "duration", "executor", "error"), rows)
    for attempt in found.attempts:
        if facts := list(attempt_facts(attempt)):
            typer.echo(f"\nattempt {attempt.attempt}")
            print_facts(facts)


def retry(
    run_id: RunId,
    *,
    delay: Delay = None,
    attempt: Annotated[int | None, option("N", "Start attempt N of a retrying run now.", min=1, max=MAX_INT)] = None,
    wait: Wait = False,
    yes: Yes = False,
    request_id: RequestId = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Retry a finished run with a new run, or start the next attempt of a retrying run now."""
    if attempt is not None and delay is not None:
        refuse("--delay", "cannot be combined with --attempt", "leave one out")
    with requesting(tenant) as client:
        shown: UUID = run_id
        if attempt is None:
            span = None if delay is None else read_duration(delay, "--delay")
            with suppress(UnknownRun):  # the request refuses it, in its own words
                if client.runs.get(run_id).state == RunState.SUCCEEDED:
                    confirm(f"Run {run_id} succeeded. Run it again?", yes=yes)
            shown = client.runs.retry(run_id, delay=span, request_id=request_id)
            document: dict[str, object] = {"run_id": shown, "parent_run_id": run_id}
            line = f"run {shown}"
        else:
            changed = client.runs.retry_now(run_id, attempt, request_id=request_id)
            document = {"run_id": run_id, "attempt": attempt, "unchanged": not changed}
            nothing = f"unchanged: attempt {attempt} of run {run_id} was already due, or has started"
            line = f"attempt {attempt} of run {run_id} is due now" if changed else nothing
        if wait:
            print_ended_run(wait_for_run(client, shown), document, output)
            return
    print_result([line], document, output)


def _show(tenant: str, run_id: UUID) -> RunDetail:
    return show_run_anywhere(reading, Connections.load().archive, tenant, run_id)


def logs(
    run_id: RunId,
    *,
    attempt: Annotated[int | None, option("N", "Only this attempt.", min=1, max=MAX_INT)] = None,
    follow: Annotated[bool, switch("Keep printing until the run has ended.", "--follow", "-f")] = False,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Print the output of a run's attempts: the last 64 KiB of each.

    Standard error names the attempt and the bytes that are no longer stored. With --follow and --output json, each
    piece is one JSON document on one line.
    """
    with requesting(tenant) as client:
        pieces = client.runs.follow_logs(run_id, attempt) if follow else iter(client.runs.logs(run_id, attempt))
        if output is not Output.TEXT and not follow:
            print_document({"run_id": run_id, "attempts": list(pieces)}, output)
            return
        texts = _Texts()
        for piece in pieces:
            text = texts.of(piece)
            if output is not Output.TEXT:
                print_document({**cast("dict[str, object]", as_json(piece)), "output": text}, output)
            else:
                _print_piece(piece, text, new=texts.new)
            sys.stdout.flush()
        if not texts.attempt and output is Output.TEXT:
            typer.echo(f"no output of run {run_id} is stored", err=True)


class _Texts:
    """Decoder of output pieces: a character may begin in one piece and end in the next."""

    def __init__(self) -> None:
        self.attempt, self.new = 0, False
        self._decoder = _UTF8("replace")

    def of(self, piece: "LogPiece") -> str:
        self.new = piece.attempt != self.attempt
        if self.new or piece.dropped_bytes:
            self._decoder.reset()
        self.attempt = piece.attempt
        return self._decoder.decode(piece.output)


def _print_piece(piece: "LogPiece", text: str, *, new: bool) -> None:
    if new:
        ended = f", {piece.outcome}" if piece.outcome else ""
        typer.echo(f"-- attempt {piece.attempt}{ended}", err=True)
    if piece.dropped_bytes:
        typer.echo(f"-- {piece.dropped_bytes} earlier bytes are no longer stored", err=True)
    typer.echo(printable_lines(text), nl=False)


def cancel(
    runs: RunIds = None,
    *,
    job: Annotated[str | None, option("KEY", "Cancel open runs of this job.")] = None,
    label: Annotated[
        list[str] | None, option("NAME=VALUE", "Cancel open runs of jobs with this label; repeatable.")
    ] = None,
    queue: Annotated[str | None, option("NAME", "Cancel open runs of this queue.")] = None,
    lane: Annotated[str | None, option("LANE", "Cancel open runs of this lane.")] = None,
    handler: Annotated[str | None, option("NAME", "Cancel open runs of this handler.")] = None,
    cause: Annotated[
        str | None, option("CAUSE", "Cancel open runs with this cause: timer, trigger, backfill or retry.")
    ] = None,
    before: Annotated[str | None, option("TIME", "Only runs created before this time.")] = None,
    not_started: Annotated[bool, switch("Leave out runs that have started.", "--not-started")] = False,
    dry_run: Annotated[bool, switch("Print the number of matching runs; cancel none.", "--dry-run")] = False,
    no_wait: Annotated[bool, switch("Do not wait for the last run to end.", "--no-wait")] = False,
    reason: Reason = None,
    timezone: Tz = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Cancel runs by id, or all open runs that match the filters."""
    given: dict[str, Any] = {
        "key": job, "labels": read_labels(label) if label else None, "queue": queue, "lane": lane, "handler": handler,
        "cause": cause, "created_before": read_instant(before, "--before", timezone) if before else None,
    }  # fmt: skip
    if bool(runs) == (not_started or any(value is not None for value in given.values())):
        refuse("RUN", "needs run ids or a filter, not both", "give ids, or --job, --label, --queue, --lane, …")
    given["include_started"] = not not_started
    with requesting(tenant) as client:
        if runs:
            _cancel_each(client, runs, reason, output, dry_run=dry_run)
            return
        found = client.runs.cancel_matching(**given, reason=reason, dry_run=dry_run)
        if found.cancellation_id is None:
            many = f"{'at least ' if found.at_least else ''}{found.matched:,}"
            document = {"runs": found.matched, "at_least": found.at_least}
            print_result([f"runs that would be cancelled: {many}"], document, output)
            return
        number, total = found.cancellation_id, None if found.at_least else found.matched
        cancellation = client.runs.cancellation(number) if no_wait else _wait(client, number, total)
    _print_cancellation(cancellation, output)


def _cancel_each(client: "Client", runs: Sequence[UUID], reason: str | None, output: Output, *, dry_run: bool) -> None:
    found = [(run, client.runs.get(run).state if dry_run else client.runs.cancel(run, reason=reason)) for run in runs]
    lines: list[str] = []
    for run, state in found:
        if dry_run:
            done = f"is {state}"
        elif state in FINAL:
            done = f"nothing to cancel: already {state}"
        else:
            done = f"cancel requested (was {state})"
        lines.append(f"run {run}: {done}")
    print_result(lines, {"runs": [{"run_id": run, "found": state} for run, state in found]}, output)


def _wait(client: "Client", number: int, total: int | None) -> "Cancellation":
    """Wait until a cancellation has finished."""
    never = Event()
    with progress_bar(f"cancellation {number}", total) as show:
        while (cancellation := client.runs.cancellation(number)).finished_at is None:
            show(cancellation.cancelled_count)
            never.wait(_POLL_SECONDS)
    return cancellation


def _print_cancellation(cancellation: "Cancellation", output: Output) -> None:
    done = f"{count_text(cancellation.cancelled_count, 'run')} cancelled"
    lines = [f"cancellation {cancellation.cancellation_id}"]
    lines.append(done if cancellation.finished_at else f"{done} so far; executors no longer start the others")
    print_result(lines, cancellation, output)
