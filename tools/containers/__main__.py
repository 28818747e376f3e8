"""Build images, run the trial, and print its table: `python -m tools.containers`.

Exit codes: 0 if nothing was lost or completed twice, 1 if a trigger was or the trial cannot run, 130 if interrupted.
"""

import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import gettempdir, mkdtemp

import httpx
import psycopg
from confluent_kafka import KafkaException

from tidewheel.errors import StackError, TidewheelError
from tools.containers.engine import PACKAGES, Engine, check_machine
from tools.containers.images import build_before, build_images, build_prometheus, check_before, compose_program
from tools.containers.site import Row, Site
from tools.containers.trial import PORTS, compose_site, deployed_site, run_compose, run_deployed
from tools.containers.upgrade import run_upgrade

_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INTERRUPTED = 130  # as in shells: 128 + SIGINT
_LOGS = Path(gettempdir()) / "tidewheel-containers.log"


def guarded(trial: Callable[[], int]) -> int:
    """Run a trial, and return its exit code; on a signal or an error it ends what it has started."""
    for number in _END_SIGNALS:
        signal.signal(number, _interrupt)
    try:
        return trial()
    except KeyboardInterrupt:
        print("interrupted: all that was started is stopped", file=sys.stderr)
        return _INTERRUPTED
    except (TidewheelError, KafkaException, psycopg.Error, httpx.HTTPError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _interrupt(number: int, frame: object) -> None:
    """Clean up once on the first signal, and ignore any further signal."""
    del number, frame
    for one in _END_SIGNALS:
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt


def run_it() -> int:
    """Run the trials of the Compose files, and return the exit code."""
    check_machine("make containers", PACKAGES, PORTS)
    check_before()
    compose = compose_program()
    faults: list[str] = []
    with ExitStack() as undo:
        folder = Path(mkdtemp(prefix="tidewheel-containers-"))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        engine = undo.enter_context(Engine(folder))
        build_images(engine)
        build_prometheus(engine)
        tree = folder / "before"
        work = build_before(engine, tree)
        faults += _try(run_compose, compose_site(engine, compose, folder / "compose"))
        faults += _try(run_deployed, deployed_site(engine, compose, folder / "deployed"))
        faults += _try(partial(run_upgrade, tree, work), compose_site(engine, compose, folder / "upgrade"))
    return report(faults, "passed: no trigger was lost, no run was completed twice")


def _try(trial: Callable[[Site], list[str]], site: Site) -> list[str]:
    try:
        faults = trial(site)
    except BaseException:
        _keep_logs(site)
        raise
    else:
        if faults:
            _keep_logs(site)
    finally:
        site.stop()
    _print_table(site.rows)
    return faults


def report(faults: Sequence[str], passed: str) -> int:
    """Print the verdict, and return the exit code."""
    for fault in faults[:20]:
        print(fault)
    print(f"failed: {len(faults)} faults" if faults else passed)
    return int(bool(faults))


def _keep_logs(site: Site) -> None:
    try:
        _LOGS.write_text(f"{site.logs()}\n== the Docker engine\n{site.engine.log()}")
    except StackError as error:
        print(f"no logs: {error}", file=sys.stderr)
    else:
        print(f"the logs of the containers and of the engine: {_LOGS}", file=sys.stderr)


def _print_table(rows: dict[str, Row]) -> None:
    print(f"\n{'container':<12}{'memory':>12}{'healthy after':>16}{'killed, healthy again after':>30}")
    for name, row in rows.items():
        back = f"{row.back_seconds:.0f} s" if row.back_seconds else ""
        print(f"{name:<12}{row.memory:>12}{row.healthy_seconds:>14.0f} s{back:>30}")
    print()


if __name__ == "__main__":
    sys.exit(guarded(run_it))
