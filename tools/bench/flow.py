"""Warm up a new server before the first measurement.

A JVM compiles the code of its first hundred thousand messages, on both of two cores. While PostgreSQL creates a WAL
file, no transaction commits; later it reuses old files. The JVM's last compiler goes on for some 300,000 messages, at
5 to 25 µs a run: compare rounds of the same age.
"""

from tools.bench.complete import Ends
from tools.bench.environment import Server
from tools.bench.measurement import Options, Progress
from tools.bench.scenarios.pipeline import all_services, warm_up

_RUNS = 100_000
_WAL_FILES = 64  # of 16 MiB


def warm_up_server(server: Server, report: Progress) -> None:
    """Warm up the bench's own PostgreSQL and broker; a given server is not warmed up."""
    report("wearing the new server in")
    if server.own_database:
        with server.connect_admin() as admin:
            for _ in range(_WAL_FILES):
                admin.execute("SELECT pg_logical_emit_message(false, 'bench', ''), pg_switch_wal()")
            admin.execute("CHECKPOINT")
    if server.brokers():
        with server.environment() as environment, environment.connect() as connection:
            ends = Ends(environment, environment.installation.topics.completions)
            with all_services(environment):
                warm_up(environment, connection, ends, Options(), _RUNS)
