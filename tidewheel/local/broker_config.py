"""Configuration of one node of the embedded cluster and of its clients, as text.

Invariant: no listener admits a connection without a password, and the authorizer allows nothing to other users.
docs/adr/0033 gives the reasons for the mechanisms.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, Field

# Each partition's first message touches two index files of this size, by default 10 MiB, which are mapped into memory:
# 2.5 ms each where Linux has large folios on ext4, and 0.05 ms of this size.
_INDEX_BYTES = 256 * 1024
# A segment ends long before its index is full (12 bytes for each 4 KiB: at 341 times its size), for a follower's append
# of many batches fails where it fills one (since KAFKA-806).
_SEGMENT_BYTES = 256 * _INDEX_BYTES
_INTERNAL_PARTITIONS = 8  # of offsets and transactions; the default of 50 each is for hundreds of brokers
# Crash takeover took 43.1 s with the defaults and 10.1 s with these. Source: docs/adr/0005.
_QUICK_TAKEOVER_MS = {
    "group.consumer.min.session.timeout.ms": 6000,
    "group.consumer.session.timeout.ms": 9000,
    "group.consumer.min.heartbeat.interval.ms": 1000,
    "group.consumer.heartbeat.interval.ms": 2000,
}
# Joining takes some heartbeats and, for each further member, an interval between assignments, by default 1 s. A test
# session joins groups a thousand times.
_OF_A_TEST_SESSION_MS = _QUICK_TAKEOVER_MS | {
    "group.consumer.session.timeout.ms": 6000,
    "group.consumer.min.heartbeat.interval.ms": 200,
    "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.min.assignment.interval.ms": 0,
    "group.consumer.assignment.interval.ms": 0,
}
# The client's password never crosses the network, and the client checks that the server knows it: a rogue server on a
# node's port learns nothing. Source: RFC 5802.
_CLIENT_MECHANISM = "SCRAM-SHA-256"
USER = "tidewheel"
_NODE_USER = "node"
_LOGIN = "org.apache.kafka.common.security"


class KafkaPasswords(BaseModel, frozen=True):
    """The passwords of one embedded cluster.

    Args:
        client: Of the user `tidewheel`, for clients and between brokers, stored in the cluster's metadata.
        node: Of the user `node`, for controllers and for storing the other one; known by `server.properties` alone.
    """

    client: str = Field(repr=False)
    node: str = Field(repr=False)


class Node(BaseModel, frozen=True):
    """One broker that is also a controller: its id from 1, and its clients' port on 127.0.0.1."""

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


def client_settings(bootstrap: str, password: str) -> dict[str, str]:
    """Return the settings with which a client enters."""
    return _sasl(bootstrap, _CLIENT_MECHANISM, USER, password)


def password_admin_settings(bootstrap: str, password: str) -> dict[str, str]:
    """Return the settings of the client that stores the other user's password."""
    return _sasl(bootstrap, "PLAIN", _NODE_USER, password)


def client_properties(settings: Mapping[str, str]) -> str:
    """Return a client's settings as lines `name=value`, as librdkafka's programs read them."""
    return _lines(settings)


def server_properties(
    node: Node, nodes: Sequence[Node], data: Path, passwords: KafkaPasswords, *, lasting: bool = True
) -> str:
    """Return the node's `server.properties`, passwords included."""
    return _lines(
        {
            "process.roles": "broker,controller",
            "node.id": node.node_id,
            "controller.quorum.voters": ",".join(f"{n.node_id}@127.0.0.1:{n.controller_port}" for n in nodes),
            "listeners": f"CLIENT://{node.address},CONTROLLER://127.0.0.1:{node.controller_port}",
            "advertised.listeners": f"CLIENT://{node.address}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "CLIENT",
            **_access(passwords),
            "log.dirs": data,
            "log.retention.hours": 168,
            "log.index.size.max.bytes": _INDEX_BYTES,
            "log.segment.bytes": _SEGMENT_BYTES,
            "auto.create.topics.enable": "false",  # a deleted topic must stay deleted
            "group.initial.rebalance.delay.ms": 0,
            # A killed node is replaced as leader, and let in again, when its session has ended: 9 s by default. Below
            # 6 s a machine under full load might fence a node that lives. A node alone loses nothing by that: its
            # controller is in the same process, and lets it in again at the next heartbeat.
            "broker.session.timeout.ms": 6000 if len(nodes) > 1 else 1500,
            "broker.heartbeat.interval.ms": 1000 if len(nodes) > 1 else 300,
            **(_QUICK_TAKEOVER_MS if lasting else _OF_A_TEST_SESSION_MS),
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


def _access(passwords: KafkaPasswords) -> dict[str, str]:
    plain = f'{_LOGIN}.plain.PlainLoginModule required username="{_NODE_USER}" password="{passwords.node}"'
    scram = f'{_LOGIN}.scram.ScramLoginModule required username="{USER}" password="{passwords.client}"'
    plain = f'{plain} user_{_NODE_USER}="{passwords.node}";'
    return {
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "listener.name.client.sasl.enabled.mechanisms": f"{_CLIENT_MECHANISM},PLAIN",
        f"listener.name.client.{_CLIENT_MECHANISM.lower()}.sasl.jaas.config": f"{scram};",
        "listener.name.client.plain.sasl.jaas.config": plain,
        "sasl.mechanism.inter.broker.protocol": _CLIENT_MECHANISM,
        # Controllers elect their leader before any of them can read the passwords that the cluster stores.
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": plain,
        "sasl.mechanism.controller.protocol": "PLAIN",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "false",
        "super.users": f"User:{USER};User:{_NODE_USER}",
    }


def _sasl(bootstrap: str, mechanism: str, user: str, password: str) -> dict[str, str]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def _copies(replication: int) -> dict[str, int]:
    in_sync = max(1, replication - 1)
    internal = ("offsets.topic", "transaction.state.log")
    return {
        "default.replication.factor": replication,
        "min.insync.replicas": in_sync,
        "transaction.state.log.min.isr": in_sync,
        **{f"{topic}.replication.factor": replication for topic in internal},
        **{f"{topic}.num.partitions": _INTERNAL_PARTITIONS for topic in internal},
        **{f"{topic}.segment.bytes": _SEGMENT_BYTES for topic in internal},
    }


def _lines(properties: Mapping[str, object]) -> str:
    """In Java's properties format, where a backslash escapes."""
    escaped = ((name, str(value).replace("\\", "\\\\")) for name, value in properties.items())
    return "".join(f"{name}={value}\n" for name, value in escaped)
