"""`tidewheel apply`: jobs from files, some or millions."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.job_files import STANDARD_INPUT, ensure_readable, read_jobs
from tidewheel.control.cli.options import DEFAULT_TENANT, Tenant, checked_url, read_labels, reading
from tidewheel.control.cli.output import Output, OutputOption, print_result, progress_bar
from tidewheel.control.cli.parser import argument, option, switch
from tidewheel.control.client.bulk_load import (
    LOAD_BATCH,
    MAX_PROBLEMS,
    SUBMIT_BATCH,
    BulkLoader,
    JobText,
    LoadResult,
    Pending,
    batches,
)
from tidewheel.errors import FieldError, UndecodableMessage, refuse
from tidewheel.jobs.batches import cycle_text, find_cycle
from tidewheel.jobs.strict_json import as_list, as_object, read_object
from tidewheel.nouns.jobs.commands import change_lines
from tidewheel.nouns.jobs.model import JobFilter
from tidewheel.nouns.jobs.reads import list_jobs

_LISTED = 50  # changed jobs of a dry run, or deleted jobs; of more, the count


def apply(
    files: Annotated[
        list[str] | None,
        argument("FILE...", "JSON lines, a JSON array, YAML, or CronJobs of Kubernetes; - is standard input."),
    ] = None,
    *,
    more: Annotated[list[str] | None, option("FILE", "Same as the argument FILE; repeatable.", "-f", "--file")] = None,
    dry_run: Annotated[bool, switch("Check the jobs and show the changes; change nothing.", "--dry-run")] = False,
    has_exit_code: Annotated[
        bool, switch("With --dry-run: exit code 8 if something would change.", "--exit-code")
    ] = False,
    prune: Annotated[
        bool, switch("Delete jobs in the scope of --label, --prefix or --all that no file contains.", "--prune")
    ] = False,
    label: Annotated[
        list[str] | None, option("NAME=VALUE", "With --prune: only jobs with this label; repeatable.")
    ] = None,
    prefix: Annotated[str, option("TEXT", "With --prune: only jobs whose key begins with this text.")] = "",
    everything: Annotated[bool, switch("With --prune: all jobs of the tenant.", "--all")] = False,
    bulk: Annotated[bool, switch("Load new jobs only, up to millions; existing jobs do not change.", "--bulk")] = False,
    events: Annotated[bool, switch("With --bulk: publish an event for each new job.", "--events")] = False,
    tenant: Tenant = DEFAULT_TENANT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Submit every job in the given files; report rejected jobs, apply the rest."""
    scope = _read_scope(label, prefix, everything=everything) if prune else None
    scoped = "--label" if label else "--prefix" if prefix else "--all"
    for is_wrong, flag, problem, remedy in (
        (not prune and (label or prefix or everything), scoped, "needs --prune", "leave it out, or add --prune"),
        (has_exit_code and not dry_run, "--exit-code", "needs --dry-run", "leave it out, or add --dry-run"),
        (bulk and prune, "--prune", "--bulk only creates jobs", "leave one out"),
        (bulk and dry_run, "--dry-run", "cannot be combined with --bulk", "leave out --bulk; the checks are the same"),
        (events and not bulk, "--events", "needs --bulk", "leave it out, or add --bulk"),
    ):
        if is_wrong:
            refuse(flag, problem, remedy)
    sources = [*(files or ()), *(more or ())]
    if not sources:
        refuse("FILE", "is missing", "name a file of jobs, or - for standard input")
    for source in sources:
        ensure_readable(source)
    url = checked_url()
    done, ended = LoadResult(), False
    pruned: list[str] = []
    try:
        with progress_bar("loading" if bulk else "applying", _total_bytes(sources)) as seen:
            given = _all(sources, seen)
            if bulk:
                _add(done, _loaded(given, url, tenant, emit_events=events))
            else:
                _add(done, _applied(given, url, tenant, dry_run=dry_run))
        if scope is not None:
            for result in _prune(url, tenant, done, scope, dry_run=dry_run):
                pruned += sorted(result.keys)
                _add(done, [LoadResult(rejected=result.rejected, problems=result.problems)])
        ended = True
    finally:
        # An interrupt does not undo the batches that are committed.
        _print_pruned(pruned, dry_run=dry_run)
        if output is Output.TEXT:
            _print_pending(done.pending)
        _print_load_result(done, pruned if prune else None, output, bulk=bulk, dry_run=dry_run, ended=ended)
    if done.rejected:
        raise typer.Exit(ExitCode.FAILED)
    if has_exit_code and (done.pending or pruned):
        raise typer.Exit(ExitCode.PENDING)


