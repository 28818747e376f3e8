"""The embedded stack of one home folder: PostgreSQL and Kafka, up, down, and what there is.

Invariant: a process that changes a stack holds the lock of its home, so two `up` at once are one. Every step can be
repeated: the next `up` finishes a stack left half-way, and the next `down` stops it.

A database or brokers given to the stack take the place of its own part, which is then not started.
"""

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tidewheel.errors import StackError
from tidewheel.local.broker_config import client_properties, replication_of
from tidewheel.local.daemon import Progress, Step, in_silence
from tidewheel.local.jars import broker_jars
from tidewheel.local.kafka import Broker
from tidewheel.local.parts import STANDBY, Parts, PartState, PartStatus, database_addresses
from tidewheel.local.postgres import Postgres
from tidewheel.local.state import (
    StackState,
    default_home,
    erase_state,
    locked,
    new_state,
    promoted,
    read_state,
    with_free_node_ports,
    with_free_postgres_port,
    with_free_standby_port,
    write_private,
    write_state,
)

SIZES = (1, 3)
"""The numbers of brokers that a stack can have: two nodes lose their quorum with either one."""

_CONNECT_SECONDS = 5  # for a database that was given to us
_METADATA_SECONDS = 15  # for a broker that was given to us: a busy one has needed more than 5 s
_MAX_BROKERS = SIZES[-1]
_RUNNING = (PartState.RUNNING, PartState.GIVEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackInfo:
    """The addresses of a running stack.

    Args:
        database_url: libpq URL, password included.
        kafka: The settings of a Kafka client, `bootstrap.servers` and passwords included.
        kafka_properties: The file with these settings; None where the brokers were given.
        replication: How many copies its topics are to have; None where the brokers were given and may differ.
        pgpass: The file with the database's password, as libpq reads it; None where the database was given.
    """

    data_dir: Path
    database_url: str = field(repr=False)
    bootstrap: str
    kafka: Mapping[str, str] = field(repr=False)
    kafka_properties: Path | None
    replication: int | None
    pgpass: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StackStatus:
    """All parts of a stack; none if it was never made."""

    data_dir: Path
    parts: tuple[PartStatus, ...]

    @property
    def is_running(self) -> bool:
        """True if every part runs that others need: not the standby, which the next `up` starts."""
        return bool(self.parts) and all(part.state in _RUNNING for part in self.parts if part.name != STANDBY)


def running_stack(home: Path | None = None) -> StackInfo | None:
    """Return the addresses of the stack in `home`; None unless all its parts run. Sends no request."""
    folder = (home or default_home()).absolute()
    state = read_state(folder)
    if state is None:
        return None
    parts = Parts(folder, state)
    return _info(folder, parts, {}) if parts.are_noted_alive() else None


class LocalStack:
    """The stack of one home folder.

    Args:
        home: Its folder; by default that of `tidewheel.local.state.default_home`.
        brokers: 1 or 3; by default as many as the stack has, 1 for a new one.
        standby: True for a PostgreSQL with a synchronous standby, False for one without; by default as it is.
        client: The settings with which a client enters them.
        shared_buffers_megabytes: PostgreSQL's page cache, from its next start; measurements use 1024.
        max_wal_size_megabytes: WAL between PostgreSQL's checkpoints, likewise.
        lasting: False for a stack that is erased with the caller's session: PostgreSQL flushes nothing to disk, the
            brokers' code is compiled quickly, and members join their groups quickly.
    """

    def __init__(
        self,
        home: Path | None = None,
        *,
        brokers: int | None = None,
        standby: bool | None = None,
        database_url: str | None = None,
        bootstrap: str | None = None,
        client: Mapping[str, str] | None = None,
        shared_buffers_megabytes: int = 128,
        max_wal_size_megabytes: int = 2048,
        lasting: bool = True,
    ) -> None:
        if brokers is not None and brokers not in SIZES:
            raise StackError(f"a stack has 1 or 3 brokers, not {brokers}")
        self.home = (home or default_home()).absolute()
        self._brokers = brokers
        self._standby = standby
        self._given = {"database_url": database_url, "bootstrap": bootstrap}
        self._client = client or {}
        self._parts = partial(
            Parts,
            self.home,
            shared_buffers_megabytes=shared_buffers_megabytes,
            max_wal_size_megabytes=max_wal_size_megabytes,
            lasting=lasting,
        )

    def up(self, progress: Progress = in_silence) -> StackInfo:
        """Start what does not run, and wait until it serves; stop it again if a part cannot be started."""
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            message = f"the stack's home {self.home} cannot be created: {error.strerror}; choose another TIDEWHEEL_HOME"
            raise StackError(message) from error
        with self._alone(), ExitStack() as undo:
            parts = self._planned()
            if parts.state.bootstrap is None:
                broker_jars(progress)
                _start_cluster(parts, undo, progress)
            _start_postgres(parts, undo, progress)  # while the JVM warms up
            if parts.state.bootstrap is None:
                progress(Step("waiting for Kafka"))
                parts.cluster.wait_until_ready()
            undo.pop_all()
        return _info(self.home, parts, self._client)

    def down(self, *, erase: bool = False, progress: Progress = in_silence) -> None:
        """Stop what runs; with `erase`, remove all data too. Does nothing where nothing is."""
        if not self.home.exists():
            return
        with self._alone():
            parts = self._left(unreadable_too=erase)
            progress(Step("stopping PostgreSQL"))
            for server in parts.servers:  # the primary first: it sends the rest to its standby
                server.stop()
            progress(Step("stopping Kafka"))
            parts.cluster.stop()
            if erase:
                progress(Step("removing all data"))
                parts.erase()
                _properties_file(self.home).unlink(missing_ok=True)
                _pgpass_file(self.home).unlink(missing_ok=True)
                erase_state(self.home)

    def fail_over(self, progress: Progress = in_silence) -> None:
        """Stop the primary and promote its standby; the next `up` makes the old primary the standby."""
        self._require_parts()
        with self._alone():
            parts, standby = self._require_parts(), self.standby
            if standby.pid is None:
                raise StackError("the standby is not running; `tidewheel up` starts it")
            progress(Step("stopping the primary"))
            parts.postgres.stop()
            progress(Step("promoting the standby"))
            standby.promote()
            self._exchange(parts)

    def status(self) -> StackStatus:
        """Return the status of every part of the stack."""
        state = read_state(self.home)
        return StackStatus(data_dir=self.home, parts=self._parts(state).status() if state else ())

    def settled_status(self) -> StackStatus:
        """Return the status after the command that changes the stack now, if there is one."""
        with self._alone():
            return self.status()

    @property
    def postgres(self) -> Postgres:
        """The embedded server, the primary if it has a standby, for a caller that stops and starts it alone."""
        return self._require_parts().postgres

    @property
    def standby(self) -> Postgres:
        """The standby of the embedded server, likewise."""
        standby = self._require_parts().standby
        if standby is None:
            raise StackError("this stack has no standby; `tidewheel up --standby` creates one")
        return standby

    def broker(self, number: int) -> Broker:
        """Node `number`, from 1, for those who stop and start it alone."""
        brokers = self._require_parts().cluster.brokers
        if not 1 <= number <= len(brokers):
            raise StackError(f"this stack has Kafka nodes 1 to {len(brokers)}, not {number}")
        return brokers[number - 1]

    @contextmanager
    def _alone(self) -> Generator[None]:
        with locked(self.home / ".lock"):
            yield

    def _exchange(self, parts: Parts) -> StackState:
        """Record that the standby is the primary now; the data of the old one are replaced.

        A command that dies before the record leaves a standby that was promoted: the next `up` finds it.
        """
        parts.postgres.stop()
        parts.postgres.retire()
        state = promoted(parts.state)
        write_state(self.home, state)
        return state

    def _planned(self) -> Parts:
        """Return the parts with ports that are free or theirs, recorded before a process starts."""
        state = read_state(self.home) or new_state(self._brokers or 1)
        if self._brokers not in (None, len(state.nodes)):
            raise StackError(
                f"the stack in {self.home} has {len(state.nodes)} broker(s), not {self._brokers}: "
                f"run `tidewheel down --erase --home {self.home}` first, or choose another --home"
            )
        parts = self._parts(state)
        if parts.standby is not None and parts.standby.was_promoted:
            parts = self._parts(self._exchange(parts))
            state = parts.state
        if parts.postgres.pid is None:
            state = with_free_postgres_port(state)
        if parts.standby is not None and self._standby is False:
            parts.standby.stop()
            parts.standby.erase()
            state = state.model_copy(update={"standby_port": None})
        elif (self._standby or parts.standby is not None) and (parts.standby is None or parts.standby.pid is None):
            state = with_free_standby_port(state)
        if all(broker.pid is None for broker in parts.cluster.brokers):
            state = with_free_node_ports(state)
        # A shell that has evaluated `tidewheel env` names the stack's own servers.
        url, bootstrap = self._given["database_url"], self._given["bootstrap"]
        url = None if url and _is_same_database(url, self._parts(state).database_url) else url
        bootstrap = None if bootstrap == parts.cluster.bootstrap else bootstrap
        if url and self._standby:
            message = "--standby needs the stack's own PostgreSQL, but TIDEWHEEL_DATABASE_URL names another; unset it"
            raise StackError(message)
        # Before it is written down: a mistyped address must not become what every later command goes by.
        if url:
            _check_database(url)
        if bootstrap:
            _check_brokers(bootstrap, self._client)
        state = state.model_copy(update={"database_url": url, "bootstrap": bootstrap})
        write_state(self.home, state)
        parts = self._parts(state)
        if state.bootstrap is None:
            write_private(_properties_file(self.home), client_properties(parts.cluster.settings))
        if state.database_url is None:
            write_private(_pgpass_file(self.home), "".join(server.pgpass for server in parts.servers))
        return parts

    def _left(self, *, unreadable_too: bool) -> Parts:
        """Return all parts that may run here: those of the largest stack if no state is stored."""
        try:
            state = read_state(self.home)
        except StackError:
            if not unreadable_too:
                raise
            state = None
        return self._parts(state or with_free_standby_port(new_state(_MAX_BROKERS)))

    def _require_parts(self) -> Parts:
        state = read_state(self.home)
        if state is None:
            raise StackError(f"there is no local stack in {self.home}; `tidewheel dev` or `tidewheel up` creates one")
        return self._parts(state)


def _properties_file(home: Path) -> Path:
    return home / "client.properties"


def _pgpass_file(home: Path) -> Path:
    return home / "pgpass"


def _start_cluster(parts: Parts, undo: ExitStack, progress: Progress) -> None:
    for broker in parts.cluster.brokers:
        if broker.pid is None:
            progress(Step(f"starting Kafka node {broker.node.node_id}"))
            undo.callback(broker.kill)  # what never served has nothing to hand over
            broker.launch()


def _start_postgres(parts: Parts, undo: ExitStack, progress: Progress) -> None:
    if parts.state.database_url is not None:
        return
    names = ("PostgreSQL", "the standby")
    for name, server in zip(names, parts.servers, strict=False):
        if server.pid is None:
            progress(Step(f"starting {name}"))
            undo.callback(server.stop)
        server.start(progress)
    parts.postgres.replicate_to(parts.standby)


def _is_same_database(url: str, own: str) -> bool:
    """Return True if a libpq string names the stack's own database, on one of its servers or all."""
    with suppress(psycopg.ProgrammingError):
        is_own = set(database_addresses(url).split(",")) <= set(database_addresses(own).split(","))
        return is_own and conninfo_to_dict(url).get("dbname") == conninfo_to_dict(own).get("dbname")
    return False


def _check_database(url: str) -> None:
    try:
        psycopg.connect(url, connect_timeout=_CONNECT_SECONDS).close()
    except psycopg.Error as error:
        raise StackError(f"the database of TIDEWHEEL_DATABASE_URL does not answer: {error}") from error


def _check_brokers(bootstrap: str, client: Mapping[str, str]) -> None:
    from confluent_kafka import KafkaException  # here: `running_stack`, which every command may call, needs none
    from confluent_kafka.admin import AdminClient

    try:
        AdminClient({**client, "bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=_METADATA_SECONDS)
    except KafkaException as error:
        message = f"no Kafka broker of TIDEWHEEL_KAFKA_BOOTSTRAP answers at {bootstrap}: {error.args[0].str()}"
        raise StackError(message) from error


def _info(home: Path, parts: Parts, client: Mapping[str, str]) -> StackInfo:
    state = parts.state
    bootstrap = state.bootstrap or parts.cluster.bootstrap
    is_own = state.bootstrap is None
    return StackInfo(
        data_dir=home,
        database_url=state.database_url or parts.database_url,
        bootstrap=bootstrap,
        kafka=parts.cluster.settings if is_own else {**client, "bootstrap.servers": bootstrap},
        kafka_properties=_properties_file(home) if is_own else None,
        replication=replication_of(state.nodes) if is_own else None,
        pgpass=_pgpass_file(home) if state.database_url is None and _pgpass_file(home).exists() else None,
    )
