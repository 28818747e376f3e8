"""Wearing a new server in: what is measured is one that has been at work, not its first minute.

A JVM compiles what it runs for its first hundred thousand messages, which costs more than these do, and takes both of
two cores from everybody else. And while PostgreSQL makes a WAL file nobody commits; later it uses old ones again.
"""

from collections.abc import Iterator

from tidewheel.bench import floors
from tidewheel.bench.options import Progress
from tidewheel.bench.stage import Server, Stage

_MESSAGES = 150_000  # after some 130,000 compiling costs 2 us a message, and 120 before
_AT_ONCE = 1000
_WAL_FILES = 64  # of 16 MiB


def wear_in(server: Server, tell: Progress) -> None:
    """Let a PostgreSQL and a broker of the bench's own do what they will do, until they do it as they go on to.

    One that was given is left alone.
    """
    tell("wearing the new server in")
    if server.own_database:
        _use_wal(server)
    if server.brokers():
        with server.stage() as stage:
            _send_and_read(stage)


def _use_wal(server: Server) -> None:
    with server.stage_connection() as admin:
        for _ in range(_WAL_FILES):
            admin.execute("SELECT pg_logical_emit_message(false, 'bench', ''), pg_switch_wal()")
        admin.execute("CHECKPOINT")


def _send_and_read(stage: Stage) -> None:
    topic = stage.installation.topics.completions
    sender, client = floors.warm_producer(stage, topic), floors.reader(stage, [topic])
    for first in range(0, _MESSAGES, _AT_ONCE):
        floors.produce(stage, topic, _messages(first), client=sender)
        for _ in floors.consume(client, _AT_ONCE):
            pass
        client.commit(offsets=client.position(client.assignment()), asynchronous=False)
    client.close()


def _messages(first: int) -> Iterator[floors.Made]:
    for number in range(first, first + _AT_ONCE):
        yield str(number).encode(), bytes(300), [("content-type", b"application/octet-stream")]
