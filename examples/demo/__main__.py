"""Run the whole pipeline on real input, in about a minute: `python -m examples.demo`.

`--keep` leaves the stack up, with the demo's data.

Exit codes: 0 if every check passed, 1 if one did not or the demo cannot run, 130 if interrupted.
"""

import os
import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp

from examples.demo.checks import check_all
from examples.demo.display import Screen, print_summary
from examples.demo.scenario import run_scenario
from tidewheel.control.supervise.local_stack import start_stack
from tidewheel.errors import TidewheelError
from tidewheel.local.stack import LocalStack

_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INTERRUPTED = 130  # as in shells: 128 + SIGINT
_OF_THE_MACHINE = {"TIDEWHEEL_CACHE_DIR", "TIDEWHEEL_MAVEN_REPOSITORY"}
_NEXT = """
next steps
  python -m examples.demo --keep    the same, and the stack stays up for inspection
  tidewheel dev                     a stack of your own with all services: README.md, docs/quickstart.md
  examples/demo/README.md           the requests of this demo, line by line"""
_NEXT_OF_KEPT = """
the stack is still up with the demo's data; the services are stopped
  export TIDEWHEEL_HOME={home}
  tidewheel run list                its runs; `tidewheel admin audit --from 1h` judges them again
  tidewheel down --erase            stop it and remove its data; then rm -r {home}"""


def main(*, keep: bool) -> int:
    """Run the demo on a stack of its own, and return the exit code. Only a kept stack is left running."""
    for name in [name for name in os.environ if name.startswith("TIDEWHEEL_") and name not in _OF_THE_MACHINE]:
        del os.environ[name]  # the demo's services have its own settings, so that figures are comparable
    for number in _END_SIGNALS:
        signal.signal(number, _interrupt)
    try:
        return 0 if _run(keep=keep) else 1
    except KeyboardInterrupt:
        print("interrupted: everything the demo had started is stopped", file=sys.stderr)
        return _INTERRUPTED
    except TidewheelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _interrupt(number: int, frame: object) -> None:
    """Clean up once on the first signal, and ignore any further signal."""
    del number, frame
    for one in _END_SIGNALS:
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt


def _run(*, keep: bool) -> bool:
    home, screen = Path(mkdtemp(prefix="tidewheel-demo-")), Screen()
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, home, ignore_errors=True)
        stack = LocalStack(home, brokers=1)
        undo.callback(stack.down, erase=True, progress=screen.step)
        info = start_stack(stack, screen.step)
        logs = Path(mkdtemp(prefix="tidewheel-demo-logs-"))
        screen.note(f"a PostgreSQL and a Kafka of the demo's own in {home}; logs of the services in {logs}")
        history, audit = run_scenario(info, logs, screen)
        if keep:
            undo.pop_all()
    checks = check_all(history)
    print_summary(screen, history, audit, checks)
    screen.print(_NEXT_OF_KEPT.format(home=home) if keep else _NEXT)
    passed = not any(check.faults for check in checks)
    if passed:
        shutil.rmtree(logs)
    return passed


if __name__ == "__main__":
    sys.exit(main(keep="--keep" in sys.argv[1:]))
