"""Messages that a process with a memory limit reads, and the end of a batch that it cannot unpack.

That process runs `main` of this file. It ends with the batch; its parent gets the messages before it. The client
unpacks a batch before it returns a message, and aborts where it gets no memory: a batch that unpacks to hundreds of
megabytes ends the process and not its parent.
"""

import json
import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Literal, TypedDict, cast

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.kafka.clients import consumer
from tidewheel.kafka.offsets import is_unreadable

FINISHED, AWAY, TOO_LARGE = 0, 2, 3
"""Exit codes: the messages end here; the brokers do not answer; the next batch cannot be unpacked within the limit."""

# An honest batch is unpacked to 1 MiB or little more, and costs three times as much here. 13 MB were measured for one
# of 4 MiB, and a service of 90 MB stays below 256 MB with this (docs/adr/0031).
HEADROOM_BYTES = 32 * 1024 * 1024

_SECONDS = 10.0  # without a message
_POLL_SECONDS = 0.2
_STATUS = Path("/proc/self/status")

_SEARCH_SECONDS = 100.0  # a group evicts a member that does not poll for 300 s

# Not SIGKILL: a limit on the container sends it, to a process that may have met a short batch.
_OUT_OF_MEMORY = frozenset({TOO_LARGE, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS})


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


class TooLarge(Exception):
    """The process ended while the client unpacked a batch."""


def read_limited(
    config: Mapping[str, str], group: str, at: TopicPartition, *, messages: int, one_batch: bool = False
) -> Iterator[Message]:
    """Return the messages of a partition from an offset on, until its end.

    Args:
        group: The group of the caller; it is neither joined nor changed.
        one_batch: True if no second batch may be fetched meanwhile: then it is the first one that is too large.

    Raises:
        TooLarge: A batch behind the last of these messages cannot be unpacked within the limit.
        Unavailable: The brokers do not answer, or the process ended for another reason.
    """
    task = Task(
        config=config,
        group=group,
        topic=at.topic,
        partition=at.partition,
        offset=at.offset,
        messages=messages,
        one_batch=one_batch,
    )
    command = [sys.executable, "-P", "-m", "tidewheel.kafka.limited"]
    what = f"the process that reads {at.topic}/{at.partition} from {at.offset}"
    ready = False
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603 - ourselves
            try:
                # Not as an argument: the settings may have a password.
                cast("IO[bytes]", process.stdin).write(json.dumps(task).encode())
                cast("IO[bytes]", process.stdin).close()
                for handed in _frames(cast("IO[bytes]", process.stdout)):
                    if handed is True:
                        ready = True
                    else:
                        yield Message(**handed)
                code = process.wait()
            finally:
                process.kill()
    except OSError as error:
        raise Unavailable(f"{what} cannot be started: {error}") from error
    if code == FINISHED:
        return
    text = f"{what} ended with {code}"
    if ready and code in _OUT_OF_MEMORY:
        raise TooLarge(text)
    raise Unavailable(text)


def end_of_large_batch(
    config: Mapping[str, str], group: str, at: TopicPartition, on_probe: Callable[[], object]
) -> int | None:
    """Return the offset behind a batch that is too large; None if it is not found within 100 s.

    One offset after the other is tried. A search by halves could step over messages between two such batches: the
    process that ends does not report which one ended it. The group is neither joined nor changed.
    """
    probe, deadline = at, monotonic_seconds() + _SEARCH_SECONDS
    while monotonic_seconds() < deadline:
        on_probe()
        probe = TopicPartition(at.topic, at.partition, probe.offset + 1)
        try:
            for _ in read_limited(config, group, probe, messages=1, one_batch=True):
                pass
        except TooLarge:
            continue
        return probe.offset
    return None


def _frames(pipe: IO[bytes]) -> Iterator[Handed | Literal[True]]:
    while True:
        try:
            yield cast("Handed | Literal[True]", pickle.load(pipe))  # noqa: S301 - of our own process
        except (EOFError, pickle.UnpicklingError):  # its end, perhaps within a message
            return


if __name__ == "__main__":
    main()
