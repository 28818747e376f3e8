"""The local stack for `tidewheel up` and `dev`: started, with this release's schema and topics."""

from pathlib import Path

from tidewheel.kafka.topics import DEFAULT_QUEUE, PartitionCounts, apply_topics, queue_names
from tidewheel.local.progress import Progress, Step
from tidewheel.local.stack import LocalStack, StackInfo
from tidewheel.migrations.runner import migrate
from tidewheel.postgres.session import connect
from tidewheel.postgres.statements import Statements
from tidewheel.settings.connections import Connections
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.transitions.installation import read_installation, record_topic_prefix

_READ_QUEUES = Statements("tidewheel.control")["read_queues"]


def make_stack(home: Path | None, *, brokers: int | None = None, standby: bool | None = None) -> LocalStack:
    """Return the stack of a home folder; servers that the settings name take the place of its own parts."""
    settings = Connections.load()
    return LocalStack(
        home,
        brokers=brokers,
        standby=standby,
        database_url=settings.database_url.get_secret_value() if settings.database_url else None,
        bootstrap=settings.named_brokers(),
        client=settings.kafka_client(),
    )


def start_stack(stack: LocalStack, progress: Progress) -> StackInfo:
    """Start the parts that do not run; bring the schema and the topics to this release's state.

    Every queue that a job or TIDEWHEEL_QUEUES names has topics afterwards. All of it can be repeated.
    """
    served = queue_names(ExecutorSettings.load().queues)
    info = stack.up(progress)
    progress(Step("creating the schema and the topics"))
    settings = Connections.load(database_url=info.database_url)
    migrate(info.database_url, tenant_role=settings.role_of_tenants, role_prefix=settings.role_prefix)
    with connect(info.database_url, "tidewheel-up") as connection:
        record_topic_prefix(connection, settings)
        topics = read_installation(connection, settings).topics
        named = [str(queue) for (queue,) in connection.execute(_READ_QUEUES)]
    apply_topics(
        dict(info.kafka),
        topics,
        replication=info.replication or settings.replication,
        queues=list(dict.fromkeys([DEFAULT_QUEUE, *served, *named])),
        outputs=settings.outputs_topic,
        counts=PartitionCounts(settings.runs_partitions, settings.events_partitions, settings.tenant_partitions),
    )
    return info
