"""Warm up a new server before the first measurement.

A JVM compiles the code of its first hundred thousand messages. That costs more than the messages and takes both of two
cores from all other processes. So all services run jobs, with the same producing, fetching and group commits as in a
measurement. While PostgreSQL creates a WAL file, no transaction commits. Later it reuses old files.

The JVM's last compiler, C2, goes on for some 300,000 messages after that, at 5 to 25 µs a run. Waiting for its end
would take as long as all of `bench --quick`. So the first rounds of a new broker show more CPU of it than later ones.
"""

from tidewheel.bench.complete import Ends
from tidewheel.bench.environment import Server
from tidewheel.bench.measurement import Options, Progress
from tidewheel.bench.scenarios.pipeline import EXECUTORS, all_services, warm_up

_RUNS = 100_000
_WAL_FILES = 64  # of 16 MiB


def warm_up_server(server: Server, report: Progress) -> None:
    """Warm up the bench's own PostgreSQL and broker.

    A given server is not warmed up.
    """
    report("wearing the new server in")
    if server.own_database:
        _use_wal(server)
    if server.brokers():
        _run_jobs(server)


def _use_wal(server: Server) -> None:
    with server.connect_admin() as admin:
        for _ in range(_WAL_FILES):
            admin.execute("SELECT pg_logical_emit_message(false, 'bench', ''), pg_switch_wal()")
        admin.execute("CHECKPOINT")


def _run_jobs(server: Server) -> None:
    with server.environment() as environment, environment.connect() as connection:
        ends = Ends(environment, environment.installation.topics.completions)
        with all_services(environment, executors=EXECUTORS):
            warm_up(environment, connection, ends, Options(), _RUNS)
