"""Wearing a new server in: what is measured is one that has been at work, not its first minute.

A JVM compiles what it runs for its first hundred thousand messages, which costs more than these do, and takes both of
two cores from everybody else: so jobs are run by all services, whose producing, fetching and group's commits are those
that are measured. And while PostgreSQL makes a WAL file nobody commits; later it uses old ones again.
"""

from tidewheel.bench.complete import Ends
from tidewheel.bench.environment import Server
from tidewheel.bench.measurement import Options, Progress
from tidewheel.bench.scenarios.pipeline import EXECUTORS, all_services, warm_up

_RUNS = 100_000
_WAL_FILES = 64  # of 16 MiB


def wear_in(server: Server, tell: Progress) -> None:
    """Let a PostgreSQL and a broker of the bench's own do what they will do, until they do it as they go on to.

    One that was given is left alone.
    """
    tell("wearing the new server in")
    if server.own_database:
        _use_wal(server)
    if server.brokers():
        _run_jobs(server)


def _use_wal(server: Server) -> None:
    with server.stage_connection() as admin:
        for _ in range(_WAL_FILES):
            admin.execute("SELECT pg_logical_emit_message(false, 'bench', ''), pg_switch_wal()")
        admin.execute("CHECKPOINT")


def _run_jobs(server: Server) -> None:
    with server.stage() as stage, stage.connect() as connection:
        ends = Ends(stage, stage.installation.topics.completions)
        with all_services(stage, executors=EXECUTORS):
            warm_up(stage, connection, ends, Options(), _RUNS)
