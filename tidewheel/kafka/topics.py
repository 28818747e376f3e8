"""The topics: their names, keys, partitions and settings, written once.

`tidewheel admin topics apply` makes them, `up` and `dev` on the local stack. No service makes a topic.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, cast

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub re-exports none of the others
    AdminClient,
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]
    NewPartitions,  # pyright: ignore[reportPrivateImportUsage]
    NewTopic,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
    TopicMetadata,  # pyright: ignore[reportPrivateImportUsage]
)

from tidewheel.errors import SettingsError, Unavailable, Unusable
from tidewheel.jobs.values import QUEUE, is_tenant
from tidewheel.runs import Lane

DEFAULT_QUEUE = "default"

_DAY_MS = 24 * 60 * 60 * 1000
_APPLY_SECONDS = 30.0
_DESCRIBE_SECONDS = 10.0
_MOST_CREATED = 200  # topics in one request: it may write 10,000 records, and each topic has seven or more
_AT_LEAST = frozenset({"retention.ms", "max.message.bytes", "min.insync.replicas"})

Futures = Mapping[str, Future[None]]


class _Entry(Protocol):
    value: str


@dataclass(frozen=True, slots=True)
class Topic:
    """The required settings of one topic."""

    name: str
    partitions: int
    retention_ms: int


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """The partition counts that have settings; `events` also of completions. Source: docs/adr/0005."""

    runs: int = 6
    events: int = 12
    tenants: int = 1


@dataclass(frozen=True, slots=True)
class Topics:
    """The names of all topics under one prefix."""

    prefix: str = "tidewheel"

    @property
    def requests(self) -> str:
        """The topic of users' requests, keyed by job key."""
        return f"{self.prefix}.requests"

    @property
    def replies(self) -> str:
        """The topic of replies (accepted or rejected), keyed like the request."""
        return f"{self.prefix}.replies"

    def requests_of(self, tenant: str) -> str:
        """Return the topic of one tenant's requests, which names the tenant whatever a message says."""
        return f"{self.requests}.t.{tenant}"

    def replies_of(self, tenant: str) -> str:
        """Return the topic of the replies to the requests on a tenant's own topic."""
        return f"{self.replies}.t.{tenant}"

    def tenant_of(self, topic: str) -> str | None:
        """Return the tenant of a tenant's own topic of requests; None for any other topic.

        >>> Topics().tenant_of("tidewheel.requests.t.acme"), Topics().tenant_of("tidewheel.requests")
        ('acme', None)
        """
        return _tenant_behind(self.requests, topic)

    def replies_to(self, topic: str) -> str:
        """Return the topic of the replies to the requests of a topic."""
        tenant = self.tenant_of(topic)
        return self.replies if tenant is None else self.replies_of(tenant)

    def all_requests(self, names: Iterable[str]) -> list[str]:
        """Return the shared topic of requests, and those of single tenants among some topics."""
        return [self.requests, *sorted(name for name in names if self.tenant_of(name) is not None)]

    @property
    def target_replies(self) -> str:
        """The topic of run ends reported by the programs behind Kafka targets, with any key."""
        return f"{self.prefix}.target-replies"

    @property
    def completions(self) -> str:
        """The topic of completions, one per terminal run, keyed by job_id."""
        return f"{self.prefix}.completions"

    @property
    def events(self) -> str:
        """The topic of lifecycle events, keyed by job_id."""
        return f"{self.prefix}.events"

    @property
    def outputs(self) -> str:
        """The topic of attempts' output, where a setting enables it, keyed by run_id."""
        return f"{self.prefix}.outputs"

    @property
    def dead_letters(self) -> str:
        """The topic of dead letters: runs that failed for good and undecodable requests."""
        return f"{self.prefix}.dead-letters"

    def runs(self, queue: str, lane: str) -> str:
        """Return the topic of run requests for the executors of a queue, keyed by run_id.

        >>> Topics().runs("default", "critical"), Topics().runs("reports", "batch")
        ('tidewheel.runs.critical', 'tidewheel.runs.reports.batch')
        """
        return f"{self.prefix}.runs.{lane}" if queue == DEFAULT_QUEUE else f"{self.prefix}.runs.{queue}.{lane}"

    def plan(
        self,
        queues: Sequence[str] = (DEFAULT_QUEUE,),
        *,
        tenants: Sequence[str] = (),
        outputs: bool = False,
        counts: PartitionCounts = PartitionCounts(),
    ) -> list[Topic]:
        """Every topic with its partitions and retention. Source: the partition counts of docs/adr/0005."""
        return [
            Topic(self.requests, 24, 7 * _DAY_MS),
            Topic(self.replies, 12, 7 * _DAY_MS),
            Topic(self.target_replies, 12, 7 * _DAY_MS),
            *(Topic(self.runs(queue, lane), counts.runs, 7 * _DAY_MS) for queue in queues for lane in Lane),
            Topic(self.completions, counts.events, 7 * _DAY_MS),
            Topic(self.events, counts.events, 7 * _DAY_MS),
            Topic(self.dead_letters, 12, 14 * _DAY_MS),
            *([Topic(self.outputs, 12, _DAY_MS)] if outputs else []),
            *(Topic(self.replies_of(tenant), counts.tenants, 7 * _DAY_MS) for tenant in tenants),
            *(Topic(self.requests_of(tenant), counts.tenants, 7 * _DAY_MS) for tenant in tenants),
        ]


