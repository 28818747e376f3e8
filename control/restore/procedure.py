"""The steps after a restore from a base backup (docs/adr/0081-restore.md)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import LiteralString, cast
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from tidewheel import task_token_keys
from tidewheel.control.restore.ends import create_missing, end_unknown, raise_attempts, record_ends
from tidewheel.control.restore.history import History, find_expired, read_history
from tidewheel.control.restore.replay import replay_requests
from tidewheel.control.restore.timers import Fired, Past, fire_again, set_chains
from tidewheel.errors import SettingsError, refuse
from tidewheel.jobs.values import format_timestamp
from tidewheel.kafka.offsets import offsets_client
from tidewheel.message_signatures import MessageKeys
from tidewheel.migrations.runner import require_current
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.held_lock import HeldLock, begin_lasting, try_table_lock
from tidewheel.postgres.session import BY_KEY, Conn, Session, refuse_shared_sessions
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.settings.connections import Connections
from tidewheel.transitions.installation import Installation, read_installation

_SQL = Statements("tidewheel.control.restore")

_PAGE = 10_000
_END_MS = 30_000  # until a session has ended
_OPTIONS = f"{BY_KEY} -c statement_timeout=0 -c lock_timeout=60s -c default_transaction_read_only=off"
_GROUP = "tidewheel.restore"

MARGIN = timedelta(minutes=10)
"""Kafka is read from this long before the backup: heartbeats come every few seconds, clocks differ by less."""


@dataclass(slots=True)
class Restored:
    """The report of a restore; the counts are those of the last call."""

    since: datetime  # Kafka was read from this time on
    stopped_at: datetime  # no process of the old installation began a run after it
    completions: int = 0  # runs whose ends Kafka has
    messages: int = 0
    replies: int = 0
    unreadable: int = 0
    forged: int = 0  # run messages that no relay has signed; they are left out
    requests: int = 0  # applied again
    expired_requests: int = 0  # those that Kafka no longer had: their changes are lost
    occurrences: int = 0  # created again
    runs: int = 0  # others that were created again
    ended: int = 0  # with the end that Kafka has
    unknown: int = 0  # may have begun, and run again with a further attempt
    failed: int = 0  # at-most-once runs that may have begun: `unknown_outcome`
    lost: list[UUID] = field(default_factory=list[UUID])  # of job versions that neither the database nor Kafka has
    sessions: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class _State:
    """The stored state, from the raise of the epoch until services may start."""

    since: str
    stopped_at: str
    last_outbox_id: int
    messages_dropped: bool = False


def restore(
    url: str,
    settings: Connections,
    *,
    since: datetime | None = None,
    stopped_at: datetime | None = None,
    dry_run: bool = False,
    accept_gaps: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Restored:
    """Bring a restored database up to what Kafka has; other sessions can only read it meanwhile.

    Args:
        since: Read Kafka from this time on; by default from ten minutes before the last heartbeat in the database.
        stopped_at: The time at which the old installation stopped at the latest; by default now.

    Raises:
        SettingsError: Another restore works, a pooler shares sessions, the user does not own the database, the time of
            the backup is not known, the backup is older than what Kafka keeps, or run messages are signed by a later
            key.
        Unavailable: PostgreSQL or Kafka does not answer: repeat the call.
    """
    refuse_shared_sessions(url, options=_OPTIONS)
    session = Session(url, "tidewheel-restore", options=_OPTIONS)
    lock = Session(url, "tidewheel-restore-lock", autocommit=True, options=_OPTIONS)
    try:
        require_current(lock.connection())
        begin_lasting(lock.connection())
        held = HeldLock(lock.connection(), is_alone=try_table_lock(lock.connection(), _SQL["lock_restore"]))
        if not held.is_alone:
            raise SettingsError("another `tidewheel admin restore` is running on this database; wait for it to end")
        with session.transaction() as connection:
            connection.execute(_SQL["unbound"])
            installation, now = read_installation(connection, settings), read_now(connection)
            keys = MessageKeys()
            keys.refresh(connection)
            task_token_keys.refresh(installation.task_tokens, connection)
        state = _begin(session, since, stopped_at, write=not dry_run, accept_gaps=accept_gaps)
        report = Restored(datetime.fromisoformat(state.since), datetime.fromisoformat(state.stopped_at))
        if not dry_run:
            progress("ending all other sessions")
            report.sessions = _end_sessions(session, lock)
        config = {**settings.kafka_config(), "enable.partition.eof": "true", "auto.offset.reset": "error"}
        with offsets_client(config, _GROUP) as client:
            progress("reading what Kafka has since the backup")
            if not accept_gaps:
                _ensure_complete(
                    find_expired(client, settings.kafka_config(), installation.topics, since=report.since, now=now),
                    report.since,
                )
            history = read_history(client, installation.topics, report.since, keys)
            if history.unknown_keys and not accept_gaps:
                raise SettingsError(
                    f"{history.unknown_keys} run messages are signed by a key that the database lacks, so they may be"
                    " forged; if the key was rotated after the backup, accept them with --accept-gaps"
                )
            report.completions, report.messages = len(history.ends), len(history.requests)
            report.replies, report.unreadable = len(history.replies), history.unreadable
            report.forged = history.forged
            if dry_run:
                return report
            past = Past(session, installation, history, report.since)
            if not state.messages_dropped:
                progress("applying requests again")
                held.check()
                replayed = replay_requests(session, installation, client, config, history, past=past)
                report.requests, report.expired_requests = replayed.requests, replayed.expired
                report.occurrences, report.runs, report.ended = past.occurrences, past.created, past.ended
        progress("recording runs and their ends")
        held.check()
        _write(session, installation, history, state, report, fired=past.fired)
        held.check()
        _open(session, lock)
        return report
    finally:
        session.close()
        lock.close()


def _ensure_complete(expired: Sequence[str], since: datetime) -> None:
    if expired:
        raise SettingsError(
            f"{', '.join(expired)}: Kafka may have dropped messages since {format_timestamp(since)}, so runs that have"
            " ended may run again; restore a later backup, or accept the gaps with --accept-gaps"
        )


def _write(
    session: Session, installation: Installation, history: History, state: _State, report: Restored, *, fired: Fired
) -> None:
    if not state.messages_dropped:
        report.occurrences += fire_again(session, installation, fired)
        # Those of workflows last: the ends of their parents create them.
        of_workflows = history.of_workflows.keys()
        for runs in (history.runs.keys() - of_workflows, of_workflows):
            created, lost = create_missing(session, installation, history, runs=runs)
            report.runs += created
            report.lost += lost
            report.ended += record_ends(session, installation, history, report.since)
        set_chains(session, fired)
        report.unknown = raise_attempts(session, history)
        _drop_messages(session, installation, history, state)
    report.failed = end_unknown(session, installation, history, report.stopped_at)


def _open(session: Session, lock: Session) -> None:
    """Accept writes again, and let services start."""
    with session.transaction() as connection:
        connection.execute(_SQL["accept_writes"])
    failpoint("restoring.open")
    _end_sessions(session, lock)  # a pool keeps sessions that were opened meanwhile, and these can only read
    with session.transaction() as connection:
        connection.execute(_SQL["end_restore"])


def _begin(
    session: Session, since: datetime | None, stopped_at: datetime | None, *, write: bool, accept_gaps: bool
) -> _State:
    """Return the state of the restore that is under way, or begin one in a new epoch."""
    with session.transaction() as connection:
        if write:
            _refuse_writes(connection)
        found = connection.execute(_SQL["read_restore"]).fetchone()
        if found is not None:
            state = _State(**cast("dict[str, object]", found[0]))  # type: ignore[arg-type]
            stored_times = (("--since", since, state.since), ("--stopped-at", stopped_at, state.stopped_at))
            for option, given, stored in stored_times:
                if given is not None and given != datetime.fromisoformat(stored):
                    refuse(option, f"the restore that is under way has begun with {stored}", "leave it out")
            return state
        row = connection.execute(_SQL["read_backup"]).fetchone()
        backup_at, now, last_id = cast("tuple[datetime | None, datetime, int]", row)
        if since is None and backup_at is None:
            raise SettingsError("the database has no heartbeat of a service; give the time of the backup with --since")
        begin = since or cast("datetime", backup_at) - MARGIN
        _check_times(begin, stopped_at, backup_at, now=now, accept_gaps=accept_gaps)
        state = _State(begin.isoformat(), (stopped_at or now).isoformat(), last_id)
        if write:
            connection.execute(_SQL["raise_epoch"])
            connection.execute(_SQL["store_restore"], {"state": Jsonb(asdict(state))})
    failpoint("restoring.begun")
    return state


def _check_times(
    begin: datetime, stopped_at: datetime | None, backup_at: datetime | None, *, now: datetime, accept_gaps: bool
) -> None:
    if begin >= now:
        refuse("--since", f"{format_timestamp(begin)} is ahead", "name the time of the backup")
    if backup_at is not None and begin > backup_at and not accept_gaps:
        problem = f"the database has a heartbeat of {format_timestamp(backup_at)}: what Kafka has since is left out"
        refuse("--since", problem, "name an earlier time, or leave it out; --accept-gaps accepts it")
    if stopped_at is not None and not begin <= stopped_at <= now:
        problem = f"{format_timestamp(stopped_at)} is not between the backup and now"
        refuse("--stopped-at", problem, "name the time of the loss")


def _refuse_writes(connection: Conn) -> None:
    if connection.execute(_SQL["owns_database"]).fetchone() != (True,):
        message = "this user does not own the database, but the restore must keep writers out; connect as the owner"
        raise SettingsError(message)
    connection.execute(_SQL["refuse_writes"])


def _end_sessions(session: Session, lock: Session) -> list[str]:
    """End all other sessions of the database; those that begin later can only read it."""
    own = [each.connection().server_process() for each in (session, lock)]
    try:
        with session.transaction() as connection:
            rows = connection.execute(_SQL["end_sessions"], {"own": own, "wait_ms": _END_MS}).fetchall()
    except psycopg.errors.InsufficientPrivilege as error:
        raise SettingsError("this user may not end other sessions; GRANT pg_signal_backend TO this user") from error
    with session.transaction() as connection:  # another one: `pg_stat_activity` is read once in a transaction
        processes = [process for process, _, ended in rows if not ended]
        found = {process for (process,) in connection.execute(_SQL["find_sessions"], {"processes": processes})}
    if living := sorted(str(name) for process, name, _ in rows if process in found):
        raise SettingsError(f"sessions do not end: {', '.join(living)}; stop these processes, and repeat the command")
    return sorted({"-".join(str(name).split("-")[:2]) for _, name, _ in rows})  # tidewheel-relay has several


def _drop_messages(session: Session, installation: Installation, history: History, state: _State) -> None:
    """Delete the messages that Kafka has, of the backup and of the restore, and those that no claim needs.

    A dead letter stays: Kafka is not searched for it, and a repeat has the same `event_id`.
    """
    topics = installation.topics
    announced: dict[str, object] = {
        "topics": [topics.replies, topics.completions],
        "others": [f"{topics.replies}.t.%", f"{topics.prefix}.runs.%"],
    }
    for connection, rows in _pages(session, _SQL["read_written_messages"], announced, 0):
        known = [row[0] for row in rows if history.has(topics, str(row[1]), cast("bytes", row[2]))]
        connection.execute(_SQL["delete_messages"], {"ids": known})
    runs: dict[str, object] = {"runs": f"{topics.prefix}.runs."}
    for connection, rows in _pages(session, _SQL["read_needless_requests"], runs, state.last_outbox_id):
        connection.execute(_SQL["delete_messages"], {"ids": [row[0] for row in rows]})
    with session.transaction() as connection:
        state.messages_dropped = True
        connection.execute(_SQL["store_restore"], {"state": Jsonb(asdict(state))})
        failpoint("restoring.messages")


def _pages(
    session: Session, statement: LiteralString, columns: Mapping[str, object], after: int
) -> Iterator[tuple[Conn, list[tuple[object, ...]]]]:
    """Yield the rows of a statement in pages by their id, each in a transaction of its own."""
    while True:
        with session.transaction() as connection:
            rows = connection.execute(statement, {**columns, "after": after, "limit": _PAGE}, binary=True).fetchall()
            if not rows:
                return
            after = cast("int", rows[-1][0])
            yield connection, rows
