"""`tidewheel apply`: jobs from files, some or millions."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.job_files import STANDARD_INPUT, Written, ensure_readable, read_jobs
from tidewheel.control.cli.options import DEFAULT_TENANT, Tenant, checked_url
from tidewheel.control.cli.output import Output, OutputOption, print_result, progress_bar
from tidewheel.control.client.bulk_load import (
    MAX_PROBLEMS,
    SUBMIT_BATCH,
    BulkLoader,
    JobText,
    LoadResult,
    batches,
    load_in_processes,
)
from tidewheel.errors import refuse

_MAX_PROCESSES = 32  # each has a connection, and up to three batches of 16 MiB


def apply(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE...", help="JSON lines, a JSON array or YAML; - is standard input."),
    ] = None,
    *,
    more: Annotated[
        list[str] | None, typer.Option("-f", "--file", metavar="FILE", help="Same as the argument FILE; repeatable.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the jobs and count the changes; make none.")
    ] = False,
    bulk: Annotated[
        bool, typer.Option("--bulk", help="Load new jobs only, up to millions; jobs that exist stay as they are.")
    ] = False,
    events: Annotated[bool, typer.Option("--events", help="With --bulk: publish an event for each new job.")] = False,
    processes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=_MAX_PROCESSES,
            help="With --bulk: number of processes; by default one per core.",
        ),
    ] = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Submit every job in some files; report rejected ones, apply the rest."""
    if bulk and dry_run:
        refuse("--dry-run", "--bulk has no dry run", "leave out --bulk: the checks are the same")
    if not bulk and (events or processes):
        refuse("--events" if events else "--processes", "it needs --bulk", "leave it out, or write --bulk")
    sources = [*(files or ()), *(more or ())]
    if not sources:
        refuse("FILE", "it is missing", "name a file of jobs, or - for standard input")
    for source in sources:
        ensure_readable(source)
    url = checked_url()
    done, ended = LoadResult(), False
    try:
        with progress_bar("loading" if bulk else "applying", _total_bytes(sources)) as seen:
            given = _all(sources, seen)
            if bulk:
                _add(
                    done,
                    load_in_processes(
                        given, processes=processes or _cores(), database_url=url, tenant=tenant, emit_events=events
                    ),
                )
            else:
                _add(done, _applied(given, url, tenant, dry_run=dry_run))
        ended = True
    finally:
        # An interrupt does not undo the batches that are committed.
        _print_load_result(done, output, bulk=bulk, dry_run=dry_run, ended=ended)
    if done.rejected:
        raise typer.Exit(ExitCode.FAILED)


def _add(done: LoadResult, parts: Iterable[LoadResult]) -> None:
    for part in parts:
        known = len(done.problems)
        done.add(part)
        for place, error in done.problems[known:]:
            typer.echo(f"{place}: {error}", err=True)


def _cores() -> int:
    """Return the number of processes: one for each core that this process may use, at most 32."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, _MAX_PROCESSES)


def _applied(given: Iterator[JobText], url: str, tenant: str, *, dry_run: bool) -> Iterator[LoadResult]:
    with BulkLoader(url, tenant=tenant) as loader:
        for batch in batches(given, SUBMIT_BATCH):
            yield loader.apply(batch, dry_run=dry_run)


def _all(files: Sequence[str], seen: Callable[[int], None]) -> Iterator[JobText]:
    before = 0
    for source in files:
        written: Written | None = None
        for number, written in enumerate(read_jobs(source)):
            if number % 1000 == 0:
                seen(before + written.bytes_read)
            yield JobText(written.place, written.content)
        before += written.bytes_read if written else 0
        seen(before)


def _total_bytes(files: Sequence[str]) -> int | None:
    """Return the total length of the files; None if standard input is among them."""
    if STANDARD_INPUT in files:
        return None
    sizes = [Path(source).stat().st_size for source in files if Path(source).is_file()]
    return sum(sizes)


def _print_load_result(done: LoadResult, output: Output, *, bulk: bool, dry_run: bool, ended: bool) -> None:
    counts = {"created": done.created, "updated": done.updated, "unchanged": done.unchanged, "rejected": done.rejected}
    words = {"updated": "", "unchanged": "existed"} if bulk else {}
    parts = [f"{number} {words.get(name, name)}" for name, number in counts.items() if words.get(name, name)]
    line = ("" if ended else "stopped; so far at least ") + ", ".join(parts)
    if len(done.problems) == MAX_PROBLEMS:
        typer.echo(f"the first {MAX_PROBLEMS} problems are listed: correct them first", err=True)
    problems = [
        {"place": place, "path": error.path, "problem": error.problem, "remedy": error.remedy}
        for place, error in done.problems
    ]
    document = {**counts, "dry_run": dry_run, "stopped": not ended, "problems": problems}
    print_result([f"dry run, nothing is stored: {line}" if dry_run else line], document, output)
