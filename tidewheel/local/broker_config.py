"""Configuration of one node of the embedded cluster: `server.properties` and logging, as text."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

# Each partition's first message touches two index files of this size, by default 10 MiB, which are mapped into memory:
# 2.5 ms each where Linux has large folios on ext4, and 0.05 ms of this size.
_INDEX_BYTES = 256 * 1024
# A segment ends long before its index is full (12 bytes for each 4 KiB: at 341 times its size), for a follower's append
# of many batches fails where it fills one (since KAFKA-806).
_SEGMENT_BYTES = 256 * _INDEX_BYTES
_INTERNAL_PARTITIONS = 8  # of offsets, transactions and share state; the default of 50 each is for hundreds of brokers
# Crash takeover took 43.1 s with the defaults and 10.1 s with these. Source: docs/adr/0005.
_QUICK_TAKEOVER_MS = {
    "min.session.timeout.ms": 6000,
    "session.timeout.ms": 9000,
    "min.heartbeat.interval.ms": 1000,
    "heartbeat.interval.ms": 2000,
}


class Node(BaseModel, frozen=True):
    """One broker that is also a controller.

    Args:
        node_id: From 1.
        port: Where clients connect on 127.0.0.1.
        controller_port: Where the other controllers do.
    """

    node_id: int
    port: int
    controller_port: int

    @property
    def address(self) -> str:
        """The address on which clients connect."""
        return f"127.0.0.1:{self.port}"


def replication_of(nodes: Sequence[Node]) -> int:
    """Return the number of copies of a partition: one on each node, three at most."""
    return min(3, len(nodes))


def server_properties(node: Node, nodes: Sequence[Node], data: Path) -> str:
    """Return the node's `server.properties`."""
    return _lines(
        {
            "process.roles": "broker,controller",
            "node.id": node.node_id,
            "controller.quorum.voters": ",".join(f"{n.node_id}@127.0.0.1:{n.controller_port}" for n in nodes),
            "listeners": f"PLAINTEXT://{node.address},CONTROLLER://127.0.0.1:{node.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{node.address}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": data,
            "log.retention.hours": 168,
            "log.index.size.max.bytes": _INDEX_BYTES,
            "log.segment.bytes": _SEGMENT_BYTES,
            "auto.create.topics.enable": "false",  # a deleted topic must stay deleted
            "group.initial.rebalance.delay.ms": 0,
            # A killed node is replaced as leader, and let in again, when its session has ended: 9 s by default. Below
            # 6 s a machine under full load might fence a node that lives.
            "broker.session.timeout.ms": 6000,
            "broker.heartbeat.interval.ms": 1000,
            **_group_timeouts(),
            **_copies(replication_of(nodes)),
        }
    )


def logging_properties(log: Path) -> str:
    """Return the node's log4j2 configuration: warnings and errors, in two files of 10 MB at most."""
    return _lines(
        {
            "status": "error",
            "appender.file.type": "RollingFile",
            "appender.file.name": "file",
            "appender.file.fileName": log,
            "appender.file.filePattern": f"{log}.%i",
            "appender.file.layout.type": "PatternLayout",
            "appender.file.layout.pattern": "%d{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}{UTC} %p %c{1} %m%n",
            "appender.file.policies.type": "Policies",
            "appender.file.policies.size.type": "SizeBasedTriggeringPolicy",
            "appender.file.policies.size.size": "10MB",
            "appender.file.strategy.type": "DefaultRolloverStrategy",
            "appender.file.strategy.max": 1,
            "rootLogger.level": "warn",
            "rootLogger.appenderRef.file.ref": "file",
        }
    )


def _group_timeouts() -> dict[str, int]:
    kinds = ("consumer", "share")
    return {f"group.{kind}.{name}": value for kind in kinds for name, value in _QUICK_TAKEOVER_MS.items()}


def _copies(replication: int) -> dict[str, int]:
    in_sync = max(1, replication - 1)
    internal = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    return {
        "default.replication.factor": replication,
        "min.insync.replicas": in_sync,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.min.isr": in_sync,
        **{f"{topic}.replication.factor": replication for topic in internal},
        **{f"{topic}.num.partitions": _INTERNAL_PARTITIONS for topic in internal},
        **{f"{topic}.segment.bytes": _SEGMENT_BYTES for topic in internal},
    }


def _lines(properties: Mapping[str, object]) -> str:
    """In Java's properties format, where a backslash escapes."""
    escaped = ((name, str(value).replace("\\", "\\\\")) for name, value in properties.items())
    return "".join(f"{name}={value}\n" for name, value in escaped)
