"""`Tidewheel`: all of it on a database of one test, with a clock that the test moves.

Requests go in as in production, the services do what is due when the test steps them, and the clock stops until it is
moved. Nothing is imitated: PostgreSQL and Kafka are real, and so is every service.
"""

import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, LiteralString, cast
from uuid import uuid4

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from psycopg.rows import class_row

from tidewheel import task_token_keys
from tidewheel.clock import SystemClock, monotonic_seconds
from tidewheel.control.client.client import Client
from tidewheel.errors import refuse
from tidewheel.executor.handlers import registered
from tidewheel.executor.runners.runner import capabilities, target_kinds
from tidewheel.ids import RunId, job_id
from tidewheel.jobs.spec import JobSpec
from tidewheel.kafka.topics import DEFAULT_QUEUE, Topics
from tidewheel.nouns.jobs.model import Job
from tidewheel.nouns.runs.model import Run
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements
from tidewheel.runs import OWNED, Move, RunState, sources
from tidewheel.settings.connections import Connections
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.testing.databases import CLOCK, Template, stop_clock
from tidewheel.testing.services import Inbox, Services
from tidewheel.transitions.installation import Installation, read_installation, record_topic_prefix

if TYPE_CHECKING:
    from tidewheel.local.stack import LocalStack  # of the extra `local`, which servers of your own do not need

_SQL = Statements("tidewheel.testing")
_READ_QUEUES = _SQL["read_queues"]
_NOW: LiteralString = "SELECT tidewheel_now()"

_TENANT = "default"
_POLL_SECONDS = 0.005
_TOPICS_SECONDS = 60.0


class Stack:
    """The PostgreSQL and Kafka of a test session, and what its tests share.

    Args:
        stack: The embedded one, which runs; or none, where the two others name servers.
        database_url: A database of the server on which databases for tests are made.
        kafka: The settings of a Kafka client, `bootstrap.servers` included.
    """

    def __init__(self, database_url: str, kafka: Mapping[str, str], *, stack: "LocalStack | None" = None) -> None:
        self.database_url, self.kafka, self.embedded = database_url, dict(kafka), stack
        self.topics = Topics(f"test-{uuid4().hex[:10]}")
        self._template: Template | None = None
        self._inbox: Inbox | None = None
        self._created: set[str] = set()

    @property
    def template(self) -> Template:
        """The template from which tests' databases are copied."""
        if self._template is None:
            self._template = Template(self.database_url, "tidewheel_test", CLOCK)
        return self._template

    @property
    def inbox(self) -> Inbox:
        """The requests and target replies that intake reads, from now on."""
        self.make_topics([DEFAULT_QUEUE])
        if self._inbox is None:
            self._inbox = Inbox(self.kafka, [self.topics.requests, self.topics.target_replies])
        self._inbox.skip()
        return self._inbox

    def make_topics(self, queues: Sequence[str]) -> None:
        """Make the topics that these queues need and that are not there yet, of one partition each."""
        names = {topic.name for topic in self.topics.plan(queues)} - self._created
        if not names:
            return
        admin = AdminClient({**self.kafka, "client.id": "tidewheel-test", "log_level": 2})
        new = [NewTopic(name, num_partitions=1, replication_factor=1) for name in sorted(names)]
        futures = admin.create_topics(new, operation_timeout=_TOPICS_SECONDS)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        for future in cast("Mapping[str, threading.Event]", futures).values():
            future.result(_TOPICS_SECONDS)  # type: ignore[attr-defined]
        self._created |= names

    def close(self) -> None:
        """Close; remove what was created on servers that are not the tests' own."""
        if self._inbox is not None:
            self._inbox.close()
        if self._template is not None:
            self._template.close(drop=self.embedded is None)
        if self.embedded is None and self._created:
            admin = AdminClient({**self.kafka, "client.id": "tidewheel-test", "log_level": 2})
            gone = admin.delete_topics(sorted(self._created), operation_timeout=_TOPICS_SECONDS)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            for future in cast("Mapping[str, threading.Event]", gone).values():
                future.exception(_TOPICS_SECONDS)  # type: ignore[attr-defined]


