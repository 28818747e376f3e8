"""A process that reads one partition under a memory limit, and writes the messages to its parent.

The client unpacks a batch before it returns a message, and aborts where it gets no memory. So a batch that unpacks to
hundreds of megabytes ends this process and not its parent's. `limited.py` is the parent's side.
"""

import json
import os
import pickle
import resource
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, TypedDict

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from tidewheel.clock import monotonic_seconds
from tidewheel.kafka.clients import consumer
from tidewheel.kafka.unreadable import is_unreadable

FINISHED, AWAY, TOO_LARGE = 0, 2, 3
"""Exit codes: the messages end here; the brokers do not answer; the next batch cannot be unpacked within the limit."""

# An honest batch is unpacked to 1 MiB or little more, and costs three times as much here. 13 MB were measured for one
# of 4 MiB, and a service of 90 MB stays below 256 MB with this (docs/adr/0031).
HEADROOM_BYTES = 32 * 1024 * 1024

_SECONDS = 10.0  # without a message
_POLL_SECONDS = 0.2
_STATUS = Path("/proc/self/status")


class Task(TypedDict):
    """One start of the process."""

    config: Mapping[str, str]
    group: str
    topic: str
    partition: int
    offset: int
    messages: int
    one_batch: bool


class Handed(TypedDict):
    """A message as this process writes it: the arguments of `confluent_kafka.Message`."""

    topic: str | None
    partition: int | None
    offset: int | None
    key: bytes | None
    value: bytes | None
    headers: dict[str, str | bytes | None] | list[tuple[str, str | bytes | None]] | None
    timestamp: tuple[int, int]


def main() -> None:
    """Read a task from standard input; write `True`, then its messages, pickled, to standard output."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    task: Task = json.load(sys.stdin)
    try:
        for written in _read(task):
            pickle.dump(written, sys.stdout.buffer)
            sys.stdout.buffer.flush()  # the parent knows each message, however this process ends
    except (KafkaException, OSError):
        os._exit(AWAY)
    except (MemoryError, SystemError) as error:  # the client's, with a MemoryError as its cause
        if not isinstance(error.__cause__ or error, MemoryError):
            raise
        os._exit(TOO_LARGE)
    os._exit(FINISHED)  # closing the client would take its time


def _read(task: Task) -> Iterator[Handed | Literal[True]]:
    one_batch, left = task["one_batch"], task["messages"]
    ends = {**task["config"], "enable.partition.eof": "true"}
    client = consumer(ends, group=task["group"], role="limited", protocol="classic", one_batch=one_batch)
    at = TopicPartition(task["topic"], task["partition"], task["offset"])
    client.get_watermark_offsets(at, timeout=_SECONDS, cached=False)
    _limit_memory()  # now that it is connected: each connection has a thread with a stack
    yield True
    client.assign([at])
    deadline = monotonic_seconds() + _SECONDS
    while left and monotonic_seconds() < deadline:
        message = client.poll(_POLL_SECONDS)
        if message is None:
            continue
        error = message.error()
        if error is None:
            yield _handed(message)
            left, deadline = left - 1, monotonic_seconds() + _SECONDS
        elif error.code() == KafkaError._PARTITION_EOF:
            return
        elif is_unreadable(error) or error.code() == KafkaError._CRIT_SYS_RESOURCE:
            raise MemoryError
        else:
            raise KafkaException(error)
    if left:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def _limit_memory() -> None:
    """Limit the memory to what this process has, and the headroom; not where there is no `/proc`."""
    if _STATUS.exists():
        [line] = [each for each in _STATUS.read_text().splitlines() if each.startswith("VmData:")]
        limit = int(line.split()[1]) * 1024 + HEADROOM_BYTES
        _, inherited = resource.getrlimit(resource.RLIMIT_DATA)
        limit = limit if inherited == resource.RLIM_INFINITY else min(limit, inherited)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _handed(message: Message) -> Handed:
    return Handed(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        headers=message.headers(),
        timestamp=message.timestamp(),
    )


if __name__ == "__main__":
    main()
