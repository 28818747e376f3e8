"""`tidewheel admin restore | standby | audit`: continue after a lost database or site."""

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from errno import EISDIR
from os import strerror
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO, cast

import typer

from tidewheel.audit import ALL_TENANTS, Change, Door, process_actor, record_change
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.options import (
    DEFAULT_TENANT,
    Replication,
    Tz,
    check_replication,
    checked_url,
    complete_key,
    reading,
    rfc3339,
)
from tidewheel.control.cli.output import (
    Output,
    OutputOption,
    count_text,
    duration_text,
    moment,
    print_document,
    print_facts,
    print_result,
    wrapped,
)
from tidewheel.control.instants import read_instant
from tidewheel.control.occurrence_audit.result import AuditResult, JobFinding, run_audit
from tidewheel.control.reads.json_form import as_json
from tidewheel.control.standby import recording
from tidewheel.control.standby.state import read_recording
from tidewheel.errors import refuse
from tidewheel.jobs.strict_json import as_object
from tidewheel.kafka.topics import Topics, create_standby_topics
from tidewheel.postgres.session import connect
from tidewheel.settings.connections import Connections

if TYPE_CHECKING:
    from tidewheel.control.restore.procedure import Restored
    from tidewheel.control.standby.raising import Raised


_NO_HURRY = "-c statement_timeout=0 -c transaction_timeout=0 -c idle_in_transaction_session_timeout=0"
_SHOWN = 20
_BROKER = re.compile(r"(?:\w+://)?(?:\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):(?P<port>\d{1,5})", re.ASCII)
_LAST_PORT = 65_535
_PREFIX = re.compile(r"[a-zA-Z0-9._-]{1,249}")  # Source: Kafka, legal names of topics

_SHOWN_FINDINGS = 50  # findings in text


