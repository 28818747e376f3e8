"""Messages that a process with a memory limit reads, and the end of a batch that it cannot unpack.

`limited_reader.py` is that process. It ends with the batch; its parent gets the messages before it.
"""

import json
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Literal, cast

from confluent_kafka import Message, TopicPartition

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.kafka.limited_reader import FINISHED, TOO_LARGE, Handed, Task

_SEARCH_SECONDS = 100.0  # a group evicts a member that does not poll for 300 s

# Not SIGKILL: a limit on the container sends it, to a process that may have met a short batch.
_OUT_OF_MEMORY = frozenset({TOO_LARGE, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS})


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
    command = [sys.executable, "-P", "-m", "tidewheel.kafka.limited_reader"]
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
        text = f"{what} cannot be started: {error}"
        raise Unavailable(text) from error
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
    process that ends does not report which one ended it.

    Args:
        group: The group of the caller; it is neither joined nor changed.
        at: The first offset of the batch.
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
