"""`tidewheel status`, `doctor` and `admin executors | shards`: what lives, and what is wrong.

Exit codes of `status`: 0 if nothing is wrong, 1 if something is, 3 if the local stack is used and does not run, 6 if
PostgreSQL does not answer. Those of `doctor`: 0 if nothing is wrong, 1 for warnings only, 2 if an error keeps work
waiting.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import psycopg
import typer

from tidewheel.control.cli.connect import stack_in
from tidewheel.control.cli.dev import Home
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.options import Limit, reading
from tidewheel.control.cli.output import (
    Output,
    OutputOption,
    print_document,
    print_facts,
    print_rows,
    print_table,
    wrapped,
)
from tidewheel.control.cli.parser import option
from tidewheel.control.cli.tables import Cell, relative_text
from tidewheel.control.reads import fleet as read
from tidewheel.control.reads.findings import Finding, Severity
from tidewheel.control.reads.fleet import COUNTED, FleetStatus, Service, age_text, read_intake_offsets, read_status
from tidewheel.control.reads.json_form import as_json
from tidewheel.control.reads.stored import show_damaged
from tidewheel.distribution import is_installed
from tidewheel.errors import MigrationError, SettingsError, Unavailable
from tidewheel.jobs.strict_json import as_object
from tidewheel.kafka.offsets import offsets_client, read_end_offsets, read_partitions
from tidewheel.kafka.topics import Topics
from tidewheel.migrations.runner import require_current
from tidewheel.postgres.faults import first_line
from tidewheel.postgres.session import Conn, connect
from tidewheel.settings.connections import Connections
from tidewheel.transitions.installation import read_installation
from tidewheel.transitions.tenant_refusals import topics_to_read

if TYPE_CHECKING:
    from tidewheel.local.stack import StackStatus

_WARNINGS, _ERRORS = 1, 2
_EXECUTORS = ("executor", "name", "state", "heartbeat", "slots", "queues", "handlers")


def status(home: Home = None, *, output: OutputOption = Output.TEXT) -> None:
    """Show services, due work and problems. Exit code 1 if there are problems."""
    if code := _show(home, output):
        raise typer.Exit(code)


def _show(home: Path | None, output: Output) -> int:
    stack = _local_stack(home)
    found = _read(home)
    if isinstance(found, SettingsError) and (stack is None or stack.is_running):
        raise found
    if output is not Output.TEXT:
        print_document({**_stack_json(stack), **_fleet_json(found)}, output)
    else:
        if stack is not None and (stack.parts or isinstance(found, SettingsError)):
            services = found.fleet.services if isinstance(found, _Found) else ()
            _print_stack(stack, home, has_api=any(each.role == "api" and not each.is_silent for each in services))
        if isinstance(found, _Found):
            if stack is not None and stack.parts:
                typer.echo()
            _print_fleet(found)
        elif stack is None or isinstance(found, Unavailable):
            typer.echo(f"tidewheel: {found}", err=True)
    if isinstance(found, MigrationError):  # after the parts: they run
        raise found
    if isinstance(found, SettingsError) or (stack is not None and stack.parts and not stack.is_running):
        return ExitCode.NOT_RUNNING
    if isinstance(found, Unavailable):
        return ExitCode.UNAVAILABLE
    return ExitCode.FAILED if found.problems else ExitCode.DONE


@dataclass(frozen=True, slots=True)
class _Found:
    """The fleet, and the number of requests on Kafka that intake has not read; None if it is unknown."""

    fleet: FleetStatus
    requests_behind: int | None
    error: str | None

    @property
    def problems(self) -> Sequence[Finding]:
        """The findings of the fleet, after that of Kafka."""
        if self.error is None:
            return self.fleet.problems
        what = "the requests topic cannot be read: requests and events wait, and only the sweep starts runs"
        remedy = "start the brokers, or correct TIDEWHEEL_KAFKA_BOOTSTRAP; `tidewheel doctor` checks the topics"
        return (Finding("broker", Severity.ERROR, what, self.error, remedy), *self.fleet.problems)


def _read(home: Path | None) -> _Found | SettingsError | MigrationError | Unavailable:
    """Return the fleet, or the reason why it is unknown."""
    settings = Connections.load()
    try:
        if home is not None and is_installed("local"):
            url = settings.in_schema(stack_in(home).database_url)
        else:
            url = settings.database()
        with connect(url, "tidewheel-cli", pooled=True) as connection:
            connection.begin()
            require_current(connection)
            connection.begin()  # it has ended the transaction, and with that the schema behind a pooler
            show_damaged(connection, shows=True)
            installation = read_installation(connection, settings)
            fleet = read_status(connection, installation.shards)
            return _Found(fleet, *_requests_behind(connection, settings, installation.topics))
    except (SettingsError, MigrationError, Unavailable) as error:
        return error
    except psycopg.OperationalError as error:
        return Unavailable(f"the database does not answer: {first_line(error)}")


def _fleet_json(found: _Found | SettingsError | MigrationError | Unavailable) -> dict[str, object]:
    if not isinstance(found, _Found):
        return {"unknown": str(found), "services": None, "problems": None}
    fields = as_object(as_json(found.fleet)) or {}
    rest = {"requests_behind": found.requests_behind, "problems": as_json(found.problems)}
    return {"unknown": None, **fields, **rest}


def _stack_json(stack: "StackStatus | None") -> dict[str, object]:
    if stack is None:
        return {"home": None, "running": None, "parts": []}
    from tidewheel.control.cli.local import stack_json

    return stack_json(stack)


def _requests_behind(connection: Conn, settings: Connections, topics: Topics) -> tuple[int | None, str | None]:
    """Return how many messages intake has not read, and the error of a topic that cannot be read."""
    known = read_intake_offsets(connection)
    try:
        with offsets_client(settings.kafka_config()) as client:
            found = read_partitions(client)
            places = [place for topic in topics_to_read(connection, topics, found) for place in found.get(topic, ())]
            ends = read_end_offsets(client, places)
    except SettingsError:
        return None, None
    except Unavailable as error:
        return None, str(error)
    return sum(max(end - known.get(place, start), 0) for place, (start, end) in ends.items()), None


def _local_stack(home: Path | None) -> "StackStatus | None":
    """Return the parts of the local stack; None where its packages are not installed."""
    if not is_installed("local"):
        return None
    from tidewheel.local.stack import LocalStack

    return LocalStack(home).status()


def _print_stack(stack: "StackStatus", home: Path | None, *, has_api: bool) -> None:
    if not stack.parts:
        typer.echo(f"there is no local stack in {stack.data_dir}; `tidewheel dev` or `tidewheel up` creates one")
        return
    from tidewheel.control.cli.local import print_access
    from tidewheel.local.stack import running_stack

    typer.echo(stack.data_dir)
    rows = [(part.name, part.state.value, part.address, str(part.pid or "")) for part in stack.parts]
    print_table(("part", "state", "address", "pid"), rows)
    if (info := running_stack(home) if stack.is_running else None) is not None:
        print_access(info, has_api=has_api)
    elif not stack.is_running:
        typer.echo("the stack is not fully running; `tidewheel dev` or `tidewheel up` starts it")


def _print_fleet(found: _Found) -> None:
    fleet = found.fleet
    if fleet.services:
        rows = [_service_row(each, fleet) for each in fleet.services]
        headings = ("service", "state", "host", "pid", "version", "heartbeat", "slots", "queues", "handlers")
        print_table(headings, rows, spare=("version", "pid", "slots"))
    else:
        typer.echo("no service is running: start all with `tidewheel serve --handlers MODULES`, or use `tidewheel dev`")
    typer.echo()
    print_facts(_facts(fleet, found.requests_behind))
    if fleet.due:
        typer.echo()
        print_table(
            ("queue", "lane", "due", "oldest", "orphaned"),
            [
                (each.queue, each.lane, _count(each.due), age_text(each.oldest), str(each.orphaned))
                for each in fleet.due
            ],
        )
    for lane in fleet.held:
        typer.echo(wrapped(f"held back: queue {lane.queue}, lane {lane.lane}: {lane.words}", "  "))
    for finding in found.problems:
        typer.echo()
        print_finding(finding)


def _service_row(each: Service, fleet: FleetStatus) -> tuple[str, ...]:
    state = "dead" if each.is_silent else "stopping" if each.is_stopping else "alive"
    return (
        each.role,
        state,
        each.host,
        str(each.pid or ""),
        each.version or "",
        relative_text(each.last_heartbeat_at, fleet.now),
        str(each.slots or ""),
        ", ".join(each.queues or ()),
        ", ".join(each.handlers or ()),
    )


def _facts(fleet: FleetStatus, behind: int | None) -> Iterator[tuple[str, str | None]]:
    yield "due runs", _count(sum(each.due for each in fleet.due))
    overdue = f", the oldest for {age_text(fleet.overdue_by)}" if fleet.overdue_timers else ""
    yield "overdue timers", f"{_count(fleet.overdue_timers)}{overdue}"
    oldest = max((each.oldest for each in fleet.outbox), default=None)
    waits = _count(sum(each.due for each in fleet.outbox))
    yield "outbox", waits if oldest is None else f"{waits}, the oldest for {age_text(oldest)}"
    yield "requests", "unknown" if behind is None else f"{_count(behind)} not yet read by intake"


def _count(number: int) -> str:
    return f"at least {number:,}" if number >= COUNTED else f"{number:,}"


def print_finding(finding: Finding) -> None:
    """Print what is wrong, its evidence and the remedy."""
    typer.echo(wrapped(f"{finding.severity}: {finding.what}", "  "))
    run = f", such as {finding.run_id}" if finding.run_id else ""
    typer.echo(wrapped(f"  evidence: {finding.evidence}{run}", "    "))
    typer.echo(f"  remedy: {finding.remedy}")  # on one line: it can be copied


def list_executors(
    *,
    after: Annotated[UUID | None, option("ID", "Start after this executor; the last line of a page shows it.")] = None,
    number: Limit = 50,
    output: OutputOption = Output.TEXT,
) -> None:
    """List executors, each with its slots, queues, handlers and last heartbeat."""
    with reading() as connection:
        found = read.list_executors(connection, after=after, limit=number + 1)
    page, following = found[:number], found[number - 1].executor_id if len(found) > number else None
    document = {"executors": page, "next_cursor": following}
    print_rows(_EXECUTORS, list(map(_row, page)), document, output, nothing="no executors")
    if following and output is Output.TEXT:
        typer.echo(f"more: add --after {following}")


def list_shards(*, output: OutputOption = Output.TEXT) -> None:
    """List shards, each with the scheduler that fires its jobs."""
    with reading() as connection:
        shards = read.list_shards(connection, read_installation(connection, Connections.load()).shards)
    rows = [
        (str(each.shard), each.owner.name, each.owner.last_heartbeat_at) if each.owner
        else (str(each.shard), "no scheduler", None)
        for each in shards
    ]  # fmt: skip
    print_rows(("shard", "scheduler", "heartbeat"), rows, {"shards": shards}, output)


def doctor(output: OutputOption = Output.TEXT) -> None:
    """Check the installation; print each finding with its evidence and a remedy."""
    from tidewheel.control.doctor.doctor import diagnose  # here: status needs no check

    report = diagnose(Connections.load())
    if output is not Output.TEXT:
        print_document(report, output)
    else:
        for finding in report.findings:
            print_finding(finding)
            typer.echo()
        if report.skipped:
            typer.echo(f"not checked: {', '.join(report.skipped)}")
        for note in report.notes:
            typer.echo(wrapped(f"note: {note}", "  "))
        found = f"{len(report.findings)} {'finding' if len(report.findings) == 1 else 'findings'}"
        typer.echo(f"{found}; passed: {', '.join(report.passed) or 'none'}")
    if report.findings:
        raise typer.Exit(_ERRORS if any(each.severity is Severity.ERROR for each in report.findings) else _WARNINGS)


def _row(each: read.ExecutorSummary) -> tuple[Cell, ...]:
    return (
        str(each.executor_id),
        each.name,
        "dead" if each.is_silent else "stopping" if each.stopping else "alive",
        each.last_heartbeat_at,
        str(each.slots),
        ", ".join(each.queues),
        ", ".join(each.handlers),
    )