def enable(
    replication: Replication = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Start recording jobs and open runs in two compacted topics, for a standby site.

    The command creates the topics and the triggers, and lists all existing rows. A scheduler starts within 5
    s. Run the command again after `tidewheel migrate` to a new release. Connect as the owner of the tables.
    """
    check_replication(replication)
    url, settings = checked_url(), Connections.load(replication=replication)
    names = Topics(settings.topic_prefix)
    done = create_standby_topics(settings.kafka_config(), names, replication=settings.replication)
    with connect(url, "tidewheel-standby", autocommit=True, options=_NO_HURRY) as connection:
        recording.enable(connection, names)
        with connection.transaction():
            record_change(connection, process_actor(Door.CLI), Change(ALL_TENANTS, "standby.enable", "standby"))
    lines = [*done, "recording is enabled; `tidewheel admin standby status` shows the first complete state"]
    print_result(lines, {"topics": [names.jobs, names.run_states], "done": done}, output)


def disable(output: OutputOption = Output.TEXT) -> None:
    """Stop recording for a standby site; the topics stay."""
    with connect(checked_url(), "tidewheel-standby", autocommit=True, options=_NO_HURRY) as connection:
        changed = recording.disable(connection)
        with connection.transaction():
            record_change(connection, process_actor(Door.CLI), Change(ALL_TENANTS, "standby.disable", "standby"))
    text = (
        "recording is disabled; the two topics stay and may be deleted"
        if changed
        else "unchanged: recording was not enabled"
    )
    print_result([text], {"unchanged": not changed}, output)


def status(output: OutputOption = Output.TEXT) -> None:
    """Show the last complete state in the topics, and the site from which this one was rebuilt."""
    with reading() as connection:
        found = read_recording(connection)
    if output is not Output.TEXT:
        print_document(None if found is None else asdict(found), output)
    elif found is None:
        typer.echo("recording is off; start it with `tidewheel admin standby enable`")
    else:
        on = found.enabled_at is not None
        print_facts(
            (
                ("site", str(found.site)),
                ("recording", f"since {moment(found.enabled_at, None)}" if found.enabled_at else "off"),
                ("complete as of", moment(found.complete_at, None) if found.complete_at else "not yet" if on else None),
                ("age", duration_text(found.age) or None),
                ("noted changes", f"{found.changes:,}" if on else None),
                ("raised from", str(found.raised_site) if found.raised_site else None),
                ("raised as of", moment(found.raised_as_of, None) if found.raised_as_of else None),
                ("raised at", moment(found.raised_at, None) if found.raised_at else None),
            )
        )


def raise_site(
    *,
    source: Annotated[
        str, typer.Option("--from", metavar="HOST:PORT", help="The brokers that have the other site's topics.")
    ],
    prefix: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The prefix of their names there, such as `a.tidewheel`; default: the prefix here."
        ),
    ] = None,
    accept_gaps: Annotated[
        bool, typer.Option("--accept-gaps", help="Rebuild even if rows may be missing; the report gives the reason.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Rebuild this installation from the topics of a lost site.

    Stop or cut off the other site first: two sites that fire do everything twice. The database must be new, with
    `tidewheel migrate` run and no service started. The command is one transaction: after a crash, run it again.
    Connect as the owner of the tables.
    """
    from tidewheel.control.standby.raising import raise_site as raise_from

    _check_source(source, prefix)
    url, settings = checked_url(), Connections.load()
    config = {**settings.kafka_config(), "bootstrap.servers": source}
    with connect(url, "tidewheel-standby", autocommit=True, options=_NO_HURRY) as connection:
        raised = raise_from(connection, config, Topics(prefix or settings.topic_prefix), accept_gaps=accept_gaps)
    print_result(_raised_lines(raised), {**asdict(raised), "window": raised.window}, output)


def _raised_lines(raised: "Raised") -> list[str]:
    if raised.repeated:
        return [f"unchanged: already raised from site {raised.site} as of {moment(raised.as_of, None)}"]
    lines = [
        f"raised from site {raised.site}, batch {raised.batch:,}",
        *(f"{number:>12,} {kind}" for kind, number in raised.rows.items()),
        f"state as of {moment(raised.as_of, None)}",
        f"loss window: {duration_text(raised.window)} until now; this site does not know what the other site did in"
        " this time, and occurrences of this time fire again under their old run ids",
    ]
    if raised.left_out:
        lines.append(f"left out {count_text(raised.left_out, 'record')} after the last complete batch")
    lines += [f"rows may be missing: {gap}" for gap in raised.gaps]
    if raised.unchecked:
        lines.append(
            "the topics keep the first site's times (message.timestamp.type), so the mirror may have been more than"
            " an hour behind: rows may be missing"
        )
    if raised.doubtful_runs:
        lines.append(
            f"{count_text(len(raised.doubtful_runs), 'run')} of at-most-once jobs end with an unknown outcome:"
        )
        lines += [f"  {run_id}" for run_id in raised.doubtful_runs[:_SHOWN]]
    if raised.paused_jobs:
        lines.append(
            f"{count_text(len(raised.paused_jobs), 'job')} with at-most-once paused; resume these jobs when it is safe:"
        )
        lines += [f"  {job}" for job in raised.paused_jobs[:_SHOWN]]
    return lines


def _check_source(source: str, prefix: str | None) -> None:
    """Check the names of the other site's brokers and topics, before a server is connected."""
    for broker in source.split(","):
        found = _BROKER.fullmatch(broker)
        if found is None or not 0 < int(found["port"]) <= _LAST_PORT:
            refuse(
                "--from",
                f"{broker!r} is not a broker",
                "write HOST:PORT, such as kafka-b:9092; separate several with commas",
            )
    if prefix is not None and not _PREFIX.fullmatch(prefix):
        remedy = "write letters, digits, dots, hyphens and underscores, such as a.tidewheel"
        refuse("--prefix", f"{prefix!r} is not a prefix of topic names", remedy)


def restore(
    *,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Read Kafka from this time on; default: 10 minutes before the last heartbeat."
        ),
    ] = None,
    stopped_at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="The latest time at which the lost database may have run; default: now."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read Kafka and count; write nothing.")] = False,
    accept_gaps: Annotated[
        bool,
        typer.Option(
            "--accept-gaps", help="Continue even if messages may be gone, or their key has been rotated since."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm; required.")] = False,
    timezone: Tz = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Catch up after a restore from a base backup: record what Kafka has since, before services start.

    The command ends all other sessions of the database. Until it finishes, new sessions can only read, and no service
    starts. A repeat continues where the last call stopped. Connect as the owner of the database.
    """
    from tidewheel.control.restore.procedure import restore as run

    if not yes and not dry_run:
        refuse("--yes", "is missing", "stop all services first, then add --yes; --dry-run only counts")
    settings = Connections.load()
    report = run(
        settings.database(),
        settings,
        since=None if since is None else read_instant(since, "--since", timezone),
        stopped_at=None if stopped_at is None else read_instant(stopped_at, "--stopped-at", timezone),
        dry_run=dry_run,
        accept_gaps=accept_gaps,
        progress=lambda step: typer.echo(step, err=True),
    )
    facts = asdict(report)
    if output is not Output.TEXT:
        print_document(facts, output)
        return
    print_facts(
        (
            ("read Kafka from", rfc3339(report.since)),
            ("sessions ended", ", ".join(report.sessions) or "none"),
            ("found", f"{report.completions:,} ends, {report.messages:,} runs, {report.replies:,} replies"),
            ("unreadable", f"{report.unreadable:,}" if report.unreadable else None),
            ("without a valid signature", f"{report.forged:,}, left out" if report.forged else None),
            *(() if dry_run else _written(report)),
        )
    )
    if dry_run:
        typer.echo(wrapped("`tidewheel admin restore --yes` records them", "  "))
    else:
        typer.echo(wrapped("the database is current: start the services, then run `tidewheel admin audit`", "  "))


def _written(report: "Restored") -> tuple[tuple[str, str | None], ...]:
    return (
        ("requests applied again", f"{report.requests:,}"),
        ("requests no longer in Kafka", f"{report.expired_requests:,}" if report.expired_requests else None),
        ("runs created again", f"{report.occurrences:,} of timers, {report.runs:,} others"),
        ("runs ended", f"{report.ended:,}"),
        ("runs that may have begun", f"{report.unknown:,} run again, {report.failed:,} failed (at most once)"),
        ("runs of unknown jobs", ", ".join(map(str, report.lost[:10])) or None),
    )


def audit(
    *,
    begin: Annotated[str, typer.Option("--from", metavar="TIME", help="The first instant of the range.")],
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="The end of the range, exclusive; default: now.")
    ] = None,
    job: Annotated[str | None, typer.Option(metavar="KEY", help="Only this job.", autocompletion=complete_key)] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a report with the counts of each job, as JSON.")
    ] = None,
    completions: Annotated[
        bool, typer.Option("--completions", help="Also compare the ends of runs with the completions on Kafka.")
    ] = False,
    timezone: Tz = None,
    tenant: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this tenant; by default all, or with --job the tenant default."),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Recompute every occurrence of a range, and compare it with the records. Exit code 1 for a gap.

    Each computed occurrence of a job must have fired, or been skipped with a reason. The audit reads one snapshot and
    writes only the report.
    """
    first = read_instant(begin, "--from", timezone)
    before = None if end is None else read_instant(end, "--to", timezone)
    scope = tenant or (DEFAULT_TENANT if job is not None else None)
    url = checked_url()
    kafka = Connections.load().kafka_config() if completions else None
    with nullcontext() if report is None else _replacing(report) as file:
        result = run_audit(url, first, before, tenant=scope, key=job, report=file, kafka=kafka)
    if output is Output.TEXT:
        _print(result, timezone)
    else:
        print_document({**(as_object(as_json(result)) or {}), "passed": result.passed}, output)
    if not result.passed:
        raise typer.Exit(ExitCode.FAILED)


@contextmanager
def _replacing(path: Path) -> Generator[TextIO]:
    """Open a file that replaces another one when it is complete."""
    try:
        if path.is_dir():  # as is one without a name: `.` or none
            raise IsADirectoryError(EISDIR, strerror(EISDIR))
        part = path.with_name(f"{path.name}.part")
        file = part.open("w", encoding="utf-8")
    except OSError as error:
        refuse("--report", f"{path} cannot be written: {error.strerror}", "name a file in a folder that exists")
    try:
        with file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _print(result: AuditResult, timezone: str | None) -> None:
    for each in result.findings[:_SHOWN_FINDINGS]:
        typer.echo(wrapped(_finding_text(each, timezone), "  "))
    if result.totals.findings > _SHOWN_FINDINGS:
        typer.echo(f"… {result.totals.findings - _SHOWN_FINDINGS:,} more")
    if not result.passed:
        typer.echo("")
    print_facts(_facts(result))


def _finding_text(each: JobFinding, timezone: str | None) -> str:
    found = each.finding
    last = "" if found.last_at == found.first_at else f" to {rfc3339(found.last_at)}"
    few = "" if found.occurrences == 1 else f", {count_text(found.occurrences, 'occurrence')}"
    job = f"{each.tenant}/{each.key}" if each.key else f"job {each.job_id}"
    return f"{found.problem}: {job} at {rfc3339(found.first_at)}{last}{few}: {found.words}"


def _facts(result: AuditResult) -> Iterator[tuple[str, str | None]]:
    facts, totals = result.facts, result.totals
    yield "range", f"{rfc3339(result.first)} to {rfc3339(result.before)}"
    yield "left out, being deleted", ", ".join(facts.deleting) or None
    yield "jobs", f"{totals.jobs:,}"
    yield "computed", f"{totals.computed:,}"
    yield "fired", f"{totals.fired:,}"
    for reason, count in sorted(totals.skipped.items()):
        yield f"skipped: {reason}", f"{count:,}"
    for reason, count in sorted(totals.undecided.items()):
        yield f"not decided: {reason}", f"{count:,}"
    yield "without a record", f"{totals.missing:,}"
    yield "runs", ", ".join(f"{count:,} {state}" for state, count in sorted(totals.runs.items())) or "none"
    yield "claimed", f"{totals.by_message:,} by a message, {totals.by_sweep:,} by the sweep"
    yield "attempts", f"{totals.attempts:,}"
    yield "unrecorded ends", f"{totals.unrecorded:,}" if totals.unrecorded else None
    yield "findings", f"{totals.findings:,}"
    yield "tzdata", f"{facts.tzdata}; the timers were computed with {as_json(facts.stored_tzdata) or 'none'}"
    changes = cast("list[dict[str, str]]", facts.tzdata_changes or [])
    yield (
        "tzdata changed",
        ", ".join(f"from {each['from']} to {each['to']} at {each['at']}" for each in changes) or None,
    )
    yield "snapshot", f"{facts.snapshot} of {facts.database} at {rfc3339(facts.taken_at)}"
    yield "sha256", result.sha256