class Child(NamedTuple):
    """A job of a file with `after`: its key, and the keys of its parents."""

    key: str
    parents: Sequence[str]
    text: JobText


def without_children(given: Iterable[JobText], children: list[Child]) -> Iterator[JobText]:
    """Yield the jobs without `after`; add the others to `children`, which need their parents first."""
    for one in given:
        child = _child(one)
        if child is None:
            yield one
        else:
            children.append(child)


def parents_first(children: Sequence[Child]) -> list[JobText]:
    """Return children so that each comes after its parents; refuse those of a cycle.

    >>> b, c = (Child(key, [parent], JobText(key, b"")) for key, parent in ("ba", "cb"))
    >>> [text.place for text in parents_first([c, b])]
    ['b', 'c']
    """
    place = {child.key: number for number, child in enumerate(children)}
    parents = {
        number: {place[key] for key in child.parents if key in place} - {number}
        for number, child in enumerate(children)
    }
    refused: list[JobText] = []
    while (cycle := find_cycle(parents)) is not None:
        problem = f"the jobs form a cycle: {cycle_text([children[number].key for number in cycle])}"
        error = FieldError("schedule.after", problem, "remove one of these edges")
        refused += [JobText(children[number].text.place, error) for number in sorted({*cycle})]
        parents = {number: needed - {*cycle} for number, needed in parents.items() if number not in cycle}
    return [*(children[number].text for number in TopologicalSorter(parents).static_order()), *refused]


def _add(done: LoadResult, parts: Iterable[LoadResult]) -> None:
    for part in parts:
        known = len(done.problems)
        done.add(part)
        for place, error in done.problems[known:]:
            typer.echo(f"{place}: {error}", err=True)


def _loaded(given: Iterator[JobText], url: str, tenant: str, *, emit_events: bool) -> Iterator[LoadResult]:
    with BulkLoader(url, tenant=tenant) as loader:
        for batch in batches(given, LOAD_BATCH):
            yield loader.load(batch, emit_events=emit_events)


def _applied(given: Iterator[JobText], url: str, tenant: str, *, dry_run: bool) -> Iterator[LoadResult]:
    with BulkLoader(url, tenant=tenant) as loader:
        children: list[Child] = []
        others = without_children(given, children)
        if dry_run:
            # Each batch of a dry run is rolled back: only in one batch do the children find their parents.
            listed = list(others)
            limit = len(listed) + len(children) if children else SUBMIT_BATCH
            for batch in batches([*listed, *parents_first(children)], limit):
                yield loader.apply(batch, dry_run=True)
            return
        for batch in batches(others, SUBMIT_BATCH):
            yield loader.apply(batch)
        for batch in batches(parents_first(children), SUBMIT_BATCH):
            yield loader.apply(batch)


def _all(files: Sequence[str], seen: Callable[[int], None]) -> Iterator[JobText]:
    before = 0
    for source in files:
        written: JobText | None = None
        for number, written in enumerate(read_jobs(source)):
            if number % 1000 == 0:
                seen(before + written.bytes_read)
            for note in written.notes:
                typer.echo(f"{written.place}: {note}", err=True)
            yield written
        before += written.bytes_read if written else 0
        seen(before)


def _total_bytes(files: Sequence[str]) -> int | None:
    """Return the total length of the files; None if standard input is among them."""
    if STANDARD_INPUT in files:
        return None
    sizes = [Path(source).stat().st_size for source in files if Path(source).is_file()]
    return sum(sizes)


def _read_scope(label: list[str] | None, prefix: str, *, everything: bool) -> JobFilter:
    """Return the jobs that may be pruned."""
    if everything == bool(label or prefix):
        remedy = "add --label or --prefix that every job in the files has, or --all for the whole tenant"
        refuse("--prune", "needs a scope or --all, not both", remedy)
    return JobFilter(labels=read_labels(label or []), prefix=prefix)


