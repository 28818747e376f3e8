"""The configuration of a node of the embedded cluster."""

from pathlib import Path

from tidewheel.local.broker_config import KafkaPasswords, Node, server_properties

TIME_ENTRY = 12  # bytes; a time index has the larger entries of the two
PASSWORDS = KafkaPasswords(client="one", node="other")
INTERVAL = 4096  # bytes of messages for an entry, the broker's default


def test_segment_rolls_before_its_index_is_full() -> None:
    """A follower's append of many batches fails on an index that it fills."""
    nodes = [Node(node_id=number, port=9000 + number, controller_port=9100 + number) for number in (1, 2, 3)]
    told = dict(line.split("=", 1) for line in server_properties(nodes[0], nodes, Path("data"), PASSWORDS).splitlines())
    bytes_of_full_index = int(told["log.index.size.max.bytes"]) // TIME_ENTRY * INTERVAL
    for kind in ("log", "offsets.topic", "transaction.state.log"):
        assert int(told[f"{kind}.segment.bytes"]) < bytes_of_full_index * 0.8
