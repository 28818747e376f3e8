"""`bulk`: jobs/s that `tidewheel apply --bulk` makes of a file, beside a COPY of the same rows."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tidewheel.bench.environment import Environment, Server
from tidewheel.bench.load import PAYLOAD
from tidewheel.bench.measurement import Incomplete, Options, Round, rate
from tidewheel.bench.scenarios.submit import check_jobs, copy_floor
from tidewheel.clock import monotonic_seconds

JOBS = 10_000_000


def measure(server: Server, options: Options) -> Round:
    """Load a file of jobs into an empty database, by the command as users run it."""
    jobs = options.jobs or JOBS
    with server.environment() as environment, environment.connect() as connection:
        file = environment.home / "jobs.jsonl"
        options.report(f"writing a file of {jobs:,} jobs")
        _write(file, jobs)
        options.report(f"loading {jobs:,} jobs")
        with environment.meter({}) as meter:
            before, cpu, began = meter.mark(), _cpu_of_children(), monotonic_seconds()
            _load(environment, file)
            seconds, spent = monotonic_seconds() - began, meter.since(before, jobs)
            spent = replace(spent, cpu_seconds={**spent.cpu_seconds, "apply": _cpu_of_children() - cpu})
        file.unlink()
        check_jobs(connection, jobs)
        options.report("the floor")
        floor = copy_floor(connection, jobs)
    return Round({"jobs_per_second": rate(jobs / seconds, "jobs/s", floor=floor, spent=spent)})


def _write(file: Path, jobs: int) -> None:
    """Jobs of the day's 1,440 minutes, with a payload of about 200 bytes."""
    beginnings = [
        json.dumps({"schedule": {"cron": f"{minute % 60} {minute // 60} * * *"}, "target": "noop", "payload": PAYLOAD})
        for minute in range(1440)
    ]
    with file.open("w") as out:
        out.writelines(f'{{"key": "bulk-{n:08d}", {beginnings[n % 1440][1:]}\n' for n in range(jobs))


def _load(environment: Environment, file: Path) -> None:
    program = [sys.executable, "-m", "tidewheel.control.cli", "apply", "--bulk", str(file)]
    done = subprocess.run(program, env=environment.variables, capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"apply --bulk ended with {done.returncode}: {(done.stderr or done.stdout)[-500:]}"
        raise Incomplete(message)


def _cpu_of_children() -> float:
    """CPU seconds of the processes that have ended, and of theirs."""
    times = os.times()
    return times.children_user + times.children_system