def queue_names(text: str) -> list[str]:
    """Return the queues of a list separated by commas, each once.

    >>> queue_names("reports, default,reports")
    ['reports', 'default']
    """
    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    bad = next((name for name in names if not QUEUE.fullmatch(name)), None)
    if bad is not None:
        raise SettingsError(f"queues: {bad!r} is not a queue name; write 1 to 64 of a-z, 0-9, '.', '_' and '-'")
    if not names:
        raise SettingsError(f"queues: {text!r} contains no name; write {DEFAULT_QUEUE!r}, or names separated by commas")
    return names


def tenant_names(text: str, present: Sequence[str] = ()) -> list[str]:
    """Return the tenants of a list separated by commas, each once.

    >>> tenant_names("acme, globex,acme")
    ['acme', 'globex']
    """
    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    by_metric: dict[str, str] = {}
    for name in (*present, *names):
        if not is_tenant(name):
            raise SettingsError(
                f"tenants: {name!r} is not a tenant name; write 1 to 63 of a-z, 0-9, '.', '_' and '-', a letter or"
                " digit first"
            )
        # Kafka names metrics by topics with '.' for '_', and refuses the second of two such topics.
        if (other := by_metric.setdefault(name.replace("_", "."), name)) != name:
            raise SettingsError(
                f"tenants: the topics of {name!r} and {other!r} would differ only in '.' and '_', which Kafka"
                " does not allow; use the shared topic for one of them"
            )
    return names


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """The status of a topic: its partitions and the fewest copies of any; 0 where it is not there."""

    topic: Topic
    partitions: int
    copies: int

    @property
    def lacks(self) -> str | None:
        """The change that `topics apply` would make; None if none."""
        if self.partitions == 0:
            return "created"
        return "given more partitions" if self.partitions < self.topic.partitions else None


def topic_statuses(
    config: Mapping[str, str],
    topics: Topics,
    *,
    queues: Sequence[str] = (DEFAULT_QUEUE,),
    tenants: Sequence[str] = (),
    outputs: bool = False,
    counts: PartitionCounts = PartitionCounts(),
) -> list[TopicStatus]:
    """Return the status of every topic."""
    present = _present(_admin(config), config)
    planned = topics.plan(queues, tenants=tenants, outputs=outputs, counts=counts)
    return [_status(topic, present) for topic in planned]