class Tidewheel:
    """One test's own Tidewheel; the fixture of that name yields one with a stopped clock."""

    def __init__(self, stack: Stack, url: str) -> None:
        self.url, self.kafka, self.topics = url, stack.kafka, stack.topics
        self._stack, inbox = stack, stack.inbox
        self._session = Session(url, "tidewheel-test")
        self._installation = self._furnish()
        self.client = Client(url, settings=Connections.load(database_url=url, http_allow_private=True))
        self._services = Services(url, stack.kafka, self._installation, inbox)
        self._never = threading.Event()
        self.set_time(SystemClock().now().replace(microsecond=0))

    @property
    def now(self) -> datetime:
        """The time on the test's clock."""
        return cast("datetime", self._read_instant(_NOW))

    def submit(self, job: Mapping[str, object] | JobSpec) -> Job:
        """Create a job, or change it; `client` has all else that can be requested."""
        return self.client.submit(job)

    def trigger(self, key: str, payload: object = None, *, delay: timedelta | float | None = None) -> RunId:
        """Run a job once."""
        return self.client.trigger(key, payload, delay=delay)

    def set_time(self, at: datetime | str) -> datetime:
        """Set the clock to an instant, as if nothing had run until then; return it.

        Args:
            at: With its zone's offset; as text in RFC 3339. It may lie in the past.
        """
        instant = datetime.fromisoformat(at) if isinstance(at, str) else at
        if instant.tzinfo is None:
            refuse("at", f"{instant.isoformat()} has no offset", "give it one, such as tzinfo=UTC or a Z at the end")
        self._session.within(stop_clock, instant)
        return instant.astimezone(UTC)

    def advance(self, by: timedelta | None = None, *, timeout: float = 60.0, **units: float) -> datetime:
        """Let time pass and do everything that comes due at its instant; return the new time.

        Args:
            by: How much; or as the arguments of a timedelta, such as `hours=2`.
            timeout: Real seconds that it may take.
        """
        until = self.now + (by if by is not None else timedelta(**units))
        ends_at = monotonic_seconds() + timeout
        self._drain(ends_at)
        while (at := self._read_instant(_SQL["read_next_due"])) is not None and at <= until:
            self.set_time(at)
            self._drain(ends_at)
        self.set_time(until)
        self._drain(ends_at)
        return until

    def drain(self, *, timeout: float = 60.0) -> None:
        """Run intake, scheduler, relay and executor until nothing is due or under way.

        Args:
            timeout: Real seconds that it may take.

        Raises:
            LookupError: A run is due whose handler is not registered.
        """
        self._drain(monotonic_seconds() + timeout)

    def runs(self, key: str) -> list[Run]:
        """Return the runs of a job in the order of their instants; of a deleted job too.

        Runs of one instant are in any order.
        """
        columns = {"job_id": job_id(_TENANT, key)}
        with self._session.transaction() as connection, connection.cursor(row_factory=class_row(Run)) as cursor:
            return cursor.execute(_SQL["read_runs_of"], columns).fetchall()

    def assert_fired(self, key: str, *, at: datetime | str | None = None, times: int | None = None) -> list[Run]:
        """Fail unless a job has fired, once or so many times; return its runs without the skipped ones."""
        instant = datetime.fromisoformat(at) if isinstance(at, str) else at
        runs = self.runs(key)
        fired = [run for run in runs if run.state != RunState.SKIPPED and instant in {None, run.scheduled_at}]
        if len(fired) == times or (times is None and fired):
            return fired
        expected = "at least once" if times is None else _times(times)
        where = f" at {instant.isoformat()}" if instant else ""
        why = f"\n{self.client.explain(key, instant).words}" if instant else ""
        listed = "".join(f"\n  {run.scheduled_at.isoformat()} {run.state} {run.reason or ''}" for run in runs)
        message = f"{key} fired {_times(len(fired))}{where}, not {expected}{why}\nits runs:{listed or ' none'}"
        raise AssertionError(message)

    def assert_no_dead_letters(self) -> None:
        """Fail if a run, or a request, was given up."""
        with self._session.transaction() as connection:
            rows = connection.execute(_SQL["read_dead_letters"]).fetchall()
        if rows:
            listed_errors = "".join(f"\n  {key}: {reason}: {kind}: {message}" for key, reason, kind, message in rows)
            raise AssertionError(f"{len(rows)} were given up:{listed_errors}")

    def close(self) -> None:
        """End its services, and let go of its connections."""
        self._services.close()
        self.client.close()
        self._session.close()

    def _furnish(self) -> Installation:
        settings = Connections.load(topic_prefix=self.topics.prefix, http_allow_private=True)
        with self._session.transaction() as connection:
            record_topic_prefix(connection, settings)
            installation = read_installation(connection, settings)
            task_token_keys.refresh(installation.task_tokens, connection)
            return installation

    def _read_instant(self, statement: LiteralString) -> datetime | None:
        with self._session.transaction() as connection:
            row = connection.execute(statement).fetchone()
        return cast("tuple[datetime | None]", row)[0]

    def _drain(self, ends_at: float) -> None:
        handlers = registered()
        columns = {
            "owned": OWNED,
            "claimable": sources(Move.CLAIM),
            "handlers": sorted(capabilities(target_kinds(ExecutorSettings.load())) | frozenset(handlers)),
            "prefix": f"{self.topics.prefix}.",
        }
        queues = self._queues()
        self._stack.make_topics(queues)
        self._services.execute(handlers, queues)
        try:
            while pending := self._cycle(columns):
                if monotonic_seconds() > ends_at:
                    left = ", ".join(f"{count} {what}" for what, count in pending)
                    raise TimeoutError(f"not finished in time: {left}")
                self._services.check()
                self._never.wait(_POLL_SECONDS)
        finally:
            self._services.rest()
        self._refuse_unknown(columns)

    def _cycle(self, columns: Mapping[str, object]) -> list[tuple[str, int]]:
        """Step every service once; return what is left."""
        while self._services.schedule():
            pass
        self._services.publish()
        taken = self._services.take_in()
        with self._session.transaction() as connection:
            rows = cast("list[tuple[str, int]]", connection.execute(_SQL["read_pending"], columns).fetchall())
        left = [(what, count) for what, count in rows if count]
        return [*left, ("requests", taken)] if taken else left

    def _queues(self) -> list[str]:
        with self._session.transaction() as connection:
            rows = connection.execute(_READ_QUEUES).fetchall()
        return sorted({DEFAULT_QUEUE, *(str(queue) for (queue,) in rows)})

    def _refuse_unknown(self, columns: Mapping[str, object]) -> None:
        with self._session.transaction() as connection:
            rows = connection.execute(_SQL["read_unknown_handlers"], columns).fetchall()
        if rows:
            missing = ", ".join(f"job {key!r} needs {handler!r}" for key, handler in rows)
            remedy = "import the module that registers it, or name the target's type in TIDEWHEEL_TARGETS"
            raise LookupError(f"no handler is registered: {missing}; {remedy}")


def _times(number: int) -> str:
    return f"{number} time{'' if number == 1 else 's'}"
