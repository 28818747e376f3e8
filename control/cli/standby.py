"""`tidewheel admin standby enable | disable | status | raise`."""

import re
from dataclasses import asdict
from typing import Annotated

import typer

from tidewheel.audit import ALL_TENANTS, Change, Door, process_actor, record_change
from tidewheel.control.cli.options import Replication, check_replication, checked_url, reading
from tidewheel.control.cli.output import (
    Output,
    OutputOption,
    count_text,
    duration_text,
    moment,
    print_document,
    print_facts,
    print_result,
)
from tidewheel.control.standby import recording, state
from tidewheel.errors import refuse
from tidewheel.kafka.topics import Topics, create_standby_topics
from tidewheel.postgres.session import connect
from tidewheel.settings.connections import Connections

_NO_HURRY = "-c statement_timeout=0 -c transaction_timeout=0 -c idle_in_transaction_session_timeout=0"
_SHOWN = 20
_BROKER = re.compile(r"(?:\w+://)?(?:\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):(?P<port>\d{1,5})", re.ASCII)
_LAST_PORT = 65_535
_PREFIX = re.compile(r"[a-zA-Z0-9._-]{1,249}")  # Source: Kafka, legal names of topics


def enable(
    replication: Replication = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Begin to record jobs and open runs in two compacted topics, for a standby site.

    It creates the topics and the triggers, and lists what exists. A scheduler begins within 5 s. Run it again after
    `tidewheel migrate` to a new release. It needs the owner of the tables.
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
    text = "recording is disabled; delete the two topics, or leave them" if changed else "unchanged: it was not enabled"
    print_result([text], {"unchanged": not changed}, output)


def status(output: OutputOption = Output.TEXT) -> None:
    """Show the last complete state in the topics, and the site from which this one was raised."""
    with reading() as connection:
        found = state.read_recording(connection)
    if output is not Output.TEXT:
        print_document(None if found is None else asdict(found), output)
    elif found is None:
        typer.echo("recording is off: `tidewheel admin standby enable` begins it")
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
        typer.Option(metavar="NAME", help="The begin of their names there, such as `a.tidewheel`; default: as here."),
    ] = None,
    accept_gaps: Annotated[
        bool, typer.Option("--accept-gaps", help="Raise although rows may be missing; the report names the reason.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Raise this installation from the topics of a site that is lost.

    Stop or cut off the other site first: two sites that fire do everything twice. The database must be new, with
    `tidewheel migrate` run and no service started. All is one transaction: after a crash run the command again. It
    needs the owner of the tables.
    """
    from tidewheel.control.standby.raising import raise_site as raise_from

    _check_source(source, prefix)
    url, settings = checked_url(), Connections.load()
    config = {**settings.kafka_config(), "bootstrap.servers": source}
    with connect(url, "tidewheel-standby", autocommit=True, options=_NO_HURRY) as connection:
        raised = raise_from(connection, config, Topics(prefix or settings.topic_prefix), accept_gaps=accept_gaps)
    if output is not Output.TEXT:
        print_document({**asdict(raised), "window": raised.window}, output)
        return
    if raised.repeated:
        typer.echo(f"unchanged: raised already, from site {raised.site} as of {moment(raised.as_of, None)}")
        return
    lines = [
        f"raised from site {raised.site}, batch {raised.batch:,}",
        *(f"{number:>12,} {kind}" for kind, number in raised.rows.items()),
        f"state as of {moment(raised.as_of, None)}",
        f"loss window: {duration_text(raised.window)} until now; what the other site did in it is not known here, and"
        " occurrences of this time fire again under their old run ids",
    ]
    if raised.left_out:
        lines.append(f"{count_text(raised.left_out, 'record')} behind the last complete batch left out")
    lines += [f"rows may be missing: {gap}" for gap in raised.gaps]
    if raised.unchecked:
        lines.append(
            "the topics keep the first site's times (message.timestamp.type), so it is not known whether the mirror was"
            " more than an hour behind: rows may be missing then"
        )
    if raised.doubtful_runs:
        lines.append(
            f"{count_text(len(raised.doubtful_runs), 'run')} of at-most-once jobs end with an unknown outcome:"
        )
        lines += [f"  {run_id}" for run_id in raised.doubtful_runs[:_SHOWN]]
    if raised.paused_jobs:
        lines.append(
            f"{count_text(len(raised.paused_jobs), 'job')} with at-most-once paused; resume them when it is safe:"
        )
        lines += [f"  {job}" for job in raised.paused_jobs[:_SHOWN]]
    print_result(lines, None, output)


def _check_source(source: str, prefix: str | None) -> None:
    """Check the names of the other site's brokers and topics, before a server is connected."""
    for broker in source.split(","):
        found = _BROKER.fullmatch(broker)
        if found is None or not 0 < int(found["port"]) <= _LAST_PORT:
            refuse("--from", f"{broker!r} is no broker", "write HOST:PORT, such as kafka-b:9092; several with commas")
    if prefix is not None and not _PREFIX.fullmatch(prefix):
        remedy = "write letters, digits, dots, hyphens and underscores, such as a.tidewheel"
        refuse("--prefix", f"no topic's name begins with {prefix!r}", remedy)