def queues_with_topics(config: Mapping[str, str], topics: Topics) -> list[str]:
    """Return the queues that have topics, the default one first."""
    start = f"{topics.prefix}.runs."
    middles = [name.removeprefix(start) for name in _present(_admin(config), config) if name.startswith(start)]
    named = {queue for queue, _, lane in (middle.rpartition(".") for middle in middles) if queue and lane in set(Lane)}
    return [DEFAULT_QUEUE, *sorted(named - {DEFAULT_QUEUE})]


def tenants_with_topics(config: Mapping[str, str], topics: Topics) -> list[str]:
    """Return the tenants that have a topic of their own."""
    starts = topics.requests, topics.replies
    found = {_tenant_behind(start, name) for name in _present(_admin(config), config) for start in starts}
    return sorted(tenant for tenant in found if tenant is not None)


def missing_topic_remedy(topic: str) -> str:
    """Return what an operator does about a topic that does not exist.

    >>> missing_topic_remedy("tidewheel.runs.pdf.batch"), missing_topic_remedy("tidewheel.runs.standard")
    ('tidewheel admin topics apply --queues pdf', 'tidewheel admin topics apply --queues default')
    >>> missing_topic_remedy("tidewheel.completions"), missing_topic_remedy("tidewheel.replies.acme")
    ('tidewheel admin topics apply', 'tidewheel admin topics apply --tenants acme')
    """
    _, is_of_runs, rest = topic.partition(".runs.")
    if is_of_runs:
        return f"tidewheel admin topics apply --queues {rest.rpartition('.')[0] or DEFAULT_QUEUE}"
    _, is_of_tenant, tenant = topic.partition(".requests.")
    if not is_of_tenant:
        _, is_of_tenant, tenant = topic.partition(".replies.")
    return f"tidewheel admin topics apply --tenants {tenant}" if is_of_tenant else "tidewheel admin topics apply"


