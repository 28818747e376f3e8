"""`peers`: procrastinate and pgqueuer beside Tidewheel in each round, on the same PostgreSQL.

None of the two has a broker or a durable event for each job. Each brings its own handler that does nothing, and one
worker process; so has Tidewheel, with one process of each other service. The clock of each starts when a tenth is done.
"""

import json
import os
import subprocess
import venv
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TypedDict, cast
from uuid import uuid4

import psycopg
from platformdirs import user_cache_path
from psycopg.conninfo import conninfo_to_dict

from tidewheel.bench.environment import Server
from tidewheel.bench.measurement import Figure, Incomplete, Options, Round, rate
from tidewheel.bench.scenarios import execute, pipeline
from tidewheel.errors import Unusable

JOBS = 50_000
_FOLDER = Path(__file__).parents[1] / "peers"
_GIVE_UP_SECONDS = 600
# libpq's own, which both drivers read: an argument would show the password to everybody.
_VARIABLES = {"PGHOST": "host", "PGPORT": "port", "PGUSER": "user", "PGPASSWORD": "password", "PGDATABASE": "dbname"}
_PIPELINE_SECONDS = 10.0


class _Measured(TypedDict):
    seconds: float
    timed: int  # jobs that were enqueued or handled in that time
    handled: int


@dataclass(frozen=True, slots=True)
class Peer:
    """One of them; the slow one has fewer jobs."""

    name: str
    jobs: int

    @property
    def program(self) -> Path:
        """The program in the peers' environment."""
        return _FOLDER / f"{self.name}_peer.py"


PEERS = (Peer("procrastinate", 10_000), Peer("pgqueuer", JOBS))


def measure(server: Server, options: Options) -> Round:
    """Tidewheel's execute and pipeline, then each peer: enqueue and process."""
    python = python_environment(options)
    jobs = options.jobs or JOBS
    own = replace(options, jobs=jobs)
    # As many as come to more than it can do in that time: with a number of jobs their own pace would be measured.
    flow = replace(options, seconds=options.seconds or _PIPELINE_SECONDS)
    figures: dict[str, Figure] = {
        "tidewheel_execute_per_second": execute.measure_executors(server, jobs, own, executors=1),
        "tidewheel_pipeline_per_second": pipeline.measure(server, flow, executors=1).figures["runs_per_second"],
    }
    for peer in PEERS:
        options.report(peer.name)
        enqueued, processed = _measure_peer(server, python, peer, min(jobs, peer.jobs))
        figures[f"{peer.name}_enqueue_per_second"] = rate(enqueued, "jobs/s")
        figures[f"{peer.name}_process_per_second"] = rate(processed, "jobs/s")
        for part in ("execute", "pipeline"):
            share = figures[f"tidewheel_{part}_per_second"].value / processed
            figures[f"tidewheel_{part}_to_{peer.name}"] = rate(share, "times")
    return Round(figures)


def python_environment(options: Options) -> Path:
    """The Python of the peers' own environment, made when it is not there.

    Raises:
        Unusable: It cannot be made; says what pip said.
    """
    wanted = _FOLDER / "requirements.txt"
    folder = user_cache_path("tidewheel") / f"bench-peers-{sha256(wanted.read_bytes()).hexdigest()[:12]}"
    python, made = folder / "bin" / "python", folder / "made"
    if made.exists():
        return python
    options.report("installing the peers, once")
    venv.create(folder, with_pip=True, clear=True)
    command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", str(wanted)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        message = f"the peers cannot be installed: {done.stdout.strip()[-500:]}"
        raise Unusable(message)
    made.touch()
    return python


def _measure_peer(server: Server, python: Path, peer: Peer, jobs: int) -> tuple[float, float]:
    """Jobs/s enqueued, and processed, in a database of its own."""
    with server.database(f"peer_{uuid4().hex[:8]}") as url:
        enqueued = _run(python, peer, "enqueue", url, jobs)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        processed = _run(python, peer, "process", url, jobs)
    if processed["handled"] != jobs:
        message = f"{peer.name} was given {jobs:,} jobs and has handled {processed['handled']:,}"
        raise Incomplete(message)
    return enqueued["timed"] / enqueued["seconds"], processed["timed"] / processed["seconds"]


def _run(python: Path, peer: Peer, what: str, url: str, jobs: int) -> _Measured:
    command = [str(python), str(peer.program), what, str(jobs)]
    place = conninfo_to_dict(url)
    named = {variable: str(place[part]) for variable, part in _VARIABLES.items() if place.get(part)}
    done = subprocess.run(
        command, env=os.environ | named, capture_output=True, text=True, timeout=_GIVE_UP_SECONDS, check=False
    )
    if done.returncode != 0:
        message = f"{peer.name} has failed to {what}: {done.stderr.strip()[-500:]}"
        raise RuntimeError(message)
    return cast("_Measured", json.loads(done.stdout.splitlines()[-1]))