def _prune(url: str, tenant: str, done: LoadResult, scope: JobFilter, *, dry_run: bool) -> Iterator[LoadResult]:
    """Delete the jobs in scope that no file has; yield the result of each batch.

    With a rejected job, delete none.
    """
    if done.rejected or not done.keys:
        why = "a job was rejected; correct it and apply again" if done.rejected else "the files contain no jobs"
        typer.echo(f"nothing pruned: {why}", err=True)
        return
    gone = [key for key in _keys(tenant, scope) if key not in done.keys]
    if dry_run:
        yield LoadResult(keys=set(gone))
        return
    with BulkLoader(url, tenant=tenant) as loader, progress_bar("deleting", len(gone)) as seen:
        deleted, left = 0, gone
        refused: list[LoadResult] = []
        while left:
            before = deleted
            refused.clear()
            for start in range(0, len(left), SUBMIT_BATCH):
                result = loader.delete(left[start : start + SUBMIT_BATCH])
                yield LoadResult(keys=result.keys)
                refused.append(replace(result, keys=set()))
                deleted += len(result.keys)
                seen(deleted)
            # A parent is refused while it has children: they may be deleted now.
            left = [key for result in refused for key in dict(result.problems)] if deleted > before else []
    yield from refused


def _keys(tenant: str, scope: JobFilter) -> Iterator[str]:
    with reading() as connection:
        after: str | None = ""
        while after is not None:
            page = list_jobs(connection, tenant, after=after, limit=1000, counts=False, **scope)
            yield from (job.key for job in page.jobs)
            after = page.next_cursor


def _print_pruned(keys: Sequence[str], *, dry_run: bool) -> None:
    what = "would be deleted" if dry_run else "deleted"
    if len(keys) > _LISTED:
        typer.echo(f"{len(keys):,} jobs {what}{': -o json lists them' if dry_run else ''}", err=True)
        return
    for key in keys:
        typer.echo(f"{key}: {what}", err=True)


def _print_pending(pending: Sequence[Pending]) -> None:
    for each in pending[:_LISTED]:
        typer.echo(f"{each.key}: would be {each.change}d")
        for line in change_lines(each.fields):
            typer.echo(f"  {line}")
    if len(pending) > _LISTED:
        typer.echo(f"{len(pending) - _LISTED:,} more jobs would change: -o json lists them", err=True)


def _print_load_result(
    done: LoadResult, pruned: Sequence[str] | None, output: Output, *, bulk: bool, dry_run: bool, ended: bool
) -> None:
    counts = {"created": done.created, "updated": done.updated, "unchanged": done.unchanged, "rejected": done.rejected}
    if pruned is not None:
        counts["deleted"] = len(pruned)
    words = {"updated": "", "unchanged": "existed"} if bulk else {}
    parts = [f"{number} {words.get(name, name)}" for name, number in counts.items() if words.get(name, name)]
    line = ("" if ended else "stopped; so far at least ") + ", ".join(parts)
    if len(done.problems) == MAX_PROBLEMS:
        typer.echo(f"the first {MAX_PROBLEMS} problems are listed; correct these first", err=True)
    problems = [
        {"place": place, "path": error.path, "problem": error.problem, "remedy": error.remedy}
        for place, error in done.problems
    ]
    changes = {"changes": [each._asdict() for each in done.pending]} if dry_run else {}
    document = {
        **counts,
        **changes,
        "pruned": pruned or [],
        "dry_run": dry_run,
        "stopped": not ended,
        "problems": problems,
    }
    print_result([f"dry run, nothing stored: {line}" if dry_run else line], document, output)


def _child(one: JobText) -> Child | None:
    """Return a job with `after`; None for another one, or for one that cannot be read."""
    if isinstance(one.content, FieldError) or (isinstance(one.content, bytes) and b'"after"' not in one.content):
        return None
    job: dict[str, object] = {}
    with suppress(UndecodableMessage):
        job = read_object(one.content) if isinstance(one.content, bytes) else one.content
    schedule, key = as_object(job.get("schedule")) or {}, job.get("key")
    if "after" not in schedule or not isinstance(key, str):
        return None
    after = schedule["after"]
    named = [after] if isinstance(after, str) else as_list(after) or ()
    parents = [each if isinstance(each, str) else (as_object(each) or {}).get("job") for each in named]
    return Child(key, [parent for parent in parents if isinstance(parent, str)], one)
