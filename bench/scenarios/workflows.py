"""`workflows`: seconds of a chain of 1,000 jobs, and of a fan-out to nearly 10,000 and back in."""

import json
import subprocess
import sys
import threading
from collections.abc import Sequence

import psutil

from tidewheel.bench.complete import until
from tidewheel.bench.environment import Environment
from tidewheel.bench.measurement import Incomplete
from tidewheel.bench.scenarios.pipeline import all_services
from tidewheel.postgres.session import Conn

CHAIN = 1000
COLLECTORS = 10  # a job has at most 1,000 parents
MIDDLE = 9980  # with the root, the collectors and the end just below 10,000, the most jobs of a workflow
_ENDED = "SELECT count(*) FROM workflows WHERE state = 'succeeded'"
_SECONDS = """
SELECT extract(epoch FROM w.finished_at - r.started_at)::float8
  FROM workflows AS w
  JOIN finished_runs AS r ON r.run_id = w.root_run_id
  JOIN jobs AS j ON j.job_id = w.root_job_id
 WHERE j.key = %s
"""
# All runs that one drain writes have its clock as their creation.
_MOST = """
SELECT max(d.runs) FROM (SELECT count(*) AS runs FROM finished_runs WHERE cause = 'workflow' GROUP BY created_at) AS d
"""
_MEBIBYTE = 1 << 20


def measure(environment: Environment) -> dict[str, float]:
    """Run each graph once; the largest drain, and the largest memory of the scheduler."""
    chain = [_job("c0", [])] + [_job(f"c{number}", [f"c{number - 1}"]) for number in range(1, CHAIN)]
    middle = [f"m{number}" for number in range(MIDDLE)]
    shares = [middle[number::COLLECTORS] for number in range(COLLECTORS)]
    collectors = [_job(f"k{number}", share) for number, share in enumerate(shares)]
    end = _job("end", [f"k{number}" for number in range(COLLECTORS)])
    fan = [_job("m", []), *(_job(key, ["m"]) for key in middle), *collectors, end]
    with environment.connect(autocommit=True) as connection, all_services(environment) as processes:
        [scheduler] = processes["scheduler"]
        with _Peak(scheduler) as peak:
            _load(environment, [*chain, *fan])
            for ended, root in enumerate(("c0", "m"), start=1):
                run_command(environment, "job", "trigger", root)
                until(lambda ended=ended: _value(connection, _ENDED) >= ended, f"occurrence of {root}")  # type: ignore[misc]
        chain_seconds, fan_seconds = (_value(connection, _SECONDS, root) for root in ("c0", "m"))
        runs, expected = _value(connection, "SELECT count(*) FROM finished_runs"), len(chain) + len(fan)
        if runs != expected:
            message = f"{runs:.0f} runs have ended, not {expected}"
            raise Incomplete(message)
        most = _value(connection, _MOST)
    return {
        "chain_seconds": chain_seconds,
        "hop_ms": chain_seconds * 1000 / CHAIN,
        "fan_out_and_in_seconds": fan_seconds,
        "children_of_a_drain_most": most,
        "scheduler_peak_mebibytes": peak.bytes / _MEBIBYTE,
    }


def _job(key: str, parents: Sequence[str]) -> dict[str, object]:
    return {"key": key, "target": "noop", "schedule": {"after": list(parents)} if parents else "manual"}


def _load(environment: Environment, jobs: Sequence[dict[str, object]]) -> None:
    file = environment.home / "graphs.json"
    file.write_text(json.dumps(jobs))
    run_command(environment, "apply", "-f", str(file))


def run_command(environment: Environment, *arguments: str) -> None:
    """Run a command of the command line.

    Raises:
        Incomplete: It failed.
    """
    program = [sys.executable, "-m", "tidewheel.control.cli", *arguments]
    done = subprocess.run(program, env=environment.variables, capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"{arguments[0]} ended with {done.returncode}: {(done.stderr or done.stdout)[-500:]}"
        raise Incomplete(message)


def _value(connection: Conn, query: str, *values: str) -> float:
    row = connection.execute(query.encode(), values).fetchone()
    assert row is not None
    return float(str(row[0]))


class _Peak:
    """The largest resident memory of a process while this is open."""

    def __init__(self, process: psutil.Process) -> None:
        self.bytes = 0
        self._process, self._over = process, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "_Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            self.bytes = max(self.bytes, self._process.memory_info().rss)