def missing_topics(config: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """Return the topics that do not exist."""
    present = _present(_admin(config), config)
    return [name for name in names if name not in present]


def apply_topics(
    config: Mapping[str, str],
    topics: Topics,
    *,
    replication: int = 1,
    queues: Sequence[str] = (DEFAULT_QUEUE,),
    tenants: Sequence[str] = (),
    outputs: bool = False,
    counts: PartitionCounts = PartitionCounts(),
    dry_run: bool = False,
) -> list[str]:
    """Create the missing topics and raise partition counts that are too low.

    Returns:
        What was done (with `dry_run`: would be), a line each; empty when all was as it should be.

    Raises:
        Unusable: It refuses, for instance because too few brokers are up for `replication`.
    """
    statuses = topic_statuses(config, topics, queues=queues, tenants=tenants, outputs=outputs, counts=counts)
    if dry_run:
        return [f"{each.topic.name} would be {each.lacks}" for each in statuses if each.lacks]
    admin = _admin(config)
    new = [_new_topic(each.topic, replication) for each in statuses if each.partitions == 0]
    more = [each.topic for each in statuses if 0 < each.partitions < each.topic.partitions]
    done: list[str] = []
    for first in range(0, len(new), _MOST_CREATED):
        some = new[first : first + _MOST_CREATED]
        done += _await(cast("Futures", admin.create_topics(some, operation_timeout=_APPLY_SECONDS)), "created")  # pyright: ignore[reportUnknownMemberType]
    if more:
        new_partitions = [NewPartitions(topic.name, topic.partitions) for topic in more]
        futures = cast("Futures", admin.create_partitions(new_partitions, operation_timeout=_APPLY_SECONDS))  # pyright: ignore[reportUnknownMemberType]
        done += _await(futures, "given more partitions")
    return done


@dataclass(frozen=True, slots=True)
class SettingDeviation:
    """A setting of a topic that breaks a promise; `topics apply` gives a new topic `wanted`."""

    topic: str
    setting: str
    value: str
    wanted: str


def setting_deviations(
    config: Mapping[str, str], statuses: Sequence[TopicStatus], *, replication: int
) -> list[SettingDeviation]:
    """Return the settings of the topics that exist and differ from those that `topics apply` gives.

    A larger retention, or room for larger messages, is no deviation.
    """
    present = {each.topic.name: each.topic for each in statuses if each.partitions}
    return [
        SettingDeviation(name, setting, value, wanted)
        for name, actual in _read_settings(config, present).items()
        for setting, wanted in _settings_of(present[name], replication).items()
        if (value := actual[setting].value) != wanted and not _is_larger(setting, value, wanted)
    ]


def read_retention(config: Mapping[str, str], names: Iterable[str]) -> dict[str, timedelta]:
    """Return the time after which Kafka drops messages, of those of these topics where it does.

    It is zero where a topic is bounded by its size.
    """
    found: dict[str, timedelta] = {}
    for name, entries in _read_settings(config, names).items():
        kept = int(entries["retention.ms"].value)
        if int(entries["retention.bytes"].value) >= 0:
            kept = 0
        if kept >= 0:
            found[name] = timedelta(milliseconds=kept)
    return found


def _read_settings(config: Mapping[str, str], names: Iterable[str]) -> dict[str, Mapping[str, _Entry]]:
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    if not resources:
        return {}
    admin, found = _admin(config), dict[str, Mapping[str, _Entry]]()  # its end would abort the request
    futures = cast("Mapping[ConfigResource, Future[Mapping[str, _Entry]]]", admin.describe_configs(resources))  # pyright: ignore[reportUnknownMemberType]
    for resource, future in futures.items():
        try:
            found[resource.name] = future.result(timeout=_DESCRIBE_SECONDS)
        except (KafkaException, TimeoutError) as error:
            raise Unavailable(f"the settings of {resource.name} cannot be read: {error}") from error
    return found


def _tenant_behind(start: str, topic: str) -> str | None:
    """Return the tenant whose own topic this is, of those that begin with the name of a shared one."""
    if topic == start or not topic.startswith(f"{start}.t."):
        return None
    tenant = topic[len(start) + 3 :]
    return tenant if is_tenant(tenant) else None


def _is_larger(setting: str, value: str, wanted: str) -> bool:
    return setting in _AT_LEAST and (int(value) < 0 or int(value) >= int(wanted))  # a retention of -1 is for ever


def _admin(config: Mapping[str, str]) -> AdminClient:
    return AdminClient({**config, "client.id": "tidewheel-topics", "log_level": 2})


def _present(admin: AdminClient, config: Mapping[str, str]) -> Mapping[str, TopicMetadata]:
    try:
        return admin.list_topics(timeout=_APPLY_SECONDS).topics
    except KafkaException as error:
        message = f"the broker at {config.get('bootstrap.servers')} does not answer: {error.args[0].str()}"
        raise Unavailable(message) from error


def _status(topic: Topic, present: Mapping[str, TopicMetadata]) -> TopicStatus:
    partitions = present[topic.name].partitions.values() if topic.name in present else ()
    return TopicStatus(topic, len(partitions), min((len(each.replicas) for each in partitions), default=0))


def _new_topic(topic: Topic, replication: int) -> NewTopic:
    config = _settings_of(topic, replication)
    return NewTopic(topic.name, num_partitions=topic.partitions, replication_factor=replication, config=config)


def _settings_of(topic: Topic, replication: int) -> dict[str, str]:
    return {
        "retention.ms": str(topic.retention_ms),
        "min.insync.replicas": "2" if replication >= 3 else "1",
        "unclean.leader.election.enable": "false",
        "max.message.bytes": str(1024 * 1024 + 64 * 1024),
        # A producer's wrong clock neither gets a message refused nor drops it before its time.
        "message.timestamp.type": "LogAppendTime",
    }


def _await(futures: Futures, what: str) -> list[str]:
    done: list[str] = []
    for name, future in futures.items():
        try:
            future.result()
            done.append(f"{name} {what}")
        except KafkaException as error:
            if error.args[0].name() == "TOPIC_ALREADY_EXISTS":
                continue
            raise Unusable(f"topic {name} could not be {what}: {error.args[0].str()}") from error
    return done
