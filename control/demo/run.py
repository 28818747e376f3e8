"""`tidewheel demo` from first line to last: the place, the play, the reckoning, the summary."""

import shutil
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from tidewheel.clock import monotonic_seconds
from tidewheel.control.demo.checks import Check, check_all, figures_of
from tidewheel.control.demo.display import Screen, print_summary
from tidewheel.control.demo.environment import Place, make_place
from tidewheel.control.demo.observations import History
from tidewheel.control.demo.requests import examples_folder, read_expected, read_requests
from tidewheel.control.demo.scenario import Play

_ASKED_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_demo(*, keep: bool) -> bool:
    """Run the demo and print its summary; nothing is left running, unless the stack is to be kept.

    Args:
        keep: Leave the stack up, with the demo's data in it.

    Returns:
        Whether every figure adds up.

    Raises:
        KeyboardInterrupt: It was asked to end; everything has been cleaned up.
        TidewheelError: It could not be run to its end.
    """
    began = monotonic_seconds()
    with _interruptible(), Screen() as screen, make_place(keep=keep, progress=screen.step) as place:
        screen.note(f"stack: {place.said}")
        history, checks = _played(place, screen)
    print_summary(screen, history, figures_of(history), checks)
    _say_next(screen, place)
    screen.say(f"\ntook {monotonic_seconds() - began:.0f} s")
    return all(check.holds for check in checks)


def _played(place: Place, screen: Screen) -> tuple[History, list[Check]]:
    """Play, and keep the services' logs if something went wrong."""
    folder = examples_folder()
    screen.note(f"requests: {folder / 'requests.jsonl'}")
    try:
        history = Play(place, screen, read_requests(folder), read_expected(folder)).run()
        checks = check_all(history)
    except Exception:
        _keep_logs(place, screen)
        raise
    if not all(check.holds for check in checks):
        _keep_logs(place, screen)
    return history, checks


def _keep_logs(place: Place, screen: Screen) -> None:
    kept = Path(mkdtemp(prefix="tidewheel-demo-logs-"))
    shutil.copytree(place.logs, kept, dirs_exist_ok=True)
    screen.note(f"the services' logs are kept in {kept}")


@contextmanager
def _interruptible() -> Generator[None]:
    """Let each way of being asked to end clean up once; asking again does not cut that short."""

    def interrupt(number: int, frame: object) -> None:
        del number, frame
        for one in _ASKED_TO_END:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {one: signal.signal(one, interrupt) for one in _ASKED_TO_END}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _say_next(screen: Screen, place: Place) -> None:
    for line in ["", "where to look next", *_stack_lines(place), *_NEXT, f"  {examples_folder() / 'README.md'}"]:
        screen.say(line)


_NEXT = (
    "  tidewheel --help                  every command; `intake`, `scheduler`, `relay` and `executor` are the services",
    "  README.md                         how the pieces fit, and a request in five lines of any Kafka client",
    "  tidewheel.requests                the topic to ask on; answers come on tidewheel.replies, ends on",
    "                                    tidewheel.completions, what was given up on tidewheel.dead-letters",
    "  the requests of this demo, line by line:",
)


def _stack_lines(place: Place) -> list[str]:
    if place.kept:
        return [
            f"  export TIDEWHEEL_HOME={place.kept}",
            "                                    the stack is still up, with all of this in it; the services are not",
            "  tidewheel status                  where PostgreSQL and Kafka listen",
            f"  tidewheel down --erase            stop it and remove its data; then rm -r {place.kept}",
        ]
    if place.is_guest:
        return ["  tidewheel status                  your stack runs on; the demo's database and topics are gone"]
    return [
        "  tidewheel demo --keep             the same, and its stack stays up to be looked at",
        "  tidewheel up                      a stack of your own",
    ]
