"""Checks of Kafka, and of the disk of the local stack."""

import shutil
from collections.abc import Iterator, Sequence

from tidewheel.control.doctor.check import Context
from tidewheel.control.doctor.database import live_queues
from tidewheel.control.reads.findings import Finding, Severity
from tidewheel.errors import SettingsError, Unavailable, UnknownTenant
from tidewheel.kafka.clients import bootstrap_check
from tidewheel.kafka.topics import (
    DEFAULT_QUEUE,
    PartitionCounts,
    Topics,
    missing_topic_remedy,
    queues_with_topics,
    setting_deviations,
    tenants_with_topics,
    topic_statuses,
)
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.postgres.session import Conn

_GIBIBYTE = 1 << 30


def check_broker(context: Context) -> Iterator[Finding]:
    """Check that a Kafka broker answers."""
    try:
        bootstrap_check(context.settings.kafka_config())()
    except Unavailable as error:
        remedy = "start the brokers, or correct TIDEWHEEL_KAFKA_BOOTSTRAP; runs start by the sweep meanwhile"
        yield Finding("broker", Severity.ERROR, "no Kafka broker answers", str(error), remedy)
    except SettingsError as error:
        remedy = "correct what the evidence names, or `tidewheel up`"
        yield Finding("broker", Severity.ERROR, "the settings of Kafka clients cannot be used", str(error), remedy)


def check_topics(context: Context) -> Iterator[Finding]:
    """Check that the topics exist, with their partitions, copies and settings."""
    settings, installation = context.settings, context.installation
    names = installation.topics if installation is not None else Topics(settings.topic_prefix)
    config = settings.kafka_config()
    queues, tenants = {*queues_with_topics(config, names)} - {DEFAULT_QUEUE}, tenants_with_topics(config, names)
    if installation is not None:
        with context.connection() as connection:
            queues |= live_queues(connection) - {DEFAULT_QUEUE}
            yield from _topics_without_tenant(connection, names, tenants)
    statuses = topic_statuses(
        config,
        names,
        queues=[DEFAULT_QUEUE, *sorted(queues)],
        tenants=tenants,
        outputs=settings.outputs_topic,
        counts=PartitionCounts(settings.runs_partitions, settings.events_partitions, settings.tenant_partitions),
    )
    for each in statuses:
        if each.lacks:
            what = f"the topic {each.topic.name} would be {each.lacks}"
            evidence = f"{each.partitions} of {each.topic.partitions} partitions"
            severity = Severity.WARNING if each.partitions else Severity.ERROR
            yield Finding("topics", severity, what, evidence, missing_topic_remedy(each.topic.name))
        elif each.copies < settings.replication:
            what = f"partitions of the topic {each.topic.name} have too few copies"
            evidence = f"{each.copies}, TIDEWHEEL_REPLICATION is {settings.replication}"
            remedy = f"kafka-reassign-partitions.sh with {settings.replication} replicas for {each.topic.name}"
            yield Finding("topics", Severity.WARNING, what, evidence, remedy)
    for deviation in setting_deviations(config, statuses, replication=settings.replication):
        what = f"{deviation.setting} of the topic {deviation.topic} differs from what Tidewheel sets"
        evidence = f"it is {deviation.value}, Tidewheel sets {deviation.wanted}"
        alter = f"--add-config {deviation.setting}={deviation.wanted}"
        remedy = f"kafka-configs.sh --alter --entity-type topics --entity-name {deviation.topic} {alter}"
        yield Finding("topics", Severity.WARNING, what, evidence, remedy)


def _topics_without_tenant(connection: Conn, names: Topics, tenants: Sequence[str]) -> Iterator[Finding]:
    for tenant in tenants:
        try:
            require_tenant(connection, tenant)
        except UnknownTenant:
            what = f"the topic {names.requests_of(tenant)} belongs to no tenant"
            evidence = f"there is no tenant {tenant}: no request on it is read"
            remedy = f"`tidewheel admin tenant create {tenant}`, or delete it with {names.replies_of(tenant)}"
            yield Finding("topics", Severity.WARNING, what, evidence, remedy)


def check_disk(context: Context) -> Iterator[Finding]:
    """Check the free space of the local stack's disk; that of a server elsewhere cannot be read by SQL."""
    if context.data_dir is None:
        return
    free = shutil.disk_usage(context.data_dir).free
    if free < context.limits.free_bytes:
        what = "the disk of the local stack is nearly full: PostgreSQL and Kafka stop when it is"
        evidence = f"{free / _GIBIBYTE:.1f} GiB are free in {context.data_dir}"
        yield Finding(
            "disk", Severity.ERROR, what, evidence, "free space there, or move TIDEWHEEL_HOME to a larger disk"
        )
