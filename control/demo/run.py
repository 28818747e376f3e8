"""Run `tidewheel demo`: environment, scenario, checks, summary."""

import shutil
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from tidewheel.clock import monotonic_seconds
from tidewheel.control.demo.checks import Check, check_all, figures_of
from tidewheel.control.demo.display import Screen, print_summary
from tidewheel.control.demo.environment import Environment, open_environment
from tidewheel.control.demo.observations import History
from tidewheel.control.demo.requests import examples_folder, read_expected, read_requests
from tidewheel.control.demo.scenario import Scenario

_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_demo(*, keep: bool) -> bool:
    """Run the demo and print its summary. Only a kept stack is left running.

    Args:
        keep: Leave the stack up, with the demo's data in it.

    Returns:
        True if every check passed.

    Raises:
        KeyboardInterrupt: A signal ended it, and everything has been cleaned up.
        TidewheelError: It failed before its end.
    """
    began = monotonic_seconds()
    with _interruptible(), Screen() as screen, open_environment(keep=keep, progress=screen.step) as environment:
        screen.note(f"stack: {environment.description}")
        history, checks = _run_scenario(environment, screen)
    print_summary(screen, history, figures_of(history), checks)
    _print_next_steps(screen, environment)
    screen.print_line(f"\ntook {monotonic_seconds() - began:.0f} s")
    return all(check.holds for check in checks)


def _run_scenario(environment: Environment, screen: Screen) -> tuple[History, list[Check]]:
    """Run the scenario and the checks, and keep the services' logs after a failure."""
    folder = examples_folder()
    screen.note(f"requests: {folder / 'requests.jsonl'}")
    try:
        history = Scenario(environment, screen, read_requests(folder), read_expected(folder)).run()
        checks = check_all(history)
    except Exception:
        _keep_logs(environment, screen)
        raise
    if not all(check.holds for check in checks):
        _keep_logs(environment, screen)
    return history, checks


def _keep_logs(environment: Environment, screen: Screen) -> None:
    kept = Path(mkdtemp(prefix="tidewheel-demo-logs-"))
    shutil.copytree(environment.logs, kept, dirs_exist_ok=True)
    screen.note(f"the services' logs are kept in {kept}")


@contextmanager
def _interruptible() -> Generator[None]:
    """Clean up once on the first signal, and ignore any further signal."""

    def interrupt(number: int, frame: object) -> None:
        del number, frame
        for one in _END_SIGNALS:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {one: signal.signal(one, interrupt) for one in _END_SIGNALS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _print_next_steps(screen: Screen, environment: Environment) -> None:
    for line in ["", "next steps", *_stack_lines(environment), *_NEXT, f"  {examples_folder() / 'README.md'}"]:
        screen.print_line(line)


_NEXT = (
    "  tidewheel --help                  every command; `intake`, `scheduler`, `relay` and `executor` are the services",
    "  README.md, docs/quickstart.md     how the pieces fit; a request in five lines of any Kafka client",
    "  tidewheel.requests                the topic of requests; replies are on tidewheel.replies, ends on",
    "                                    tidewheel.completions, failed runs on tidewheel.dead-letters",
    "  the requests of this demo, line by line:",
)


def _stack_lines(environment: Environment) -> list[str]:
    if environment.kept:
        return [
            f"  export TIDEWHEEL_HOME={environment.kept}",
            "                                    the stack is still up with the demo's data; the services are stopped",
            "  tidewheel status                  where PostgreSQL and Kafka listen",
            f"  tidewheel down --erase            stop it and remove its data; then rm -r {environment.kept}",
        ]
    if environment.is_guest:
        return ["  tidewheel status                  your stack runs on; the demo's database and topics are gone"]
    return [
        "  tidewheel demo --keep             the same, and the stack stays up for inspection",
        "  tidewheel dev                     a stack of your own with all services: README.md",
    ]
